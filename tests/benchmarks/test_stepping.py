"""Steps measured in turn: every way does every round, work between steps counts, and a dead process is named."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest

from benchmarks import stepping


def test_what_a_step_leaves_to_a_thread_counts_with_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def burn() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    threads: list[threading.Thread] = []

    class Lines(io.StringIO):
        def __next__(self) -> str:
            for each in threads:  # idle until the thread is done, as between two rounds
                each.join()
            return super().__next__()

    def step(number: int) -> None:
        if number == 0:
            threads.append(threading.Thread(target=burn))
            threads[0].start()

    monkeypatch.setattr("sys.stdin", Lines("\n\n"))
    stepping.serve(step)
    seconds = [json.loads(line) for line in capsys.readouterr().out.split()]
    assert len(seconds) == 2
    assert sum(seconds) >= 0.19


def test_ways_take_turns_and_a_dead_one_is_named() -> None:
    with pytest.raises(RuntimeError, match="'broken'"):
        stepping.in_turn("benchmarks.bench_compiled", {"broken": ("--no-such-option",)}, rounds=1, warm=0)
    path = ("--child", "perceptron", "--path", "unused")
    times = stepping.in_turn(
        "benchmarks.bench_compiled", {way: ("--way", way, *path) for way in ("plain", "wide")}, rounds=2, warm=1
    )
    assert {way: len(taken) for way, taken in times.items()} == {"plain": 2, "wide": 2}


def test_ratios_are_of_medians_and_of_minima() -> None:
    times = {"a": [1.0, 2.0, 9.0], "b": [0.5, 1.0, 1.5]}
    assert stepping.ratio(times, "a", "b") == {"median": 2.0, "min": 2.0}
    assert stepping.summary(times["a"]) == {"median": 2.0, "min": 1.0, "max": 9.0}
