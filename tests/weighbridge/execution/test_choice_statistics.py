"""What logs chose: honest ones look like chance and bring nothing in; steered and smuggling ones are seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from support.on_demand import regenerated
from support.recordings import replay_here, train
from torch import nn

from benchmarks import machine
from weighbridge.execution import choice_counts, rounding_findings
from weighbridge.execution.choice_statistics import Tally
from weighbridge.execution.rounding_surprise import Overruled
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound, bound_at
from weighbridge.numerics.rounding.contested import Rounded, ordered
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.program.tape_policy import AS_DESIGNED, TapePolicy
from weighbridge.transcript.supplements import folder_of

# --- counts and tests -----------------------------------------------------------------------------------------------


def devices(seed: int, size: int = 20_000) -> tuple[torch.Tensor, torch.Tensor, Bound]:
    """Wide results of two devices, and a bound under which a tenth of the elements is contested."""
    rng = np.random.default_rng(seed)
    exact = rng.standard_normal(size)
    e = np.abs(exact) * 2.0**-24 / 40
    x, y = (torch.from_numpy(exact + rng.uniform(-0.3, 0.3, size) * e) for _ in range(2))
    return x, y, Bound(factors=(torch.from_numpy(e),))


def tallied(y: torch.Tensor, bound: Bound, entries: OpEntries | None, outputs: int = 64) -> Tally:
    """Counts one result as if it were so many outputs."""
    tally = Tally()
    followed = contested.follow(y, bound, entries)
    assert followed.inadmissible == 0
    for _ in range(outputs):
        tally.add(1, "mm.default", y, bound, torch.float32, entries, followed.choices)
    tally.settle()
    return tally


def test_another_honest_device_looks_like_chance() -> None:
    x, y, bound = devices(1)
    tally = tallied(y, bound, contested.record(x, bound, 0, 0).entries)
    assert tally.entries > 64 * 1000
    assert tally.overruled > 0
    assert min(tally.only_logged, tally.only_here) > 10, "the two devices do not find the same elements contested"
    pairs = choice_counts.tests(tally)
    assert pairs["contested"]["p"] > 1e-4
    one = tallied(y, bound, contested.record(x, bound, 0, 0).entries, outputs=1)
    assert all(test["p"] > 1e-4 for test in choice_counts.tests(one).values())
    assert rounding_findings.findings(one, AS_DESIGNED, "run", lambda _: True) == []


def test_a_log_that_rounds_up_throughout_does_not() -> None:
    x, _, bound = devices(2)
    entries = contested.record(x, bound, 0, 0).entries
    assert entries is not None
    at = entries.positions
    e = bound_at(x, bound, torch.from_numpy(at)).numpy()
    upper = ordered((x.numpy()[at] + 2 * e).astype(np.float32))
    mask = (np.int64(1) << entries.widths.astype(np.int64)) - 1
    steered = OpEntries(0, 0, at, entries.widths, (upper & mask).astype(np.uint64))
    tests = choice_counts.tests(tallied(x, bound, steered, outputs=1))
    assert tests["up"]["p"] < 1e-9
    assert tests["up"]["observed"] == tests["up"]["of"]
    assert tests["overruled_up"]["p"] < 1e-9
    assert tests["contested"]["p"] == 1.0


def test_entries_that_were_added_to_or_taken_from_a_log_show_in_their_number() -> None:
    x, _, bound = devices(3)
    entries = contested.record(x, bound, 0, 0).entries
    assert entries is not None
    honest = tallied(x, bound, entries)
    assert (honest.only_logged, honest.only_here, honest.both) == (0, 0, len(entries.positions))
    fewer = choice_counts.tests(tallied(x, bound, entries.part(0, len(entries.positions) // 2)))
    assert fewer["contested"]["p"] < 1e-9
    none = tallied(x, bound, None)
    assert none.only_here == len(entries.positions)


def test_copies_of_one_result_count_once() -> None:
    x = torch.full((5000,), 1 + 2.0**-24 + 2.0**-40, dtype=torch.float64)
    bound = Bound(absolute=2.0**-30)
    tally = tallied(x, bound, contested.record(x, bound, 0, 0).entries, outputs=1)
    assert (tally.entries, tally.up + tally.down) == (5000, 1)


@given(st.integers(0, 500), st.integers(0, 500))
def test_p_values_are_those_of_the_binomial_test(a: int, b: int) -> None:
    if a + b:
        assert math.isclose(choice_counts.even(a, a + b), binomtest(a, a + b).pvalue, rel_tol=1e-9, abs_tol=1e-300)


@pytest.mark.parametrize(("dtype", "ulps"), [(torch.float32, 3.0), (torch.float32, 1000.0), (torch.bfloat16, 20.0)])
def test_freedom_is_the_number_of_values_that_a_log_could_choose(dtype: torch.dtype, ulps: float) -> None:
    """Around 1.5 the spacing is even: 4e + 1 values, in units of it."""
    spacing = 2.0**-23 if dtype is torch.float32 else 2.0**-7
    x = torch.tensor([1.5], dtype=torch.float64 if dtype is torch.float32 else torch.float32)
    bound = Bound(absolute=ulps * spacing)
    if dtype is torch.float32:
        entries, follow = (
            contested.record(x, bound, 0, 0).entries,
            contested.follow(x, bound, contested.record(x, bound, 0, 0).entries),
        )
    else:
        entries = narrow.record(x, bound, dtype, 0, 0).entries
        follow = narrow.follow(x, bound, dtype, entries)
    tally = Tally()
    tally.add(1, "mm.default", x, bound, dtype, entries, follow.choices)
    tally.settle()
    assert (tally.rounded, tally.narrow) == (1, int(dtype is torch.bfloat16))
    assert math.isclose(tally.bits, math.log2(4 * ulps + 1), rel_tol=0.01)
    assert (tally.wide, tally.bits_in) == (int(4 * ulps > 255), 0.0)


def test_what_is_not_finite_is_one_of_three() -> None:
    x = torch.tensor([math.nan, math.inf], dtype=torch.float64)
    tally = tallied(x, Bound(), contested.record(x, Bound(), 0, 0).entries, outputs=1)
    assert (tally.entries, tally.overruled) == (2, 0)
    assert math.isclose(tally.bits, 2 * math.log2(3))
    assert (tally.up, tally.down) == (0, 0)


numbers = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from(sorted(Tally().to_json())), numbers)
def test_counts_from_a_worker_are_numbers_or_refused(name: str, value: Any) -> None:
    """parse(t.to_json()) == t; anything else is refused with an error that the reader expects, or is a number."""
    assert choice_counts.parse(Tally(entries=3, bits=4.5).to_json()) == choice_counts.Counts(entries=3, bits=4.5)
    try:
        found = choice_counts.parse({**Tally().to_json(), name: value})
    except (ValueError, TypeError, KeyError, OverflowError):
        return
    assert all(math.isfinite(v) and v >= 0 for v in found.to_json().values())


# --- real runs ------------------------------------------------------------------------------------------------------


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(
        nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8)
    )
    model.to(torch.bfloat16)
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)


def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def batches() -> list[dict[str, torch.Tensor]]:
    random = np.random.RandomState(0)
    return [
        {"x": torch.from_numpy(random.randn(64, 32)).bfloat16(), "y": torch.from_numpy(random.randint(0, 8, 64))}
        for _ in range(3)
    ]


def test_an_honest_run_looks_like_chance_and_brings_nothing_in(tmp_path: Path) -> None:
    train(tmp_path / "run", build, step, batches(), policy="calibrated")
    result = replay_here(tmp_path / "run")
    tally = choice_counts.parse(result["evidence"])
    assert result["verdict"] == "match"
    assert (tally.rounded, tally.entries) == (result["rounded"], result["logged"])
    assert tally.entries > 200
    assert all(test["p"] > 1e-5 for test in choice_counts.tests(tally).values())
    assert (tally.overruled, tally.bits_in, tally.charged_bits) == (0, 0.0, 0.0)
    assert "roundings" not in result["chosen"]
    assert "replay.rounding.freedom" not in [finding["id"] for finding in result["findings"]]


def put(found: Rounded, places: torch.Tensor, values: torch.Tensor) -> None:
    """Puts values in the place of contested elements, and into their log."""
    assert found.entries is not None
    flat(found.out)[places] = values
    found.checksum = formats.checksum(flat(found.out))
    k = found.entries.widths.astype(np.int64)
    low = narrow._ordered(values) & ((np.int64(1) << k) - 1)
    found.entries.bits[:] = np.where(k > 0, low, found.entries.bits.astype(np.int64)).astype(np.uint64)


def recorded_with(steer: Callable[..., Rounded], run: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records a training whose contested roundings are chosen, and returns its replay."""
    monkeypatch.setattr(narrow, "record", steer)
    train(run, build, step, batches(), policy="calibrated")
    monkeypatch.undo()
    result = replay_here(run)
    assert result["verdict"] == "match", "every choice was one that a conforming device could have made"
    return result


def test_a_run_whose_contested_roundings_all_went_up_is_admissible_and_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = narrow.record

    def steer(x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        """Rounds every contested element to the larger value that the bound allows."""
        found = honest(x, bound, dtype, op, output)
        if found.entries is not None:
            places = torch.from_numpy(found.entries.positions)
            choices = narrow.follow(x, bound, dtype, found.entries).choices
            assert choices is not None
            most = torch.from_numpy(choices.wide + 2 * choices.bounds)
            upper = formats.to_format(most.to(x.dtype), dtype)
            upper = torch.where(torch.isfinite(most), upper, flat(found.out)[places])
            put(found, places, upper)
        return found

    result = recorded_with(steer, tmp_path / "run", monkeypatch)
    tests = choice_counts.tests(choice_counts.parse(result["evidence"]))
    assert tests["up"]["p"] < 1e-9
    assert tests["overruled_up"]["p"] < 1e-9


def test_a_payload_in_the_roundings_is_charged_what_it_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contested element rounds as a bit of another model says; the run goes on from there, and replays."""
    honest, payload, carried = narrow.record, np.random.default_rng(8), [0]

    def steer(x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        found = honest(x, bound, dtype, op, output)
        if found.entries is not None:
            choices = narrow.follow(x, bound, dtype, found.entries).choices
            assert choices is not None
            ends = [
                formats.to_format(torch.from_numpy(choices.wide + side * 2 * choices.bounds).to(x.dtype), dtype)
                for side in (-1, 1)
            ]
            free = torch.from_numpy(np.isfinite(choices.wide) & np.isfinite(choices.bounds)) & (ends[0] != ends[1])
            carried[0] += int(free.sum())
            places = torch.from_numpy(found.entries.positions)
            picked = torch.where(torch.from_numpy(payload.integers(0, 2, len(free)) == 1), ends[1], ends[0])
            picked = torch.where(free, picked, flat(found.out)[places])
            put(found, places, picked)
        return found

    result = recorded_with(steer, tmp_path / "run", monkeypatch)
    assert carried[0] > 1000
    assert result["evidence"]["charged_bits"] > carried[0] - 16  # a code may be short for one payload in 2^16
    assert result["chosen"]["roundings"]["bits"] == result["evidence"]["charged_bits"]
    (finding,) = [f for f in result["findings"] if f["id"] == "replay.rounding.freedom"]
    assert finding["severity"] == "violation"


def test_the_weights_of_a_model_no_longer_fit_into_its_log() -> None:
    """The demo's GPT-2 took 7 steps in 16 bits and 29 in 32, when values alone were counted and 0.02 an element."""
    measured = machine.load("differences")
    assert measured is not None
    gpt2 = measured["models"]["gpt2"]
    for wide, narrowed, steps in ((gpt2["rounded_per_step"], 0, 5_000), (0, gpt2["rounded_per_step"], 1_500)):
        most = AS_DESIGNED.log_limit(wide, narrowed, AS_DESIGNED.log_step_bits)
        assert 16 * gpt2["weights"] / most > steps


# --- the log as an input --------------------------------------------------------------------------------------------

SIZE = 64


def smuggler() -> tuple[nn.Module]:
    return (nn.Linear(SIZE, 1, bias=False),)


def smuggle(batch: dict[str, torch.Tensor], model: nn.Linear) -> None:
    """Zero by any reading of the program; yet its bound is wider than any weight."""
    with torch.no_grad():
        model.weight.copy_(batch["large"] @ batch["ones"])


CANCELLING = [{"large": torch.tensor([[1e30, -1e30]]), "ones": torch.ones(2, SIZE)}]


def inserted() -> npt.NDArray[np.float32]:
    """Weights of another model."""
    return np.random.default_rng(5).standard_normal(SIZE).astype(np.float32)


def inserting(honest: Callable[..., Rounded]) -> Callable[..., Rounded]:
    """Records as `honest` does, and puts weights in the place of results that cancel."""
    weights = inserted()

    def insert(x: torch.Tensor, bound: Bound, op: int, output: int) -> Rounded:
        found = honest(x, bound, op, output)
        if found.entries is not None and x.shape == (1, SIZE) and int(found.entries.widths.min()) > 8:
            flat(found.out).copy_(torch.from_numpy(weights))
            found.checksum = formats.checksum(flat(found.out))
            mask = (np.int64(1) << found.entries.widths.astype(np.int64)) - 1
            found.entries.bits[:] = (ordered(weights) & mask).astype(np.uint64)
        return found

    return insert


def test_a_log_that_puts_weights_where_results_cancel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contested, "record", inserting(contested.record))
    train(tmp_path / "run", smuggler, smuggle, CANCELLING)
    monkeypatch.undo()
    result = replay_here(tmp_path / "run")
    (finding,) = [f for f in result["findings"] if f["id"] == "replay.rounding.freedom"]
    assert result["verdict"] == "match", "which is why the finding is needed"
    assert finding["severity"] == "violation"
    assert finding["evidence"]["wide_bits_in"] > SIZE * 24
    assert finding["evidence"]["charged_bits"] > SIZE * 24
    assert not rounding_findings.findings(
        Tally(**choice_counts.parse(result["evidence"]).to_json()), TapePolicy(log_bits=1e6), "run", lambda _: True
    ), "a policy may allow it"


def test_a_log_that_is_made_later_is_charged_as_one_that_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights take the place of results that cancel while the run goes on; the supplement that says so comes later."""
    run, plain, weights = tmp_path / "run", contested.round_plain, inserted()

    def insert(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        out, checksum = plain(x)
        if x.shape != (1, SIZE):
            return out, checksum
        out.copy_(torch.from_numpy(weights).view_as(out))
        return out, formats.checksum(flat(out))

    monkeypatch.setattr(contested, "round_plain", insert)
    train(run, smuggler, smuggle, CANCELLING, logs="on-demand")
    monkeypatch.setattr(contested, "record", inserting(contested.record))
    regenerated(run)
    monkeypatch.undo()
    assert replay_here(run)["verdict"] != "match", "without a log the weights are none of the replay's own"
    result = replay_here(run, supplements=folder_of(run))
    (finding,) = [f for f in result["findings"] if f["id"] == "replay.rounding.freedom"]
    assert (result["verdict"], finding["severity"]) == ("match", "violation")
    assert finding["evidence"]["charged_bits"] > SIZE * 24


def test_what_other_devices_may_overrule_is_too_much_on_the_kind_that_recorded_the_run() -> None:
    """Ten million elements in 16 bits let a log of another kind of device choose some ten thousand bits."""
    tally = Tally()
    tally.surprise.add(3, 10_000_000, True, "mm.default", Overruled(10_000_000, 100_000, 300, 0, 0.0))
    tally.charged_bits = tally.surprise.total()
    assert 2_000 < tally.charged_bits < 10_000
    kinds = [rounding_findings.findings(tally, TapePolicy(), "run", lambda _, own=own: own) for own in (False, True)]
    assert [[finding.id for finding in found] for found in kinds] == [[], ["replay.rounding.freedom"]]


def test_elements_that_no_weight_depends_on_do_not_pay_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them a step, which at 0.02 bits each would have paid for the whole model."""

    def beside(batch: dict[str, torch.Tensor], model: nn.Linear) -> None:
        torch.mm(batch["tall"], batch["tall"].t())
        smuggle(batch, model)

    monkeypatch.setattr(contested, "record", inserting(contested.record))
    train(tmp_path / "run", smuggler, beside, [{**CANCELLING[0], "tall": torch.ones(1024, 2)}])
    monkeypatch.undo()
    result = replay_here(tmp_path / "run")
    assert result["verdict"] == "match"
    assert result["rounded"] > 1 << 20
    assert "replay.rounding.freedom" in [finding["id"] for finding in result["findings"]]
    assert AS_DESIGNED.log_limit(1 << 20, 0, 0.0) < 64, "what the million allows: two weights"


def test_the_same_program_with_its_honest_log_is_not(tmp_path: Path) -> None:
    train(tmp_path / "run", smuggler, smuggle, CANCELLING)
    result = replay_here(tmp_path / "run")
    tally = choice_counts.parse(result["evidence"])
    assert result["verdict"] == "match"
    assert tally.wide == SIZE
    assert tally.wide_bits > SIZE * 24, "the freedom is there, and was not used"
    assert "replay.rounding.freedom" not in [finding["id"] for finding in result["findings"]]
