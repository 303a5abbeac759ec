"""Models of matrix units return what MMA-Sim does, whose authors compared it with the hardware.

MMA-Sim is installed at the first use, into pytest's cache, and runs in a process that imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.unit_operands import KINDS, operands

from weighbridge.numerics import units

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements-mmasim.txt"
ROWS = 2000

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FNUZ3, FNUZ2 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
TYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "xf32": torch.float32, "e4m3": E4M3,
    "e5m2": E5M2, "fp8": FNUZ3, "bf8": FNUZ2, "f32": torch.float32,
}  # fmt: skip

INSTRUCTIONS = {
    "v100": ["mma/Volta/m8n8k4.f32.f16.f16.f32", "mma/Volta/m8n8k4.f16.f16.f16.f16"],
    "a100": [
        "mma/Ampere/m16n8k16.f32.bf16.bf16.f32", "mma/Ampere/m16n8k16.f32.f16.f16.f32",
        "mma/Ampere/m16n8k16.f16.f16.f16.f16", "mma/Ampere/m16n8k8.f32.tf32.tf32.f32",
    ],
    "ada": [
        f"mma/Ada Lovelace/m16n8k32.{out}.{a}.{b}.{out}"
        for out in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")
    ],
    "h100": [
        "mma/Hopper/m16n8k16.f32.bf16.bf16.f32", "mma/Hopper/m16n8k16.f32.f16.f16.f32",
        "wgmma/Hopper/m64n8k16.f16.f16.f16", "wgmma/Hopper/m64n8k8.f32.tf32.tf32",
        "wgmma/Hopper/m64n8k32.f32.e4m3.e5m2", "wgmma/Hopper/m64n8k32.f16.e5m2.e5m2",
    ],
    "b200": [
        "tcgen05/Blackwell/m64n8k16.kind::f16.f32.bf16.bf16", "tcgen05/Blackwell/m64n8k8.kind::tf32.f32.tf32.tf32",
        "tcgen05/Blackwell/m64n8k32.kind::f8f6f4.f32.e4m3.e4m3",
        "tcgen05/Blackwell/m64n8k32.kind::f8f6f4.f16.e4m3.e5m2",
    ],
    "mi100": ["mfma/CDNA1/f32_32x32x8f16", "mfma/CDNA1/f32_32x32x4bf16"],
    "mi200": ["mfma/CDNA2/f32_32x32x8bf16_1k", "mfma/CDNA2/f32_32x32x8f16"],
    "mi200-pairs": ["mfma/CDNA2/f32_32x32x4bf16"],
    "mi300": [
        "mfma/CDNA3/f32_32x32x8_bf16", "mfma/CDNA3/f32_16x16x16_f16", "mfma/CDNA3/f32_16x16x8_xf32",
        *(f"mfma/CDNA3/f32_16x16x32_{a}_{b}" for a in ("fp8", "bf8") for b in ("fp8", "bf8")),
    ],
}  # fmt: skip
CASES = [(unit, instruction) for unit, instructions in INSTRUCTIONS.items() for instruction in instructions]


def types_of(instruction: str) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """The types of a, b and the accumulator."""
    kind, _, name = instruction.split("/")
    if kind == "mfma":
        found = re.findall("bf16|f16|xf32|fp8|bf8", name)
        return TYPES[found[0]], TYPES[found[-1]], torch.float32
    words = [word for word in name.split(".") if word in TYPES]
    return TYPES[words[1]], TYPES[words[2]], TYPES[words[0]]


def drawn(instruction: str, kind: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Operands for an instruction.

    MMA-Sim loses an addend of AMD's 8-bit instructions that is NaN or infinite if the products are larger than 2^25.
    So they get one block, and an addend that is finite.
    """
    types = types_of(instruction)
    lossy = types[0] in (FNUZ3, FNUZ2)
    a, b, c = operands(*types, rows=ROWS, length=16 if lossy else 32, kind=kind, seed=seed)
    return a, b, torch.where(torch.isfinite(c), c, 1.0) if lossy else c


def bits(x: torch.Tensor) -> npt.NDArray[np.unsignedinteger]:
    size = x.element_size()
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    return x.view(signed).numpy().view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size])


@pytest.fixture(scope="module")
def packages(pytestconfig: pytest.Config) -> Path:
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    directory = Path(pytestconfig.cache.mkdir("interop")) / f"mmasim-{digest}"  # type: ignore[union-attr]
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(directory)]
        subprocess.run([sys.executable, "-m", "pip", *install, "-r", str(REQUIREMENTS)], check=True)
        (directory / "complete").touch()
    return directory


@pytest.fixture(scope="module", params=KINDS)
def answered(
    request: pytest.FixtureRequest, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Operands of a kind for every instruction, and MMA-Sim's answers."""
    directory = tmp_path_factory.mktemp("mmasim")
    given = {name: drawn(name, request.param, seed) for seed, (_, name) in enumerate(CASES)}
    arrays = {f"{name}/{each}": bits(x) for name, case in given.items() for each, x in zip("abc", case, strict=True)}
    np.savez(directory / "cases.npz", **arrays)  # type: ignore[arg-type]
    command = [sys.executable, "-I", str(HERE / "mmasim_answers.py"), str(packages)]
    subprocess.run([*command, str(directory / "cases.npz"), str(directory / "answers.npz")], check=True)
    found = np.load(directory / "answers.npz")
    return {name: (case, torch.from_numpy(found[name]).view(case[2].dtype)) for name, case in given.items()}


@pytest.mark.parametrize(("unit", "instruction"), CASES)
def test_every_sum_is_the_same(
    answered: dict[str, tuple[tuple[torch.Tensor, ...], torch.Tensor]], unit: str, instruction: str
) -> None:
    given, theirs = answered[instruction]
    ours = units.named(unit).dot(*given)
    nan = torch.isnan(ours)
    assert torch.equal(nan, torch.isnan(theirs))
    assert torch.equal(ours[~nan], theirs[~nan])
    if not instruction.startswith("mfma"):  # nobody says which NaN AMD's units return, or which zero
        assert np.array_equal(bits(ours), bits(theirs))
