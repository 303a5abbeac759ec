"""Which steps of a replay are tested for their sensitivity, and the test of each once it has matched."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.executor import Executor
from weighbridge.execution.free_run import FreeExecutor
from weighbridge.execution.sensitivity import Inputs, Numbers, Outcome, Response, Sensitivity, finding, judge
from weighbridge.execution.step_response import Subject, floating, measure
from weighbridge.program.roles import feeds_itself
from weighbridge.program.tape_checks import Programs, examine
from weighbridge.program.tape_policy import TapePolicy
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


class SampledSteps:
    """The steps of one replay that a Verifier's seed chose.

    Attributes:
        programs: What was found out about the transcript's tapes; None if that failed, which the replay says itself.
    """

    def __init__(
        self, transcript: Transcript, tapes: Callable[[bytes], Tape], policy: TapePolicy, executor: FreeExecutor,
        seed: bytes, count: int, steps: tuple[int, int],
    ) -> None:  # fmt: skip
        """Chooses steps: of as many different programs as there are, in random order.

        Args:
            transcript: A verified transcript.
            tapes: Returns the tape of a digest.
            policy: Says what counts as no response, and how grave that is.
            executor: Executes steps; it is this test's own.
            seed: What the Verifier drew (32 bytes).
            count: Most steps to test.
            steps: (first, last + 1) of those that are replayed.
        """
        self._transcript, self._tapes, self._policy, self._executor = transcript, tapes, policy, executor
        self._seed, self._responses = seed, list[Response]()
        self._held: Mapping[str, Tensor] | None = None
        self.programs: Programs | None = None
        try:
            self.programs = examine(transcript, tapes)
        except WeighbridgeError:
            self._weights, self._fed = set[str](), set[str]()
        else:
            self._weights = self._find_weights(self.programs)
            self._fed = self._weights | self.programs.roles.weights
        self._ran = self._candidates(steps)
        self._chosen = self._choose(count)

    def _find_weights(self, programs: Programs) -> set[str]:
        """Those that the run declared; else state that a step changes by what it calculated from it and the batch.

        If there is none of that either, it is all trained state.
        """
        if self._transcript.notes is not None and self._transcript.notes.weights:
            return set(self._transcript.notes.weights)
        steps = [digest for digest in programs.flows if programs.values[digest].kind != "init"]
        feeding = {name for each in steps for name in feeds_itself(self._tapes(each), programs.flows[each])}
        return feeding or {name for each in steps for name in programs.flows[each].trained}

    def _candidates(self, steps: tuple[int, int]) -> dict[bytes, list[int]]:
        """The steps that change weights, by the tape that they ran."""
        ran: dict[bytes, list[int]] = {}
        if self.programs is None:
            return ran
        changes = {
            digest: bool(self._weights & flow.reaches.keys() & floating(self._tapes(digest)).keys())
            for digest, flow in self.programs.flows.items()
        }
        for number in range(*steps):
            record = self._transcript.step(number)
            if record.kind == "step" and changes[record.tape]:
                ran.setdefault(record.tape, []).append(number)
        return ran

    def _choose(self, count: int) -> set[int]:
        source = np.random.Generator(np.random.Philox(key=int.from_bytes(self._seed[:16], "big")))
        left = {digest: list(source.permutation(numbers)) for digest, numbers in sorted(self._ran.items())}
        chosen = set[int]()
        while left and len(chosen) < count:
            for digest in [sorted(left)[place] for place in source.permutation(len(left))]:
                if len(chosen) < count:
                    chosen.add(int(left[digest].pop()))
                if not left[digest]:
                    del left[digest]
        return chosen

    def before(self, step: int, executor: Executor) -> None:
        """Keeps the state before a step, if the step was chosen."""
        chosen = step in self._chosen
        self._held = {name: data.clone() for name, data in executor.state.items()} if chosen else None

    def after(self, step: int) -> list[Finding]:
        """Tests a step that has matched, if it was chosen; returns what was found."""
        if self._held is None:
            return []
        state, self._held = self._held, None
        transcript, record = self._transcript, self._transcript.step(step)
        others = [other for other in self._ran[record.tape] if other != step]
        numbers = Numbers(0)
        inputs: Inputs = ""
        outcome: Outcome
        try:
            subject = Subject(
                tape=self._tapes(record.tape), record=record, state=state, weights=self._weights, fed=self._fed,
                batch=transcript.batch(step), undeclared=transcript.undeclared(step),
                other=transcript.batch(others[self._seed[-1] * step % len(others)]) if others else None,
            )  # fmt: skip
            numbers, inputs = measure(subject, self._executor, self._seed, self._policy)
        except WeighbridgeError as error:
            outcome, why = "untested", error.message
        else:
            outcome, why = judge(numbers, self._policy)
        response = Response(step, record.tape.hex(), outcome, why, inputs, numbers)
        self._responses.append(response)
        return [finding(response, self._policy)] if outcome == "insensitive" else []

    def result(self) -> Sensitivity:
        """Returns what was found out so far."""
        candidates = sum(len(numbers) for numbers in self._ran.values())
        return Sensitivity(self._seed.hex(), candidates, tuple(self._responses))
