"""The fields of everything that a chip or a Prover sends, read off the code that writes and parses it.

Nothing here is a list of names that could fall behind: maps are encoded by the code and decoded with a plain decoder,
records are looked at by their fields, and messages by their descriptors. `inventory` is compared with the table of
docs/formats/confidential.md.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import cbor2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from support import outcomes
from support.draft_keys import draft_keys

from firmware_sim import device, service
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.snapshot_report import Report
from protos.weighbridge.v1 import chip_pb2, prover_pb2, referee_pb2, verifier_pb2, witness_pb2
from prover import service as prover_service
from verifier.contact import upload_service, witness_service
from verifier.model.agreed_population import AgreedPopulation
from weighbridge.attest import (
    hidden_fields,
    identity,
    outcome_agreement,
    outcome_record,
    repeats,
    sealed_attestation,
    sealed_dispute,
    sealed_list,
    sealed_order,
    sealed_part,
    sealed_report,
    sealed_ruling,
    sealed_starts,
    tcb,
    tlog,
    tokens,
)
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import Predicate, SigningKey, sign_manifest
from weighbridge.attest.token_claims import BODIES
from weighbridge.core import errors
from weighbridge.core.digests import bytes_digest, region_digest
from weighbridge.core.memory_map import Held
from weighbridge.execution.dispute import leaves, messages, notices, openings, sealed_files
from weighbridge.execution.dispute import service as referee_service
from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.endpoints import to_status
from weighbridge.rpc.guards import InvalidRequestError
from weighbridge.transcript import (
    chip_notes,
    entry_notes,
    layout,
    parentage,
    resumption_notes,
    returned_state,
    state,
    steps,
    supplements,
    tape,
    training_claims,
)
from weighbridge.transcript.data import DataCommitment, OrderSeed, VerifiableOrder
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate

Inventory = dict[str, set[str]]
_ZERO = bytes(32)


@lru_cache(maxsize=1)
def inventory() -> Inventory:
    """Returns the fields by what they are fields of."""
    found: Inventory = {}
    for part in (_chip(), _messages(), _transcript(), _dispute(), _outcome(), _sealed(), _errors()):
        assert not part.keys() & found.keys()
        found |= part
    return found


def _names(kind: Any) -> set[str]:
    """The fields of a record, as its class declares them."""
    return {each.name for each in fields(kind)} if is_dataclass(kind) else set(kind._fields)


# -- what a chip signs -------------------------------------------------------------------------------------------------


def chip_tokens(directory: Path, *, confidential: bool = False) -> list[bytes]:
    """Boots a device with the real firmware, and returns a token of each kind that it signs."""
    device.provision(directory, CertificateAuthority.create("Manufacturer"))
    with NonVolatileLog(directory) as log:
        firmware = Firmware(
            directory, device.boot(directory), log, rate_per_day=2.5, clock_speed=1.0, hold=9, confidential=confidential
        )
        firmware.event("manifest-draft", _ZERO)
        seen = [(len(each), region_digest(each, firmware.salt)) for each in (b"weights", b"other")]
        report = Report(
            leaves=seen, weights=seen[:1], safepoint=True, head=_ZERO, running=_ZERO, step=3, op=14, held=2,
            stall_us=7, unobserved=8,
        )  # fmt: skip
        firmware.snapshot(report)
        return [*(data for _, data in firmware.entries(0, len(log))), firmware.head(b"n" * 16)]


def _chip() -> Inventory:
    found: Inventory = {"envelope": set(), "claims": set()}
    with tempfile.TemporaryDirectory() as directory:
        signed = chip_tokens(Path(directory))
    for data in signed:
        protected, unprotected, payload, _signature = cbor2.loads(data).value.value
        labels = {str(label) for label in (*cbor2.loads(protected), *unprotected)}
        found["envelope"] |= labels | {"payload", "signature"}
        claims = cbor2.loads(payload)
        found["claims"] |= {str(label) for label in claims}
        token = tokens.read_own(data)
        ((_form, body),) = claims[273]
        found[token.kind] = set(cbor2.loads(body))
        found["work"] = set(claims[-70007])
    assert {kind: found[kind] for kind in BODIES} == {kind: set(body) for kind, body in BODIES.items()}
    for each in (
        identity.DeviceIdentity, tcb.TcbInfo, tlog.Checkpoint, tlog.Signature, hidden_fields.HiddenFields,
    ):  # fmt: skip
        found[_called(each)] = _names(each)
    return found


def _called(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# -- what is sent over gRPC --------------------------------------------------------------------------------------------


def _messages() -> Inventory:
    """Answers of chips' and Provers' services, and requests that a certificate of one of them may send to others."""
    found: Inventory = {}
    for message in _sent():
        found[message.name] = {field.name for field in message.fields}
    return found


def _sent() -> Iterator[Descriptor]:
    for method in (*_methods(chip_pb2, service.ALLOW), *_methods(prover_pb2, prover_service.ALLOW)):
        yield from _closure(method.output_type)
    theirs = [
        *_methods(witness_pb2, witness_service.ALLOW, {"chip"}),
        *_methods(verifier_pb2, upload_service.ALLOW, {"prover"}),
        *_methods(referee_pb2, referee_service.ALLOW, {"prover"}),
    ]
    for method in theirs:
        yield from _closure(method.input_type)


def _methods(
    module: Any, allow: Mapping[str, Iterable[str]], roles: set[str] | None = None
) -> Iterator[MethodDescriptor]:
    for path, allowed in allow.items():
        _, whole, name = path.split("/")
        if roles is None or roles & set(allowed):
            yield module.DESCRIPTOR.services_by_name[whole.rpartition(".")[2]].methods_by_name[name]


def _closure(message: Descriptor) -> Iterator[Descriptor]:
    """A message and those in it; one without fields says nothing."""
    if message.fields:
        yield message
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            yield from _closure(field.message_type)


def _outcome() -> Inventory:
    """What a sealed worker would send, and what both parties agree on before it."""
    record = {name for name, _ in outcome_record.pieces(outcomes.outcome()) if name}
    part = sealed_report.SealedReport({"schema": ""}, _ZERO).open("schema")
    drawing = outcomes.drawing(AgreedPopulation.of([(bytes(17), b"")]), 1)
    return {
        "outcome": record | {"signature"},
        "outcome.terms": set(cbor2.loads(replace(drawing, images=bytes(32)).to_cbor())),
        "outcome.part": set(cbor2.loads(part.to_cbor())),
        **{_called(each): _names(each) for each in (outcome_agreement.Committed, outcome_agreement.Opened)},
    }


def _errors() -> Inventory:
    """What the status of a refused call holds, with the details that any error of ours brings along."""
    raised: list[errors.WeighbridgeError] = [
        errors.ChipError("no"),
        InvalidRequestError("no", field="rule"),
        BusyError("no", retry_s=1),
        errors.QuotaError("no"),
        errors.NotFoundError("no", resource="transcript", name="x"),
    ]
    found: Inventory = {"Status": {field.name for field in status_pb2.Status.DESCRIPTOR.fields}}
    for error in raised:
        status = status_pb2.Status.FromString(dict(to_status(error).trailing_metadata)["grpc-status-details-bin"])
        for detail in status.details:
            name = detail.TypeName().removeprefix("google.rpc.")
            message = getattr(error_details_pb2, name)()
            assert detail.Unpack(message)
            for each in _closure(message.DESCRIPTOR):
                if each.full_name.startswith("google.rpc.") and (filled := _set_in(message, each)):
                    found[each.full_name.removeprefix("google.rpc.")] = filled
    return found


def _set_in(message: Any, kind: Descriptor) -> set[str]:
    """The fields of a message, or of one in it, that our code fills; Google's messages have others too."""
    if kind == message.DESCRIPTOR:
        return {field.name for field, _ in message.ListFields()}
    inner = [each for field, value in message.ListFields() for each in (value if field.is_repeated else [value])]
    return {name for each in inner if hasattr(each, "DESCRIPTOR") for name in _set_in(each, kind)}


# -- transcripts -------------------------------------------------------------------------------------------------------


def _transcript() -> Inventory:
    found: Inventory = {"draft": draft_keys(), **_manifest(), "file": set(file_kinds())}
    orders: tuple[tuple[int, ...] | OrderSeed | VerifiableOrder, ...] = (
        (0,),
        OrderSeed(1, 1),
        VerifiableOrder(_ZERO, 1),
    )
    summaries = [DataCommitment(_ZERO, each).summary() for each in orders]
    found["draft.data"] = {key for each in summaries for key in each}
    found["draft.data.order"] = {key for each in summaries for key in each["order"]}
    found["draft.job"] = set(MeshCoordinate(JobRecord(bytes(16), (("data", 1),)), 0).to_map())
    found["draft.parent"] = set(parentage.Parent(transcript="0" * 64, step=1, state=_ZERO).to_map())
    found["draft.repeats"] = set(repeats.Declared(beacon=_ZERO, share=0.5, delay_s=1).to_map())
    found["tape"] = set(cbor2.loads(tape.Tape().encode()))
    log = b"no log"
    named = {"step": 0, "logged": 0, "device": "cpu", "rounding": bytes_digest(log).hex()}
    statement = supplements.Statement(
        draft="0" * 64, before="", state="0" * 64, outputs="0" * 64, tree="0" * 64, **named
    )  # type: ignore[arg-type]
    wrapped = cbor2.loads(supplements.encode(statement, log, SigningKey.generate()))
    found["supplement"] = set(wrapped)
    found["supplement.statement"] = set(json.loads(base64.b64decode(json.loads(wrapped["statement"])["payload"])))
    for each in (
        steps.StepRecord, tape.Input, tape.Node, state.Checkpoint, state.View, chip_notes.ChipNotes,
        resumption_notes.Resumption, returned_state.Returned, returned_state.Held, entry_notes.EntryNote, layout.Shard,
        training_claims.Claims, training_claims.Backward, training_claims.Gradient, training_claims.Step,
        training_claims.Group, training_claims.Parameter,
    ):  # fmt: skip
        found[_called(each)] = _names(each)
    return found


def _manifest() -> Inventory:
    said = Predicate(
        name="a", created="2026-01-01T00:00:00Z", draft="0" * 64, head="0" * 64, steps=0, checkpoints=(), files=(),
        rounded=0, logged=0, complete=True,
    )  # fmt: skip
    envelope = json.loads(sign_manifest(said, SigningKey.generate()))
    statement = json.loads(base64.b64decode(envelope["payload"]))
    return {
        "manifest": set(envelope),
        "manifest.signatures": set(envelope["signatures"][0]),
        "manifest.payload": set(statement),
        "manifest.subject": set(statement["subject"][0]),
        "manifest.predicate": set(statement["predicate"]),
    }


def file_kinds() -> Iterator[str]:
    """The kinds of files that a manifest may list, expanded from the pattern that readers hold paths against."""
    pattern = re.sub(r"\(\?P<\w+>([^()]*)\)", r"\1", steps.LAYOUT.pattern)
    pattern = pattern.replace("[0-9a-f]{64}", "DIGEST").replace("[0-9]{8}", "STEP").replace("\\.", ".")
    for branch in re.findall(r"(?:[^|()]|\([^()]*\))+", pattern):
        before, group, after = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?([^()]*)", branch).groups("")  # type: ignore[union-attr]
        yield from (before + each + after for each in group.split("|"))


# -- disputes ----------------------------------------------------------------------------------------------------------


def _dispute() -> Inventory:
    key = SigningKey.generate()
    asked = messages.Challenge(
        terms=b"", tape=b"", state=_ZERO, step=1, record=b"", own=False, log=_ZERO, leaves=b""
    )  # fmt: skip
    data = messages.signed(messages.START, asked, key).data
    assert len(cbor2.loads(data)) == 4
    found: Inventory = {"dispute": {"previous", "body", "key", "signature"}}
    found["dispute.opening"] = set(cbor2.loads(openings.Opening(log=b"", worst=0).to_cbor()))
    said = [each for each in messages._KINDS.values() if fields(each)]  # consent has none
    for each in (*said, notices.Notice, leaves.Leaf, leaves.Counters, Held):
        found[_called(each)] = _names(each)
    return found


# -- what is seen of sealed jobs ---------------------------------------------------------------------------------------


def _sealed() -> Inventory:
    kinds = (
        sealed_order.Order, sealed_attestation.Attested, sealed_starts.Start, sealed_list.SealedList,
        sealed_list.SealedFile, sealed_dispute.DisputeTerms, sealed_dispute.Seat, sealed_ruling.SealedRuling,
        sealed_part.PartBox, sealed_part.SealedParts, sealed_part.PartResults,
    )  # fmt: skip
    files = {sealed_files.SUBJECT, sealed_files.CLAIM, sealed_files.RUN}
    return {"sealed-dispute.files": files, **{_called(kind): _names(kind) for kind in kinds}}
