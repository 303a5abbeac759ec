"""Reports of earlier versions, read as if they were of this one.

The first reports of `weighbridge-report/5` did not say how probably a failed bound accuses an honest run, nor on what
bounds segments that were replayed whole rest: what they say of snapshots is counted, and no more.

`weighbridge-report/4` did not say how much of a chip's period contacts prove: so none of it is. Nor did the counters of
its time count more than matrix products, which `ledger.meaning` may say.

`weighbridge-report/3` did not say how many segments a transcript has, nor how many were replayed whole; the latter
follows from its evidence. It counted the step in which a snapshot was taken as replayed, though its rest was not. And
it called a report clean though not all drawn chips counted as verified.

`weighbridge-report/2` took a chip that did not verify after the draw was known for one that was not drawn, said nothing
about observed chip-time, and called a bound on unseen violations `miss_at_most`. What this version states in addition
follows from the rest of such a report. Its p does not, if chips failed to verify: then it claims too much, and
`verifier.report.consistency` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifier.report import extent, false_accusation, ledger_totals, miss_bound, proven_time

_2, _3, _4, _5 = (f"weighbridge-report/{version}" for version in (2, 3, 4, 5))

_PRODUCTS_ONLY = ledger_totals.MEANING.replace("every number that is computed", "matrix products and convolutions")
"""What `ledger.meaning` said while chips counted these alone."""


def as_current(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a report in this version's form; one that is of this version already, or of none, as it is.

    Args:
        report: The content of a report; hostile.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It has not the form that its schema promises.
    """
    schema = report.get("schema")
    if schema == _2:
        report = _from_2(report)
    if schema in (_2, _3):
        report = _from_3(report)
    if schema in (_2, _3, _4):
        report = _from_4(report)
    if schema in (_2, _3, _4, _5) and "false_accusation" not in report:
        accused = false_accusation.section(report["chips"], report["evidence"].get("segments", ()))
        report = {**report, "false_accusation": accused}
    return report


def _from_4(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report of version 4 in this version's form."""
    ledger = report["ledger"]
    if ledger["meaning"] == _PRODUCTS_ONLY:
        ledger = {**ledger, "meaning": ledger_totals.MEANING}
    chips, p = [{**each, "proven_days": 0.0} for each in report["chips"]], report["probability"]
    proven = proven_time.section(chips, p["inputs"], report["draw"].get("detection"))
    return {**report, "chips": chips, "ledger": ledger, "probability": {**p, "proven": proven}}


def _from_3(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report of version 3 in the form of version 4."""
    evidence = report["evidence"]
    transcripts = [{**each, "segments": None} for each in report["transcripts"]]
    segments = [_segments(each) for each in evidence.get("segments", ())]
    replayed = extent.replayed(report["chips"], transcripts, segments)
    excused = report["verdict"] == "clean" and extent.unverified(report["chips"]) > 0
    return {
        **report,
        "verdict": "incomplete" if excused else report["verdict"],
        "transcripts": transcripts,
        "replayed": replayed,
        "replayed_in_all": extent.replayed_in_all(replayed),
        "evidence": {**evidence, "segments": segments},
    }


def _segments(each: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the segments of a transcript that were replayed whole, with the steps that those which match took."""
    ends = {chosen["begin"]: chosen["end"] for chosen in each["selection"]["chosen"]}
    return {
        **each,
        "verdicts": [
            {**one, "steps": [one["begin"], ends[one["begin"]]] if one["verdict"] == "match" else None}
            for one in each["verdicts"]
        ],
    }


def _from_2(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report of version 2 in the form of version 3."""
    chips, counts, draw, probability, miss = (
        report[name] for name in ("chips", "counts", "draw", "probability", "miss")
    )
    silence = extent.silence(chips, draw.get("certain", ()))
    detection = draw.get("detection")
    return {
        **report,
        "verdict": "unchecked"
        if report["verdict"] == "clean" and not extent.replayed_anything(chips, report["replayed"])
        else report["verdict"],
        "counts": {**counts, **silence},
        "probability": {
            **probability,
            "inputs": {
                **probability["inputs"],
                "s": counts["sampled"] if detection is None else detection["drawn"],
                "w": silence["unverified_after_draw"],
            },
        },
        "draw": draw if detection is None else {**draw, "detection": _detection(detection, silence, draw["strata"])},
        "observed": extent.observed(
            report["ledger"],
            {chip["ueid"] for chip in chips if chip["verified"] is True},
            population=counts["registered"],
        ),
        "miss": {
            **{name: value for name, value in miss.items() if name != "miss_at_most"},
            "unseen_at_most": miss["miss_at_most"],
            "terms": [
                term | {"meaning": miss_bound.NOT_DRAWN} if term["name"] == "not_drawn" else term
                for term in miss["terms"]
            ],
            "formula": miss_bound.FORMULA,
            "meaning": miss_bound.MEANING,
        },
    }


def _detection(detection: Mapping[str, Any], silence: Mapping[str, int], strata: Any) -> dict[str, Any]:
    """Returns what a draw is worth with the chips that were drawn in each group, not only those that verified."""
    drawn = {tuple(each["key"]): each["drawn"] for each in strata}
    groups = [
        {
            **each,
            "drawn": drawn[tuple(each["stratum"])] if each["kind"] == "random" else each["drawn"],
            "unverified": drawn[tuple(each["stratum"])] - each["drawn"] if each["kind"] == "random" else 0,
        }
        for each in detection["groups"]
    ]
    return {**detection, "unverified": silence["unverified_after_draw"], "groups": groups}
