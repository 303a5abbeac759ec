"""Copies of tensors in host memory are equal to tensors with the same bits, however these lie."""

from __future__ import annotations

import pytest
import torch

from prover.capture.storages import HostCopy
from weighbridge.core.digests import bytes_digest
from weighbridge.transcript.tensor_file import raw_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_column_is_copied_whatever_its_stride(rows: int, dtype: torch.dtype) -> None:
    """That of one row has one element, and a stride that is no 1."""
    column = (torch.arange(5.0 * rows).view(rows, 5) % 2).to(dtype)[:, 1]
    copy = HostCopy(column)
    assert copy.equals(column)
    assert copy.equals(column.clone())
    assert not rows or not copy.equals(column.logical_not().to(dtype))
    data = bytes(raw_bytes(column))
    assert copy.digest() == (len(data), bytes_digest(data))
