"""Kinds of devices, and the settings under which a process of this machine is of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

from weighbridge.numerics.conformance.device_kind import device_kind, may_be, settings_of

ASK = """
import json
from weighbridge.numerics.conformance.device_kind import device_kind, settings_of
print(json.dumps([device_kind("cpu"), settings_of("cpu AVX2, x"), settings_of("cpu DEFAULT, x")]))
"""


def asked(environment: dict[str, str]) -> tuple[str, dict[str, str], dict[str, str]]:
    """What a process says of itself, and how it would become of two other kinds."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    kind, larger, plainest = json.loads(done.stdout)
    return kind, larger, plainest


def test_under_its_settings_a_process_is_of_a_kind() -> None:
    """And no instruction set is asked for that is not here: the process would end with an illegal instruction."""
    kind, larger, plainest = asked({"OMP_NUM_THREADS": "1", "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"})
    assert "1 threads" in kind
    assert asked(settings_of(kind))[0] == kind != device_kind("cpu")
    assert larger == {}
    assert plainest in ({"ATEN_CPU_CAPABILITY": "default"}, {})  # nothing on a processor that is not x86


def test_loops_that_are_compiled_for_other_instructions_make_another_kind() -> None:
    """Most of their float64 sums come out otherwise in the last place."""
    kind, *_ = asked({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "-avx,-avx2"})
    assert kind == f"{device_kind('cpu')}, NUMBA_CPU_NAME=generic, NUMBA_CPU_FEATURES=-avx,-avx2"
    assert settings_of(kind).items() >= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "-avx,-avx2"}.items()


def test_another_compiler_of_loops_makes_another_kind() -> None:
    """LLVM decides how loops add up; what was recorded before kinds said so may have been compiled by either."""
    here, numba = device_kind("cpu"), f", numba {metadata.version('numba')}"
    assert may_be(here, here)
    assert may_be(here.replace(numba, ""), here)
    assert here.count(numba) == 1
    assert not may_be(here.replace(numba, ", numba 0.1"), here)
    assert not may_be(None, here)
    assert not may_be("", here)


def test_threads_are_those_of_the_kind() -> None:
    assert settings_of("cpu SVE256, a processor, 4 threads, torch 2") == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize("kind", ["", "cuda NVIDIA H100, torch 2", ", , =", "cpu, LD_PRELOAD=x.so, PATH=/, x threads"])
def test_other_variables_are_never_set(kind: str) -> None:
    assert settings_of(kind) == {}
