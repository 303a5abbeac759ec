"""The digest of rounded outputs: computed a second time from docs/formats/supplement.md alone."""

from __future__ import annotations

import struct

import pytest
import torch
from blake3 import blake3
from torch.utils._python_dispatch import TorchDispatchMode

from weighbridge.numerics.rounding.outputs_digest import OutputsDigest

MATRIX = torch.arange(6, dtype=torch.float32).view(2, 3)
OUTPUTS = [
    (0, 0, MATRIX, struct.pack("<6f", *range(6))),
    (0, 1, MATRIX.t().contiguous().t(), struct.pack("<6f", 0, 3, 1, 4, 2, 5)),
    (7, 0, torch.tensor(1.0, dtype=torch.bfloat16), b"\x80\x3f"),
    (9, 0, torch.empty(0), b""),
]
"""Operation, output, result, and its bytes in memory."""


def by_the_page(outputs: list[tuple[int, int, bytes]]) -> bytes:
    parts = [struct.pack("<QQQ", op, output, len(data)) + blake3(data).digest() for op, output, data in outputs]
    return blake3(b"weighbridge/outputs/1\x00" + b"".join(parts)).digest()


def test_it_is_what_the_page_says() -> None:
    mine = OutputsDigest()
    for number, (op, output, result, _) in enumerate(OUTPUTS, 1):
        mine.add(op, output, result)
        assert mine.digest() == by_the_page([(a, b, data) for a, b, _, data in OUTPUTS[:number]])


@pytest.mark.parametrize("number", range(3))
def test_places_and_bits_count(number: int) -> None:
    told = [(op, output, data) for op, output, _, data in OUTPUTS]
    op, output, data = told[number]
    whole = by_the_page(told)
    for other in ((op + 1, output, data), (op, output + 1, data), (op, output, bytes([data[0] ^ 1]) + data[1:])):
        assert by_the_page([*told[:number], other, *told[number + 1 :]]) != whole


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, as a chip does."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_a_chip_sees_no_work() -> None:
    with Counting() as chip:  # type: ignore[no-untyped-call]
        OutputsDigest().add(0, 0, MATRIX)
    assert chip.seen == 0
