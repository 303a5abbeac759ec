"""What a step's sketches would take under each scheme, and whether outputs of other steps fit into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.sketches import schemes
from benchmarks.sketches.capacity import FAILURES, Model, dispersion
from benchmarks.sketches.truth import Output

AIM = 30.0
"""How many times smaller than the full log sketches should be."""
MARGINS = (1.0, 2.0, 4.0)
_STEPS = 12


def of_step(outputs: Sequence[Output], model: Model, margin: float) -> dict[str, float]:
    """Returns bytes by scheme for the 16-bit outputs of one step; the two floors are no schemes."""
    bits = dict.fromkeys((
        "two stages", "Reed-Solomon", "Reed-Solomon, best block of each output", "IBLT", "floor of capacity", "floor",
    ), 0.0)  # fmt: skip
    for o in outputs:
        differences = model.differences(o.index, margin)
        bits["two stages"] += schemes.two_stages(o.elements, model.capacity(o.index, margin))
        bits["Reed-Solomon"] += schemes.reed_solomon(o.elements, differences)
        bits["Reed-Solomon, best block of each output"] += min(
            schemes.reed_solomon_blocks(model, o.index, o.elements, block, margin) for block in schemes.BLOCKS
        )
        bits["IBLT"] += schemes.iblt(o.elements, differences, len(model.means))
        bits["floor of capacity"] += schemes.floor_of_capacity(o.candidates, differences)
        bits["floor"] += schemes.floor(o.candidates, len(o.differing), o.admissible)
    return {name: round(value / 8) for name, value in bits.items()}


def largest_margin(outputs: Sequence[Output], model: Model, besides: float, full: float) -> float:
    """Returns how many times as often elements may differ until the two stages and what is kept besides miss the aim.

    Args:
        outputs: The 16-bit outputs of one step.
        model: Of their differences.
        besides: Bytes of a step's log that are kept beside sketches.
        full: Bytes of its full log.
    """
    low, high = 0.0, 64.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        bits = sum(schemes.two_stages(o.elements, model.capacity(o.index, middle)) for o in outputs)
        low, high = (middle, high) if bits / 8 + besides <= full / AIM else (low, middle)
    return low


def counts(outputs: Sequence[Output]) -> dict[str, Any]:
    """Returns what differed in the outputs of some steps."""
    small = [o for o in outputs if o.small]
    steps = len({o.step for o in outputs})
    wide = [o for o in outputs if not o.small]
    return {
        "outputs": len(small) // steps,
        "elements": sum(o.elements for o in small) // steps,
        "contested": [sum(o.candidates for o in small if o.step == step) for step in _steps(outputs)],
        "differing": [sum(len(o.differing) for o in small if o.step == step) for step in _steps(outputs)],
        "outside": sum(o.outside for o in small),
        "far": sum(o.far for o in small) // steps,
        "rest": sum(o.rest for o in small) // steps,
        "most_in_one": max((len(o.differing) for o in small), default=0),
        "dispersion": {str(block): dispersion(small, block) for block in (64, 1024, 16384)},
        "differing_fp32": sum(len(o.differing) for o in wide),
        "by_operation": _by_operation(small),
    }


def _steps(outputs: Sequence[Output]) -> list[int]:
    return sorted({o.step for o in outputs})


def _by_operation(small: Sequence[Output]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for o in small:
        count = found.setdefault(o.operation, {"elements": 0, "contested": 0, "differing": 0})
        count["elements"] += o.elements
        count["contested"] += o.candidates
        count["differing"] += len(o.differing)
    return found


def held_out(outputs: Sequence[Output], model: Model) -> dict[str, Any]:
    """Holds outputs of steps that the model was not fitted to against it.

    Returns:
        How many they are, how many differed in more elements than a sketch can name, and the least probability that
        the model gives to a count as large as one of them, times their number: far below 1, and the tail is too thin.
    """
    small = [o for o in outputs if o.small and model.means[o.index][0]]
    least = min(model.tail(o.index, 0, len(o.differing)) for o in small)
    too_many = sum(len(o.differing) > model.differences(o.index, 1.0) for o in small)
    return {
        "outputs": len(small), "too_many": too_many, "least_tail_times_outputs": float(f"{least * len(small):.2g}"),
        "failures_allowed": FAILURES,
    }  # fmt: skip
