"""Rounding to 16 bits: within the bound a replayer ends with the recorder's bits; such training replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recordings import train, verdict
from torch import nn

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from prover.capture.storages import host_copies
from prover.recording import change_guard, recorder
from weighbridge.core.errors import LogError, RefusedOperationError, UsageError
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding import device_passes, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import OpEntries

TYPES = [torch.bfloat16, torch.float16]
values = st.floats(width=32, allow_nan=False, allow_infinity=False)
places = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])


def within(v: np.ndarray[Any, Any], e: np.ndarray[Any, Any], place: np.ndarray[Any, Any]) -> torch.Tensor:
    """Float32 values no further than e from v."""
    with np.errstate(over="ignore"):
        x = (v.astype(np.float64) + place * e).astype(np.float32)
    far = np.abs(x.astype(np.float64) - v) > e
    return torch.from_numpy(np.where(far, v, x).astype(np.float32))


@settings(max_examples=300)
@given(
    st.sampled_from(TYPES),
    st.lists(
        st.tuples(values, st.sampled_from([0.0, 2.0**-20, 2.0**-9, 0.3, 2.0]), places, places), min_size=1, max_size=40
    ),
)
def test_a_replayer_within_the_bound_ends_with_the_recorders_bits(
    dtype: torch.dtype, drawn: list[tuple[float, float, float, float]]
) -> None:
    """For |x - v| <= e and |y - v| <= e: follow(y, record(x)) == record(x), in values and in checksum."""
    v = np.array([d[0] for d in drawn], dtype=np.float32)
    e = np.minimum(np.abs(v.astype(np.float64)) * np.array([d[1] for d in drawn]), 3e38).astype(np.float32)
    x, y = (within(v, e.astype(np.float64), np.array([d[i] for d in drawn])) for i in (2, 3))
    bound = Bound(factors=(torch.from_numpy(e),))
    recorded = narrow.record(x, bound, dtype, 0, 0)
    replayed = narrow.follow(y, bound, dtype, recorded.entries)
    assert replayed.inadmissible == 0
    assert torch.equal(recorded.out.view(torch.int16), replayed.out.view(torch.int16))
    assert recorded.checksum == replayed.checksum == formats.checksum(replayed.out)


@pytest.mark.parametrize("dtype", TYPES)
def test_exactly_the_neighbourhood_of_midpoints_is_contested(dtype: torch.dtype) -> None:
    spacing = 2.0**-7 if dtype is torch.bfloat16 else 2.0**-10
    x = torch.tensor([1.0, 1.0 + spacing / 2, 1.0 + spacing / 4, 1.0 + spacing * 0.499])
    entries = narrow.record(x, Bound(absolute=spacing * 0.01), dtype, 0, 0).entries
    assert entries is not None
    assert entries.positions.tolist() == [1, 3]


@given(st.sampled_from(TYPES), st.integers(0, 255), st.integers(0, 2**64 - 1))
def test_hostile_entries_never_make_an_inadmissible_value(dtype: torch.dtype, width: int, bits: int) -> None:
    y = torch.tensor([1.0 + 2.0**-8])
    bound = Bound(absolute=2.0**-10)
    entries = OpEntries(0, 0, np.array([0]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64))
    result = narrow.follow(y, bound, dtype, entries)
    ends = formats.to_format(y - 2.01 * 2.0**-10, dtype), formats.to_format(y + 2.01 * 2.0**-10, dtype)
    assert ends[0] <= result.out <= ends[1]
    assert result.checksum == formats.checksum(result.out)


def test_entries_hold_no_tensor() -> None:
    """A chip would see it among the memory of the training until the step ends, and no transcript accounts for it."""
    x = torch.linspace(0.9, 1.1, 1000, dtype=torch.float32)
    entries = narrow.record(x, Bound(absolute=1e-3), torch.bfloat16, 0, 0).entries
    assert entries is not None
    assert all(array.flags.owndata for array in (entries.positions, entries.widths, entries.bits))


def test_a_position_outside_the_result_is_refused() -> None:
    entries = OpEntries(0, 0, np.array([5]), np.array([1], dtype=np.uint8), np.array([1], dtype=np.uint64))
    with pytest.raises(LogError, match="element 5 of 2"):
        narrow.follow(torch.ones(2), Bound(absolute=1.0), torch.bfloat16, entries)


def test_results_that_are_not_finite_are_logged_whole() -> None:
    x = torch.tensor([float("nan"), float("inf"), -0.0, 1.0])
    recorded = narrow.record(x, Bound(absolute=1e-9), torch.bfloat16, 0, 0)
    assert recorded.entries is not None
    assert recorded.entries.widths[:2].tolist() == [0, 0]
    assert recorded.out.view(torch.int16)[2] == 0, "the sign of zero is canonical"
    replayed = narrow.follow(x, Bound(absolute=1e-9), torch.bfloat16, recorded.entries)
    assert replayed.checksum == recorded.checksum
    finite = narrow.follow(torch.ones(4), Bound(absolute=1e-9), torch.bfloat16, recorded.entries)
    assert finite.inadmissible >= 2, "a whole value is admitted only where the replayer's is not finite either"


def test_a_bound_too_small_for_this_device_is_told_from_other_values() -> None:
    spacing, e = 2.0**-7, 2.0**-16
    x = torch.arange(20) * spacing + 1
    x[7] += spacing / 2 - 3 * e
    y = x.clone()
    y[7] += 6 * e  # across the midpoint, further from the recorder's value than two conforming devices can be
    recorded = narrow.record(x, Bound(absolute=e), torch.bfloat16, 0, 0)
    assert recorded.entries is None
    own, got = narrow.round_plain(y, torch.bfloat16)
    assert got != recorded.checksum
    assert narrow.explainable(y, Bound(absolute=e), None, own, recorded.checksum, got)
    other, got = narrow.round_plain(y + spacing, torch.bfloat16)
    assert not narrow.explainable(y + spacing, Bound(absolute=e), None, other, recorded.checksum, got)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.LayerNorm(24), nn.Dropout(0.1), nn.Linear(24, 5))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(dtype: torch.dtype = torch.float32) -> list[dict[str, torch.Tensor]]:
    random = np.random.RandomState(0)
    return [
        {"x": torch.from_numpy(random.randn(8, 12)).to(dtype), "y": torch.from_numpy(random.randint(0, 5, 8))}
        for _ in range(4)
    ]


def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_bfloat16_training_replays(tmp_path: Path) -> None:
    def build_narrow() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = build()
        model.to(torch.bfloat16)
        return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    recorder = train(tmp_path / "run", build_narrow, step, batches(torch.bfloat16), policy="calibrated", every=2)
    assert recorder.logged > 0
    assert verdict(tmp_path / "run") == "match"


def test_autocast_training_replays_and_other_data_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def autocast(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            step(batch, model, optimizer)

    train(tmp_path / "run", build, autocast, batches(), policy="calibrated")
    assert verdict(tmp_path / "run") == "match"

    def other(tensors: dict[str, torch.Tensor]) -> Any:
        return host_copies({k: v + 1 if k == "x" else v for k, v in tensors.items()})

    monkeypatch.setattr(recorder, "host_copies", other)
    monkeypatch.setattr(change_guard, "while_running", lambda *operands: None)  # it would notice
    train(tmp_path / "lie", build, autocast, batches(), policy="calibrated")
    assert verdict(tmp_path / "lie").startswith("mismatch")


def test_strict_bounds_refuse_16_bits_and_say_what_does_not(tmp_path: Path) -> None:
    with pytest.raises(RefusedOperationError, match='policy="mixed"'):
        train(
            tmp_path / "run", lambda: (build()[0].to(torch.bfloat16),), lambda b, m: m(b["x"]),
            batches(torch.bfloat16), policy="strict",
        )  # fmt: skip


def test_policies_by_name() -> None:
    assert bound_policy.named("strict").factor("mm") == 1.0
    measured = bound_policy.named("calibrated")
    assert measured.factors["mm"] > 0
    assert measured.factor("never measured") == 8.0
    with pytest.raises(
        UsageError,
        match=r"mixed, strict, .*, blocked-256 or unit-vdpbf16ps, or with .* unit-a100 or unit-h100",
    ):
        bound_policy.named("loose")


def test_a_gradient_scaler_replays_through_an_overflow(tmp_path: Path) -> None:
    def build_scaled() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
        return (*build(), torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2))

    scales: list[float] = []

    def scaled(
        batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())

    train(tmp_path / "run", build_scaled, scaled, batches() * 3, policy="calibrated")
    assert scales[0] == 2.0**125, "the first step overflows and backs off"
    assert verdict(tmp_path / "run") == "match"


def test_types_of_results_follow_what_is_asked_for() -> None:
    """What one call asked for must not decide the types of the next: here a bias's gradient, wanted the second time."""
    x, w, grad = (torch.randn(s, dtype=torch.bfloat16) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 8, 8)))
    for mask in ([True, True, False], [True, True, True]):
        context = Recording(0, Generators(), bound_policy.named("calibrated"))
        context.begin(0)
        op = torch.ops.aten.convolution_backward.default
        args = (grad, x, w, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        found = evaluate(op, args, {}, context)
        assert [None if t is None else t.dtype for t in found] == [torch.bfloat16 if m else None for m in mask]


@pytest.mark.parametrize("dtype", formats.NARROW, ids=str)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
def test_the_loop_of_the_processor_does_what_pytorchs_operations_do(dtype: torch.dtype, wide: torch.dtype) -> None:
    """Every edge of the type, every number of elements up to a few words, and NaN of other patterns."""
    points = torch.tensor(device_passes.edges(dtype), dtype=wide)
    for x in (points, -points, *(points[:n] for n in range(9)), torch.randn(5000, dtype=wide)):
        expected = formats.to_format(x, dtype)
        out, total = narrow.round_plain(x, dtype)
        assert torch.equal(out.view(torch.int16), expected.view(torch.int16))
        assert total == formats.checksum(expected)
    every = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(dtype)
    mine = every.clone()
    total = narrow.canonicalise(mine)
    assert torch.equal(mine.isnan(), every.isnan())
    assert set(mine.view(torch.int16)[mine.isnan()].tolist()) == {formats.NAN[dtype]}
    assert torch.equal(mine.view(torch.int16)[~mine.isnan()], every.view(torch.int16)[~every.isnan()]), "-0 stays"
    assert total == formats.checksum(mine)


@pytest.mark.parametrize("dtype", formats.NARROW, ids=str)
def test_the_loop_rounds_what_lies_between_neighbours_as_pytorch_does(dtype: torch.dtype) -> None:
    """Every sign, exponent and leading fraction of float32, before, at and after what is halfway."""
    leading = torch.arange(1 << 16, dtype=torch.int64) << 16
    for low in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (leading | low).to(torch.int32).view(torch.float32)
        expected = formats.to_format(x, dtype)
        out, total = narrow.round_plain(x, dtype)
        assert torch.equal(out.view(torch.int16), expected.view(torch.int16)), low
        assert total == formats.checksum(expected)
