"""What is fuzzed: every decoder and parser of bytes that a Prover, a chip or another Verifier sends.

Each target takes any bytes and keeps these laws, or fails: nothing is raised but `WeighbridgeError`; what is accepted
encodes to the same bytes again, where the format has one encoding. Time and memory are limited by whoever runs it.
`python -m fuzz` looks for bytes that break a law (`make fuzz`); `test_corpus.py` tries those that are known.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from support.ordered import CLIENT
from support.sealed_disputes import COURT

from verifier.auditing import claims, statements
from verifier.auditing.plan import Plan, Planted
from verifier.contact.uploads import Uploads
from verifier.draw.log_entries import parse_entry
from verifier.model import agreed_population, site_machines
from verifier.registry import entries
from verifier.report import consistency
from verifier.report.signing import open_report
from verifier.rules import ruleset, schema
from verifier.rules.expression import check as check_expression
from verifier.store.cache import Cache, FetchLimits
from weighbridge.attest import (
    approved_passport,
    custody_statements,
    manifest,
    outcome_agreement,
    outcome_record,
    sealed_attestation,
    sealed_part,
    signed_outcome,
    tiles,
    tlog,
    tokens,
    training_order,
    worker_openings,
)
from weighbridge.attest.dsse import canonical, seal
from weighbridge.attest.hidden_fields import HiddenFields
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.image_policy import parse_policy
from weighbridge.attest.image_release import Endorsed
from weighbridge.attest.outcome_agreement import Agreement, Committed, Side
from weighbridge.attest.outcome_terms import OutcomeTerms
from weighbridge.attest.sealed_attestation import Launcher, verify_attestation
from weighbridge.attest.sealed_dispute import DisputeTerms, Seat
from weighbridge.attest.sealed_list import SealedList
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_part import PartResults, SealedParts
from weighbridge.attest.sealed_report import Part
from weighbridge.attest.sealed_ruling import SealedDispute, SealedRuling
from weighbridge.attest.sealed_subject import Subject
from weighbridge.attest.training_order import SignedOrder, TrainingOrder
from weighbridge.core.bounded import Limits, compress, decode_cbor, decode_json, decompress, expand_cbor
from weighbridge.core.digests import bytes_digest, cbor, record_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution import collective_openings, job_questions, replay_answer, run_facts
from weighbridge.execution.dispute import messages as dispute_messages
from weighbridge.execution.dispute.case_files import CaseFiles
from weighbridge.execution.dispute.leaves import Leaf
from weighbridge.execution.dispute.memory_claim import KeyedLeaf, Source
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.worker_answers import MALFORMED, shaped
from weighbridge.numerics.rounding import rounding_log
from weighbridge.program import passport as passports
from weighbridge.program import tape_description
from weighbridge.transcript import chip_notes, layout, record_opening, resumption_notes, supplements, training_claims
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.job_record import JobRecord
from weighbridge.transcript.state import read_checkpoint, write_checkpoint
from weighbridge.transcript.steps import StepRecord, read_logs, read_records
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import TensorFile, write_tensors

Target = Callable[[bytes], None]
_KEY = manifest.SigningKey.generate()
_ORDER = Order(
    verifier_nonce=bytes(32), prover_nonce=bytes(32), commitment=bytes(32), prover=bytes(32), aggregator=bytes(32),
    measurement=bytes(48),
)  # fmt: skip
_MAKER = CertificateAuthority.create("Maker of launchers")
_LAUNCHER = Launcher.issue(_MAKER, bytes(17))
_IMAGE_KEY = _LAUNCHER._image_key(_ORDER.measurement)
_CHAIN = [
    each.public_bytes(Encoding.DER)
    for each in (_LAUNCHER._image_certificate(_IMAGE_KEY, _ORDER.measurement), _LAUNCHER._certificate)
]
_SMALL = Limits(records=1 << 22, rounding=1 << 22, tape=1 << 22)


def _same(encoded: bytes, data: bytes) -> None:
    assert encoded == data, "what was accepted encodes to other bytes"


def _on_disk(data: bytes, read: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="weighbridge-fuzz-") as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        return read(path)


def plain_cbor(data: bytes) -> None:
    """Deterministic CBOR, and that of tokens."""
    _same(cbor(decode_cbor(data)), data)
    _same(cbor(tokens.decode_cbor(data, max_bytes=1 << 16)), data)


def compressed(data: bytes) -> None:
    """zstd frames of CBOR."""
    plain = decompress(data, max_bytes=1 << 22)
    _same(expand_cbor(data, max_bytes=1 << 22, max_items=1 << 20), plain)


def tape(data: bytes) -> None:
    """Tapes."""
    decoded = Tape.decode(data)
    decoded.largest_footprint()
    _same(decoded.encode(), data)


def step_record(data: bytes) -> None:
    """Step records, one and as a file."""
    _on_disk(data, lambda path: read_records(path, _SMALL)) if data[:4] == b"\x28\xb5\x2f\xfd" else None
    _same(StepRecord.from_cbor(data).to_cbor(), data)


def rounding(data: bytes) -> None:
    """Rounding logs, and so the range coder; one log and as a file."""
    if data[:4] == b"\x28\xb5\x2f\xfd":
        _on_disk(data, lambda path: read_logs(path, _SMALL))
    _same(rounding_log.encode(rounding_log.decode(data, max_entries=1 << 16)), data)


def tensors(data: bytes) -> None:
    """Tensor files and checkpoints."""

    def read(path: Path) -> None:
        file = TensorFile(path)
        content = {name: file.read(name) for name in file}
        other = path.with_name("other")
        write_tensors(other, content, file.metadata)
        _same(other.read_bytes(), data)
        checkpoint = read_checkpoint(path)
        for view in checkpoint.views:
            view.tensor(checkpoint.storages)
        write_checkpoint(other, checkpoint)
        _same(other.read_bytes(), data)

    _on_disk(data, read)


def signed_manifest(data: bytes) -> None:
    """Manifests: the envelope, and a statement that is signed whatever it says."""
    if not data.startswith(b'{"payload"'):
        signature = {
            "keyid": _KEY.keyid,
            "publicKey": base64.b64encode(_KEY.public).decode(),
            "sig": base64.b64encode(_KEY.sign(manifest._pre_authentication(data))).decode(),
        }
        envelope = {
            "payload": base64.b64encode(data).decode(), "payloadType": manifest.PAYLOAD_TYPE, "signatures": [signature],
        }  # fmt: skip
        data = json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode()
    opened = manifest.open_manifest(data)
    assert opened.digest == bytes_digest(data).hex()


def supplement(data: bytes) -> None:
    """Supplements, and statements of some that are signed whatever they say: a log is the one that was signed."""
    if data.startswith(b"{"):
        data = cbor({"log": compress(b"WBRL\x02\x00"), "statement": seal(data, supplements.KIND, [_KEY])})
    read = supplements.decode(data)
    assert bytes_digest(read.log(Limits(rounding=1 << 20))).hex() == read.statement.rounding


def notes(data: bytes) -> None:
    """Small files of a transcript: the first byte says which."""
    kind, rest = data[:1], data[1:]
    match (kind or b"\x00")[0] % 5:
        case 0:
            _same(chip_notes.decode(rest).encode(), rest)
        case 1:
            _same(resumption_notes.encode(resumption_notes.decode(rest)), rest)
        case 2:
            _same(layout.encode(layout.decode(rest)), rest)
        case 4:
            _same(training_claims.encode(training_claims.decode(rest)), rest)
        case _:
            _same(JobRecord.decode(rest).encode(), rest)


def opened_record(data: bytes) -> None:
    """Records of a data set that a Prover opens."""
    record_opening.verify(record_opening.OpenedRecord(record=0, content=data, proof=()), bytes(32), 1)


def openings(data: bytes) -> None:
    """Opened chunks of collectives, and which are wanted."""
    first = data[:1] or b"\x00"
    if first[0] % 2:
        _same(collective_openings.encode(collective_openings.decode(data[1:])), data[1:])
    else:
        _same(collective_openings.encode_targets(collective_openings.decode_targets(data[1:])), data[1:])


def token(data: bytes) -> None:
    """Chips' tokens: the envelope and its claims, and what opens hidden fields."""
    if data[:1] == b"\x00":
        _same(tokens.encode_claims(tokens.decode_claims(data[1:])), data[1:])
    elif data[:1] == b"\x01":
        _same(HiddenFields.from_cbor(data[1:]).to_cbor(), data[1:])
    else:
        tokens.read_own(data)


def log_note(data: bytes) -> None:
    """Signed notes, checkpoints of logs, inclusion proofs and bundles of entries: the first byte says which."""
    kind, rest = data[:1], data[1:]
    match (kind or b"\x00")[0] % 4:
        case 0:
            note = tlog.parse_note(rest)
            _same(note.encode(), rest)
            tlog.parse_checkpoint(note.text)
        case 1:
            _same(tlog.parse_proof(rest).encode(), rest)
        case 2:
            _same(tiles.encode_bundle(tiles.decode_bundle(rest)), rest)
        case _:
            tlog.parse_key(rest.decode("utf-8", "replace"))


def custody(data: bytes) -> None:
    """Custody statements, and entries of the registry's log and of the log of draws."""
    kind, rest = data[:1], data[1:]
    match (kind or b"\x00")[0] % 3:
        case 0:
            custody_statements.read(rest)
        case 1:
            entries.decode(rest)
        case _:
            _same(parse_entry(rest).encode(), rest)


def formula(data: bytes) -> None:
    """The language of formulas: one a line, the name before the first equals sign."""
    lines = data.decode("utf-8", "replace").split("\n")
    formulas = Formulas.parse([line.partition("=")[::2] for line in lines])
    assert Formulas.parse(formulas.to_list()).to_list() == formulas.to_list()
    for name, each in formulas.items.items():
        formulas.evaluate(name, 3, (0.5, 2.0) if each.hosts else ())


def expression(data: bytes) -> None:
    """Expressions of rules."""
    check_expression(data.decode("utf-8", "replace"), schema.FACTS)


def rules(data: bytes) -> None:
    """Rule sets."""
    ruleset.parse(decode_cbor(data))


def passport(data: bytes) -> None:
    """Signed passports: the facts in them."""
    _same(cbor(approved_passport.parse(data)), data)


def upload(data: bytes) -> None:
    """The framing of uploads: commands of one byte with their operands, against a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-fuzz-") as folder:
        uploads = Uploads(Cache(folder, FetchLimits(total=1 << 16, files=8)))
        with uploads.receiving("a" * 64, bytes_digest(data).hex()) as receiving:
            while data:
                command, size, rest = data[0] % 3, data[1:2], data[2:]
                length = size[0] if size else 0
                part, data = rest[:length], rest[length:]
                if command == 0:
                    receiving.begin("manifest.json" if not length else part.decode("latin-1"), length * 7, length % 3)
                elif command == 1:
                    receiving.write(part)
                else:
                    receiving.check_whole()
    assert not Path(folder).exists()


def report(data: bytes) -> None:
    """Reports of other Verifiers: the envelope, and what follows from a report's own inputs."""
    if data.startswith(b'{"payload"'):
        data = json.dumps(open_report(data).report).encode()
    said = decode_json(data)
    if isinstance(said, dict):
        consistency.check(said)


def answer(data: bytes) -> None:
    """Answers of confined workers, which a Prover may have taken over."""
    message = decode_json(data)
    if isinstance(message, dict):
        for read in (replay_answer.parse, run_facts.parse):
            with suppress(WeighbridgeError):
                read(message)
        for shape in (tape_description.SHAPE, job_questions.DESCRIPTION, passports.SHAPE):
            with suppress(*MALFORMED):
                shaped(message.get("result"), shape)


def dispute(data: bytes) -> None:
    """What parties to a dispute send and claim of memory, and a referee's clocks on disk: the first byte says which.

    What stands behind a signature is also tried with one that verifies.
    """
    kind, rest = (data[:1] or b"\x00")[0] % 9, data[1:]
    match kind:
        case 0:
            _same(dispute_messages.read(rest).data, rest)
        case 1:
            _same(dispute_messages.pack(dispute_messages.unpack(rest)), rest)
        case 2:
            _same(Notice.read(rest, _KEY.public).signed(_KEY), rest)
        case 3:
            _same(Leaf.from_cbor(rest).to_cbor(), rest)
        case 4:
            _same(Opening.from_cbor(rest).to_cbor(), rest)
        case 5:
            written = _signed_message(rest)
            content = dispute_messages.read(written).content
            _same(dispute_messages.signed(dispute_messages.START, content, _KEY).data, written)
        case 7:
            _same(KeyedLeaf.from_cbor(rest).to_cbor(), rest)
        case 8:
            _same(Source.from_cbor(rest).to_cbor(), rest)
        case _:
            used = _on_disk(rest, lambda path: CaseFiles(path.rename(path.with_name("clocks")).parent).used())
            assert all(0 <= each < float("inf") for each in used), "a clock that never runs out"


def _signed_message(body: bytes) -> bytes:
    """Returns a message with this body, whatever it is, that the known key signed as its first."""
    head = record_digest("dispute-message/1", [dispute_messages.START, body, _KEY.public])
    signature = _KEY.sign(b"weighbridge/dispute/1\x00" + head)
    return cbor([dispute_messages.START, body, _KEY.public, signature])


def outcome(data: bytes) -> None:
    """What parties agree on before an outcome, its record, and parts of the report behind it: the first byte says."""
    kind, rest = (data[:1] or b"\x00")[0] % 7, data[1:]
    if kind == 6:
        record = outcome_record.decode(rest)
        _same(outcome_record.encode(record), rest)
        with suppress(WeighbridgeError):  # no key of a record is known here
            signed_outcome.open_record(rest + bytes(64))
            raise AssertionError("a signature of zeros verified")
        return
    readers = (OutcomeTerms, Committed, outcome_agreement.Opened, Side, Agreement, Part)
    _same(readers[kind].from_cbor(rest).to_cbor(), rest)


def sealed(data: bytes) -> None:
    """Orders of sealed workers, lists of files, populations, machines, boxes, entries of image logs, policies of
    images, parts and their results, and attestations, also of claims that are signed whatever they say."""
    kind, rest = (data[:1] or b"\x00")[0] % 12, data[1:]
    match kind:
        case 0:
            _same(Order.from_cbor(rest).to_cbor(), rest)
        case 1:
            _same(SealedList.from_cbor(rest).to_cbor(), rest)
        case 2:
            verify_attestation(rest, _ORDER, _MAKER.certificate)
        case 4:
            _same(agreed_population.parse(rest).text, rest)
        case 5:
            _same(worker_openings.encode(worker_openings.decode(rest)), rest)
        case 6:
            _same(Endorsed.from_cbor(rest).to_cbor(), rest)
        case 7:
            _same(site_machines.parse(rest).text, rest)
        case 8:
            assert 0 < parse_policy(rest).threshold <= len(parse_policy(rest).keys)
        case 10:
            _same(SealedParts.from_cbor(rest).to_cbor(), rest)
        case 11:
            filled = rest.ljust(sealed_part.SMALLEST, b"\x00")
            _same(PartResults.from_bytes(filled).to_bytes(), filled)
        case _:
            signature = _IMAGE_KEY.sign(sealed_attestation._DOMAIN + rest)
            verify_attestation(cbor([*_CHAIN, rest, signature]), _ORDER, _MAKER.certificate)


def sealed_dispute(data: bytes) -> None:
    """Terms of sealed disputes, seats for known terms, rulings, files, subjects, claims: the first byte says which."""
    kind, rest = (data[:1] or b"\x00")[0] % 6, data[1:]
    match kind:
        case 0:
            _same(DisputeTerms.from_cbor(rest).to_cbor(), rest)
        case 1:
            _same(Seat.from_cbor(rest, COURT.terms).to_cbor(), rest)
        case 2:
            _same(SealedRuling.from_bytes(rest).to_bytes(), rest)
        case 3:
            found = SealedDispute.from_cbor(rest)
            _same(found.to_cbor(), rest)
            with suppress(WeighbridgeError):
                found.verified(_MAKER.certificate)
                raise AssertionError("a dispute without a worker verified")
        case 4:
            if (subject := Subject.opened(rest, COURT.terms)) is not None:
                _same(subject.to_bytes(), rest)
        case _:
            _same(dispute_messages.body_of(dispute_messages.content_of(rest)), rest)


def audit(data: bytes) -> None:
    """Statements of an audit by many, with signatures that verify, and what is in them: the first byte says which."""
    kind, rest = (data[:1] or b"\x00")[0] % 6, data[1:]
    if kind == 0:
        statements.read(rest, "plan")
        return
    said = decode_json(rest)
    match kind:
        case 1:
            statements.read(seal(rest, manifest.PAYLOAD_TYPE, [_KEY]), "plan")
        case 2 if isinstance(said, dict):
            plan = Plan.from_json(said)
            assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        case 3:
            assert Planted.from_json(said).commitment()
        case 4:
            _same(canonical(claims.opened_to_json(claims.opened_of(said))), canonical(sorted(said)))
        case _:
            claims.commitments_of(said)


def ordered(data: bytes) -> None:
    """Orders of trainings, signed files of them, and such files with the client's signature: the first byte says."""
    kind, rest = (data[:1] or b"\x00")[0] % 3, data[1:]
    if kind == 0:
        _same(TrainingOrder.from_cbor(rest).to_cbor(), rest)
        return
    if kind == 2:  # whatever it says, the client of the known order signed it
        signature = CLIENT.sign(training_order._CLIENT + rest)
        rest = cbor({"order": rest, "ordered": signature, "accepted": b""})
    _same(SignedOrder.from_cbor(rest).to_cbor(), rest)


TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        plain_cbor, compressed, tape, step_record, rounding, tensors, signed_manifest, supplement, notes, opened_record,
        openings, token, log_note, custody, formula, expression, rules, passport, upload, report,
        answer, dispute, outcome, sealed, sealed_dispute, audit, ordered,
    )
}  # fmt: skip


def keeps_the_laws(name: str, data: bytes) -> bool:
    """Gives bytes to a target; returns whether it accepted them, and raises what breaks a law."""
    try:
        TARGETS[name](data)
    except WeighbridgeError:
        return False
    return True
