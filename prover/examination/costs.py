"""What recording a script costs, measured on the few steps of an examination."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from prover.examination.examine import Evidence

FIRST = 2
"""Steps that are not timed as a whole: the first one prepares much, and in the second each operation is timed."""


def costs(seen: Evidence) -> dict[str, Any]:
    """Returns costs for a program; what could not be measured is None.

    Returns:
        `step_seconds` and `plain_seconds` (of a step, recorded and not), `slowdown`, `timed_steps`, `memory_bytes` and
        `plain_memory_bytes` (by kind of memory, the most that a process had), `log_bytes` and `transcript_bytes` (of a
        step, all ranks together), `checkpoint_bytes`, `tape_bytes`, `keeping_seconds` (of a step, spent on hashing and
        writing it), `programs` (how many tapes the steps have), `batches` (how many shapes of batches), and `lines` (of
        the second step: `line`, `seconds`, `plain_seconds`, `calls`, `operation`).
    """
    answers = [answer for answer in seen.followed.answers if answer.get("steps")]
    if not answers:
        return {}
    first = answers[0]
    plain = seen.plain.answers[0] if seen.plain is not None and seen.plain.answers else {}
    steps, cuts = first["steps"], first["cuts"]
    recorded = _pace(first["times"], cuts)
    bare = _pace(plain.get("times", ()), cuts)
    sizes = seen.sizes
    keeping = first["keeping"][FIRST + 1 :]
    own = {line["line"]: line["seconds"] for line in plain.get("lines", ())}
    return {
        "step_seconds": recorded,
        "plain_seconds": bare,
        "slowdown": recorded / bare if recorded and bare else None,
        "timed_steps": max(len(cuts) - 1 - FIRST, 0),
        "memory_bytes": first["memory"],
        "plain_memory_bytes": plain.get("memory"),
        "log_bytes": sizes["log"] / steps,
        "transcript_bytes": (sizes["log"] + sizes["batches"] + sizes["steps"]) / steps,
        "checkpoint_bytes": sum(answer["state_bytes"] for answer in answers),
        "tape_bytes": sizes["tapes"],
        "keeping_seconds": statistics.mean(keeping) if keeping else None,
        "programs": first["programs"],
        "batches": first["batches"],
        "lines": [{**line, "plain_seconds": own.get(line["line"], 0.0 if own else None)} for line in first["lines"]],
    }


def _pace(times: Sequence[float], cuts: Sequence[int]) -> float | None:
    """Seconds of a step, from the moments of optimizers' steps and how many there were by the end of each step."""
    if len(cuts) < FIRST + 2 or len(times) < cuts[-1] or not cuts[FIRST]:
        return None
    return float(times[cuts[-1] - 1] - times[cuts[FIRST] - 1]) / (len(cuts) - 1 - FIRST)
