"""Sums that tell units apart, each with the result that the rules give, and four sums that GPUs computed.

The latter are the first lines of what Khattak and Mikaitis published (github.com/north-numerical-computing/
MATLAB-tensor-core, BSD-2-Clause).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weighbridge.numerics import units

UNITS = ("v100", "a100", "h100", "mi100", "mi200", "mi300", "vdpbf16ps", "amx", "bfdot")
SUMS: list[tuple[float, list[float], list[float], str]] = [
    (1, [1] * 4, [2.0**-24] * 4, "3f800000 3f800002 3f800002 3f800002 3f800002 3f800002 3f800000 3f800002 3f800002"),
    (1, [1] * 8, [2.0**-25] * 8, "3f800000 3f800000 3f800002 3f800000 3f800002 3f800002 3f800000 3f800002 3f800001"),
    (1, [1] * 16, [2.0**-26] * 16, "3f800000 3f800000 3f800000 3f800000 3f800000 3f800002 3f800000 3f800002 3f800001"),
    (-1, [1.5], [-(2.0**-23)], "bf800001 bf800001 bf800001 bf800002 bf800002 bf800002 bf800002 bf800002 bf800001"),
    (0, [2.0**13, -(2.0**13), 1], [2.0**12, 2.0**12, 1], "0 0 3f800000 3f800000 3f800000 0 3f800000 0 3f800000"),
    (0, [2.0**15, 1, 2.0**15], [2.0**15, 1, -(2.0**15)], "0 0 0 0 0 0 0 3f800000 43000000"),
    (
        -(2.0**-25), [1], [1],
        "3f800000 3f800000 3f7fffff 3f800000 3f800000 3f7fffff 3f800000 3f800000 3f7fffff",
    ),
    (
        2.0**23, [1.9921875] * 3, [1.9921875] * 3,
        "4b000009 4b00000a 4b00000b 4b00000c 4b00000c 4b00000c 4b00000c 4b00000c 4b00000b",
    ),
    (0, [2.0**-66] * 4, [2.0**-66] * 4, "80000 80000 80000 80000 0 80000 0 0 0"),
    (0, [2.0**-130], [2.0**10], "3800000 3800000 3800000 3800000 0 3800000 0 0 0"),
]  # fmt: skip
"""Addend, operands, and results as bits of float32, a unit each. V100 has no bf16; its rule is that of fp16."""

H100_A = "3f7a 3f87 bea6 3fbf bf3d 3ead 3f80 3fe8 3f62 3f5d bf8c 3eb3 3cf1 3e9c 3f86 3f59"
H100_B = "3f19 bf26 3ed7 3e9d bff3 3ef2 bfc1 bf90 3dbf bf31 bf52 400e bc71 401e 3e1c bea4"
RECORDED = [
    ("v100", torch.float16, "3bd5 3c3e b534 3df8", "38ca b935 36bf 34ec", 0x3F7F418C, 0x3F9B7DEC),
    ("a100", torch.bfloat16, H100_A[:39], H100_B[:39], 0x3E8E06AD, 0xBFBE56D5),
    ("h100", torch.bfloat16, H100_A, H100_B, 0x3F342579, 0x3F3CC4DD),
    ("b200", torch.bfloat16, H100_A, H100_B, 0x3D93B3AB, 0x3DD8AEC8),
]


def bits(x: torch.Tensor) -> int:
    return int(x.view(torch.int32)) & 0xFFFFFFFF


@pytest.mark.parametrize("name", UNITS)
def test_sums_that_tell_units_apart(name: str) -> None:
    unit = units.named(name)
    if name == "v100":
        like = units.named("h100").operation(torch.bfloat16, torch.bfloat16)
        unit = replace(unit, operations=(replace(like, arithmetic=unit.operations[0].arithmetic),))
    for c, a, b, results in SUMS:
        x, y = (torch.tensor([each], dtype=torch.bfloat16) for each in (a, b))
        assert (x.tolist(), y.tolist()) == ([a], [b])
        assert bits(unit.dot(x, y, torch.tensor([float(c)]))) == int(results.split()[UNITS.index(name)], 16), (c, a, b)


@pytest.mark.parametrize(("unit", "dtype", "a", "b", "c", "d"), RECORDED, ids=[each[0] for each in RECORDED])
def test_sums_that_gpus_computed(unit: str, dtype: torch.dtype, a: str, b: str, c: int, d: int) -> None:
    def tensor(words: str) -> torch.Tensor:
        patterns = torch.tensor([[int(word, 16) for word in words.split()]])
        return patterns.to(torch.int16).view(dtype)

    addend = torch.tensor([c], dtype=torch.int64).to(torch.int32).view(torch.float32)
    assert bits(units.named(unit).dot(tensor(a), tensor(b), addend)) == d
