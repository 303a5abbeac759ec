"""How probably this inspection accuses an honest run because an error bound failed.

`verifier.report.miss_bound` is about violations that are not seen. This is about the contrary, and stands beside it:
replays under probabilistic bounds may contradict a run that was recorded honestly. It follows from how many roundings
rest on such bounds, so that `verifier.report.consistency` can compute it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weighbridge.core import bound_failure

MEANING = (
    "the probability, at most, that a replay accuses a run that was recorded honestly because a probabilistic bound "
    "was too small for the recorder's result or the replayer's, if the rounding errors of a sum are independent with "
    "mean zero. Strict bounds do not fail. No probability is known of calibrated bounds, which were measured. It does "
    "not cover defects, and says nothing about violations that were not seen."
)
FORMULA = "at_most = 2 x (all probabilistic roundings) x 2^40 x 2 exp(-14^2 / 2), at most 1"
NONE = {"probable": 0, "calibrated": 0}


def section(
    chips: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]], parents: Mapping[str, int] = NONE
) -> dict[str, Any]:
    """Returns what a report has under `false_accusation`.

    Args:
        chips: The report's `chips`.
        segments: The report's `evidence.segments`.
        parents: The roundings of replays that led to a state with which a run began, `probable` and `calibrated`; the
            report has nothing else of them.
    """
    snapshots = [each["replay"] for chip in chips for each in chip["snapshots"] if each["replay"] is not None]
    roundings = {
        "snapshots": _sums(snapshots),
        "segments": _sums(outcome for each in segments for outcome in each["verdicts"]),
        "parents": {name: parents[name] for name in NONE},
    }
    return {
        "at_most": bound_failure.false_accusation(sum(each["probable"] for each in roundings.values())),
        "roundings": roundings,
        "formula": FORMULA,
        "meaning": MEANING,
    }


def again(report: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Computes the section again, and what the replay of each snapshot says of itself.

    Returns:
        (subject, what follows, what is stated) of each part; the two are equal in an honest report.

    Raises:
        KeyError, TypeError, ValueError: It is no report.
    """
    stated = report["false_accusation"]
    parents = stated["roundings"]["parents"]
    if not all(type(parents[name]) is int and parents[name] >= 0 for name in NONE):
        return [("false_accusation.roundings.parents", "numbers of roundings", parents)]
    follows = section(report["chips"], report["evidence"].get("segments", ()), parents)
    of_snapshots = [
        (
            f"chip {chip['ueid']} entry {each['index']}: false_accusation",
            bound_failure.false_accusation(_sums([each["replay"]])["probable"]),
            each["replay"]["false_accusation"],
        )
        for chip in report["chips"]
        for each in chip["snapshots"]
        if each["replay"] is not None and "false_accusation" in each["replay"]  # not in reports before this section
    ]
    return [*of_snapshots, *((f"false_accusation.{name}", value, stated[name]) for name, value in follows.items())]


def _sums(replays: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Adds up the roundings of replays; reports of earlier versions do not say all of them."""
    found = [
        (each.get("probable", 0) + each.get("probable_elsewhere", 0), each.get("calibrated", 0)) for each in replays
    ]
    return {"probable": sum(probable for probable, _ in found), "calibrated": sum(measured for _, measured in found)}


def in_words(stated: Mapping[str, Any]) -> str:
    """Returns the section in one line."""
    probable, calibrated = (sum(each[name] for each in stated["roundings"].values()) for name in NONE)
    if not probable and not calibrated:
        return "false accusation: none by chance, as no replay rested on bounds that may fail"
    parts = []
    if probable:
        parts.append(
            f"a probabilistic bound fails with a probability of at most {stated['at_most']:.0e}, if rounding errors "
            f"are independent ({probable:,} roundings)"
        )
    if calibrated:
        parts.append(f"{calibrated:,} roundings rest on calibrated bounds, for which no probability is known")
    return f"false accusation of an honest run: {'; '.join(parts)}"
