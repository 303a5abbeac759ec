"""The rounding pass in Triton: interpreted, against the CPU's kernels; and compiled, as far as that needs no GPU."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed; PyTorch's builds for CUDA bring it")

HERE = Path(__file__).parents[4] / "support"


def test_interpreted_kernels_agree_with_those_of_the_cpu_bit_for_bit() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "triton_interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.split() == [
        "without_factors", "with_factors", "to_sixteen_bits", "every_pattern_of_sixteen_bits",
        "any_bits_made_canonical", "a_kernel_that_differs_is_not_used",
    ]  # fmt: skip


FORMS = [
    ("fp64", "i32", 0, False, False), ("fp64", "i32", 0, True, False), ("fp64", "i32", 0, True, True),
    ("fp32", "i16", 1, True, True), ("fp64", "i16", 1, True, True), ("fp32", "i16", 2, True, True),
]  # fmt: skip


@pytest.mark.parametrize("generation", [80, 90])
@pytest.mark.parametrize("form", FORMS)
def test_compiled_kernels_round_to_nearest_keep_subnormals_and_fuse_nothing(
    form: tuple[str, str, int, bool, bool], generation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler makes code for GPUs that are not there; what it made of the arithmetic can be read in it."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from weighbridge.numerics.rounding import cpu_kernels, triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wide, narrow, kind, find, factors = form
    constants: dict[str, Any] = {
        "REACH": cpu_kernels.REACH, "KIND": kind, "FIND": find, "FACTORS": factors, "WIDE": False,
        "WEIGHT": cpu_kernels.WEIGHT, "BLOCK": triton_kernels.BLOCK,
    }  # fmt: skip
    types = {
        "x": f"*{wide}", "out": f"*{narrow}", "state": "*i64", "positions": "*i64", "bounds": "*fp64",
        "left": "*fp64", "right": "*fp64", **dict.fromkeys(triton_kernels._NUMBERS, "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }  # fmt: skip
    kernel = triton_kernels._round
    if "constexprs" in inspect.signature(ASTSource).parameters:
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature={name: types[name] for name in kernel.arg_names}, constexprs=places)
    else:  # Triton 3.2, which comes with PyTorch 2.6
        varying = {name: types[name] for name in kernel.arg_names if name not in constants}
        source = ASTSource(fn=kernel, signature=varying, constants=constants)
    target = GPUTarget("cuda", generation, 32)
    code = triton.compile(source, target=target, options={"enable_fp_fusion": False}).asm["ptx"]
    assert not re.search(r"\b(fma|mad)\.[\w.]*f(16|32|64)", code)
    assert ".ftz" not in code
    conversions = set(re.findall(r"\bcvt\.[\w.]+", code)) - {"cvt.f64.f32"}
    floating = {c for c in conversions if re.search(r"\.f(16|32|64|16x2)\b", c)}
    assert all(c.startswith("cvt.rn.") for c in floating), floating
    arithmetic = set(re.findall(r"\b(?:add|sub|mul)\.[\w.]*f(?:16|32|64)\b", code))
    assert arithmetic == ({"add.rn.f64", "sub.rn.f64", "mul.rn.f64"} if find else set())
