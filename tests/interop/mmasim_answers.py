"""Answers sums with MMA-Sim: `python mmasim_answers.py PACKAGES CASES ANSWERS`, the last two being .npz files.

A case is named `vendor/architecture/instruction`; its arrays `a`, `b` and `c` hold bit patterns. Nothing of ours is
imported.
"""

import sys
import types

import numpy as np

sys.path.insert(0, sys.argv[1])
# This module compiles C++ when it is imported. It is for float32 and float64 operands, of which there are none here.
stub = types.ModuleType("mmasim.arithmetic.fma")
stub.MMA_FMA = None
sys.modules["mmasim.arithmetic.fma"] = stub

import mmasim.arithmetic  # noqa: E402

mmasim.arithmetic.fma = stub

import torch  # noqa: E402
from mmasim.amd import MFMA  # noqa: E402
from mmasim.nv_ptx import MMA, WGMMA, TCGen05MMA  # noqa: E402

INSTRUCTIONS = {"mma": MMA, "wgmma": WGMMA, "tcgen05": TCGen05MMA, "mfma": MFMA}
SIGNED = {np.dtype("uint8"): np.uint8, np.dtype("uint16"): np.int16, np.dtype("uint32"): np.int32}


def tensor(bits, dtype):
    """Returns bit patterns as a tensor of a type."""
    return torch.from_numpy(bits.view(SIGNED[bits.dtype])).view(dtype)


cases = np.load(sys.argv[2])
answers = {}
for name in sorted({each.rpartition("/")[0] for each in cases}):
    kind, architecture, instruction = name.split("/")
    operation = INSTRUCTIONS[kind](architecture, instruction)
    types_of = {"a": operation.a_type, "b": operation.b_type, "c": operation.c_type}
    found = operation.dpa(*(tensor(cases[f"{name}/{each}"], dtype) for each, dtype in types_of.items()))
    answers[name] = found.view(torch.int16 if found.dtype == torch.float16 else torch.int32).numpy()
np.savez(sys.argv[3], **answers)
