"""Recognises the executed steps of one program of a run on one chip.

See docs/recognition.md for what is claimed, confirmed and accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import torch

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.recognition import by_hand
from weighbridge.execution.recognition.candidates import Candidate, Own
from weighbridge.execution.recognition.derivation import Derivation, UnderivableError
from weighbridge.execution.recognition.limits import UnfinishedError, check_time, unfinished, until
from weighbridge.execution.recognition.outcome import Recognition
from weighbridge.execution.recognition.step_run import StepRun
from weighbridge.execution.recognition.values import Plan, Values
from weighbridge.program.gradient_paths import WHOLE
from weighbridge.program.operands import UNFIT
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.training_claims import Backward, Claims, Step


class UnrecognisedError(WeighbridgeError):
    """Something about a step is not recognised; the message says what."""

    code = "recognition.none"


@dataclass(slots=True)
class Recogniser:
    """Recognises the steps of a run that have one tape.

    Attributes:
        tape: The tape.
        claims: What is claimed of it.
        device: Where to calculate.
        formulas: Says which declared formula gives a number in a step.
        changed: Names of state that steps changed otherwise than by training, so far.
    """

    tape: Tape
    claims: Claims
    device: torch.device
    formulas: Callable[[StepRecord, float], str | None] = lambda record, number: None
    plan: Plan = field(init=False)
    changed: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        check(self.tape, self.claims)
        self.plan = Plan(self.tape, self.claims)

    def recognise(self, record: StepRecord, digest: bytes, values: Values, replayed: float = 0.0) -> Recognition:
        """Says what an executed step is.

        Args:
            record: Its record.
            digest: Of its tape.
            values: What its storages held.
            replayed: Seconds that its replay took.
        """
        began, limit = time.perf_counter(), until(replayed)
        run = StepRun(self.plan, record, values, self.formulas)
        with noted(run):
            run.begin()
            for event in events(self.claims):
                check_time(limit)
                try:
                    if isinstance(event, Backward):
                        (made_by_hand,) = by_hand.together([run.looked_through(event, {})], limit)
                        run.backward(event, self._candidates(event, record, values, limit), made_by_hand)
                    else:
                        run.update(event)
                except UnderivableError as error:
                    run.reason(error.message)
            run.end()
        self.changed |= run.changed
        return run.result(digest, time.perf_counter() - began, replayed)

    def _candidates(self, backward: Backward, record: StepRecord, values: Values, limit: float) -> Iterator[Candidate]:
        """The gradient as claimed, and that through what ran outside of autograd, as checkpoints compute it again."""
        outside = any(operand == WHOLE for _, operand in self.claims.stops)
        for recomputed in (False, True) if outside else (False,):

            def derivation(recomputed: bool = recomputed, *, disturbed: bool = False) -> Derivation:
                return Derivation(
                    self.plan, values, record.values, self.device, recomputed=recomputed, disturbed=disturbed,
                    until=limit,
                )  # fmt: skip

            again = cache(lambda derivation=derivation: derivation(disturbed=True).derive(backward))
            yield Own(derivation().derive(backward), again)


def events(claims: Claims) -> list[Backward | Step]:
    """Returns backward passes and optimizers' steps in the order in which they end."""
    found: list[tuple[int, Backward | Step]] = [(b.end, b) for b in claims.backwards]
    found += [(s.end, s) for s in claims.steps]
    return [event for _, event in sorted(found, key=lambda each: each[0])]


@contextmanager
def noted(run: StepRun) -> Iterator[None]:
    """Within it, what goes wrong is a reason of the run's."""
    try:
        yield
    except UnfinishedError as error:
        run.unknown(error.message)
    except WeighbridgeError as error:
        run.reason(error.message)
    except UNFIT as error:
        if (given_up := unfinished(error)) is not None:
            run.unknown(given_up.message)
        else:  # tensors that do not fit each other as claimed
            run.reason(f"what is claimed does not fit the step: {(str(error).splitlines() or [''])[0][:150]}")


def check(tape: Tape, claims: Claims) -> None:
    """Checks that claims name what there is.

    Raises:
        UnrecognisedError: They do not.
    """
    count, refs = len(tape.nodes), len(tape.refs)
    ranges = sorted(claims.ranges())
    named: list[int | None] = []
    for backward in claims.backwards:
        named += [*backward.losses, *backward.seeds]
        for gradient in backward.gradients:
            named += [gradient.leaf, gradient.before, gradient.after]
    for parameter in (p for s in claims.steps for g in s.groups for p in g.parameters):
        named += [parameter.ref, parameter.gradient, *parameter.state.values()]
    for step in claims.steps:
        slots = [p.ref for g in step.groups for p in g.parameters]
        if len(set(slots)) < len(slots):
            raise UnrecognisedError("an optimizer's step is claimed to have a parameter twice")
    overlap = any(a[1] > b[0] for a, b in pairwise(ranges))
    if overlap or any(end > count for _, end in ranges) or any(n is not None and n >= refs for n in named):
        raise UnrecognisedError(
            "what is claimed of the step's training names operations or tensors that it does not have"
        )
