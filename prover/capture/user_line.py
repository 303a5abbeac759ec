"""Finds the line of the user's program that an operation comes from, for error messages."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

import weighbridge
from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.schemas import Op

_PROVER = Path(__file__).parents[1]
_OURS = tuple(str(each) for each in (Path(torch.__file__).parent, _PROVER, Path(weighbridge.__file__).parent))
"""Where frames lie that are PyTorch's or the Recorder's, not the user's."""


def say_where(error: WeighbridgeError, func: Op, module: str | None) -> None:
    """Adds the user's line to an error, and the module, which may be a library's; once."""
    if "line" not in error.details:
        error.details["line"] = user_line()
        error.details.setdefault("operation", str(func))
        where = "" if module is None else f"in {module}, "
        error.details.update({} if module is None else {"module": module})
        error.args = (f"{error.message} [{where}at {error.details['line']}]",)
        error.message = error.args[0]


def user_line() -> str:
    """The innermost line of the program outside installed packages; failing that, outside PyTorch and the Recorder."""
    frames = [f for f in reversed(traceback.extract_stack()) if not f.filename.startswith((*_OURS, "<"))]
    user = next((f for f in frames if "site-packages" not in f.filename), frames[0] if frames else None)
    return f"{user.filename}:{user.lineno}: {user.line}" if user else "unknown line (called from an autograd thread)"
