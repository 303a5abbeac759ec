"""Products in float64 with the sizes of accumulators: exact where sums are, as the formula says, whatever is packed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.operand_kinds import KINDS, Kind, drawn

from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import chunked_products, chunked_tiles
from weighbridge.numerics.units.chunked_products import chunked

Tensor = torch.Tensor


def by_the_text(a: Tensor, b: Tensor, chunk: int, squared: bool) -> Tensor:
    """The sum over chunks of max(|P_(c-1)|, |P_c|) + norm(a_c) norm(b_c) / 16, or of its square."""
    a, b = a.double(), b.double()
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    before = torch.zeros_like(total)
    for start in range(0, a.shape[1], chunk):
        after = a[:, : start + chunk] @ b[: start + chunk]
        x, y = a[:, start : start + chunk], b[start : start + chunk]
        size = torch.maximum(before.abs(), after.abs()) + x.norm(dim=1)[:, None] * y.norm(dim=0) / 16
        total += size**2 if squared else size
        before = after
    return total


@given(st.sampled_from(KINDS), st.integers(1, 20), st.integers(1, 90), st.sampled_from([7, 16, 64]), st.booleans())
def test_sizes_are_what_the_formula_says(kind: Kind, side: int, k: int, chunk: int, squared: bool) -> None:
    a, b = drawn(kind, side, k)
    found = chunked(a, b, chunk, squared=squared)
    assert torch.allclose(found.sums, a.double() @ b.double(), rtol=1e-12, atol=1e-12 * float(found.sizes.max()))
    assert torch.allclose(found.sizes, by_the_text(a, b, chunk, squared), rtol=1e-12)


@given(st.integers(1, 4), st.integers(1, 20), st.integers(1, 60), st.integers(1, 20), st.integers(1, 2000))
def test_how_much_is_packed_changes_no_bit(batch: int, rows: int, terms: int, columns: int, packed: int) -> None:
    generator = torch.Generator().manual_seed(packed)
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((batch, rows, terms), (batch, terms, columns)))
    whole = chunked(a, b, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_products, "PACKED", packed)
        again = chunked(a, b, 16)
    for n in range(batch):
        one = chunked(a[n], b[n].clone(), 16)
        for found in ((whole.sums, again.sums, one.sums), (whole.sizes, again.sizes, one.sizes)):
            assert torch.equal(found[0], found[1])
            assert torch.equal(found[0][n], found[2])


def test_sums_run_along_k_one_by_one() -> None:
    """The law that other machines rely on: the order is the operands', not a library's."""
    a, b = torch.randn(5, 400).bfloat16(), torch.randn(400, 9).bfloat16()
    total = torch.zeros(5, 9, dtype=torch.float64)
    for k in range(400):
        total = total + a[:, k, None].double() * b[k].double()
    assert torch.equal(chunked(a, b).sums, total)


def test_empty_and_infinite_operands() -> None:
    a, b = torch.randn(3, 8).bfloat16(), torch.randn(8, 4).bfloat16()
    assert chunked(a[:0], b).sums.shape == (0, 4)
    assert not chunked(a[:, :0], b[:0]).sums.any()
    a[1, 2] = torch.inf
    found = chunked(a, b)
    assert (~torch.isfinite(found.sums)).any(1).tolist() == [False, True, False]
    assert (~torch.isfinite(found.sizes)).any(1).tolist() == [False, True, False]


def test_a_probe_notices_sums_that_are_made_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.chunks_conform()
    for share in (1 / 8, 1 / 17):
        monkeypatch.setattr(
            chunked_products, "chunked",
            lambda a, b, share=share: chunked_products.Chunked(
                a.double() @ b.double(), by_the_text(a, b, 256, squared=False) * (share / chunked_tiles.SHARE)
            ),
        )  # fmt: skip
        assert not probes.chunks_conform()
