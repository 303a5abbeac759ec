"""What each target begins from: bytes that it accepts, made by the code that writes them."""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import asdict, fields, replace
from pathlib import Path

import cbor2
import numpy as np
import torch
from support.chip_logs import LogBuilder, make_device
from support.endorsed_images import KEYS, LOG, entry
from support.ordered import ORDER, accepted
from support.outcomes import PROVER, TERMS, VERIFIER, outcome, start
from support.sealed_disputes import COURT
from support.sealed_orders import sealed_order
from support.untrained_transcripts import write_whole

from verifier.auditing import statements
from verifier.auditing.claims import Claim, opened_to_json
from verifier.auditing.plan import Plan, Source
from verifier.draw.log_entries import Opening as Drawn
from verifier.model.agreed_population import AgreedPopulation
from verifier.model.site_machines import SiteMachines
from weighbridge.attest import tiles
from weighbridge.attest.dsse import canonical
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_agreement import Side
from weighbridge.attest.outcome_record import encode as encode_outcome
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.attest.sealed_list import SealedFile, SealedList
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_part import PartBox, PartResults, SealedParts
from weighbridge.attest.sealed_report import SealedReport
from weighbridge.attest.sealed_ruling import SealedDispute, SealedRuling
from weighbridge.attest.sealed_starts import Start
from weighbridge.attest.worker_openings import Box
from weighbridge.attest.worker_openings import encode as encode_boxes
from weighbridge.core.bounded import compress, decode_cbor
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.memory_map import Held
from weighbridge.execution.collective_openings import Opening as Opened
from weighbridge.execution.collective_openings import Piece, Target, encode, encode_targets
from weighbridge.execution.dispute.leaves import Counters, Leaf
from weighbridge.execution.dispute.memory_claim import KeyedLeaf
from weighbridge.execution.dispute.memory_claim import Source as Claimed
from weighbridge.execution.dispute.memory_messages import Doubt, Equality, Granted, Layer
from weighbridge.execution.dispute.messages import (
    START,
    Answer,
    Challenge,
    Course,
    Message,
    Parts,
    Range,
    Ruling,
    Shown,
    body_of,
    pack,
)
from weighbridge.execution.dispute.messages import signed as signed_message
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.openings import Contents, Opening
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.job_record import JobRecord
from weighbridge.transcript.layout import Shard
from weighbridge.transcript.layout import encode as encode_layout
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.record_opening import encode as encode_record
from weighbridge.transcript.resumption_notes import Resumption
from weighbridge.transcript.resumption_notes import encode as encode_resumptions
from weighbridge.transcript.state import state_digest
from weighbridge.transcript.supplements import Statement
from weighbridge.transcript.supplements import encode as encode_supplement
from weighbridge.transcript.tape import Input, Node, Tape
from weighbridge.transcript.training_claims import Backward, Claims, Gradient, Group, Parameter, Step
from weighbridge.transcript.training_claims import encode as encode_claims

CLAIMS = Claims(
    (Backward(3, 9, (4,), (None,), (Gradient(0, None, 5),)),),
    (Step(9, 12, "AdamW", (Group({"lr": 0.1, "betas": (0.9, 0.99)}, (Parameter(0, 5, {"step": 6}, True),)),)),),
    ((1, 0), (2, -1)),
)


def example_tape() -> Tape:
    """The example of docs/formats/tape.md, with a draw and a free storage."""
    ref = (0, "f32", (4,), (1,), 0)
    return Tape(
        inputs=[Input(0, 16, "batch", "x"), Input(1, 16, "state", "model.weight")],
        refs=[ref, (1, *ref[1:]), (2, *ref[1:])],
        nodes=[
            Node("mul.Tensor", (("t", 0), ("t", 1)), {}, (2,), ((2, 16),), None, 0),
            Node("mul_.Tensor", (("t", 1), ("v", 0)), {}, (1,)),
        ],
        survivors=[(2, "~0/2")], batch_views=[("x", ref)], values=1, hosts=0, paths=["model"],
    )  # fmt: skip


def _supplements() -> list[bytes]:
    """A supplement, and a statement alone."""
    log, some = rounding_log.encode([]), "ab" * 32
    said = Statement(
        draft=some, step=3, before=some, state=some, outputs=some, rounding=bytes_digest(log).hex(), logged=0,
        device="cpu AVX2, 1 threads",
    )  # fmt: skip
    with_tree = replace(said, tree=some)
    plain = {name: value for name, value in asdict(said).items() if name != "tree"}
    return [
        *(encode_supplement(each, log, SigningKey.generate()) for each in (said, with_tree)),
        canonical({"format": 1, **plain}), canonical({"format": 2, **asdict(with_tree)}),
    ]  # fmt: skip


def _disputes() -> list[bytes]:
    key, some = SigningKey.generate(), bytes(32)
    said = [
        Course(terms=b"t", states=some, inputs=some),
        Challenge(terms=b"t", tape=b"p", state=some, step=1, record=b"r", own=True, log=some, leaves=some),
        Answer(record=b"r", log=some, leaves=some * 2),
        Answer(record=b"r", log=some, leaves=some * 2, draft=some, supplements=[b"s"]),
        Parts(leaf=b"l", parts=some),
        Shown(opening=b"o"),
        Course(terms=b"t", states=some * 2, inputs=some * 2, count=1025),
        Range(before=some * 2, states=some, inputs=some),
        Equality(token=b"t", salt=some, leaf=b"l", source=b"s", keyed=some, plain=some),
        Doubt(node=0, chunk=b"c"),
        Layer(keyed=some, plain=some),
        Granted(),
        Ruling(leaf=1, claims=[(1, "false", "c", "r")], seconds=(0.5, 1.0), clock=2.0, sent=(3, 4), judged=0.25),
    ]
    messages: list[Message] = []
    for content in said:
        messages.append(signed_message(messages[-1].head if messages else START, content, key))
    leaf = Leaf(
        index=1, node=["enter"], values=[1, 0.5, True], host=[], results=[(some, 7)], before=Counters(),
        after=Counters(rng={0: 3}, flops=9), memory=some, left=some,
    ).to_cbor()  # fmt: skip
    opening = Opening(
        log=b"l", first=leaf, previous=leaf, slots=[(0, b"x", Held(1, some), [some])], memory={3: Held(5, some)},
        state=Contents({"w": Held(4, some)}, {"0": 2}), batch={"x": torch.zeros(2)}, undeclared={"y": torch.tensor(1)},
    )  # fmt: skip
    bodies = [decode_cbor(each.data)[1] for each in messages]
    notice = Notice(referee=some, defender=some, challenge=some).signed(key)
    return [
        b"\x00" + messages[0].data, b"\x01" + pack(messages), b"\x02" + notice, b"\x03" + leaf,
        b"\x04" + opening.to_cbor(), b"\x06" + cbor([0.5, 2.0]),
        *(b"\x05" + body for body in bodies),
        b"\x07" + KeyedLeaf.among([(1, some), (2, some), (3, some)], 1).to_cbor(),
        *(b"\x08" + each.to_cbor() for each in (Claimed(kind="bytes", digest=some, size=3), _state())),
    ]  # fmt: skip


def _state() -> Claimed:
    """A region of a state, which is shown."""
    regions, counters = {"a": Held(3, bytes(32)), "b": Held(0, bytes(32))}, {"0": 7}
    digest = state_digest({name: (each.size, each.content) for name, each in regions.items()}, counters)
    return Claimed(kind="state", digest=digest, step=2, region="a", regions=regions, rng=counters)


def _outcomes() -> list[bytes]:
    begun, (mine, theirs) = start(), (Side(TERMS, "prover", PROVER), Side(TERMS, "verifier", VERIFIER))
    mine.take(theirs.commit())
    part = SealedReport({"plan": {}, "chips": [1, 2]}, bytes(32)).open("chips/1")
    messages = (TERMS, theirs.commit(), mine.open(), mine, begun.agreement, part)
    return [
        *(bytes([kind]) + each.to_cbor() for kind, each in enumerate(messages)),
        b"\x06" + encode_outcome(outcome()),
    ]


def _sealed() -> list[bytes]:
    order = sealed_order()
    files = SealedList(bytes(32), (SealedFile("a/b", 3, bytes(32)), SealedFile("c", 0, bytes(32))))
    launcher = Launcher.issue(CertificateAuthority.create("Maker of launchers"), bytes(17))
    names = {name: getattr(order, name).hex() for name in ("verifier_nonce", "prover_nonce", "measurement")}
    begun = Start(index=0, time=1, order=order.digest.hex(), previous="00" * 32, **names)
    attested = launcher.quote(
        order, begun, measurement=order.measurement, worker=bytes(32), signer=bytes(32),
        isolation=["x"],
    )  # fmt: skip
    none = Order(
        verifier_nonce=bytes(32), prover_nonce=bytes(32), commitment=bytes(32), prover=bytes(32), aggregator=bytes(32),
        measurement=bytes(48),
    )  # fmt: skip
    population = AgreedPopulation.of([(bytes(17), b""), (b"\x01" * 17, bytes(32))]).text
    claims = cbor([none.digest, bytes(32), bytes(32), 0, bytes(32), ["x"]])
    boxes = encode_boxes([Box(bytes(17), "token", 3, b"box"), Box(bytes(17), "snapshot", 3, b"")])
    machines = SiteMachines.of([(bytes(17), bytes(32)), (b"\x01" * 17, b"\x01" * 32)]).text
    policy = f'log = "{LOG.key}"\nkeys = ["{KEYS[0].hex()}"]\nthreshold = 1\n'.encode()
    parts = SealedParts.of(b"root", [PartBox(1, b"attestation", b"box"), PartBox(2, b"", b"")]).to_cbor()
    results = PartResults(memory=1, seconds=1, replays={bytes(32): b"found", b"\x01" * 32: b""}).to_bytes()
    made = (
        order.to_cbor(), files.to_cbor(), attested, claims, population, boxes, entry().to_cbor(), machines, policy,
        b"", parts, results.rstrip(b"\x00"),
    )  # fmt: skip
    return [bytes([kind]) + each for kind, each in enumerate(made)]


def _sealed_disputes() -> list[bytes]:
    files = [SealedList(bytes([party]) * 32, (SealedFile("claim", 1, bytes(32)),)) for party in (0, 1)]
    seats = [COURT.seat(party, files[party]) for party in (0, 1)]
    admission = COURT.admission(*seats)
    ruling = SealedRuling(order=admission.order().digest, status="complete", defender="forfeit")
    file = SealedDispute(admission=admission, attestation=b"none", ruling=ruling.to_bytes() + bytes(64))
    claim = Challenge(
        terms=b"", tape=b"", state=bytes(32), step=3, record=b"", own=True, log=bytes(32), leaves=bytes(64)
    )
    return [
        b"\x00" + COURT.terms.to_cbor(), *(b"\x01" + each.to_cbor() for each in seats), b"\x02" + ruling.to_bytes(),
        b"\x03" + file.to_cbor(), b"\x04" + COURT.subject, b"\x05" + body_of(claim),
    ]  # fmt: skip


def _audits() -> list[bytes]:
    key, digest = SigningKey.generate(), "5f" * 32
    source = Source(name="run", sha256=digest, digest=digest, edges=(0, 2, 4))
    plan = Plan(
        sources=(source,), auditors=(("alice", digest),), copies=1, drawn=1, referee=0, beacon=digest, rounds=(1, 2, 3),
        planted=digest,
    )  # fmt: skip
    signed = statements.sign("plan", plan.subjects(), plan.to_json(), key)
    claims = opened_to_json({0: (digest, Claim(verdict="match", step=2, op=0, work=digest))})
    payload = base64.b64decode(json.loads(signed)["payload"])
    bodies = (plan.to_json(), {"salt": digest, "steps": {digest: 1}}, claims)
    return [
        b"\x00" + signed, b"\x01" + payload,
        *(bytes([kind]) + canonical(each) for kind, each in enumerate(bodies, 2)), b"\x05" + canonical([[0, digest]]),
    ]  # fmt: skip


def seeds() -> dict[str, list[bytes]]:
    """Target to some bytes each."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_whole(run)
        chip = LogBuilder(make_device(Path(folder) / "chip", CertificateAuthority.create("Maker"))).boot()
        token, chip.hiding = chip.entries[0], True
        hidden = chip.openings[chip.event("x", digest=bytes(32))]
        transcript = Transcript.open(run)
        files = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        record = transcript.step(1).to_cbor()
    statement = base64.b64decode(json.loads(files["manifest.json"])["payload"])
    one, tape = np.ones(1, dtype=np.int64), example_tape().encode()
    log = rounding_log.encode([rounding_log.OpEntries(0, 0, one, one.astype(np.uint8), one.astype(np.uint64))])
    piece, target = Piece(b"data", (bytes(32),)), Target(1, 2, 0, 3)
    signed = b"\xe2\x80\x94 example.org/log " + base64.b64encode(bytes(76)) + b"\n"
    note = b"example.org/log\n5\n" + base64.b64encode(bytes(32)) + b"\n\n" + signed
    opening = Drawn(**{each.name: bytes(32) for each in fields(Drawn)})
    rule = {"id": "size", "holds": "runs.all(r, r.steps > 3)", "title": "t"}
    return {
        "plain_cbor": [cbor({"a": [1, -2, 0.5, None, True, b"x", "y"], "b": {}}), cbor([[], [2**40]])],
        "compressed": [compress(record), compress(tape), compress(bytes(300))],
        "tape": [tape],
        "step_record": [record, *(files[name] for name in files if name.startswith("steps/"))],
        "rounding": [log, rounding_log.encode([]), *(files[name] for name in files if name.startswith("rounding/"))],
        "tensors": [files[name] for name in files if name.endswith(".safetensors")],
        "supplement": _supplements(),
        "signed_manifest": [files["manifest.json"], statement],
        "notes": [
            b"\x00" + ChipNotes(("w",), ((b"ueid", 1, 2, 3),)).encode(),
            b"\x01" + encode_resumptions([Resumption(4, 2, ((b"ueid", 9, 3, 1),))]),
            b"\x04" + encode_claims({bytes(32): CLAIMS}),
            b"\x03" + JobRecord(bytes(16), (("data", 2),)).encode(),
            b"\x02" + encode_layout([Shard("w", "f32", (4, 2), (0, 0), (2, 2))]),
        ],
        "opened_record": [encode_record({"x": torch.zeros(3), "y": torch.tensor(1)})],
        "openings": [b"\x00" + encode_targets([target]), b"\x01" + encode([Opened(target, piece, (piece, piece))])],
        "token": [token, b"\x01" + hidden, b"\x00" + cbor({10: bytes(16), 265: b"\x01" + bytes(32)}),
                  cbor(cbor2.CBORTag(61, cbor2.CBORTag(18, [b"", {33: [b""]}, b"", b""])))],
        "log_note": [b"\x00" + note, b"\x01c2sp.org/tlog-proof@v1\nindex 0\n\n" + note,
                     b"\x02" + tiles.encode_bundle([b"entry", b"", b"x" * 300]),
                     b"\x03example.org/log+00000000+" + base64.b64encode(b"\x01" + bytes(32))],
        "custody": [b"\x00" + cbor(cbor2.CBORTag(18, [b"", {}, b"", b""])),
                    b"\x01" + cbor([5, "party", ["a", ["holder"]]]),
                    b"\x02" + opening.encode()],
        "formula": [b"lr=3e-4 * min(1, t / 100)\nwarm=lr if t < 5 else -lr\nd=drift(sqrt(host + cos(pi)))"],
        "expression": [b"runs.all(r, r.steps > 3 && r.flops < 1e20)", b"size(findings.filter(f, f.id == 'x')) == 0"],
        "rules": [cbor({"format": 1, "id": "x", "version": 1, "title": "t", "rules": [rule]})],
        "passport": [cbor({"format": 1, "programs": [], "modules": {"model": {"weight": ["f32[2]"]}}})],
        "upload": [b"\x00\x00", b"\x00\x03abc\x01\x04data\x02"],
        "report": [json.dumps({"counts": {}, "probability": {}, "ledger": {}}).encode()],
        "answer": [json.dumps({"result": {"verdict": "match", "findings": [], "steps": [0, 1]}}).encode(),
                   json.dumps({"result": {"job": "00", "mesh": {"data": 1}, "ranks": [
                       {"rank": 0, "transcript": "00", "steps": 1, "shards": 0, "collectives": {"x": 1}}]}}).encode(),
                   json.dumps({"error": {"code": "usage", "message": "x"}}).encode()],
        "dispute": _disputes(),
        "outcome": _outcomes(),
        "sealed": _sealed(),
        "sealed_dispute": _sealed_disputes(),
        "audit": _audits(),
        "ordered": [b"\x00" + ORDER.to_cbor(), b"\x01" + accepted().to_cbor(), b"\x02" + ORDER.to_cbor()],
    }  # fmt: skip
