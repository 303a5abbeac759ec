"""A simulated chip: a process with key, clock, randomness, counters and log, and the shim in the training process.

    from firmware_sim import ChipProcess, Shim, provision

`provision` makes a device as its manufacturer would, `ChipProcess` runs it, `Shim` attaches a training process to it.
Unhooking the shim is outside the simulation: on real hardware the firmware stops the chip itself.
"""

from typing import TYPE_CHECKING, Any

from firmware_sim.device import provision
from firmware_sim.process import ChipProcess

if TYPE_CHECKING:
    from firmware_sim.shim import Shim

__all__ = ["ChipProcess", "Shim", "provision"]


def __getattr__(name: str) -> Any:
    """Imports the shim when it is asked for: it needs torch, and the chip's own process does not."""
    if name == "Shim":
        from firmware_sim.shim import Shim  # noqa: PLC0415 (loads PyTorch)

        return Shim
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
