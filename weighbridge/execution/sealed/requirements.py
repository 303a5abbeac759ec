"""What a machine has to be and to have before a launcher starts a sealed worker: one that lacks it spends no nonce."""

from __future__ import annotations

from pathlib import Path

from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed import processors

_KIND_LIMIT = 64


def processor(image: Path) -> None:
    """Checks that this machine runs the loops of an image.

    Args:
        image: Its directory.

    Raises:
        SealedWorkerError: They are for another kind of processor (`sealed.image`).
    """
    try:
        with (image / images.FILES / images.PROCESSOR).open("rb") as file:
            kind = file.read(_KIND_LIMIT).decode("ascii", "replace")
    except OSError:
        kind = "none"
    if not processors.runs(kind):
        raise SealedWorkerError(
            f"the image is for processors of the kind {kind[:20]!r}, and this machine has none; use another machine, "
            "or agree on an image that was made on such a machine",
            code="sealed.image",
        )


def offered(order: Order, memory: int, inputs: int, table: Path) -> None:
    """Checks that this machine has what the parties to a dispute agreed on: a run that exceeds that forfeits.

    Args:
        order: The order.
        memory: So many bytes this site offers for the storages of a run.
        inputs: And so many for files.
        table: The kernel's table of memory.

    Raises:
        SealedWorkerError: It has less memory, or room for fewer bytes.
    """
    agreed = order.referee
    if agreed is None:
        return
    free = next(int(line.split()[1]) << 10 for line in table.read_text().splitlines() if line.startswith("MemAvail"))
    for name, needed, there in (
        ("memory of a run (--memory)", agreed.memory, memory),
        ("files of both parties (--inputs)", 2 * agreed.inputs, inputs),
        ("free memory", 2 * (agreed.memory + agreed.inputs), free),
    ):
        if needed > there:
            raise SealedWorkerError(
                f"this site offers {there} bytes of {name}, and the parties agreed on {needed}; offer more, or agree "
                "on other terms"
            )


def no_swap(table: Path) -> None:
    """Checks that no memory of this machine is written to storage.

    Args:
        table: The kernel's table of what memory is swapped to.

    Raises:
        SealedWorkerError: Some may be (`sealed.isolation`).
    """
    if len(table.read_text().splitlines()) > 1:
        raise SealedWorkerError(
            "this machine cannot run a sealed worker: no-swap is missing; switch swapping off (`swapoff -a`)",
            code="sealed.isolation",
        )
