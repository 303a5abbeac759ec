"""A small training whose steps are disputed, and parties to a dispute that run in the test's own process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from support.recordings import train
from torch import nn

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import bytes_digest
from weighbridge.execution.dispute import judgement
from weighbridge.execution.dispute.asking import Claim, Judgement, Traced
from weighbridge.execution.dispute.leaves import Leaf
from weighbridge.execution.dispute.messages import Ruling
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.execution.dispute.tracing import Tracer
from weighbridge.execution.workers import dispute_worker
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

STEP = 3


def record(path: Path, *, ballast: int = 0, **options: Any) -> None:
    """Records a perceptron with dropout, momentum, clipping and a loss that Python reads: three steps.

    Args:
        path: Where to.
        ballast: So many times the second step multiplies 2^24 numbers that nothing depends on: it takes 64 MB, and
            long, and leaves the same state.
        options: As `Recorder` takes them.
    """
    done = 0

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nonlocal done
        done += 1
        if ballast and done == STEP - 1:
            heavy = torch.ones(1 << 24)
            for _ in range(ballast):
                heavy.mul_(1.5)
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() > 0

    generator = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(4, 6, generator=generator), "y": torch.tensor([0, 1, 2, 0])} for _ in range(STEP)]
    train(path, build, step, batches, every=STEP, **options)


class _Cheat(Tracer):
    """Flips the lowest bit of what one operation writes."""

    flips: int | None = None

    def _perform(self, index: int, tape: Tape, *rest: Any) -> None:
        super()._perform(index, tape, *rest)
        slots: dict[int, torch.Tensor] = rest[2]
        if index == self.flips:
            written = sorted(judgement.may_write(tape, index))
            slots[written[0]][0] ^= 1
            self._tracing.hashed.clear()  # so that its tree fits what it did


@dataclass
class Party:
    """Executes a step as one party does, with or without a lie.

    Attributes:
        run: The transcript.
        flips: The operation whose result it changes, if any.
        record: Its step record; None for that of the transcript.
        explaining: Whether it rounds as the record's checksums say where a wider bound would explain that.
    """

    run: Path
    flips: int | None = None
    record: StepRecord | None = None
    explaining: bool = False

    def tree(self, place: int | None = None, part: int | None = None) -> tuple[Traced, list[Leaf], StepRecord]:
        """Returns what it would tell, its leaves, and the record that its execution gives."""
        transcript = Transcript.open(self.run)
        record = self.record or transcript.step(STEP)
        tape = transcript.tape(record.tape)
        agreed = dispute_worker.terms_of(transcript)
        terms = decode_cbor(agreed)
        tracer = _Cheat("cpu", terms["seed"], 1 << 30, policies.declared(terms))
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            state = dispute_worker._reach(transcript, STEP, tracer)
            tracer.flips, tracer.explaining = self.flips, self.explaining
            log = transcript.rounding(STEP)
            tracer.trace(
                Tape.decode(tape), record, log, transcript.batch(STEP), transcript.undeclared(STEP), state,
                place=place, part=part, to_the_end=self.flips is not None,
            )  # fmt: skip
        sums = [checksum for leaf in tracer.tree for _, checksum in leaf.results]
        made = replace(
            record, checksums=b"".join(each.to_bytes(8, "little") for each in sums),
            host=[value for leaf in tracer.tree for value in leaf.host], state=tracer.tree[-1].left,
        )  # fmt: skip
        told = Traced(
            terms=agreed, tape=tape, state=state, record=record.to_cbor(), log=bytes_digest(log),
            leaves=tuple(leaf.digest() for leaf in tracer.tree), parted=tracer.parted, seconds=0.0,
            opening=None if tracer.opening is None else tracer.opening.to_cbor(),
            leaf=tracer.shown, parts=tracer.parts,
        )  # fmt: skip
        return told, tracer.tree, made


def cheat(run: Path, flips: int) -> Party:
    """Returns a party that changed the result of one operation and made its record fit."""
    _, _, made = Party(run, flips).tree()
    return Party(run, flips, made)


def judge_here(claim: Claim, opening: bytes) -> Judgement:
    """Judges a claim as the worker does, in this process."""
    terms = decode_cbor(claim.terms)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        tracer = dispute_worker._tracer({"device": "cpu", "memory": 1 << 30, "part": claim.part}, terms)
        return judgement.judge(claim, opening, tracer)


def reasons(referee: Referee) -> dict[int, str]:
    """Why a referee ruled as it did about each party's claim: identifiers of docs/findings.md."""
    assert referee.ruling is not None
    assert isinstance(referee.ruling.content, Ruling)
    return {party: code for party, _, code, _ in referee.ruling.content.claims}
