"""The model of VDPBF16PS against the instruction, where this processor has it and there is a compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support.unit_operands import KINDS, operands

from weighbridge.numerics import units

ROWS = 20_000
SOURCE = Path(__file__).with_name("vdpbf16ps.c")


@pytest.fixture(scope="module")
def instruction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that executes the instruction."""
    processor = Path("/proc/cpuinfo")
    if not processor.exists() or " avx512_bf16 " not in processor.read_text():
        pytest.skip("this processor has no AVX512_BF16: the model of VDPBF16PS is not compared with the instruction")
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the model of VDPBF16PS is not compared with the instruction")
    program = tmp_path_factory.mktemp("vdpbf16ps") / "vdpbf16ps"
    subprocess.run([compiler, "-O1", str(SOURCE), "-o", str(program)], check=True)
    return program


def bits(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.int32).numpy().view(np.uint32).reshape(-1, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_what_the_instruction_returns(instruction: Path, kind: str) -> None:
    """NaN, infinities, zeros and subnormal values included: `patterns` is any bits."""
    bf16 = torch.bfloat16
    a, b, c = operands(bf16, bf16, torch.float32, rows=ROWS, length=2, kind=kind, seed=17)
    given = np.stack([bits(each) for each in (a, b, c)], 1)
    answer = subprocess.run([str(instruction)], input=given.tobytes(), capture_output=True, check=True).stdout
    found = bits(units.named("vdpbf16ps").dot(a, b, c)).reshape(-1)
    wrong = np.flatnonzero(found != np.frombuffer(answer, np.uint32))
    assert wrong.tolist() == []


def test_what_is_below_normal_is_decided_after_rounding(instruction: Path) -> None:
    """Sums between 2^-126 - 2^-149 and 2^-126: flushed below the half way to 2^-126 with 24 bits, and not above."""
    steps = torch.arange(1, 129, dtype=torch.float32)
    a = torch.stack([-steps.bfloat16() * 2.0**-70, torch.zeros(128).bfloat16()], 1)
    b = torch.full((128, 2), 2.0**-86, dtype=torch.bfloat16)
    c = torch.full((128,), 2.0**-126)
    given = np.stack([bits(each) for each in (a, b, c)], 1)
    answer = subprocess.run([str(instruction)], input=given.tobytes(), capture_output=True, check=True).stdout
    found = units.named("vdpbf16ps").dot(a, b, c)
    assert np.array_equal(bits(found).reshape(-1), np.frombuffer(answer, np.uint32))
    assert (found == 0).tolist() == (steps > 32).tolist()
