"""How much an inspection really looked at: what was replayed, the chip-time that evidence covers, who stayed silent.

Of each transcript it says how many steps were executed and how many segments were replayed whole. A replay to a
snapshot does not see a history that was glued together, or interpolated, anywhere else.

p says what a draw is worth. It does not say that anything was checked: chips that ran nothing, or whose snapshots
cannot be replayed, leave nothing to check. So a report says beside p how much was observed, and one in which nothing
was replayed is neither clean nor verified. Nor is one with a rule that the facts do not decide, or with a drawn chip
that does not count as verified, whatever excuses it. Everything here follows
from other parts of a report, so that `verifier.report.consistency` can compute it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from verifier.model.facts import CONTRADICTED

Verdict = Literal["clean", "incomplete", "findings", "unchecked"]

OBSERVED = (
    "chip-time of the period, on chips that count as verified, that a replayed transcript explains or that counters "
    "and interrupts show to be idle; the rest of the period was not observed"
)
NOTHING_DUE = "nothing was due, nothing was checked"
NOT_LOOKED_FOR = "glued or interpolated histories were not looked for"
LOOKED_AT = ("match", "mismatch")
"""Verdicts over a segment that was looked at: executed whole, or to where it is false."""


def verdict(*, violations: int, warnings: int, undecided: int, replayed: bool, unverified: int) -> Verdict:
    """Returns a report's verdict.

    `unchecked`: nothing was found, because nothing was replayed. `incomplete`: nothing was found, but not on all drawn
    chips could everything be checked.

    Args:
        violations: Findings of this severity, by the policy.
        warnings: The same.
        undecided: Rules that could not be decided; a policy may call that a note, and the report is not clean.
        replayed: Whether anything was.
        unverified: Drawn chips that do not count as verified.
    """
    if violations or warnings or undecided:
        return "findings"
    if not replayed:
        return "unchecked"
    return "incomplete" if unverified else "clean"


def unverified(chips: Iterable[Mapping[str, Any]]) -> int:
    """Returns how many of a report's `chips` do not count as verified."""
    return sum(chip["verified"] is not True for chip in chips)


def undecided(report: Mapping[str, Any]) -> list[str]:
    """Returns the rules that could not be decided by a report's word, which may have any form."""
    section = report.get("rules")
    rules = section.get("rules") if isinstance(section, Mapping) else None
    each_rule = [each for each in rules if isinstance(each, Mapping)] if isinstance(rules, list) else []
    return [str(each.get("id")) for each in each_rule if each.get("outcome") == "undecided"]


def replayed_anything(chips: Iterable[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]]) -> bool:
    """Tells whether a report rests on any replay.

    Args:
        chips: The report's `chips`.
        steps: The report's `replayed`: how many steps of each transcript were.
    """
    taken = any(snapshot["replay"] is not None for chip in chips for snapshot in chip["snapshots"])
    return taken or any(each["replayed"] > 0 for each in steps)


def replayed(
    chips: Iterable[Mapping[str, Any]], transcripts: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns for each transcript that is to explain snapshots how much of it was replayed.

    - `steps`, `replayed`, `share`: its steps, and those of them that a replay executed to their end.
    - `segments`, `whole`: its segments between checkpoints, and those that were replayed whole; the initialisation is
      one. None if the report does not say how many there are.
    - `random`, `chance`: how many of these were drawn at random, and their share: the chance that one false segment,
      put anywhere by a Prover who did not know the seed of the draw, was among them.

    Args:
        chips: The report's `chips`.
        transcripts: The report's `transcripts`.
        segments: The report's `evidence.segments`.
    """
    known = {each["id"]: each for each in transcripts if each["readable"] is True}
    ranges: dict[str, list[tuple[int, int]]] = {}
    for snapshot in (snapshot for chip in chips for snapshot in chip["snapshots"]):
        if snapshot["transcript"] in known:
            own = ranges.setdefault(snapshot["transcript"], [])
            if snapshot["replay"] is not None:
                first, last = snapshot["replay"]["steps"]
                own.append((first, min(last, snapshot["step"])))  # of the snapshot's step the rest was not executed
    whole, random = Counter[str](), Counter[str]()
    for each in segments:
        name = each["selection"]["transcript"]
        reasons = {chosen["begin"]: chosen["reasons"] for chosen in each["selection"]["chosen"]}
        for outcome in each["verdicts"]:
            if outcome["steps"] is not None:
                first, last = outcome["steps"]
                ranges.setdefault(name, []).append((first, last))
            if outcome["verdict"] in LOOKED_AT:
                whole[name] += 1
                random[name] += "random" in reasons[outcome["begin"]]
    return [
        {
            "transcript": name,
            **_covered(ranges[name], known[name]["steps"]),
            **_chance(known[name]["segments"], whole[name], random[name]),
        }
        for name in sorted(ranges)
    ]


def replayed_in_all(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the same of all transcripts together; the chance is the least of any, as a Prover would choose.

    Args:
        rows: What `replayed` returned.
    """
    steps, executed = (sum(each[name] for each in rows) for name in ("steps", "replayed"))
    counted = all(each["segments"] is not None for each in rows)
    chances = [each["chance"] for each in rows]
    return {
        "transcripts": len(rows),
        "steps": steps,
        "replayed": executed,
        "share": executed / steps if steps else 0.0,
        "segments": sum(each["segments"] for each in rows) if counted else None,
        "whole": sum(each["whole"] for each in rows),
        "random": sum(each["random"] for each in rows),
        "chance": None if None in chances else min(chances, default=0.0),
    }


def _covered(ranges: Sequence[tuple[int, int]], total: int) -> dict[str, Any]:
    """Counts the steps in some ranges, each once."""
    count = reached = 0
    for first, last in sorted(ranges):
        count += max(0, min(last, total) - max(first, reached))
        reached = max(reached, min(last, total))
    return {"steps": total, "replayed": count, "share": count / total if total else 0.0}


def _chance(segments: int | None, whole: int, random: int) -> dict[str, Any]:
    return {
        "segments": segments,
        "whole": whole,
        "random": random,
        "chance": None if segments is None else random / segments if segments else 0.0,
    }


def not_looked_at(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns what could not be verified because no segment of a transcript was replayed whole."""
    return [
        f"whether transcript {each['transcript']} was glued together or interpolated between the snapshots: no segment "
        "of it was replayed whole"
        for each in rows
        if not each["whole"]
    ]


def replays_in_words(report: Mapping[str, Any]) -> str:
    """Returns how much was replayed in one or two sentences; empty if no transcript was to explain a snapshot.

    Where no segment was replayed whole, glued or interpolated histories were not looked for, and it says so.
    """
    rows, total = report["replayed"], report["replayed_in_all"]
    if not rows:
        return ""
    missed = [each for each in rows if not each["whole"]]
    of = "" if total["segments"] is None else f" of {total['segments']}"
    text = f"{total['replayed']} of {total['steps']} steps executed, {total['whole']}{of} segments replayed whole"
    if len(missed) == len(rows):
        return f"{text}: {NOT_LOOKED_FOR}"
    chances = [each["chance"] for each in rows if each["whole"] and each["chance"] is not None]
    if chances:
        text += (
            "; one false segment, put anywhere by a Prover who did not know the seed, would have been replayed with a "
            f"probability of at least {min(chances):.2g}"
        )
    if missed:
        text += f"; of {len(missed)} of {len(rows)} transcripts no segment was replayed whole: there {NOT_LOOKED_FOR}"
    return text


def nothing_checked(report: Mapping[str, Any]) -> str:
    """Returns the sentence that a report in which nothing was replayed says; empty for every other report."""
    if replayed_anything(report["chips"], report["replayed"]):
        return ""
    due = report["counts"]["snapshots"]
    if not due:
        return NOTHING_DUE
    return f"{due} snapshot{' was' if due == 1 else 's were'} due and none could be replayed: nothing was checked"


def nothing_due_on(chips: Iterable[Mapping[str, Any]]) -> int:
    """Returns on how many of a report's chips nothing was due: their logs verified, and nothing of them was replayed.

    They count as verified, since they hold no snapshot that contradicts anyone. Nothing else was checked on them.
    """
    return sum(chip["verified"] is True and not chip["snapshots"] for chip in chips)


def observed(ledger: Mapping[str, Any], verified: Collection[str], *, population: int) -> dict[str, Any]:
    """Returns the chip-time that the evidence of verified chips covers, in milliseconds, and of how much.

    Args:
        ledger: The report's section.
        verified: UEIDs, in hexadecimal, of the chips that count as verified.
        population: Chips in the registry.
    """
    chips: Sequence[Mapping[str, Any]] = ledger["chips"]
    parts = {
        f"{name}_ms": sum(chip["ms"][name] for chip in chips if chip["ueid"] in verified)
        for name in ("explained", "idle")
    }
    period = round(ledger["period_days"] * 86_400_000)
    return {
        **parts,
        "observed_ms": sum(parts.values()),
        "drawn_ms": period * len(chips),
        "fleet_ms": period * population,
        "meaning": OBSERVED,
    }


def chip_time(part: float, whole: float) -> str:
    """Returns two amounts of chip-time, in milliseconds, as "1.5 of 6 chip-days", or in a unit that suits the whole."""
    units = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
    unit, length = next((each for each in units if whole >= each[1]), units[-1])
    return f"{_figure(part / length)} of {_figure(whole / length)} chip-{unit}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def found_against(chip: Mapping[str, Any]) -> bool:
    """Tells whether a violation was seen on a chip: that is no silence, and hides nothing."""
    return any(each["status"] in CONTRADICTED for each in chip["snapshots"])


def silence(chips: Iterable[Mapping[str, Any]], certain: Collection[str]) -> dict[str, int]:
    """Returns how many chips stayed silent before the cut-off, and what became of those drawn at random.

    The former were drawn with certainty and are no part of the random sample. Of the latter some may not have verified,
    and the Prover knew then that they were drawn: p takes them for chips that it chose. A chip on which a violation was
    seen is none of these.

    Args:
        chips: The report's `chips`.
        certain: UEIDs, in hexadecimal, of those drawn with certainty.
    """
    doubtful = [chip for chip in chips if chip["verified"] is not True]
    seen = sum(found_against(chip) for chip in doubtful)
    return {
        "silent_before_cutoff": len(certain),
        "found_against": seen,
        "unverified_after_draw": sum(chip["ueid"] not in certain and not found_against(chip) for chip in doubtful),
    }
