"""Runs whose products of 16-bit matrices are a matrix unit's: the same bits everywhere, no log, and no choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redteam.own_rounding import chosen, rounding_by
from support.compiled_programs import Brain, Images, Program, same_both_ways
from support.disputed import STEP, Party, cheat
from support.forging import forge
from support.narrowed import judged, opened, play, verdicts
from support.on_demand import copied, regenerated
from support.recordings import replay_here, train, violations
from support.second_executor import NEEDED
from support.second_executor import replay as second_replay
from torch import nn

from prover import Recorder
from weighbridge.core.errors import UsageError
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.replay import replay
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.rounding import narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

POLICY = "unit-vdpbf16ps"
WIDTH, ROWS = 1100, 48
"""More than a chain has, and odd numbers of tiles."""
AVX512 = Path("/proc/cpuinfo").exists() and " avx512f " in Path("/proc/cpuinfo").read_text()
Batch = Mapping[str, torch.Tensor]


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(WIDTH, 33), nn.GELU(), nn.Linear(33, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [
        {"x": torch.randn(ROWS, WIDTH, generator=generator), "y": torch.randint(4, (ROWS,), generator=generator)}
        for _ in range(2)
    ]


def recorded(folder: Path, policy: str = POLICY, **options: Any) -> Path:
    train(folder / "run", build, step, rows(), policy=policy, **options)
    return folder / "run"


def logged(run: Path) -> int:
    return sum(record.logged for record in Transcript.open(run).records())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("unit"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("mixed"), "mixed")


def test_the_draft_names_the_unit(run: Path) -> None:
    policy = bound_policy.declared(Transcript.open(run).draft)
    assert (policy.name, policy.unit, policy.block) == (POLICY, "vdpbf16ps", 0)
    assert policy.at(torch.float64).name == "strict"
    assert policy.at(torch.float32).name == "calibrated"


def test_its_products_have_no_log_and_rest_on_no_measured_bound(run: Path, mixed: Path) -> None:
    ours, theirs = replay_here(run), replay_here(mixed)
    assert (ours["verdict"], theirs["verdict"]) == ("match", "match")
    assert 0 < ours["calibrated"] < theirs["calibrated"]
    assert logged(run) < 0.2 * logged(mixed)
    transcript = Transcript.open(run)
    tape = Tape.decode(transcript.tape(transcript.step(1).tape))
    small = [
        number
        for number, node in enumerate(tape.nodes)
        if node.op in ("mm.default", "addmm.default") and tape.refs[node.outputs[0] or 0][1] == "bf16"
    ]
    assert len(small) >= 5
    logs = rounding_log.decode(transcript.rounding(1), max_entries=1 << 20)
    assert not {entries.op for entries in logs} & {*small}


def test_convolutions_have_no_log_either(tmp_path: Path) -> None:
    seen = Seen()
    with Recorder(tmp_path / "run", seed=7, policy=POLICY) as recorder:
        recorder.attach(seen.model, seen.optimizer)
        for number in range(2):
            batch = seen.batch(number)
            with recorder.step(batch):
                seen.function(batch)
    transcript = Transcript.open(tmp_path / "run")
    nodes = Tape.decode(transcript.tape(transcript.step(1).tape)).nodes
    kinds = {number: node.op for number, node in enumerate(nodes)}
    assert {"convolution.default", "convolution_backward.default"} <= set(kinds.values())
    logs = rounding_log.decode(transcript.rounding(1), max_entries=1 << 20)
    assert not {kinds[entries.op] for entries in logs} & {"convolution.default", "convolution_backward.default"}
    result = replay(tmp_path / "run", env={"ATEN_CPU_CAPABILITY": "default"})
    assert (result.verdict, result.state) == ("match", transcript.step(2).state.hex())


@pytest.mark.parametrize(
    "capability", ["default", "avx2", pytest.param("avx512", marks=pytest.mark.skipif(not AVX512, reason="not here"))]
)
def test_it_replays_to_the_same_state_on_other_instruction_sets(run: Path, capability: str) -> None:
    library = {"default": "SSE4_2", "avx2": "AVX2", "avx512": "AVX512"}[capability]
    result = replay(run, env={"ATEN_CPU_CAPABILITY": capability, "MKL_ENABLE_INSTRUCTIONS": library})
    transcript = Transcript.open(run)
    assert (result.verdict, result.state) == ("match", transcript.step(transcript.steps - 1).state.hex())


# --- other ways to execute a step -------------------------------------------------------------------------------------


class Narrow(Program):
    """Products of bfloat16, some of them in batches."""

    def loss(self, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            heads = self.model[0](batch["x"]).view(2, 3, 4, 4)
            mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads).reshape(6, 16)
            return nn.functional.cross_entropy(self.model[4](mixed).float(), batch["y"])


class Seen(Images):
    """Convolutions of bfloat16."""

    def loss(self, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(batch)


@pytest.mark.parametrize("logs", ["full", "on-demand"])
@pytest.mark.parametrize("made", [Narrow, Brain, Seen])
def test_compiled_steps_leave_the_transcript_of_plain_ones(tmp_path: Path, made: type[Program], logs: str) -> None:
    recorder, _ = same_both_ways(tmp_path, made, policy=POLICY, logs=logs)
    assert recorder.compiled >= 2, recorder.reason


@pytest.mark.parametrize("logs", ["on-demand", "sketch"])
def test_other_kinds_of_logs_come_to_the_same_state(run: Path, tmp_path: Path, logs: str) -> None:
    bare, full = recorded(tmp_path, logs=logs, device="cpu"), Transcript.open(run)
    assert [r.state for r in Transcript.open(bare).records()] == [r.state for r in full.records()]
    there = copied(bare, tmp_path / "there")
    assert regenerated(there).written == full.steps
    result = replay(there, env={"ATEN_CPU_CAPABILITY": "default"})
    assert (result.verdict, result.logged) == ("match", logged(run))


def disputed(folder: Path, policy: str) -> tuple[Path, int]:
    """Records as many steps as disputes take; returns the run and the leaf of the first product."""
    train(folder / "run", build, step, (rows() * STEP)[:STEP], every=STEP, policy=policy)
    transcript = Transcript.open(folder / "run")
    nodes = Tape.decode(transcript.tape(transcript.step(STEP).tape)).nodes
    return folder / "run", 1 + next(number for number, node in enumerate(nodes) if node.op == "addmm.default")


def test_a_disputed_product_is_judged_by_the_part_that_differs(tmp_path: Path) -> None:
    """Exact results are the same in any shape."""
    run, place = disputed(tmp_path, POLICY)
    referee = play(Party(run), cheat(run, place - 1))
    assert (referee.dispute.leaf, referee.dispute.part) == (place, 0)
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}
    told, whole = Party(run).tree()[0], opened(run, place, None).opening or b""
    assert len(opened(run, place, 0).opening or b"") < 0.9 * len(whole)
    for part in range(3):
        found = judged(run, place, part, told, opened(run, place, part).opening or b"")
        assert (found.verdict, found.code) == ("admissible", "dispute.follows.part"), found.reason


def test_a_product_within_measured_bounds_has_no_parts(tmp_path: Path) -> None:
    """They were measured on whole products, so no part has a bound."""
    run, place = disputed(tmp_path, "mixed")
    assert opened(run, place, 0).opening == opened(run, place, None).opening


@NEEDED
def test_the_second_executor_says_that_it_does_not_cover_them(run: Path) -> None:
    result = second_replay(run)
    assert (result.verdict, result.first_difference) == ("not covered", None)
    assert result.lacks


# --- attacks ----------------------------------------------------------------------------------------------------------


class Choosing:
    """Rounds one product as it likes, by one unit in the last place, where the bounds of another policy admit that."""

    def __init__(self, shape: tuple[int, int], times: float = 0.0) -> None:
        self.shape, self.times, self.lies = shape, times, 0

    def record(self, x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        found = narrow.record(x, bound.scaled(self.times) if self.times else bound, dtype, op, output)
        if tuple(x.shape) != self.shape or dtype != torch.bfloat16 or self.lies:
            return found
        assert float(dense_bound(x, bound).abs().max()) == 0, "a unit's product has no bound"
        self.lies += 1
        place = np.zeros(1, np.int64)
        other = (found.out.view(torch.int16).flatten()[:1] + 1).view(torch.bfloat16)
        return chosen(found, place, other, found.entries)


def test_a_product_that_is_rounded_otherwise_is_found_and_named(tmp_path: Path) -> None:
    liar = Choosing((ROWS, 33))
    with rounding_by(narrow, liar.record):
        run = recorded(tmp_path)
    result = replay_here(run)
    assert liar.lies == 1
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert result["first_difference"]["operation"] == "addmm.default"


class Infinite:
    """Writes what is not a number as infinite, in the first product that has some, with log entries of whole values."""

    def __init__(self) -> None:
        self.lies = 0

    def record(self, x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        found = narrow.record(x, bound, dtype, op, output)
        if tuple(x.shape) != (ROWS, 33) or dtype != torch.bfloat16 or self.lies:
            return found
        places = np.flatnonzero(x.isnan().flatten().numpy())
        assert found.entries is None
        assert places.size
        self.lies += 1
        values = torch.full((len(places),), math.inf, dtype=dtype)
        bits = np.full(len(places), 0x7F80, np.uint64)
        entries = OpEntries(op, output, places, np.zeros(len(places), np.uint8), bits)
        return chosen(found, places, values, entries)


def test_infinite_results_are_not_chosen_either(tmp_path: Path) -> None:
    """Elsewhere a log may say which of what is not finite a device came to. Here no device has a choice."""
    data = rows()
    data[0]["x"][:2, 3] = math.inf
    train(tmp_path / "honest", build, step, data, policy=POLICY)
    assert replay_here(tmp_path / "honest")["verdict"] == "match"
    liar = Infinite()
    data[0]["x"][0, 4] = math.nan
    with rounding_by(narrow, liar.record):
        train(tmp_path / "run", build, step, data, policy=POLICY)
    result = replay_here(tmp_path / "run")
    assert liar.lies == 1
    assert result["verdict"] == "mismatch"
    assert result["first_difference"]["operation"] == "addmm.default"


def test_who_names_the_unit_and_multiplies_otherwise_is_found(mixed: Path, tmp_path: Path) -> None:
    """The library's products round otherwise in some places, which a log under calibrated bounds may explain."""
    result = replay_here(forge(mixed, tmp_path / "forged", lambda *_: None, policy=POLICY))
    assert result["verdict"] == "mismatch"
    assert result["first_difference"]["operation"] in ("addmm.default", "mm.default")


@pytest.mark.parametrize("name", ["unit", "unit-", "unit-a200", "unit-mi300", "unit-amx", "unit-vdpbf16ps "])
def test_no_other_unit_is_a_policy(name: str, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no policy"):
        replay_here(forge(mixed, tmp_path / "run", lambda *_: None, policy=name))
