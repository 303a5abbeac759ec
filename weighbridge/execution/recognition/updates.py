"""Confirms an optimizer's step: do its weights and its state follow from the old ones by the formula it claims?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from weighbridge.execution.recognition.acceptance import ROUNDINGS, excess, spacing
from weighbridge.execution.recognition.derivation import UnderivableError
from weighbridge.execution.recognition.formulas import Operand, Result, apply
from weighbridge.execution.recognition.noise import unit

Tensor = torch.Tensor
Numbers = Mapping[str, Any]

_OWN = 0.5
"""Of what is accepted for a result's own roundings, which explain a difference without those of its operands."""

_NEAR = 1e-5
"""A rate that the weights give is called the claimed one if it is so near, relatively."""


@dataclass(slots=True)
class Member:
    """One parameter of a group, around a step.

    Attributes:
        name: Of the state that it is.
        before: What the step read.
        after: What it left.
        exact: The Verifier's own gradient, as far as the optimizer's was scaled; None if it has none.
        accepted: How far from it a gradient is accepted.
    """

    name: str
    before: Operand
    after: Result
    exact: Tensor | None
    accepted: Tensor | None


@dataclass(slots=True)
class Confirmed:
    """What was found of a group.

    Attributes:
        numbers: By what it was computed.
        largest: Largest difference from the formula, in units of what is accepted.
        worst: Where that was.
        absolute: Sum of the absolute changes of weights.
        moved: Sum of what the difference between the recorded and the own gradient changes.
        freedom: Sum of the distances between the two ends of what would have been accepted.
        bits: What could have been told by a choice between these ends.
    """

    numbers: dict[str, Any]
    largest: float
    worst: str
    absolute: float
    moved: float
    freedom: float
    bits: float


def confirm(optimizer: str, numbers: Numbers, members: Sequence[Member]) -> Confirmed:
    """Compares a group's step with the formula.

    Args:
        optimizer: Name of the class.
        numbers: Its hyperparameters, as claimed.
        members: Its parameters that have gradients.

    Raises:
        UnderivableError: There is no such formula.
    """
    parts = _parts(optimizer, members)
    best: tuple[float, str, _Sums] | None = None
    chosen: Numbers = numbers
    for tried in _candidates(optimizer, numbers, parts):
        found = _judge(optimizer, tried, parts)
        if best is None or found[0] < best[0]:
            best, chosen = found, tried
        if best[0] <= 1:
            break
    assert best is not None
    largest, worst, sums = best
    if largest > 1:
        return Confirmed(dict(chosen), largest, worst, 0.0, 0.0, 0.0, 0.0)
    return Confirmed(dict(chosen), largest, worst, sums.absolute, sums.moved, sums.freedom, sums.bits)


_CHUNK = 1 << 16
"""Elements of an update that are looked at together: what is made of them stays in a processor's cache."""


def _parts(optimizer: str, members: Sequence[Member]) -> list[list[Member]]:
    """Cuts parameters to pieces, where an optimizer treats each element by itself, and joins what is small."""
    parts, count = [list[Member]()], 0
    for member in members:
        for piece in [member] if optimizer in _MIXING else _pieces(member):
            size = piece.before.weights.numel()
            if parts[-1] and count + size > _CHUNK:
                parts.append([])
                count = 0
            parts[-1].append(piece)
            count += size
    return parts


def _pieces(member: Member) -> list[Member]:
    before, after, count = member.before, member.after, member.before.weights.numel()
    own = [before.weights, before.gradient, after.weights, member.exact, member.accepted]
    own += [state for each in (before.state, after.state) for state in each.values() if state.dim()]
    if count <= _CHUNK or any(each is not None and each.numel() != count for each in own):
        return [member]

    def cut(t: Tensor, at: int) -> Tensor:
        return t.reshape(-1)[at : at + _CHUNK] if t.dim() else t

    return [
        Member(
            member.name,
            Operand(
                cut(before.weights, at),
                None if before.gradient is None else cut(before.gradient, at),
                {key: cut(each, at) for key, each in before.state.items()},
            ),
            Result(cut(after.weights, at), {key: cut(each, at) for key, each in after.state.items()}),
            None if member.exact is None else cut(member.exact, at),
            None if member.accepted is None else cut(member.accepted, at),
        )
        for at in range(0, count, _CHUNK)
    ]


@dataclass(slots=True)
class _Sums:
    """As in `Confirmed`."""

    absolute: float = 0.0
    moved: float = 0.0
    freedom: float = 0.0
    bits: float = 0.0


def _judge(optimizer: str, numbers: Numbers, parts: Sequence[Sequence[Member]]) -> tuple[float, str, _Sums]:
    """Returns the largest difference from the formula in units of what is accepted, where it is, and sums."""
    largest, worst, sums = 0.0, "", _Sums()
    for members in parts:
        wide = [each.before.wide() for each in members]
        found, where, results = _compare(optimizer, numbers, wide, members)
        if found > largest:
            largest, worst = found, where
        if largest > 1:
            break
        ends = [
            apply(optimizer, numbers, [_with(w, m, side) for w, m in zip(wide, members, strict=True)])
            for side in (-1, 0, 1)
        ]
        for number, member in enumerate(members):
            low, own, high = (end[number].weights for end in ends)
            sums.absolute += float((results[number].weights - wide[number].weights).abs().sum())
            sums.moved += float((results[number].weights - own).abs().sum())
            apart = (high - low).abs()
            sums.freedom += float(apart.sum())
            sums.bits += float(torch.log2(1 + apart / spacing(member.after.weights)).sum())
    return largest, worst, sums


def _with(operand: Operand, member: Member, side: int) -> Operand:
    if member.exact is None or member.accepted is None:
        return operand
    return Operand(operand.weights, member.exact + side * member.accepted, operand.state)


def _candidates(optimizer: str, numbers: Numbers, parts: Sequence[Sequence[Member]]) -> Any:
    """The claimed numbers with what the weights say of the rate; then with what the state says of momentum too."""
    solved = _rate(optimizer, numbers, parts)
    yield solved
    again = _momentum(numbers, [member for members in _some(parts) for member in members])
    if again != numbers:
        yield _rate(optimizer, again, parts)
    if solved.get("lr") != numbers.get("lr"):
        yield dict(numbers)


def _rate(optimizer: str, numbers: Numbers, parts: Sequence[Sequence[Member]]) -> dict[str, Any]:
    """Solves for the rate: what all known optimizers do to weights is linear in it.

    Weights near one are rounded more coarsely than small ones, and say as much less about it.
    """
    claimed = numbers.get("lr")
    claimed = float(claimed) if type(claimed) in (int, float) and claimed else 1e-3
    above = below = 0.0
    for members in _some(parts):
        wide = [each.before.wide() for each in members]
        still = apply(optimizer, {**numbers, "lr": 0.0}, wide)
        moved = apply(optimizer, {**numbers, "lr": claimed}, wide)
        for member, a, b in zip(members, still, moved, strict=True):
            coarse = spacing(member.after.weights)
            direction = (b.weights - a.weights) / coarse
            above += float(((member.after.weights.double() - a.weights) / coarse * direction).sum())
            below += float(direction.square().sum())
    if not (below > 0 and math.isfinite(above)):
        return {**numbers, "lr": claimed if numbers.get("lr") else 0.0}
    rate = claimed * above / below
    if abs(rate - claimed) <= _NEAR * abs(claimed):
        rate = claimed
    return {**numbers, "lr": max(rate, 0.0)}


_ENOUGH = 16
"""Pieces of a group that give its rate; what they give is held against all."""


def _some(parts: Sequence[Sequence[Member]]) -> Sequence[Sequence[Member]]:
    return parts[:: max(1, len(parts) // _ENOUGH)]


def _momentum(numbers: Numbers, members: Sequence[Member]) -> Numbers:
    """Solves for a momentum that a schedule changes."""
    sign = -1.0 if numbers.get("maximize") else 1.0
    decay = 0.0 if numbers.get("decoupled_weight_decay") else float(numbers.get("weight_decay") or 0.0)
    above = below = 0.0
    betas, momentum = numbers.get("betas"), numbers.get("momentum")
    for member in members:
        each = member.before.wide()
        if each.gradient is None or not each.state:
            continue
        g = sign * each.gradient + decay * each.weights
        if (
            isinstance(betas, tuple)
            and len(betas) == 2
            and {"exp_avg"} <= each.state.keys() & member.after.state.keys()
        ):
            old, new = each.state["exp_avg"] - g, member.after.state["exp_avg"].double() - g
        elif momentum and "momentum_buffer" in each.state and "momentum_buffer" in member.after.state:
            old = each.state["momentum_buffer"]
            new = member.after.state["momentum_buffer"].double() - (1 - float(numbers.get("dampening") or 0.0)) * g
        else:
            continue
        above += float((old * new).sum())
        below += float(old.square().sum())
    if not below:
        return numbers
    solved = above / below
    if not 0 <= solved < 1:
        return numbers
    if isinstance(betas, tuple):
        return {**numbers, "betas": (solved, betas[1])}
    return {**numbers, "momentum": solved}


def _compare(
    optimizer: str, numbers: Numbers, wide: Sequence[Operand], members: Sequence[Member]
) -> tuple[float, str, list[Result]]:
    """Returns the largest difference in units of what is accepted, where it is, and what the formula gives."""
    results = apply(optimizer, numbers, wide)
    for member, base in zip(members, results, strict=True):
        if missing := sorted(set(base.state) - set(member.after.state)):
            raise UnderivableError(f"{optimizer} keeps {missing[0]}, and {member.name} has none")
        if extra := set(member.after.state) - set(base.state):
            raise UnderivableError(
                f"{member.name} has {', '.join(sorted(extra))[:80]}, which {optimizer} does not keep"
            )
    largest, worst = _difference(optimizer, members, results, None)
    if largest > _OWN:  # so the roundings of its operands are looked at
        largest, worst = _difference(optimizer, members, results, _accepted(optimizer, numbers, wide, members, results))
    return largest, worst, results


def _accepted(
    optimizer: str, numbers: Numbers, wide: Sequence[Operand], members: Sequence[Member], results: Sequence[Result]
) -> list[Result]:
    """What a rounding of each operand does to the results."""
    accepted = [_zeros(each) for each in results]
    for shift in _shifts(optimizer, members):
        others = apply(optimizer, numbers, [shift(w, m) for w, m in zip(wide, members, strict=True)])
        for total, base, other in zip(accepted, results, others, strict=True):
            total.weights += (other.weights - base.weights).abs()
            for key, value in total.state.items():
                value += (other.state[key].double() - base.state[key].double()).abs()
    return accepted


def _difference(
    optimizer: str, members: Sequence[Member], results: Sequence[Result], accepted: Sequence[Result] | None
) -> tuple[float, str]:
    largest, worst = 0.0, ""
    for number, (member, base) in enumerate(zip(members, results, strict=True)):
        total = None if accepted is None else accepted[number]
        pairs = [("", member.after.weights, base.weights, None if total is None else total.weights)]
        for key, value in base.state.items():
            pairs.append((key, member.after.state[key], value.double(), None if total is None else total.state[key]))
        for key, recorded, own, allowed in pairs:
            if not recorded.is_floating_point():
                continue
            near = 4 * spacing(recorded)
            if allowed is not None:
                near = near + ROUNDINGS * (_spread(allowed) if optimizer in _MIXING else allowed)
            found = excess(recorded.double() - own, near)
            if found > largest:
                largest, worst = found, member.name + (f" ({key})" if key else "")
    return largest, worst


def _zeros(result: Result) -> Result:
    return Result(
        torch.zeros_like(result.weights), {k: torch.zeros_like(v, dtype=torch.float64) for k, v in result.state.items()}
    )


_MIXING = frozenset({"Muon", "Adafactor"})
"""Optimizers in which one element's rounding reaches others."""
_COARSE = {"Muon": 2.0**-8}
"""Optimizers that compute in a coarser type than that of their weights: its rounding."""


def _spread(total: Tensor) -> Tensor:
    """The root mean square of all elements, where it is larger."""
    return torch.maximum(total, total.square().mean().sqrt()) if total.numel() else total


@lru_cache(8)
def _signs(shape: torch.Size, device: torch.device) -> Tensor:
    """One or minus one, the same in each call; a common factor is what some formulas do not see."""
    generator = torch.Generator(device=device).manual_seed(shape.numel())
    return torch.randint(0, 2, shape, generator=generator, device=device).double() * 2 - 1


def _shifts(optimizer: str, members: Sequence[Member]) -> list[Callable[[Operand, Member], Operand]]:
    """Moves each kind of operand by one rounding of its recorded type."""
    keys = sorted({k for m in members for k in m.before.state if m.before.holds(k)})

    def moved(wide: Tensor, recorded: Tensor) -> Tensor:
        return wide * (1 + 2 * max(unit(recorded.dtype), _COARSE.get(optimizer, 0.0)) * _signs(wide.shape, wide.device))

    def weights(o: Operand, m: Member) -> Operand:
        return Operand(
            o.weights * (1 + 2 * unit(m.before.weights.dtype) * _signs(o.weights.shape, o.weights.device)),
            o.gradient,
            o.state,
        )

    def gradient(o: Operand, m: Member) -> Operand:
        if o.gradient is None or m.before.gradient is None:
            return o
        return Operand(o.weights, moved(o.gradient, m.before.gradient), o.state)

    def of(key: str) -> Callable[[Operand, Member], Operand]:
        def state(o: Operand, m: Member) -> Operand:
            if key not in o.state:
                return o
            return Operand(o.weights, o.gradient, {**o.state, key: moved(o.state[key], m.before.state[key])})

        return state

    return [weights, gradient, *(of(key) for key in keys)]
