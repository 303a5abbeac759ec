"""One snapshot from silicon to verdict: chip, log entry, transcript, check, replay, verdict, and what each showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from verifier.registry import Chip
from verifier.registry.listings import rfc3339
from verifier.report.names import in_words
from verifier.report.page import grouped, size

Tone = Literal["good", "bad", "warn", "calm"]
_TONES: Mapping[str, Tone] = {
    "explained": "good",
    "explained given collectives": "good",
    "match": "good",
    "mismatch": "bad",
    "unexplained": "bad",
}


@dataclass(frozen=True, slots=True)
class Station:
    """One station on a snapshot's way.

    Attributes:
        name: What it is.
        says: What it showed, in one sentence.
        tone: Whether that speaks for or against the snapshot, or neither.
        facts: Names and values.
    """

    name: str
    says: str
    tone: Tone
    facts: Sequence[tuple[str, str]]


def stations(
    report: Mapping[str, Any], chip: Mapping[str, Any], row: Mapping[str, Any], registered: Chip | None, digest: str
) -> list[Station]:
    """Returns a snapshot's way.

    Args:
        report: Of the inspection.
        chip: The chip's part of the report.
        row: The snapshot's part of it.
        registered: The chip as the registry knows it now; None if it is not there any more.
        digest: Of the log's entry, in hexadecimal; empty if the witness does not hold it.
    """
    run = next((each for each in report["transcripts"] if each["id"] == row["transcript"]), None)
    return [
        _silicon(chip, registered),
        _entry(chip, row, digest),
        _fetch(row, run),
        _check(row),
        _replay(row),
        Station("Verdict", f"This snapshot is {row['status']}.", tone_of(row["status"]), ()),
    ]


def tone_of(status: str) -> Tone:
    """Returns how a snapshot's status or a replay's verdict is to be shown."""
    return _TONES.get(status, "warn")


def findings_about(report: Mapping[str, Any], chip: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the findings that name a snapshot, or the transcript that was to explain it, or say why it is hidden."""
    entry = f"chip {chip['ueid']} entry {row['index']}"

    def about(subject: str) -> bool:
        if subject == entry or subject.startswith((f"{entry} ", f"{entry},", f"{entry}:")):
            return True
        return bool(row["transcript"]) and str(row["transcript"]) in subject

    hidden = row["bytes"] is None

    def hides(finding: Mapping[str, Any]) -> bool:  # it is said once for each chip
        return hidden and finding["id"] == "snapshot.confidential" and finding["subject"] == f"chip {chip['ueid']}"

    return [each for each in report["findings"] if about(str(each["subject"])) or hides(each)]


def _silicon(chip: Mapping[str, Any], registered: Chip | None) -> Station:
    where = ", ".join(each for each in (chip["owner"] and f"of {chip['owner']}", chip["site"]) if each)
    facts = [
        ("identity (UEID)", chip["ueid"]),
        ("type", chip["chip_type"] or "not told"),
        ("firmware", ", ".join(chip["firmware"]) or "unknown"),
        ("boots", grouped(chip["boots"])),
    ]
    if registered is not None:
        facts += [("maker", registered.maker or "not told"), ("state now", registered.state)]
    says = "The chip's log was read, and its signatures lead to the manufacturer."
    if not chip["reachable"]:
        says = "The chip's log could not be read."
    return Station(f"Chip{f' {where}' if where else ''}", says, "good" if chip["reachable"] else "bad", facts)


def _entry(chip: Mapping[str, Any], row: Mapping[str, Any], digest: str) -> Station:
    facts = [
        ("entry", f"{row['index']} of {chip['entries']}"),
        ("time on the chip's clock", rfc3339(row["time_ms"] / 1000).replace("T", " ").replace("Z", " UTC")),
    ]
    if row["bytes"] is None:
        says = "The chip stopped and signed what its memory held; in a confidential boot it hides what that was."
        return Station("Log entry", says, "warn", facts)
    facts += [
        ("memory", f"{size(row['bytes'])} in {row['storages']} pieces"),
        ("kernels since the start", grouped(row["kernels"])),
    ]
    if digest:
        facts.append(("digest of the entry", digest))
    where = "at a safepoint" if row["safepoint"] else "off safepoints"
    return Station("Log entry", f"The chip stopped {where} and signed what its memory held.", "good", facts)


def _fetch(row: Mapping[str, Any], run: Mapping[str, Any] | None) -> Station:
    if row["bytes"] is None:
        says = "This inspection asked no Prover about what is hidden, and fetched nothing; a sealed inspection can."
        return Station("Transcript", says, "warn", ())
    if not row["transcript"]:
        return Station("Transcript", "No transcript was declared for this moment.", tone_of(row["status"]), ())
    facts = [("transcript", row["transcript"]), ("declared position", f"step {row['step']}, operation {row['op']}")]
    if row["shard"]:
        facts.append(("rank", f"{row['shard']['rank']} of {row['shard']['ranks']}"))
    if run is None or not run["readable"]:
        return Station("Transcript", "The declared transcript could not be read.", "bad", facts)
    facts += [("run", run["name"]), ("steps", grouped(run["steps"]))]
    facts.append(("recording", "ended as planned" if run["complete"] else "was cut short"))
    return Station(
        "Transcript", "The Prover named the run and the position, and its transcript was fetched.", "good", facts
    )


def _check(row: Mapping[str, Any]) -> Station:
    memory = row["memory"]
    if memory is None:
        return Station("Check of the memory", "The content of the memory was not accounted for.", "warn", ())
    names = {"explained": "explained by the replay", "declared": "declared", "unexplained": "unexplained"}
    facts = [(label, size(memory[name])) for name, label in names.items()]
    facts.append(("not observable", size(row["unobserved"])))
    if memory["unexplained"]:
        return Station("Check of the memory", "Not all of the memory is accounted for.", "warn", facts)
    return Station("Check of the memory", "All of the memory that the chip recorded is accounted for.", "good", facts)


def _replay(row: Mapping[str, Any]) -> Station:
    replay = row["replay"]
    if replay is None:
        return Station("Replay", "Nothing was replayed.", "warn" if row["transcript"] else "calm", ())
    begin, end = (*replay["steps"], None, None)[:2]
    facts = [
        ("steps executed", "-" if begin is None else f"{begin}:{end}"),
        ("verdict", replay["verdict"]),
        ("roundings", grouped(replay["rounded"])),
        ("of these followed from the log", grouped(replay["followed"])),
        ("took", f"{replay['seconds']:.1f} s"),
    ]
    if replay["first_difference"]:
        facts.append(("first difference", _difference(replay["first_difference"])))
    same = replay["verdict"] == "match"
    says = "Repeated on the Verifier's machine, the run gives the same bits." if same else "The replay does not agree."
    return Station("Replay", says, tone_of(replay["verdict"]), facts)


def _difference(first: object) -> str:
    """Returns where a replay first differed; what a worker said of it may have any form."""
    if not isinstance(first, Mapping):
        return in_words(first)
    where = [f"{name} {first[key]}" for key, name in (("step", "step"), ("op", "operation")) if key in first]
    what = [str(first[key]) for key in ("operation", "path") if first.get(key)]
    return ", ".join(where) + (f" ({', in '.join(what)})" if what else "")
