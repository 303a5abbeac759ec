"""Do new weights follow old ones, and the batch together with them, as they do in a training? Numbers, and a judgement.

docs/recognition.md, "Sensitivity", says what is asked and what an answer is worth. A confined worker measures
(`weighbridge.execution.step_response`); what it answers is read here as hostile. Loads no PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import Finding, UsageError
from weighbridge.execution.worker_answers import digest, natural, share, text
from weighbridge.program.tape_policy import INSENSITIVE, TapePolicy

Outcome = Literal["sensitive", "insensitive", "untested"]
Inputs = Literal["", "noise and another step", "another step", "noise and other integers", "noise", "chance"]
"""What the changed batch was: of the step itself or of another one, with noise on real numbers, or with integers drawn
anew from those that it has; or only other random numbers were drawn."""
MOST_STEPS = 1_000
SEED = 32


@dataclass(frozen=True, slots=True)
class Numbers:
    """What was measured of one step. Norms go over all weights that the step changed.

    Attributes:
        weights: Numbers in the storages of weights that the step changed.
        carry: How far new weights moved when old ones were disturbed, relative to how far these were.
        lost: Share of the weights that are in storages where that is less than the policy's `least_carry`.
        batch: How far new weights moved when the batch was changed, relative to how far the step moved them.
        joint: How far that movement was another one once old weights were disturbed, relative to the larger of the two;
            scaled up where weights could be disturbed by less than half of their size.
        rigid: Share of the weights that are in storages where that is less than the policy's `least_joint`.
        size: How far weights were disturbed for `joint`, as a share of their size.
        decay: Whether the step did nothing but scale the weights.
    """

    weights: int
    carry: float | None = None
    lost: float | None = None
    batch: float | None = None
    joint: float | None = None
    rigid: float | None = None
    size: float | None = None
    decay: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """How one step responded.

    Attributes:
        step: Its number.
        tape: Hex digest of its program.
        outcome: `sensitive` as training is, `insensitive`, or `untested`: the program cannot be executed so.
        why: What is missing, in words; empty if nothing is.
        inputs: How the batch was changed; empty if no change of it could be tried.
        numbers: What was measured.
    """

    step: int
    tape: str
    outcome: Outcome
    why: str
    inputs: Inputs
    numbers: Numbers

    def line(self) -> str:
        """Says it in a line."""
        told = self.numbers
        said = [
            f"new weights follow old ones by {told.carry:.2g}" if told.carry is not None else "",
            f"the batch moves them by {told.batch:.2g} of the update" if told.batch is not None else "",
            f"of which old weights change {told.joint:.2g}" if told.joint is not None else "",
        ]
        why = f" ({self.why})" if self.why else ""
        return f"step {self.step}: {self.outcome}{why}" + "".join(f"; {each}" for each in said if each)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a replay found out about the steps that it sampled.

    Attributes:
        seed: Hex; what the Verifier drew: with it the same steps and directions are drawn again.
        candidates: Steps among those replayed that change weights.
        responses: One for each step that was sampled, in order.
    """

    seed: str
    candidates: int
    responses: tuple[Response, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data; `parse(each.to_json()) == each`."""
        return {**asdict(self), "responses": [asdict(each) for each in self.responses]}

    def lines(self) -> list[str]:
        """Says it for a person."""
        told = ", ".join(f"{count} {name}" for name, count in self.counts().items() if count) or "none"
        return [
            f"sensitivity of {len(self.responses)} of {self.candidates} steps that change weights: {told} "
            f"(directions from the seed {self.seed})",
            *(f"  {each.line()}" for each in self.responses),
        ]

    def counts(self) -> dict[Outcome, int]:
        """Returns how many of the sampled steps had each outcome."""
        return {name: sum(each.outcome == name for each in self.responses) for name in get_args(Outcome)}


def judge(numbers: Numbers, policy: TapePolicy) -> tuple[Outcome, str]:
    """Says what a step's numbers amount to, and why."""
    if numbers.weights < policy.least_weights:
        few = f"the step changed {numbers.weights} weights only" if numbers.weights else "the step changed no weights"
        return "untested", few
    carry, joint = numbers.carry, numbers.joint
    idle = numbers.batch == 0 and joint is None
    why = []
    if carry is not None and carry < policy.least_carry:
        why.append("new weights do not follow old ones")
    elif (numbers.lost or 0) > policy.insensitive_share:
        why.append(f"{numbers.lost:.0%} of the new weights do not follow old ones")
    if idle and not numbers.decay:
        why.append("what enters the step has no influence on the weights")
    if joint is not None and joint < policy.least_joint:
        why.append("what the batch does to the weights does not depend on the weights")
    elif (numbers.rigid or 0) > policy.insensitive_share:
        why.append(f"what the batch does to {numbers.rigid:.0%} of the weights does not depend on the weights")
    if why:
        return "insensitive", "; ".join(why)
    if idle:
        return "untested", "the step only scaled the weights"
    missing = [
        name
        for name, value in (("old weights could not be disturbed", carry), ("the batch could not be changed", joint))
        if value is None
    ]
    return ("untested", "; ".join(missing)) if missing else ("sensitive", "")


def finding(response: Response, policy: TapePolicy) -> Finding:
    """Returns the finding about a step that did not respond."""
    numbers = {k: v for k, v in asdict(response.numbers).items() if v is not None}
    return Finding(
        id=INSENSITIVE,
        message=f"step {response.step} changes weights, and not as training does: {response.why}; read its program "
        "(`weighbridge tape show`), and ask where the content of the new weights came from",
        expected="new weights that follow old ones, and an update that depends on weights and batch together",
        found=response.line(),
        subject=f"tape {response.tape}",
        severity=policy.insensitive,
        evidence={"step": response.step, "inputs": response.inputs, **numbers},
    )


def check_count(count: int) -> None:
    """Checks how many steps are to be sampled.

    Raises:
        UsageError: It is out of range.
    """
    if type(count) is not int or not 0 <= count <= MOST_STEPS:
        raise UsageError(f"steps sampled for their sensitivity are a number from 0 to {MOST_STEPS}, not {count!r:.40}")


def parse(raw: Any) -> Sensitivity | None:
    """Reads a worker's answer; malformed, it raises what `worker_answers.MALFORMED` lists."""
    if raw is None:
        return None
    seed = bytes.fromhex(raw["seed"])
    if len(seed) != SEED or len(raw["responses"]) > MOST_STEPS:
        raise ValueError("sensitivity")
    return Sensitivity(seed.hex(), natural(raw["candidates"]), tuple(map(_response, raw["responses"])))


def _response(raw: Mapping[str, Any]) -> Response:
    if raw["outcome"] not in get_args(Outcome) or raw["inputs"] not in get_args(Inputs):
        raise ValueError("outcome")
    told = raw["numbers"]
    amounts = {name: None if told[name] is None else share(told[name]) for name in _AMOUNTS}
    if type(told["decay"]) is not bool or len(bytes.fromhex(raw["tape"])) != DIGEST_SIZE:
        raise ValueError("numbers")
    return Response(
        step=natural(raw["step"]),
        tape=digest(raw["tape"]).hex(),
        outcome=raw["outcome"],
        why=text(raw["why"], 1000),
        inputs=raw["inputs"],
        numbers=Numbers(natural(told["weights"]), decay=told["decay"], **amounts),
    )


_AMOUNTS = ("carry", "lost", "batch", "joint", "rigid", "size")
