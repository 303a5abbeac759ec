"""The benchmark of a step's parts: they are there, and add up to the step."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bench_parts, machine, physical_limit
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


@pytest.mark.parametrize("way", list(bench_parts.WARM))
def test_the_parts_of_a_step_are_the_step(way: str) -> None:
    given = ("--way", way, "--child", "perceptron", "--rounds", "1")
    found = machine.ask("benchmarks.bench_parts", *given, environment=machine.HERE)
    assert sum(found["parts_cpu_ms"].values()) == pytest.approx(found["step_cpu_ms"], abs=0.2)
    assert found["parts_cpu_ms"][bench_parts.REST[way]] > 0
    idle = [part for part, ms in found["parts_cpu_ms"].items() if ms == 0]
    assert len(idle) < len(found["parts_cpu_ms"]) / 2, idle
    if way == "replayed":
        assert 0 < found["limit"]["ms"] < found["step_cpu_ms"]


def test_an_operation_takes_the_longer_of_its_flops_and_its_bytes(honest_run: object) -> None:
    transcript = Transcript.open(str(honest_run))
    tape = Tape.decode(transcript.tape(transcript.step(transcript.steps - 1).tape))
    idle = {1 << 40: float("inf")}
    computing = physical_limit.of_tape(tape, physical_limit.Rates(1e9, idle))
    moving = physical_limit.of_tape(tape, physical_limit.Rates(float("inf"), {1 << 40: 1e9}))
    both = physical_limit.of_tape(tape, physical_limit.Rates(1e9, {1 << 40: 1e9}))
    assert computing.seconds == pytest.approx(computing.flops / 1e9)
    assert moving.seconds == pytest.approx(moving.bytes / 1e9)
    assert max(computing.seconds, moving.seconds) < both.seconds < computing.seconds + moving.seconds


def test_rates_of_this_machine_are_positive() -> None:
    threads = torch.get_num_threads()
    rates = physical_limit.measured()
    assert rates.products > 0
    assert all(rate > 0 for rate in rates.copies.values())
    assert rates.moving(1 << 30) > rates.moving(1 << 10)
    assert torch.get_num_threads() == threads
