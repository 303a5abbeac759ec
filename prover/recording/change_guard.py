"""Refuses changes of state that no recorded operation made: a replay could not reproduce them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from prover.capture.attached_objects import Attached
from prover.capture.in_progress import InProgress
from prover.capture.storages import HostCopy, Memory
from prover.capture.without_modes import unseen
from prover.recording.state_tracker import StateTracker
from weighbridge.core.errors import StateChangedError

_UNSEEN = " by nothing that was recorded: another thread, or an array of NumPy's on the same memory. "


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a program can do about a change that was not recorded.

    Attributes:
        between: Where a change between steps belongs.
        within: Where one during a step belongs.
    """

    between: str
    within: str


BLOCKS = Remedy(
    "make the change inside `with recorder.edit():`",
    "Do that between steps, inside `with recorder.edit():` in this thread, or on a copy",
)
FOLLOWED = Remedy(
    "make the change by PyTorch's operations, in the thread that called follow()",
    "Do that by PyTorch's operations, in the thread that called follow(), or on a copy",
)


def between_steps(held: StateTracker, step: int, remedy: Remedy = BLOCKS) -> None:
    """Checks that the state is as the step before `step` left it.

    Raises:
        StateChangedError: It is not.
    """
    name = held.changed()
    if name is not None:
        raise StateChangedError(f"{name} was changed since step {step - 1}; {remedy.between}", tensor=name)


def since_made(made: Mapping[int, bytes], held: StateTracker, attached: Attached) -> None:
    """Checks that storages of which `made` has the marks, by address, are as initialisation() made them.

    Raises:
        StateChangedError: One is not.
    """
    for address, mark in held.contents(made).items():
        if mark != made[address]:
            name = attached.storage_names().get(address, "a tensor")
            raise StateChangedError(
                f"{name} was changed between initialisation() and attach(); make the change inside "
                "`with recorder.initialisation():`, or inside `with recorder.edit():` after attach()",
                tensor=name,
            )


@unseen
def while_running(
    capture: InProgress, memory: Memory, batch: Mapping[str, Tensor], entered: Mapping[str, HostCopy], step: int,
    remedy: Remedy = BLOCKS,
) -> None:  # fmt: skip
    """Checks that what entered a step is as it entered, where no operation wrote to it.

    Args:
        capture: The step.
        memory: Where its storages are.
        batch: The batch's tensors.
        entered: What they were.
        step: The step's number.
        remedy: What the message says to do.

    Raises:
        StateChangedError: Something is not.
    """
    for name in _changed(capture, memory, batch, entered):
        raise StateChangedError(f"{name} was changed while step {step} ran{_UNSEEN}{remedy.within}")


def _changed(
    capture: InProgress, memory: Memory, batch: Mapping[str, Tensor], entered: Mapping[str, HostCopy]
) -> Iterator[str]:
    for name, t in batch.items():
        if capture.slots.get(t.untyped_storage()._cdata) not in capture.written and not entered[name].equals(t):
            yield f"the batch's tensor {name!r}" if name else "the batch"
    for address, name in capture.adopted.items():
        storage = memory.storage(address)
        if storage is not None and capture.slots.get(address) not in capture.written:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            if not capture.undeclared[name].equals(whole):
                yield "a tensor from outside of the step"


def by_operations(
    capture: InProgress, held: StateTracker, before: Mapping[str, bytes], step: int, remedy: Remedy = BLOCKS
) -> None:
    """Checks that no state changed in a step without an operation that wrote to it.

    Args:
        capture: The step.
        held: The state after it.
        before: Marks of the state before it, as `StateTracker.marks`.
        step: The step's number.
        remedy: What the message says to do.

    Raises:
        StateChangedError: Some did.
    """
    entered = {i.slot for i in capture.tape.inputs} - capture.written
    for address, name in held.names.items():
        slot, now = capture.slots.get(address), held.marks[name]
        if (slot is None or slot in entered) and before.get(name, now) != now:
            raise StateChangedError(f"{name} was changed in step {step}{_UNSEEN}{remedy.within}", tensor=name)
