"""Runs an operation that the Recorder refuses as it is, and takes its results in as if they came from outside.

So an examination goes on and finds the next obstacle. The tape that comes of it is only looked at, and thrown away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from prover.capture.step_capture import Capture
from prover.following.dispatch import changed, tensors
from weighbridge.numerics.schemas import Op
from weighbridge.transcript.tape import DTYPE_NAMES


def run_natively(capture: Capture, func: Op, args: Any, kwargs: dict[str, Any]) -> tuple[Any, list[str], bool]:
    """Runs an operation.

    Args:
        capture: The step in progress.
        func: The operation.
        args: Its operands.
        kwargs: The same by name.

    Returns:
        Its result, names of the undeclared tensors that it became on the tape, and whether the tape knows all that
        was changed.
    """
    before = set(capture.undeclared)
    touched = [t for t in changed(func, args, kwargs) if t.untyped_storage()._cdata in capture.slots and on_tape(t)]
    copies = {id(t): t.detach().clone() for t in touched}

    def copy_of(value: Any) -> Any:
        return copies.get(id(value), value) if isinstance(value, Tensor) else value

    state = torch.default_generator.get_state()
    out = func(*pytree.tree_map(copy_of, args), **pytree.tree_map(copy_of, kwargs))
    torch.default_generator.set_state(state)  # which counts draws
    originals = {id(copies[id(t)]): t for t in touched}
    whole = True
    for t in touched:
        copy = copies[id(t)]
        if copy.shape != t.shape:
            func(*args, **kwargs)
            whole = False
        else:
            capture.enter_tensor(copy)
            capture.__torch_dispatch__(torch.ops.aten.copy_.default, (), (t, copy))
    out = pytree.tree_map(lambda value: originals.get(id(value), value) if isinstance(value, Tensor) else value, out)
    for t in tensors(out):
        if on_tape(t):
            capture.enter_tensor(t)
    return out, [name for name in capture.undeclared if name not in before], whole


def on_tape(t: Tensor) -> bool:
    """True if a tensor is of a kind that a tape has."""
    return (
        t.layout is torch.strided and not t.is_nested and t.dtype in DTYPE_NAMES and t.device.type != "meta"
    )  # fmt: skip
