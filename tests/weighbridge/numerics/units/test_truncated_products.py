"""Fast products of tensor cores against their models: every bit, any operands, and processors of other kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.operand_kinds import KINDS, Kind, drawn

from weighbridge.core.errors import UsageError
from weighbridge.numerics import units
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import truncated_products
from weighbridge.numerics.units.truncated_products import UNITS, dots, product

Tensor = torch.Tensor
TYPES = [torch.bfloat16, torch.float16]
SIZES = st.integers(1, 20)
CHAIN = st.sampled_from([0, 16, 32])
AGAIN = """
import hashlib
import torch
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import truncated_products
torch.manual_seed(3)
a, b = torch.randn(7, 50).bfloat16() * 2.0**-62, torch.randn(50, 21).bfloat16() * 2.0**-62
made = hashlib.sha256()
for unit in truncated_products.UNITS:
    made.update(truncated_products.product(a, b, unit).numpy().tobytes())
    made.update(truncated_products.dots(a, a, unit, 16).numpy().tobytes())
    print(probes.truncated_conform(truncated_products.product, unit))
print(made.hexdigest())
"""


def model(a: Tensor, b: Tensor, unit: str, chain: int) -> Tensor:
    return units.named(unit).product(a, b, order=units.Order(chain=chain or None, bias_first=False))


def differ(found: Tensor, expected: Tensor) -> int:
    """Counts results with other bits; NaN is NaN."""
    same = (found.view(torch.int32) == expected.view(torch.int32)) | (found.isnan() & expected.isnan())
    return int((~same).sum())


@given(
    st.sampled_from(UNITS), st.sampled_from(TYPES), st.sampled_from(KINDS), SIZES, st.integers(1, 90),
    st.integers(-70, 60), CHAIN, st.integers(1, 1 << 30),
)  # fmt: skip
def test_every_bit_is_the_model_s(
    unit: str, dtype: torch.dtype, kind: Kind, side: int, k: int, scale: int, chain: int, seed: int
) -> None:
    """Law: product(a, b) == the model's product, at every scale, where results are subnormal or overflow too."""
    least = scale if dtype == torch.bfloat16 else scale // 5
    a, b = (x.double() * 2.0**least for x in drawn(kind, side, k, seed=seed))
    assert differ(product(a.to(dtype), b.to(dtype), unit, chain), model(a.to(dtype), b.to(dtype), unit, chain)) == 0


@given(st.sampled_from(UNITS), st.sampled_from(TYPES), SIZES, st.integers(1, 40), CHAIN, st.integers(0, 1 << 30))
def test_any_bits_are_operands(unit: str, dtype: torch.dtype, rows: int, k: int, chain: int, seed: int) -> None:
    """Infinities, NaN and subnormal operands too, for matrices and for single elements."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randint(-(1 << 15), 1 << 15, shape, generator=generator, dtype=torch.int16).view(dtype)
        for shape in ((rows, k), (k, 17))
    )
    expected = model(a, b, unit, chain)
    assert differ(product(a, b, unit, chain), expected) == 0
    i, j = (t.flatten() for t in torch.meshgrid(torch.arange(rows), torch.arange(17), indexing="ij"))
    assert differ(dots(a[i], b.T[j], unit, chain), expected.flatten()) == 0


@pytest.mark.parametrize("unit", UNITS)
def test_finite_terms_overflow_beside_infinite_ones(unit: str) -> None:
    """A sum that overflows to -infinity before +infinity is added is NaN, and one that does not is infinite."""
    a = torch.tensor([[-(2.0**120)] * 32 + [torch.inf], [-1.0] * 32 + [torch.inf]]).bfloat16()
    b = torch.full((33, 3), 2.0**120).bfloat16()
    found = product(a, b, unit)
    assert found[0].isnan().all()
    assert (found[1] == torch.inf).all()
    assert differ(found, model(a, b, unit, 0)) == 0
    assert differ(dots(a, b.T[:2], unit), model(a, b, unit, 0)[:, 0]) == 0


@given(st.integers(1, 3), SIZES, st.integers(1, 60), st.integers(1, 40), st.integers(1, 4000))
def test_pieces_that_are_packed_apart_change_no_bit(b: int, rows: int, k: int, columns: int, packed: int) -> None:
    generator = torch.Generator().manual_seed(packed)
    x, y = (torch.randn(shape, generator=generator).bfloat16() for shape in ((b, rows, k), (b, k, columns)))
    whole, each = product(x, y, "h100", 16), dots(x[0], x[0], "h100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncated_products, "PACKED", packed)
        assert differ(product(x, y, "h100", 16), whole) == 0
        assert differ(dots(x[0], x[0], "h100"), each) == 0
    assert differ(whole[0], model(x[0], y[0], "h100", 16)) == 0


def test_empty_operands_and_strides() -> None:
    a, b = torch.randn(3, 6, 10, 2).bfloat16()[..., 0], torch.randn(3, 17, 10).bfloat16().mT
    for found, x, y in zip(product(a, b, "a100"), a, b, strict=True):
        assert differ(found, model(x, y, "a100", 0)) == 0
    assert product(a[:, :0], b, "a100").shape == (3, 0, 17)
    assert torch.equal(product(a[0, :, :0], b[0, :0], "a100"), torch.zeros(6, 17))
    assert dots(a[0, :0], a[0, :0], "a100").shape == (0,)


def test_what_it_does_not_compute_is_refused() -> None:
    a = torch.ones(2, 2)
    for bad in ((a, a, "h100", 0), (a.bfloat16(), a.half(), "h100", 0), (a.half(), a.half(), "v100", 0)):
        with pytest.raises(UsageError, match="no fast model"):
            product(*bad)
    for chain in (-16, 8, 24):
        with pytest.raises(UsageError, match="multiple of 16"):
            product(a.half(), a.half(), "h100", chain)


def test_a_probe_notices_code_that_adds_in_another_way() -> None:
    for unit in UNITS:
        assert probes.truncated_conform(product, unit)
        assert not probes.truncated_conform(_as_the_other, unit)
        assert not probes.truncated_conform(lambda a, b, unit, _: product(a, b, unit), unit)
        assert not probes.truncated_conform(lambda a, b, *_: a.float() @ b.float(), unit)


def _as_the_other(a: Tensor, b: Tensor, unit: str, chain: int) -> Tensor:
    return product(a, b, next(each for each in UNITS if each != unit), chain)


def test_other_processors_have_the_same_bits(tmp_path: Path) -> None:
    """The code is compiled anew for the oldest x86-64, whose vectors are short and cannot shift lanes apart."""
    here = dict(os.environ)
    other = here | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run([sys.executable, "-c", AGAIN], env=env, capture_output=True, text=True, check=True).stdout
        for env in (here, other)
    ]
    assert found[0] == found[1]
    assert found[0].startswith("True\nTrue\n")
