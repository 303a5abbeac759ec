"""Compares the models of matrix units with what GPUs computed, and with this processor's own matrix products.

`python -m benchmarks.units_against_recordings PATH` reads what Khattak and Mikaitis recorded on eight GPUs, 5,000 sums
for each format of operands and results. PATH is a checkout of github.com/north-numerical-computing/MATLAB-tensor-core,
whose directory `model_validation` has the recordings (BSD-2-Clause), or a .npz file with their arrays under the names
`GPU.FORMAT.FILE`. Writes benchmarks/results/units.json and ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import machine
from weighbridge.numerics import units

REPOSITORY = "https://github.com/north-numerical-computing/MATLAB-tensor-core"
COMMIT = "b12b5a700957655375a1b0c1d0c26e76065da015"
GPUS = ("V100", "A2", "A100", "Ada", "L40S", "H100", "H200", "B200")
FORMATS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "E4M3": torch.float8_e4m3fn,
    "E5M2": torch.float8_e5m2,
}
RESULTS = {"fp32": torch.float32, "fp16": torch.float16}
SIZES = (64, 256, 1024, 4096)


class Recordings:
    """Arrays of float32 by the name of the GPU, the format and the file."""

    def __init__(self, path: Path) -> None:
        self._arrays = np.load(path) if path.suffix == ".npz" else None
        self._directory = path / "model_validation" if (path / "model_validation").is_dir() else path

    def __call__(self, gpu: str, name: str, file: str) -> torch.Tensor | None:
        """Returns what a file holds, None if there is none."""
        if self._arrays is not None:
            key = f"{gpu}.{name}.{file}"
            return _float32(self._arrays[key]) if key in self._arrays else None
        path = self._directory / gpu / name / f"{file}.txt"
        if not path.exists():
            return None
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        base = 16 if len(lines[0][0]) == 8 else 2
        patterns = np.array([[int(word, base) for word in line] for line in lines], dtype=np.uint32)
        return _float32(patterns if base == 16 else patterns[:, 0])


def _float32(patterns: npt.NDArray[np.uint32]) -> torch.Tensor:
    return torch.from_numpy(patterns.view(np.float32).copy())


@dataclass(frozen=True)
class Compared:
    """One file of results.

    Attributes:
        gpu: Where they were computed.
        operands: Format of operands.
        result: Format of results.
        unit: The model.
        products: Products of each sum.
        outputs: How many sums.
        differ: How many of them the model does not return, bit for bit.
    """

    gpu: str
    operands: str
    result: str
    unit: str
    products: int
    outputs: int
    differ: int


def compare(recordings: Recordings) -> Iterator[Compared]:
    """Compares every file of results."""
    for gpu in GPUS:
        for name, dtype in FORMATS.items():
            for result, accumulator in RESULTS.items():
                wanted = recordings(gpu, name, f"d_{gpu}_{result}")
                given = [recordings(gpu, name, f"{each}_{gpu}_{name}") for each in "ab"]
                c = recordings(gpu, name, f"c_{gpu}_fp32")
                if wanted is None or c is None or given[0] is None or given[1] is None:
                    continue
                eight = dtype.itemsize == 1
                unit = units.named(gpu.lower())
                if eight and (gpu == "B200" or (gpu in ("H100", "H200") and result == "fp16")):
                    unit = units.named("mma-fp8")  # recorded with mma.sync
                elif eight and gpu in ("H100", "H200"):
                    c = torch.zeros_like(c)  # recorded with wgmma, which was given no addend
                found = unit.dot(given[0].to(dtype), given[1].to(dtype), c.to(accumulator)).to(torch.float32)
                differ = int((found.view(torch.int32) != wanted.view(torch.int32)).sum())
                yield Compared(gpu, name, result, unit.name, given[0].shape[1], len(found), differ)


def processor_products() -> list[dict[str, Any]] | None:
    """Compares bf16 products of this processor with the model of VDPBF16PS; None where it has no such instruction.

    oneDNN computes them in chains of 1,024 products, which begin at zero and are added in order.
    """
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if " avx512_bf16 " not in flags or " amx_bf16 " in flags:
        return None
    found = []
    for length in SIZES:
        generator = torch.Generator().manual_seed(length)
        a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((64, length), (length, 64)))
        order = units.Order(chain=min(length, 1024), bias_first=False)
        ours = units.named("vdpbf16ps").product(a, b, order=order).bfloat16()
        found.append({"products": length, "outputs": ours.numel(), "differ": int((ours != a @ b).sum())})
    return found


def main() -> None:
    """Compares and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    compared = list(compare(Recordings(parser.parse_args().path)))
    outputs, differ = sum(each.outputs for each in compared), sum(each.differ for each in compared)
    result = {
        **machine.about(),
        "source": REPOSITORY,
        "commit": COMMIT,
        "outputs": outputs,
        "differ": differ,
        "recordings": [vars(each) for each in compared],
        "processor_products": processor_products(),
    }
    (machine.RESULTS / "units.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(compared)} recordings, {outputs:,} outputs, {differ} differ")
    for each in result["processor_products"] or ["this processor's bf16 products were not compared"]:
        print(each)
    sys.exit(1 if differ or not compared else 0)


if __name__ == "__main__":
    main()
