"""Runs under policies with blocks: they replay everywhere, in every way, and choices beyond them are found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redteam.own_rounding import chosen, low_bits, rounding_by
from support.compiled_programs import Program, same_both_ways
from support.disputed import STEP, Party, cheat, judge_here, reasons
from support.forging import forge
from support.on_demand import copied, regenerated
from support.recordings import replay_here, train, violations
from support.second_executor import NEEDED
from support.second_executor import replay as second_replay
from torch import nn

from prover import Recorder
from weighbridge.attest.manifest import SigningKey
from weighbridge.cli.record import MODELLED, POLICIES
from weighbridge.core.errors import UsageError
from weighbridge.execution.dispute import moves
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import Shown, signed
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.execution.replay import replay
from weighbridge.numerics.arrays.blocked_products import roundings
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded, ordered, unordered
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

BLOCKED = tuple(bound_policy.BLOCKS)
WIDTH, ROWS = 1024, 512
AVX512 = Path("/proc/cpuinfo").exists() and " avx512f " in Path("/proc/cpuinfo").read_text()
Batch = Mapping[str, torch.Tensor]


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [
        {"x": torch.randn(ROWS, WIDTH, generator=generator), "y": torch.randint(4, (ROWS,), generator=generator)}
        for _ in range(2)
    ]


def recorded(folder: Path, policy: str, **options: Any) -> Path:
    train(folder / "run", build, step, rows(), policy=policy, **options)
    return folder / "run"


def logged(run: Path) -> int:
    return sum(record.logged for record in Transcript.open(run).records())


@pytest.fixture(scope="module", params=BLOCKED)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("blocked"), request.param)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("mixed"), "mixed")


def test_the_draft_names_the_blocks(run: Path) -> None:
    draft = Transcript.open(run).draft
    policy = bound_policy.declared(draft)
    assert policy.name == draft["policy"]
    assert policy.block == int(draft["policy"].removeprefix("blocked-"))
    assert policy.at(torch.float64).name == "strict"
    assert policy.at(torch.float32).name == "calibrated"
    assert POLICIES == bound_policy.NAMES + bound_policy.TRUNCATING
    assert MODELLED == bound_policy.TRUNCATING


@pytest.mark.parametrize("name", ["blocked", "blocked-1", "blocked-128", "blocked-256 "])
def test_no_other_blocks_have_a_name(name: str, mixed: Path, tmp_path: Path) -> None:
    """A Prover cannot choose blocks that make a replay slow."""
    with pytest.raises(UsageError, match="there is no policy"):
        Recorder(tmp_path / "other", seed=1, policy=name)
    with pytest.raises(UsageError, match="there is no policy"):
        replay_here(forge(mixed, tmp_path / "run", lambda *_: None, policy=name))


@pytest.mark.parametrize(
    "capability", ["default", "avx2", pytest.param("avx512", marks=pytest.mark.skipif(not AVX512, reason="not here"))]
)
def test_it_replays_to_the_same_state_on_other_instruction_sets(run: Path, capability: str) -> None:
    library = {"default": "SSE4_2", "avx2": "AVX2", "avx512": "AVX512"}[capability]
    result = replay(run, env={"ATEN_CPU_CAPABILITY": capability, "MKL_ENABLE_INSTRUCTIONS": library})
    transcript = Transcript.open(run)
    assert (result.verdict, result.state) == ("match", transcript.step(transcript.steps - 1).state.hex())
    assert (result.calibrated, result.probable) == (0, 0), "all of float32 rests on proven bounds"


def test_what_another_instruction_set_recorded_replays_here(tmp_path: Path, run: Path) -> None:
    """Of blocks that are summed in other orders, other elements may round otherwise: the log says which way."""
    policy = Transcript.open(run).draft["policy"]
    found = replay(run, env={"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"})
    again = recorded(tmp_path, policy)
    assert found.state == Transcript.open(again).step(2).state.hex()


def test_its_log_is_smaller_than_with_whole_products(run: Path, mixed: Path) -> None:
    least = bound_policy.BLOCKS[Transcript.open(run).draft["policy"]]
    assert 0 < logged(run) < logged(mixed) * (0.4 if least == 64 else 0.7)
    assert roundings(WIDTH, least) <= {64: 80, 256: 260}[least]


def test_16_bits_have_the_bounds_and_bits_of_the_default(tmp_path: Path) -> None:
    def autocast(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step(batch, model, optimizer)

    made = []
    for policy in ("mixed", "blocked-64"):
        train(tmp_path / policy, build, autocast, rows()[:1], policy=policy)
        result = replay_here(tmp_path / policy)
        assert (result["verdict"], result["calibrated"] > 0) == ("match", True)
        transcript = Transcript.open(tmp_path / policy)
        made.append((transcript.step(1).checksums, transcript.rounding(1)))
    assert made[0] == made[1], "all products are of bfloat16"


# --- other ways to execute a step -------------------------------------------------------------------------------------


class Wide(Program):
    """Products of 300 and 192 terms, in float32."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(300, 192), nn.GELU(), nn.Linear(192, 4))

    def batch(self, number: int, rows: int = 130) -> Any:
        numbers = np.random.default_rng(number)
        x = torch.from_numpy(numbers.standard_normal((rows, 300)).astype(np.float32))
        return {"x": x, "y": torch.from_numpy(numbers.integers(0, 4, rows))}


@pytest.mark.parametrize("logs", ["full", "on-demand"])
@pytest.mark.parametrize("policy", BLOCKED)
def test_compiled_steps_leave_the_transcript_of_plain_ones(tmp_path: Path, policy: str, logs: str) -> None:
    made, _ = same_both_ways(tmp_path, Wide, policy=policy, logs=logs)
    assert made.compiled >= 2, made.reason


def test_logs_that_are_made_on_demand_are_those_of_a_recording_in_full(run: Path, tmp_path: Path) -> None:
    policy = Transcript.open(run).draft["policy"]
    bare = recorded(tmp_path, policy, logs="on-demand", device="cpu")
    full = Transcript.open(run)
    assert [r.state for r in Transcript.open(bare).records()] == [r.state for r in full.records()]
    there = copied(bare, tmp_path / "there")
    done = regenerated(there)
    assert done.written == full.steps
    result = replay(there, env={"ATEN_CPU_CAPABILITY": "default"})
    assert (result.verdict, result.logged) == ("match", logged(run))


def test_disputed_products_are_judged_with_the_same_blocks(tmp_path: Path) -> None:
    def small() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(300, 3)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    batches = [
        {"x": torch.randn(4, 300, generator=torch.Generator().manual_seed(n)), "y": torch.tensor([0, 1, 2, 0])}
        for n in range(STEP)
    ]
    train(tmp_path / "run", small, step, batches, every=STEP, policy="blocked-64")
    transcript = Transcript.open(tmp_path / "run")
    nodes = Tape.decode(transcript.tape(transcript.step(STEP).tape)).nodes
    op = next(number for number, node in enumerate(nodes) if node.op == "addmm.default")
    honest, liar = Party(tmp_path / "run"), cheat(tmp_path / "run", op)
    keys = SigningKey.generate(), SigningKey.generate()
    public = keys[0].public, keys[1].public
    referee = Referee(public, SigningKey.generate(), judge=judge_here, clock=60.0, now=lambda: 0.0)
    asked = moves.challenge(honest.tree()[0], STEP, own=True)
    referee.post(signed(referee.dispute.head, asked, keys[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(liar.tree()[0], asked), keys[1]).data)
    while referee.ruling is None:
        party, _ = referee.dispute.due()
        opening = (liar if party == DEFENDER else honest).tree(referee.dispute.leaf)[0].opening
        assert opening is not None
        referee.post(signed(referee.dispute.head, Shown(opening=opening), keys[party]).data)
    assert referee.dispute.leaf == op + 1
    assert reasons(referee) == {DEFENDER: "dispute.leaf", CHALLENGER: "dispute.follows"}


@NEEDED
def test_the_second_executor_splits_alike(run: Path) -> None:
    result = second_replay(run)
    assert (result.verdict, result.first_difference, result.lacks) == ("match", None, "")
    assert result.contested == logged(run)


# --- attacks ----------------------------------------------------------------------------------------------------------

OFF = 2.0**-43
"""How far from half way: 1,024 units of roundoff. A sum of 1,024 terms is contested there, one in blocks is not."""


def half_way() -> tuple[torch.Tensor, torch.Tensor]:
    """Factors of 1 + 2^-24 + OFF, of which every partial sum is exact in float64, in any order and any blocks."""
    x, w = torch.zeros(1, WIDTH), torch.zeros(WIDTH, 1)
    x[0, [0, 400, 900]] = torch.tensor([1.0, 2.0**-12, 2.0**-21])
    w[[0, 400, 900], 0] = torch.tensor([1.0, 2.0**-12, 2.0**-22])
    return x, w


class Lying:
    """Rounds as a Recorder does whose bounds are wider, and takes the other side wherever they admit it."""

    def __init__(self, times: float) -> None:
        self.times, self.lies = times, 0

    def record(self, x: torch.Tensor, bound: Bound, op: int, output: int) -> Rounded:
        found = contested.record(x, bound.scaled(self.times), op, output)
        if found.entries is None or x.shape != (1, 1) or float(x) != 1 + 2.0**-24 + OFF:
            return found
        self.lies += 1
        places, widths = np.zeros(1, np.int64), np.ones(1, np.uint8)
        other = ordered(np.ones(1, np.float32))
        return chosen(found, places, torch.from_numpy(unordered(other)), OpEntries(op, output, places, widths,
                                                                                 low_bits(other, widths)))  # fmt: skip


def lying(path: Path, policy: str, times: float) -> int:
    liar = Lying(times)

    def made(batch: Batch, weight: nn.Linear) -> None:
        with torch.no_grad():
            weight.bias.copy_((batch["x"] @ batch["w"]).view(1))

    x, w = half_way()
    with rounding_by(contested, liar.record):
        train(path, lambda: (nn.Linear(1, 1),), made, [{"x": x, "w": w}], policy=policy)
    return liar.lies


def test_a_choice_within_the_bound_of_whole_products_is_none_under_blocks(tmp_path: Path) -> None:
    """A Prover declares blocks and has bounds of others; under the bounds that it had, the same log is admissible."""
    counted = (WIDTH + 2) / (roundings(WIDTH, 64) + 2)
    assert lying(tmp_path / "honest", "blocked-64", 1.0) == 0, "within the bounds that it declares, there is no choice"
    assert lying(tmp_path / "run", "blocked-64", counted) == 1
    result = replay_here(tmp_path / "run")
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert result["first_difference"]["operation"] == "mm.default"
    other = forge(tmp_path / "run", tmp_path / "mixed", lambda *_: None, policy="mixed")
    assert replay_here(other)["verdict"] == "match"


@pytest.mark.parametrize("claimed", BLOCKED)
def test_a_draft_that_claims_smaller_bounds_than_a_log_was_made_with_is_found(tmp_path: Path, claimed: str) -> None:
    assert lying(tmp_path / "run", "mixed", 1.0) == 1
    assert replay_here(tmp_path / "run")["verdict"] == "match", "what strict bounds admit is the Prover's choice"
    result = replay_here(forge(tmp_path / "run", tmp_path / "forged", lambda *_: None, policy=claimed))
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert result["first_difference"]["operation"] == "mm.default"
