"""Steps measured in turn: a process for each way, which does one step for every line that it reads.

Rounds go through the ways, one step each, so that all meet the same state of the machine. What counts is the processor
time of a process, all its threads together, from one answer to the next: work that a step leaves to other threads
counts with the step that it goes on beside.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import machine

Times = dict[str, list[float]]
"""Milliseconds of each counted step, by way."""


class Answering:
    """Answers with the processor seconds since the last answer."""

    def __init__(self) -> None:
        self._spent = time.process_time()

    def answer(self) -> None:
        """Prints them."""
        now = time.process_time()
        print(json.dumps(now - self._spent), flush=True)
        self._spent = now


def serve(step: Callable[[int], Any]) -> None:
    """Does one step, called with its number, for every line on standard input, and answers what it took."""
    answering = Answering()
    for number, _ in enumerate(sys.stdin):
        step(number)
        answering.answer()


def in_turn(module: str, ways: Mapping[str, Sequence[str]], rounds: int, warm: int, *, orderly: bool = False) -> Times:
    """Measures ways in turn.

    Args:
        module: The module whose command line begins the processes.
        ways: Their arguments, by way.
        rounds: How many steps of each count.
        warm: How many before them do not.
        orderly: Whether the processes are let end by themselves, so that they close what they write.

    Raises:
        RuntimeError: One died.
    """
    processes: dict[str, subprocess.Popen[str]] = {}
    times: Times = {way: [] for way in ways}
    try:
        for way, arguments in ways.items():
            processes[way] = machine.start(module, *arguments, environment=machine.HERE, stdin=subprocess.PIPE)
        for _ in range(warm + rounds):
            for way, process in processes.items():
                times[way].append(1e3 * _step(way, process))
        if orderly:
            for process in processes.values():
                process.communicate()
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    return {way: taken[warm:] for way, taken in times.items()}


def _step(way: str, process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the process that measures the way {way!r} died; its message is above")
    return float(json.loads(line))


def summary(taken: Sequence[float]) -> dict[str, float]:
    """Median, least and most of some times."""
    return {"median": round(statistics.median(taken), 2), "min": round(min(taken), 2), "max": round(max(taken), 2)}


def ratio(times: Times, way: str, base: str) -> dict[str, float]:
    """One way over another: medians, and minima, which the rest of the machine disturbs least."""
    one, other = times[way], times[base]
    return {
        "median": round(statistics.median(one) / statistics.median(other), 3),
        "min": round(min(one) / min(other), 3),
    }
