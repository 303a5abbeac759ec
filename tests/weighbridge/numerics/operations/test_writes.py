"""Writes that name a place twice: the last in index order wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.numerics.operations import writes

Tensor = torch.Tensor


def one_by_one(x: Tensor, indices: list[Tensor | None], values: Tensor) -> Tensor:
    """NumPy assigns in index order, so that the last one wins."""
    out = x.clone().numpy()
    at: Any = tuple(slice(None) if i is None else i.numpy() for i in indices)
    wanted = np.broadcast_to(values.numpy(), out[at].shape)
    plain = np.arange(out.size).reshape(out.shape)[at]
    for place, value in zip(plain.reshape(-1), wanted.reshape(-1), strict=True):
        out.reshape(-1)[place] = value
    return torch.from_numpy(out)


INDEX = {
    "front": lambda g: [torch.randint(-4, 4, (9,), generator=g)],
    "behind": lambda g: [None, torch.randint(-3, 3, (9,), generator=g)],
    "two": lambda g: [torch.randint(0, 4, (9,), generator=g), torch.randint(0, 3, (9,), generator=g)],
    "apart": lambda g: [torch.randint(0, 4, (9,), generator=g), None, torch.randint(0, 2, (9,), generator=g)],
    "broadcast": lambda g: [torch.randint(0, 4, (5, 1), generator=g), torch.randint(0, 3, (1, 4), generator=g)],
    "mask": lambda g: [torch.rand(4, 3, generator=g) < 0.5],
}


@pytest.mark.parametrize("kind", sorted(INDEX))
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_index_put_writes_what_comes_last(kind: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, 2, generator=g)
    indices = INDEX[kind](g)
    values = torch.randn(x[tuple(slice(None) if i is None else i for i in indices)].shape, generator=g)
    fewer = writes.index_put(x, indices, values)
    chosen, rows = fewer if fewer is not None else (indices, values)
    assert torch.equal(torch.ops.aten.index_put(x, chosen, rows), one_by_one(x, indices, values))
    assert kind != "mask" or fewer is None
    if fewer is not None:
        assert writes.index_put(x, chosen, rows) is None, "what is left names no place twice"


def test_one_value_for_all_places_needs_no_order() -> None:
    assert writes.index_put(torch.zeros(3), [torch.tensor([1, 1, 1])], torch.tensor(2.0)) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 2))
def test_scatter_writes_what_comes_last(seed: int, dim: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, 5, generator=g)
    shape = [3, 2, 4]
    index = torch.randint(0, x.shape[dim], shape, generator=g)
    src = torch.randn(4, 3, 5, generator=g)
    wanted = x.clone()
    for i in np.ndindex(*shape):
        to = list(i)
        to[dim] = int(index[i])
        wanted[tuple(to)] = src[i]
    longer = writes.scatter(x, dim, index, src)
    found = x.scatter(dim, index, src) if longer is None else longer[0].scatter(dim, *longer[1:])
    assert torch.equal(found.narrow(dim, 0, x.shape[dim]), wanted)
