"""The gradient of an embedding is made of the rows that are used, and is the kernel's."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.numerics.operations.embeddings import spread, used_rows
from weighbridge.numerics.schemas import bind

aten = torch.ops.aten
OP = aten.embedding_dense_backward.default


@given(
    st.lists(st.integers(0, 6), max_size=12),
    st.integers(1, 4),
    st.one_of(st.just(-1), st.integers(0, 6)),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_rows_that_are_used_are_all_that_the_kernel_fills(
    index: list[int], width: int, padding: int, by_frequency: bool, random: Any
) -> None:
    """Small integers add up exactly, in any order; a division by a count is the kernel's own either way."""
    gradient = torch.tensor([[random.randint(-9, 9) for _ in range(width)] for _ in index], dtype=torch.float64)
    gradient = gradient.view(len(index), width)
    indices = torch.tensor(index, dtype=torch.int64)
    rows, fewer = used_rows(bind(OP, (gradient, indices, 7, padding, by_frequency), {}))
    assert rows.tolist() == sorted(set(index) - {padding})
    expected = OP(gradient, indices, 7, padding, by_frequency)
    assert torch.equal(spread(OP(*fewer), rows, 7), expected)
