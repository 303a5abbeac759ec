"""Kinds of processors that an image's loops are compiled for: few, so that two machines mean the same by them."""

from __future__ import annotations

import platform
from pathlib import Path

from weighbridge.core.errors import UsageError

_CPU_INFO = Path("/proc/cpuinfo")
_X86 = {
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
}
"""Levels of the x86-64 ABI, the best first, and what Linux calls what they need."""


def kind_here() -> str:
    """Returns the best kind that this machine's processor is of.

    Raises:
        UsageError: It is of none.
    """
    for kind in (*_X86, "generic"):
        if runs(kind):
            return kind
    raise UsageError("images are made for x86-64-v2 and later, and for 64-bit ARM; use such a machine")


def runs(kind: str) -> bool:
    """Whether this machine's processor runs loops that were compiled for a kind."""
    if platform.machine() == "x86_64" and kind in _X86:
        lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.is_file() else []
        flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
        return flags >= _X86[kind]
    return kind == "generic" and platform.machine() == "aarch64"


def environment(kind: str) -> dict[str, str]:
    """Returns what tells Numba to compile for a kind, and to look for loops of that kind."""
    return {"NUMBA_CPU_NAME": kind, "NUMBA_CPU_FEATURES": ""}
