"""The Triton kernel of BLAKE3: interpreted without a GPU, and on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from blake3 import blake3


def test_the_interpreted_kernel_agrees_with_the_package() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; PyTorch's builds for CUDA bring it")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parents[3] / "support/treehash_interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout.strip()) == (0, "agrees"), run.stderr[-4000:]


@pytest.mark.parametrize("generation", [80, 90])
def test_the_kernel_compiles_for_devices_that_are_not_here(
    generation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed; PyTorch's builds for CUDA bring it")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from weighbridge.core.treehash.triton_chunks import LANES, _chunks

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"words": "*i32", "start": "*i32", "out": "*i32", "first": "i64", "count": "i64"}
    constants = {"MODE": 16, "LANES": LANES}
    source = ASTSource(_chunks, {**signature, "MODE": "constexpr", "LANES": "constexpr"}, constants)
    code = compile(source, target=GPUTarget("cuda", generation, 32)).asm["ptx"]
    assert "shf" in code or "prmt" in code  # rotations became single instructions
    assert "local" not in code.split(".entry", 1)[1].split("{", 1)[0]


@pytest.mark.gpu
def test_device_memory_is_hashed_where_it_is() -> None:
    from weighbridge.core.treehash.tree import device_digest, fastest, storage_digest, torch_chunks

    device = torch.device("cuda")
    assert fastest(device) is not torch_chunks, "the Triton kernel does not work on this device"
    for size in (1, 1024, 1025, (1 << 20) + 7, 33 << 20):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
        for key in (None, bytes(range(32))):
            content = data.cpu().numpy().tobytes()
            expected = (blake3(content, key=key) if key else blake3(content)).digest()
            assert device_digest(data, key) == expected
            assert device_digest(data, key, torch_chunks) == expected
            assert storage_digest(data.untyped_storage(), key) == expected
