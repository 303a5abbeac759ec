"""p by proven time alone: what is left of p if chips may have worked, unseen, whenever no contacts prove their clock.

Interrupts come on a chip's clock, which its owner could slow down, or start anew right before a contact. Time between
two contacts of one boot is proven (`verifier.checks.chip_clock`); the rest of a period may have been spent switched
off, or at work with hardly an interrupt. p takes it for the former. Here it is taken for capacity that nothing
monitors (`analysis.unmonitored_chips`).

Let u be the largest unproven share of any drawn chip that counts as verified, and let every chip of the population have
as much. A run of H FLOPs then does up to u a T C of them unseen, and has to do the rest where interrupts come, which is
for (1 - u) T on each chip that takes part:

    H' = H - u * sum over chips of a T,    T' = (1 - u) T.

p for H' and T' holds against every choice of unproven time that is made before the draw. A chip with more than u of it
that had been drawn would have raised u, or would be one of the w that did not verify: so it counts as involved, like a
chip that does the run where interrupts come. A chip with less than u adds no more to the run, and shows more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.detection import detection_probability_eq1, detection_probability_hypergeometric
from analysis.domain import DetectionDomainError
from analysis.silence import least_probability_despite
from verifier.draw.derivation import grouped_draw

MEANING = (
    "p if chips may have worked without interrupts whenever no two contacts of one boot prove that their clock ran; "
    "let chips report to the witness more often to raise it"
)


def section(
    chips: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any], worth: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns p by proven time alone, as JSON-compatible data.

    Args:
        chips: The report's `chips`.
        inputs: What p rests on (`probability.inputs`).
        worth: What a draw that was committed to is worth (`draw.detection`), if there was one.

    Returns:
        `p`, of the kind that the verdict rests on, or None where that is not defined; `unproven_share`: u; the FLOPs
        that fit into unproven time, `unproven_flops`; and `H`: what is left of the violation, 0 if nothing is.
    """
    period = inputs["T"]
    shares = [1 - min(1.0, chip["proven_days"] / period) for chip in chips if chip["verified"] is True]
    share = max(shares, default=1.0)
    groups = None if worth is None else worth["groups"]
    speed = inputs["C"] * inputs["a"] if groups is None else sum(g["chips"] * g["chip_flops_per_day"] for g in groups)
    unproven = share * speed * period
    left = max(0.0, inputs["H"] - unproven)
    return {
        "p": probability({**inputs, "H": left, "T": (1 - share) * period, "T_m": (1 - share) * period}, worth),
        "unproven_share": share,
        "unproven_flops": unproven,
        "H": left,
        "meaning": MEANING,
    }


def probability(inputs: Mapping[str, Any], worth: Mapping[str, Any] | None) -> float | None:
    """Returns p of the kind that a verdict rests on: of strata, else exact, else by equation 1; 0 for a run of nothing.

    Args:
        inputs: As in `section`, with the size of the violation to answer for.
        worth: As in `section`.
    """
    if inputs["H"] <= 0:
        return 0.0
    ways = (strata,) if worth is not None else (hypergeometric, eq1)
    for way in ways:
        found = defined(lambda way=way: way(inputs, worth))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def strata(inputs: Mapping[str, Any], worth: Mapping[str, Any]) -> float:
    """Returns p of a draw from strata, against the worst spread over them.

    Raises:
        DetectionDomainError: An input is out of range, or the run does not fit.
    """
    draw = grouped_draw(
        worth["groups"],
        flops_threshold=inputs["H"],
        run_days=inputs["T"],
        snapshot_rate_per_day=inputs["f"],
        logged_days=inputs["T"],
    )
    return least_probability_despite([draw], withheld=worth["unverified"])[0]


def hypergeometric(inputs: Mapping[str, Any], _: Mapping[str, Any] | None = None) -> float:
    """Returns p of a plain draw, without replacement.

    Raises:
        DetectionDomainError: As `strata`.
    """
    return float(detection_probability_hypergeometric(**_common(inputs)))


def eq1(inputs: Mapping[str, Any], _: Mapping[str, Any] | None = None) -> float:
    """Returns p by equation 1.

    Raises:
        DetectionDomainError: As `strata`.
    """
    return float(detection_probability_eq1(**_common(inputs), period_days=inputs["T_m"]))


def _common(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "samples": inputs["s"],
        "flops_threshold": inputs["H"],
        "chip_flops_per_day": inputs["a"],
        "chips": inputs["C"],
        "run_days": inputs["T"],
        "snapshot_rate_per_day": inputs["f"],
        "withheld": inputs["w"],
    }


def defined(compute: Callable[[], float]) -> float | None:
    """Returns what a formula gives, or None where it does not apply."""
    try:
        return float(compute())
    except DetectionDomainError:
        return None
