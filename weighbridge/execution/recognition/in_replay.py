"""Recognises some of the steps that a replay executes anyway.

Which steps, a Prover cannot foresee: they are drawn when the replay begins, one of each program first.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.execution.recognition.across_programs import conflict, trained_on
from weighbridge.execution.recognition.in_job import Executed
from weighbridge.execution.recognition.meetings import Meeting
from weighbridge.execution.recognition.outcome import Recognition
from weighbridge.execution.recognition.recogniser import Recogniser
from weighbridge.execution.recognition.values import Values
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

_NEAR = 1e-4

NO_CLAIMS = (
    "nothing is claimed of this program's training; it does not train, or was recorded by an earlier version "
    "(replay it with --claims)"
)


def choose(steps: Sequence[tuple[int, bytes]], count: int, seed: int) -> list[int]:
    """Draws steps: one of each program while there are enough, then any.

    Args:
        steps: Number and program of those that may be drawn.
        count: How many to draw.
        seed: Of the draw.

    Returns:
        Their numbers, ascending.
    """
    draw = random.Random(seed)
    order = list(steps)
    draw.shuffle(order)
    first: dict[bytes, int] = {}
    for number, tape in order:
        first.setdefault(tape, number)
    chosen = [number for number, _ in order if number in set(first.values())]
    chosen += [number for number, _ in order if number not in set(chosen)]
    return sorted(chosen[:count])


class Recognising:
    """Recognises steps of one replay.

    Attributes:
        found: What was found so far.
    """

    def __init__(
        self, transcript: Transcript, first: int, last: int, count: int, seed: int, device: str,
        program: Callable[[bytes], Tape], meeting: Meeting | None = None,
    ) -> None:  # fmt: skip
        """Draws the steps.

        Args:
            transcript: The run.
            first: First step that is executed.
            last: The one after the last.
            count: How many to recognise.
            seed: Of the draw.
            device: Where to calculate.
            program: Returns the tape of a digest.
            meeting: Of one rank of a job: where ranks meet after a step that is to be recognised.
        """
        self.found: list[Recognition] = []
        self._transcript, self._program = transcript, program
        self._device = torch.device(device)
        self._meeting = meeting
        if meeting is None:
            records = [transcript.step(number) for number in range(first, last)]
            self._chosen = set(choose([(r.step, r.tape) for r in records if r.kind == "step"], count, seed))
        else:
            self._chosen = meeting.chosen
        self._recognisers: dict[bytes, Recogniser | str] = {}
        self._values: Values | None = None
        self._began = 0.0

    def begin(self, record: StepRecord) -> Callable[..., None] | None:
        """To be called before a step is executed; returns what the executor is to call before each operation."""
        self._values = None
        if record.step not in self._chosen:
            return None
        recogniser = self._recogniser(record.tape)
        if not isinstance(recogniser, str):
            self._values = Values(recogniser.plan)
        self._began = time.perf_counter()
        return None if self._values is None else self._values.before

    def end(self, record: StepRecord) -> None:
        """To be called after a step matched."""
        if record.step not in self._chosen:
            return
        replayed = time.perf_counter() - self._began
        recogniser = self._recogniser(record.tape)
        if self._meeting is not None:
            mine: Executed | str = NO_CLAIMS
            if isinstance(recogniser, str):
                mine = recogniser
            elif self._values is not None:
                mine = Executed(recogniser, record, self._values, replayed)
            self.found.append(self._meeting.met(record, mine))
            self._values = None
            return
        if isinstance(recogniser, str) or self._values is None:
            why = recogniser if isinstance(recogniser, str) else "it was not looked at"
            self.found.append(Recognition(record.step, record.tape.hex(), reasons=(why,)))
            return
        self.found.append(recogniser.recognise(record, record.tape, self._values, replayed))
        self._values = None

    def enter(self, chosen: ChosenBits) -> None:
        """Holds programs against each other, and charges what recognised steps could have brought in."""
        self._settle()
        for step in self.found:
            for update in step.updates if step.recognised else ():
                what = f"what else would be accepted of {update.optimizer}"
                chosen.add("recognition", step.step, update.freedom_bits, what)

    def _settle(self) -> None:
        """Takes back what is recognised of programs that change what other programs train on."""
        trained: dict[str, set[str]] = {}
        for digest in self._transcript.claims if any(step.recognised for step in self.found) else ():
            recogniser = self._recogniser(digest)
            if not isinstance(recogniser, str):
                trained[digest.hex()] = trained_on(recogniser.plan)
        for number, step in enumerate(self.found):
            recogniser = self._recogniser(bytes.fromhex(step.tape))
            if isinstance(recogniser, str):
                continue
            why = conflict(recogniser.changed, [names for tape, names in trained.items() if tape != step.tape])
            if why is not None and step.known:
                self.found[number] = replace(step, reasons=(*step.reasons, why))

    def _recogniser(self, digest: bytes) -> Recogniser | str:
        if digest not in self._recognisers:
            claims = self._transcript.claims.get(digest)
            try:
                self._recognisers[digest] = (
                    NO_CLAIMS
                    if claims is None
                    else Recogniser(self._program(digest), claims, self._device, self._formula)
                )
            except WeighbridgeError as error:
                self._recognisers[digest] = error.message
        return self._recognisers[digest]

    def _formula(self, record: StepRecord, rate: float) -> str | None:
        """The declared formula that gives a rate in a step, if one does."""
        t = sum(self._transcript.step(number).kind == "step" for number in range(record.step + 1))
        formulas = self._transcript.formulas()
        for name in formulas.items:
            if not name.startswith("lr"):
                continue
            try:
                value, _ = formulas.evaluate(name, t, counts=record.counts)
            except (TapeError, ArithmeticError):
                continue
            if math.isfinite(value) and abs(value - rate) <= _NEAR * abs(rate):
                return name
        return None
