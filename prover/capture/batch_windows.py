"""The parts of memory that a step's batch covers: slices of a data set enter, and not the data set."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from weighbridge.core.errors import RefusedOperationError
from weighbridge.transcript.tape import DTYPE_NAMES, Input, Ref, Tape

_ALIGNED = 16
"""Windows begin at multiples of so many bytes, so that any type fits."""


class BatchWindows:
    """One window for each storage behind the batch; it grows if more of that storage turns out to be batch."""

    def __init__(self, tape: Tape) -> None:
        """Prepares for one step.

        Args:
            tape: Its tape, whose inputs and batch views are kept here.
        """
        self._tape = tape
        self._windows: dict[int, tuple[int, int]] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._windows

    def begins(self) -> dict[int, int]:
        """Returns at which byte of its storage each window begins, by slot."""
        return {slot: begin for slot, (begin, _) in self._windows.items()}

    def covers(self, slot: int, t: Tensor) -> bool:
        """True if a tensor lies within its storage's window, or that storage is none of the batch's."""
        window = self._windows.get(slot)
        return window is None or (window[0] <= _begin(t) and _end(t) <= window[1])

    def take(self, slot: int, named: Sequence[tuple[str, Tensor]]) -> None:
        """Makes the window of a storage cover tensors on it.

        Args:
            slot: The storage's slot.
            named: Path and tensor.
        """
        begin = min(_begin(t) for _, t in named) // _ALIGNED * _ALIGNED
        end = max(_end(t) for _, t in named)
        if slot in self._windows:
            base, last = self._windows[slot]
            begin, end = min(base, begin), max(last, end)
            self._shift(slot, base - begin)
            self._name(slot, end - begin, [name for name, _ in named])
        else:
            self._tape.inputs.append(Input(slot, end - begin, "batch", "\n".join(name for name, _ in named)))
        self._windows[slot] = begin, end
        self._tape.batch_views.extend((name, self.reference(slot, t)) for name, t in named)

    def reference(self, slot: int, t: Tensor) -> Ref:
        """Returns a tensor as a tape has it.

        Raises:
            RefusedOperationError: It is not in the window, or its type has no place on a tape.
        """
        base, _ = self._windows.get(slot, (0, 0))
        offset = t.storage_offset() - base // t.itemsize
        if offset < 0 or t.dtype not in DTYPE_NAMES:
            raise RefusedOperationError(
                f"a {t.dtype} tensor of shape {tuple(t.shape)} cannot be put on a tape; "
                "pass what the step needs as its own tensors"
            )
        return slot, DTYPE_NAMES[t.dtype], tuple(t.shape), t.stride(), int(offset)

    def _shift(self, slot: int, by: int) -> None:
        """Counts offsets in a storage from so many bytes earlier."""
        if by:
            tape = self._tape
            tape.refs = [_shifted(ref, slot, by) for ref in tape.refs]
            tape.batch_views = [(name, _shifted(ref, slot, by)) for name, ref in tape.batch_views]

    def _name(self, slot: int, size: int, names: list[str]) -> None:
        """Gives a storage that has entered a new size and further names."""
        self._tape.inputs = [
            Input(slot, size, i.origin, "\n".join([i.name, *names])) if i.slot == slot else i for i in self._tape.inputs
        ]


def _shifted(ref: Ref, slot: int, by: int) -> Ref:
    if ref[0] != slot:
        return ref
    return (*ref[:4], ref[4] + by // _BYTES[ref[1]])


_BYTES = {name: dtype.itemsize for dtype, name in DTYPE_NAMES.items()}


def _begin(t: Tensor) -> int:
    """Byte of the storage at which a tensor begins."""
    return int(t.storage_offset()) * t.itemsize


def _end(t: Tensor) -> int:
    """Byte of the storage after a tensor's last element."""
    if t.numel() == 0:
        return _begin(t)
    return (
        int(t.storage_offset()) + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    ) * t.itemsize
