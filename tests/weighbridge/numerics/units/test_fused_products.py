"""Fast products of a unit against its model: every bit, any operands, and processors without its instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.numerics import units
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import fused_products

Tensor = torch.Tensor
CHAIN = 16
"""Short, so that small operands have several."""
SMALL = st.integers(1, 40)
AGAIN = """
import torch
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import fused_products
torch.manual_seed(3)
a, b = torch.randn(7, 50).bfloat16() * 2.0**-62, torch.randn(50, 21).bfloat16() * 2.0**-62
found = fused_products.product(a, b, 16).numpy().tobytes().hex()
print(probes.fused_conform(fused_products.product, "vdpbf16ps"), found)
"""


def model(a: Tensor, b: Tensor, chain: int = CHAIN) -> Tensor:
    return units.named("vdpbf16ps").product(a, b, order=units.Order(chain=chain, bias_first=False))


def differ(found: Tensor, expected: Tensor) -> int:
    """Counts results with other bits; NaN is NaN."""
    same = (found.view(torch.int32) == expected.view(torch.int32)) | (found.isnan() & expected.isnan())
    return int((~same).sum())


def drawn(rows: int, columns: int, scale: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Numbers of very different size about 2^scale, a few of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(rows, columns, generator=generator) * 2.0 ** torch.randint(
        scale - 6, scale + 6, (rows, columns), generator=generator
    )
    return (size * (torch.rand(rows, columns, generator=generator) > 0.1)).to(dtype)


@given(SMALL, st.integers(1, 70), SMALL, st.integers(-72, 20), st.integers(0, 1 << 30))
def test_every_bit_is_the_model_s(rows: int, terms: int, columns: int, scale: int, seed: int) -> None:
    """Law: product(a, b) == the model's product in the same chains, at every scale, flushed results included."""
    a, b = drawn(rows, terms, scale, seed), drawn(terms, columns, scale, seed + 1)
    assert differ(fused_products.product(a, b, CHAIN), model(a, b)) == 0


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 1 << 30))
def test_any_bits_are_operands(rows: int, terms: int, seed: int) -> None:
    """Infinities, NaN and subnormal operands too."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randint(-(1 << 15), 1 << 15, shape, generator=generator, dtype=torch.int16).view(torch.bfloat16)
        for shape in ((rows, terms), (terms, 5))
    )
    assert differ(fused_products.product(a, b, CHAIN), model(a, b)) == 0


@pytest.mark.parametrize("scale", [-8, 0])
def test_float16_is_multiplied_in_the_same_order(scale: int) -> None:
    """The hardware has no such instruction; the order is that of bfloat16, and products are exact too."""
    a, b = drawn(9, 50, scale, 1, torch.float16), drawn(50, 20, scale, 2, torch.float16)
    total = torch.zeros(9, 20)
    for start in range(0, 50, CHAIN):
        part = torch.zeros(9, 20)
        for k in range(start, min(start + CHAIN, 50), 2):
            for each in (k + 1, k):  # one rounding of an exact sum: float64 holds product and sum of such numbers
                part = (part.double() + a[:, each, None].double() * b[each].double()).float()
        total += part
    assert torch.equal(fused_products.product(a, b, CHAIN), total)


def test_results_about_the_least_normal_number_are_flushed_after_rounding() -> None:
    """2^-126 less 1 to 128 times 2^-156: below the tie at 2^-126 - 2^-151 a zero, where float32 alone gives 2^-126."""
    steps = torch.arange(1, 129, dtype=torch.float32)
    a = torch.stack([-steps.bfloat16() * 2.0**-70, torch.ones(128).bfloat16()], 1)
    b = torch.tensor([[2.0**-86], [2.0**-126]], dtype=torch.bfloat16)
    found = fused_products.product(a, b)
    assert (found[:, 0] == 0).tolist() == (steps > 32).tolist()
    assert differ(found, model(a, b)) == 0


def test_batches_strides_and_empty_operands() -> None:
    a, b = torch.randn(3, 6, 10, 2).bfloat16()[..., 0], torch.randn(3, 17, 10).bfloat16().mT
    for found, x, y in zip(fused_products.product(a, b), a, b, strict=True):
        assert differ(found, model(x, y)) == 0
    assert fused_products.product(a[:, :0], b).shape == (3, 0, 17)
    assert torch.equal(fused_products.product(a[0, :, :0], b[0, :0]), torch.zeros(6, 17))
    tall = fused_products.product(b.mT, a.mT)
    assert tall.is_contiguous()
    assert torch.equal(tall, fused_products.product(a, b).mT)


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 70), st.integers(1, 40), st.integers(1, 4000))
def test_pieces_that_are_packed_apart_change_no_bit(b: int, rows: int, terms: int, columns: int, packed: int) -> None:
    """Law: product(a, b) is the same however much is packed at once, so memory is bounded for many small products."""
    x, y = (
        torch.stack([drawn(*shape, -64, n + seed) for n in range(b)])
        for seed, shape in ((1, (rows, terms)), (9, (terms, columns)))
    )
    whole = fused_products.product(x, y, CHAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_products, "PACKED", packed)
        assert differ(fused_products.product(x, y, CHAIN), whole) == 0
    assert differ(whole[0], model(x[0], y[0])) == 0


def test_a_product_needs_no_flushing_where_its_terms_are_coarse() -> None:
    """The bound on exponents is sharp enough to matter, and safe: at 2^-126 exactly nothing is flushed wrongly."""
    for low in range(-70, -50):
        a, b = drawn(8, 40, low, 5), drawn(40, 33, low, 6)
        assert differ(fused_products.product(a, b, CHAIN), model(a, b)) == 0, low


def test_a_probe_notices_code_that_adds_in_another_way() -> None:
    assert probes.fused_conform(fused_products.product, "vdpbf16ps")
    assert not probes.fused_conform(lambda a, b, chain: a.float() @ b.float(), "vdpbf16ps")
    assert not probes.fused_conform(lambda a, b, chain: fused_products.product(a, b, 2 * chain), "vdpbf16ps")
    assert not probes.fused_conform(lambda a, b, chain: _unflushed(a, b, chain), "vdpbf16ps")


def _unflushed(a: Tensor, b: Tensor, chain: int) -> Tensor:
    """What float32 gives that flushes nothing: right but for results below the normal range."""
    scale = 2.0**30
    return fused_products.product(a * scale, b * scale, chain) / scale**2


def test_a_processor_without_fused_multiply_add_has_the_same_bits(tmp_path: Path) -> None:
    """The code is compiled anew for the oldest x86-64, whose vectors are short: products are then function calls."""
    here = dict(os.environ)
    other = here | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run([sys.executable, "-c", AGAIN], env=env, capture_output=True, text=True, check=True).stdout
        for env in (here, other)
    ]
    assert found[0] == found[1]
    assert found[0].startswith("True ")
