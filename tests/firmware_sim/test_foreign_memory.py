"""Memory that PyTorch did not allocate: what a kernel computes on is counted and seen, whoever owns it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.chip_station import ChipStation
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from firmware_sim import ChipProcess, Shim
from weighbridge.core.digests import region_digest

SIDE = 16
PRODUCT = 2 * SIDE**3


def array() -> np.ndarray:
    return np.arange(SIDE * SIDE, dtype=np.float32)


def mapped(place: Path) -> Tensor:
    array().tofile(place)
    return torch.from_file(str(place), shared=True, size=SIDE * SIDE)


MAKES: dict[str, Callable[[Path], Tensor]] = {
    "dlpack": lambda _: torch.from_dlpack(array()),
    "frombuffer": lambda _: torch.frombuffer(bytearray(array().tobytes()), dtype=torch.float32),
    "numpy": lambda _: torch.from_numpy(array()),
    "mapped": mapped,
    "shared": lambda _: torch.from_numpy(array()).clone().share_memory_(),
}


@pytest.mark.parametrize("kind", MAKES)
def test_foreign_memory_is_counted_and_seen(kind: str, chip: ChipProcess, station: ChipStation, tmp_path: Path) -> None:
    with Shim.connect(chip.socket) as shim:
        weights = MAKES[kind](tmp_path / "memory")
        before = shim.flops
        weights.view(SIDE, SIDE) @ weights.view(SIDE, SIDE)
        assert shim.flops - before == PRODUCT
        shim.request_snapshot()
        index = shim.safepoint(1, 0, b"r" * 32, b"h" * 32, lambda: None)
        assert index is not None
    salt, leaves = station.open(chip, index)
    assert (SIDE * SIDE * 4, region_digest(array().tobytes(), salt)) in leaves


class Disguised(FakeTensor):
    """Says that it is fake, and computes on memory."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[getattr(each, "memory", each) for each in args], **(kwargs or {}))


def test_a_tensor_that_only_says_that_it_is_fake_is_counted(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket) as shim:
        disguised = Disguised(FakeTensorMode(), torch.empty(SIDE, SIDE, device="meta"), torch.device("cpu"))
        disguised.memory = torch.from_numpy(array()).view(SIDE, SIDE)
        before = shim.flops
        disguised @ disguised
        assert shim.flops - before == PRODUCT


def test_a_chip_has_one_workload(chip: ChipProcess) -> None:
    """Neither another connection nor a forked child speaks for the chip while a workload is attached to it."""
    with Shim.connect(chip.socket) as shim:
        assert _reason(lambda: Shim.connect(chip.socket)) == "chip.busy"
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, _reason(lambda: shim.log_event("child", bytes(32))).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"chip.unreachable"
        assert shim.log_event("parent", bytes(32)) > 0
    for end in (reader, writer):
        os.close(end)


def _reason(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return str(getattr(error, "reason", error))
    return "no error"
