"""How many FLOPs a second a type of chip can do at most: from the published figures in the catalogue."""

from __future__ import annotations

from functools import lru_cache

from analysis.catalog import load_chips
from verifier.model.facts import Plan

KERNELS_PER_SECOND = 1e7
"""More kernels than this no host can launch: each launch takes a microsecond or more."""

_DAY_S = 86_400


def peak_of(chip_type: str, given: float | None = None) -> float | None:
    """Returns the peak FLOPs a second of a type of chip, or None if it is unknown.

    Args:
        chip_type: As in the registry; compared with the catalogue's names without regard to case.
        given: The peak that the plan gives for all its chips; it goes before the catalogue.
    """
    return given if given is not None else _peaks().get(_key(chip_type))


def peak_by(chip_type: str, plan: Plan) -> float:
    """Returns the same for a plan; a type without a figure does the plan's FLOPs a day, spread evenly."""
    found = peak_of(chip_type, plan.peak_flops)
    return plan.chip_flops_per_day / _DAY_S if found is None else found


def _key(name: str) -> str:
    return " ".join(name.casefold().split())


@lru_cache(maxsize=1)
def _peaks() -> dict[str, float]:
    return {_key(chip.name): chip.flops_per_second for chip in load_chips()}
