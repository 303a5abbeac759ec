"""Units' own bounds hold with a margin of two on data of every kind, where forms in K and norms of rows do not."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.operand_kinds import KINDS, Kind, drawn, normal, one_signed

from benchmarks.unit_differences import calibrated_bound
from weighbridge.core.errors import UsageError
from weighbridge.numerics import units
from weighbridge.numerics.units import truncated_products, unit_bounds

SIDE = 8
AGAIN = """
import hashlib
import torch
from weighbridge.numerics.units import chunked_products, unit_bounds
torch.manual_seed(3)
made = hashlib.sha256()
for dtype in (torch.bfloat16, torch.float16):
    a, b = torch.randn(37, 700), torch.randn(700, 45).abs()
    a, b = (torch.exp2((8 * x).round() / 8).to(dtype) for x in (a, b))
    made.update(chunked_products.chunked(a, b).sums.numpy().tobytes())
    for unit in ("a100", "h100", "vdpbf16ps"):
        made.update(unit_bounds.of_unit(unit).of(a, b).numpy().tobytes())
print(made.hexdigest())
"""
LENGTHS = {"a100": 2048, "h100": 4096, "vdpbf16ps": 512}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", LENGTHS)
def test_a_unit_stays_within_half_of_its_bound(unit: str, kind: Kind) -> None:
    a, b = drawn(kind, SIDE, LENGTHS[unit])
    error = (units.named(unit).product(a, b).double() - a.double() @ b.double()).abs()
    used = (error / unit_bounds.of_unit(unit).of(a, b)).max()
    assert 0.01 < used < 0.5, "a bound of any size would pass too"


@given(
    st.sampled_from(truncated_products.UNITS), st.sampled_from(KINDS), st.sampled_from([torch.bfloat16, torch.float16]),
    st.integers(1, 1200), st.sampled_from([0, 128, 512]), st.integers(1, 1 << 30),
)  # fmt: skip
def test_truncating_units_keep_half_of_their_bounds_at_every_length(
    unit: str, kind: Kind, dtype: torch.dtype, k: int, chain: int, seed: int
) -> None:
    """Law: |product - exact| <= bound / 2, for both types of 16 bits, any K, in one chain or in several."""
    a, b = drawn(kind, 24, k, dtype, seed)
    error = (truncated_products.product(a, b, unit, chain).double() - a.double() @ b.double()).abs()
    assert float((error / unit_bounds.of_unit(unit).of(a, b)).max()) < 0.5


@given(st.sampled_from(truncated_products.UNITS), st.integers(1, 300), st.integers(-75, -55), st.integers(0, 1 << 30))
def test_bounds_hold_below_the_normal_range(unit: str, k: int, scale: int, seed: int) -> None:
    """Where what truncation takes is no share of the sums: results are multiples of 2^-149."""
    a, b = drawn(normal, 12, k, seed=seed + 1)
    a, b = (x * 2.0**scale for x in (a, b))
    error = (truncated_products.product(a, b, unit).double() - a.double() @ b.double()).abs()
    assert bool((error <= unit_bounds.of_unit(unit).of(a, b)).all())


def test_bounds_have_the_same_bits_on_other_processors_and_whatever_pytorch_uses(tmp_path: Path) -> None:
    """Fresh processes: other instruction sets of PyTorch and its library, more threads, and code for the oldest
    x86-64, whose vectors are short and which has no fused multiply-add."""
    others = [
        {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"},
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)},
    ]
    found = {
        subprocess.run(
            [sys.executable, "-c", AGAIN], env=dict(os.environ) | env, capture_output=True, text=True, check=True
        ).stdout
        for env in ({}, *others)
    }
    assert len(found) == 1
    assert len(found.pop()) == 65


def test_a_truncating_unit_leaves_the_bound_of_another() -> None:
    """Declared as VDPBF16PS, an A100 has bounds that its sums of one sign do not keep; and so with calibrated ones."""
    a, b = drawn(one_signed, SIDE, 16384)
    exact = a.double() @ b.double()
    error = (units.named("a100").product(a, b).double() - exact).abs()
    assert (error / unit_bounds.of_unit("vdpbf16ps").of(a, b)).max() > 1
    assert (error / calibrated_bound(a, b, exact)).max() > 1
    assert (error / unit_bounds.of_unit("a100").of(a, b)).max() < 0.5


def test_a_bound_is_what_the_formula_says() -> None:
    a, b = torch.full((1, 300), 2.0), torch.ones(300, 1)
    first, second = 512.0 + 2 * 256 / 16, 600.0 + 2 * 44 / 16
    found = unit_bounds.of_unit("a100").of(a, b).item()
    assert found == pytest.approx(0.8 * 2**-24 * 256 * (first + second) + 2.0**-148 * (300 // 8 + 2))
    root = (256 * (first**2 + second**2)) ** 0.5
    assert unit_bounds.of_unit("vdpbf16ps").of(a, b).item() == pytest.approx(3.5 * 2**-24 * root)


def test_a_unit_has_its_bound_under_each_name_and_others_have_none() -> None:
    assert unit_bounds.of_unit("h200") is unit_bounds.of_unit("h100")
    assert {*unit_bounds.bounds()} == {"a100", "h100", "vdpbf16ps"}
    with pytest.raises(UsageError, match="no bound was measured for unit 'mi300'"):
        unit_bounds.of_unit("mi300")
    with pytest.raises(UsageError, match="h300"):
        unit_bounds.of_unit("h300")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("factor", 0), ("factor", -1), ("factor", float("nan")), ("factor", 1e9), ("factor", True), ("factor", "1"),
        ("form", "product"), ("form", None),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(key: str, value: Any) -> None:
    good = json.loads(unit_bounds.DATA.read_text())
    assert unit_bounds.parse(good) == unit_bounds.bounds()
    bad = copy.deepcopy(good)
    bad["units"]["a100"][key] = value
    other = {"units": {"h200": good["units"]["h100"]}}
    tables: list[Any] = [bad, good | {"chunk": 0}, good | {"chunk": True}, good | other, []]
    for each in tables:
        with pytest.raises(UsageError, match="no table of units' bounds"):
            unit_bounds.parse(each)
