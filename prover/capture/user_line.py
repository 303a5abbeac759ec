"""Finds the line of the user's program that an operation comes from, for error messages."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

import torch

import weighbridge
from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.schemas import Op

_PROVER = Path(__file__).parents[1]
_OURS = tuple(str(each) for each in (Path(torch.__file__).parent, _PROVER, Path(weighbridge.__file__).parent))
"""Where frames lie that are PyTorch's or the Recorder's, not the user's."""
_NO_PROGRAM = (*_OURS, "<")


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
    place = user_place()
    return "unknown line (called from an autograd thread)" if place is None else text_of(place)


def user_place() -> tuple[str, int] | None:
    """The same as (file, number), without reading the file."""
    frame: FrameType | None = sys._getframe(1)
    within_package: tuple[str, int] | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NO_PROGRAM):
            if "site-packages" not in name:
                return name, frame.f_lineno
            within_package = within_package or (name, frame.f_lineno)
        frame = frame.f_back
    return within_package


def text_of(place: tuple[str, int]) -> str:
    """Returns a place as `file:number: text`."""
    name, number = place
    return f"{name}:{number}: {linecache.getline(name, number).strip()}"
