"""Models of units take the place of a device's 16-bit products, beneath the real Recorder and Executor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import bench_units, machine, tables_units
from benchmarks.models import Step
from benchmarks.unit_injection import KERNELS, InjectedUnit, Kernel
from weighbridge.core.errors import UsageError
from weighbridge.numerics import units

aten = torch.ops.aten
Tensor = torch.Tensor


def bf16(*shape: int, seed: int = 0) -> Tensor:
    """float32 that holds bfloat16."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def convolved() -> Step:
    """A convolution and a layer."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(index: int) -> dict[str, Tensor]:
        return {"x": bf16(2, 3, 8, 8, seed=index)}

    return Step(model, optimizer, batch, lambda b: model(b["x"]).float().square().mean(), torch.bfloat16)


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_are_those_of_the_unit(kernel: Kernel) -> None:
    a, b, c = bf16(5, 100), bf16(100, 6, seed=1), bf16(6, seed=2)
    with InjectedUnit("h100", kernel) as injected:
        plain, added = aten.mm(a, b), aten.addmm(c, a, b)
        each = aten.bmm(torch.stack([a, -a]), torch.stack([b, b]))
        scaled = aten.baddbmm(torch.zeros(2, 5, 6), torch.stack([a, a]), torch.stack([b, b]), alpha=0.5)
    order = kernel.order(100, 16)
    wanted = units.named("h100").product(a.bfloat16(), b.bfloat16(), order=order)
    assert torch.equal(plain, wanted)
    assert torch.equal(added, units.named("h100").product(a.bfloat16(), b.bfloat16(), c, order))
    assert torch.equal(each[0], wanted)
    assert torch.equal(each[1], -wanted)
    assert torch.equal(scaled[1], wanted * 0.5)
    assert (injected.products, injected.others) == (4, 0)
    assert injected.terms == 6 * 5 * 100 * 6


def test_operands_with_more_bits_are_left_alone() -> None:
    a, b = torch.randn(4, 8), bf16(8, 4)
    wanted = a @ b
    with InjectedUnit("a100") as injected:
        assert torch.equal(aten.mm(a, b), wanted)
        assert aten.mm(a.double(), b.double()).dtype == torch.float64
    assert (injected.products, injected.others) == (0, 1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 3, 1), (2, 0, 2), (3, 1, 1)])
def test_convolutions_and_their_gradients_are_sums_of_the_same_products(
    kernel: Kernel, stride: int, padding: int, dilation: int
) -> None:
    x, w, bias = bf16(2, 3, 9, 8), bf16(4, 3, 3, 2, seed=1), bf16(4, seed=2)
    rest = [[stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1]
    wanted = aten.convolution(x, w, bias, *rest)
    grad = bf16(*wanted.shape, seed=3)
    gradients = aten.convolution_backward(grad, x, w, [4], *rest, [True, True, True])
    with InjectedUnit("mi300", kernel) as injected:
        torch.testing.assert_close(aten.convolution(x, w, bias, *rest), wanted, rtol=1e-5, atol=1e-5)
        found = aten.convolution_backward(grad, x, w, [4], *rest, [True, True, True])
    torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-5)
    assert (injected.products, injected.others) == (2, 0)


def test_a_convolution_with_groups_is_refused() -> None:
    with InjectedUnit("a100"), pytest.raises(UsageError, match="groups"):
        aten.convolution(bf16(1, 4, 5, 5), bf16(4, 1, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 4)


def test_what_one_unit_records_replays_on_another(tmp_path: Path) -> None:
    recorded = InjectedUnit("a100", KERNELS[1])
    bench_units.record(tmp_path / "run", convolved, 1, recorded)
    found = bench_units.pair(tmp_path / "run", "a100", "mi300")
    assert found["verdict"] == "match", found
    # Both sides multiply through the models: the convolution, the layer, and their gradients.
    assert found["products"] == recorded.products == 5
    assert found["terms"] == recorded.terms
    assert found["others"] == recorded.others == 0


def test_a_sum_of_one_sign_on_a_truncating_unit_leaves_bounds_measured_elsewhere(tmp_path: Path) -> None:
    """An honest device would be accused: so 16-bit products of such units need bounds of their own."""
    bench_units.record(tmp_path / "run", lambda: bench_units.long(side=4), 1, InjectedUnit("mi300"))
    found = bench_units.pair(tmp_path / "run", "mi300", "a100")
    assert (found["verdict"], found["difference"]) == ("mismatch", "addmm.default")
    assert "replay.mismatch" in found["findings"]
    assert bench_units.pair(tmp_path / "run", "mi300", "mi200")["verdict"] == "match"


def test_no_unit_replays_itself_in_the_order_it_recorded_in() -> None:
    taken = [bench_units.kernels(one, other) for one in bench_units.UNITS for other in bench_units.UNITS]
    assert all(bench_units.kernels(one, one)[0] != bench_units.kernels(one, one)[1] for one in bench_units.UNITS)
    assert {index for each in taken for index in each} == set(range(len(KERNELS)))


def test_a_mismatch_is_told_and_shown() -> None:
    pairs = [
        {"recorded": one, "replayed": other, "verdict": "match", "difference": None, "followed": 3, "rounded": 1000,
         "narrow": 500, "terms": 10}
        for one in ("a100", "amx") for other in ("a100", "amx")
    ]  # fmt: skip
    recording = {"rounded": 1000, "logged": 10, "log_bytes": 50}
    subject = {"pairs": pairs, "recordings": {"a100": recording, "amx": recording}}
    assert bench_units.failures("gpt2", subject) == []
    result = {**machine.about(), "seed": 1, "subjects": {"gpt2": subject, "long": subject}}
    assert "4 replays, 4,000 roundings, 0 mismatches" in tables_units.unit_replays(result)
    assert "| gpt2 | 4 of 4 | 1,000 | 500 | 10 | 0.400 | 3 to 3 | 0 |" in tables_units.unit_replays(result)
    pairs[3] |= {"verdict": "mismatch", "difference": "mm.default"}
    assert bench_units.failures("gpt2", subject) == ["gpt2: amx on amx: mismatch mm.default"]
    assert bench_units.failures("long", subject) == ["long: amx on amx: mismatch mm.default"]  # neither truncates
    assert "1 mismatches" in tables_units.unit_replays(result)
    assert "| amx | match, 3 | mismatch |" in tables_units.unit_replays(result)
    pairs[3]["recorded"] = "h100"
    assert bench_units.failures("long", subject) == []
