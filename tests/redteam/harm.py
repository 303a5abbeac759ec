"""Transcripts that are made to harm who decodes or replays them: few bytes that become many, and references to nothing.

What is measured is the Verifier's own process. Replays have limits of their own, in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from redteam.row import Outcome, Row
from redteam.workshop import Training, Workshop, accusations, digits
from support.forging import at_step, forge
from support.hostile_files import HOSTILE, MIB, hostile
from support.peaks import Peak, peak

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from verifier.checks.commitment import EVENT
from weighbridge.attest.manifest import open_manifest
from weighbridge.core.bounded import file_digest
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape
from weighbridge.transcript.writer import DRAFT, MANIFEST

STEPS = 3
SURVIVES_WITHIN = 200e6, 60.0
"""Bytes that the Verifier's own process may need more, and seconds, for an inspection of one hostile transcript."""


class Shows(prover_pb2_grpc.ProverServiceServicer):  # type: ignore[misc]
    """A Prover that explains everything by one directory and sends its files, whatever they are."""

    directory: Path
    step = 1

    def __init__(self, _: object) -> None:
        """Takes the archive that it has no use for."""

    def Explain(self, request: Any, context: Any) -> Any:  # noqa: N802 (gRPC names the methods)
        manifest = open_manifest((self.directory / MANIFEST).read_bytes())
        return prover_pb2.ExplainResponse(explained=True, transcript_id=manifest.digest, step=self.step, op=0)

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for path in sorted(each for each in self.directory.rglob("*") if each.is_file()):
            content = path.read_bytes()
            for at in range(0, len(content), MIB):
                yield prover_pb2.FetchTranscriptResponse(
                    path=path.relative_to(self.directory).as_posix(), offset=at, data=content[at : at + MIB],
                    last=at + MIB >= len(content),
                )  # fmt: skip


def sent_by(directory: Path, step: int) -> type[Any]:
    """The service of a Prover that shows a directory."""
    return type("Shows", (Shows,), {"directory": directory, "step": step})


def harmed(took: Peak) -> float:
    """1 if the Verifier's own process needed more than it should."""
    return float(took.bytes > SURVIVES_WITHIN[0] or took.seconds > SURVIVES_WITHIN[1])


def expands(kind: str, shop: Workshop, seed: int) -> Outcome:
    """A file of some 4 kB that expands to 42 million items, signed and listed. An honest run is inspected before."""
    run = shop.record(Training(batches=digits(seed, STEPS)), seed)
    if found := shop.accused(run.path):  # loads what inspections need, so that it is not measured
        raise AssertionError(found)
    target = hostile(run.path, shop.place() / "run", *HOSTILE[kind])
    chip = shop.bench.written()
    chip.log.event(EVENT, file_digest(target / DRAFT)[1])
    chip.shows([(8, b"a" * 32)], [], step=STEPS, op=0, head=bytes(32), flops=0)
    with peak() as took:
        report = shop.bench.inspected(target.parent, chip, service=sent_by(target, STEPS), apart=shop.apart)
    return Outcome(findings=accusations(report), gain=harmed(took), cost=0.0)


def claim(tape: Tape, fields: dict[str, Any]) -> None:
    """References of up to 2^41 elements, with strides of 0 on a storage of some kilobytes."""
    slot = next(i.slot for i in tape.inputs if i.name == "model.0.weight")
    for shape in ((1 << 40,), (16, 1 << 40), (1 << 20, 1 << 20, 2)):
        tape.refs.append((slot, "f32", shape, (0,) * len(shape) if len(shape) < 3 else (0, 0, 1), 0))
        ref = ("t", len(tape.refs) - 1)
        tape.nodes.append(Node("add_.Tensor", (ref, ref), {}, (ref[1],)))  # no kernel writes to one place twice
    tape.frees[:] = [(min(at, len(tape.nodes)), slot) for at, slot in tape.frees]


def references(shop: Workshop, seed: int) -> Outcome:
    """A step's tape refers to so many elements of one weight, and writes to them."""
    run = shop.record(Training(batches=digits(seed, STEPS)), seed)
    if found := shop.accused(run.path):
        raise AssertionError(found)
    old = Transcript.open(run.path)
    target = forge(run.path, shop.place() / "run", at_step(2, claim), data=old.data, notes=old.notes)
    with peak() as took:
        found = shop.accused(target, replays=False)
    return Outcome(findings=found, gain=harmed(took), cost=0.0)


HARM = "exhaust the Verifier's memory or time"
BUDGET = "1 if the Verifier's own process needed 200 MB more for the inspection, or a minute of processor time"

ROWS = (
    *(
        Row(
            name=kind,
            source="attacks on decoders",
            wants=HARM,
            gains=BUDGET,
            attack=partial(expands, kind),
            expected=("format.malformed",),
            least=0.0,
            most=0.0,
            note="What is decoded stays in proportion to what was sent, and is decoded in a confined process.",
        )
        for kind in ("step records of 42 million items in 4 kB", "a tape of 42 million items in 4 kB")
    ),
    Row(
        name="references of 2^40 elements with strides of 0",
        source="attacks on replays",
        wants=HARM,
        gains=BUDGET,
        attack=references,
        expected=("tape.malformed",),
        least=0.0,
        most=0.0,
        note="Only the bytes that a reference covers on its storage cost anything.",
    ),
)
