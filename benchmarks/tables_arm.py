"""The table of docs/benchmarks.md about emulated ARM processors."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.page import Result, measured_on, table


def arm(result: Result) -> str:
    """What was replayed on which processor, and what was recorded there."""
    rows: list[Sequence[object]] = []
    for way in sorted({run["way"] for run in result["runs"]}):
        runs = [run for run in result["runs"] if run["way"] == way]
        totals = {name: sum(run[name] for run in runs) for name in ("rounded", "calibrated", "logged", "followed")}
        programs = "-"
        if all("equal_tapes" in run for run in runs):
            steps, equal = (sum(run[name] for run in runs) for name in ("steps", "equal_tapes"))
            programs = f"{equal} of {steps}"
        rows.append((
            way, len(runs), *(f"{totals[name]:,}" for name in ("rounded", "calibrated", "logged", "followed")),
            sum(not run["agreed"] for run in runs), programs,
        ))  # fmt: skip
    head = (
        "recorded on, replayed on", "transcripts", "roundings", "under calibrated bounds", "logged",
        "changed by the log", "did not agree", "steps with the same tape",
    )  # fmt: skip
    processors = "; ".join(f"`{name}`: {p['says']}" for name, p in result["processors"].items() if name != "here")
    return (
        f"{measured_on(result)} Emulated by {result['emulator']}: {processors}. Seed {result['seed']}. "
        f"{result['roundings']:,} roundings in {result['replays']} replays.\n\n{table(head, rows)}"
    )
