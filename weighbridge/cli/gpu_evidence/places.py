"""Where trainings are recorded and replayed: the devices of this machine, and on a CPU other instructions too."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weighbridge.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """A device, under settings.

    Attributes:
        name: In the evidence.
        device: For PyTorch: `cpu`, `cuda:0`, ...
        environment: Variables of the processes that compute there.
    """

    name: str
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)


CPU = Place("cpu", "cpu")
PLAIN = Place(
    "cpu, fewest instructions",
    "cpu",
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive",
    },
)
"""The same processor with the instructions of 2006 and two threads: a stand-in for another one."""


def places(devices: Sequence[str]) -> list[Place]:
    """Returns where to compute: the devices under test, then the CPU, and a stand-in if there is nothing but the CPU.

    Args:
        devices: Those under test; if none is named, one CUDA device of each kind, or the CPU where there is none.

    Raises:
        UsageError: This machine has no such device.
    """
    tested = [Place(name, name) for name in devices or _accelerators()]
    if any(place.device != "cpu" for place in tested):
        return [*(place for place in tested if place.device != "cpu"), CPU]
    return [CPU, PLAIN] if platform.machine() in ("x86_64", "AMD64") else [CPU]


def pairs(here: Sequence[Place]) -> list[tuple[Place, Place]]:
    """Returns (recorded on, replayed on): each place with each other, both ways; with itself if there is but one."""
    return [(one, other) for one in here for other in here if one is not other] or [(here[0], here[0])]


def require(devices: Sequence[str]) -> None:
    """Checks that devices exist here and are named once.

    Raises:
        UsageError: One does not, or is named twice.
    """
    from weighbridge.cli.replay import require_device

    for device in devices:
        require_device(device)
    if len(set(devices)) != len(devices):
        raise UsageError("a device is named twice; name each once")


def _accelerators() -> list[str]:
    """Returns one CUDA device of each kind."""
    import torch

    kinds: dict[str, str] = {}
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            kinds.setdefault(torch.cuda.get_device_name(number), f"cuda:{number}")
    return list(kinds.values())
