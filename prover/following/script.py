"""Runs a script as Python would, and records it."""

from __future__ import annotations

import functools
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prover.following.follow import Following, follow
from prover.following.jobs import has_ranks
from weighbridge.core.errors import UsageError

_FAILED = 1
_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended.

    Attributes:
        code: Its exit code: of `sys.exit`, 1 after an exception, 130 after Ctrl-C.
        error: What ended it early, if something did.
    """

    code: int
    error: BaseException | None = None


def record_script(script: Path, arguments: Sequence[str], out: Path, **options: Any) -> tuple[int, Following | None]:
    """Runs a script in this process while `follow` records it.

    Args:
        script: A Python file.
        arguments: What the script finds in `sys.argv` after its name.
        out: New or empty directory for the transcript.
        **options: Of `follow`.

    Returns:
        The script's own exit code (of `sys.exit`, 1 after an exception, whose traceback is printed, 130 after Ctrl-C),
        and the recording, which has ended; None if a script on several ranks failed before it began.

    Raises:
        WeighbridgeError: The script is no file, or ended well and has left no whole transcript.
    """
    require_script(script)
    begun: list[Following] = []

    def begin() -> None:
        begun.append(follow(out, **options))

    joins = has_ranks()
    if not joins:
        begin()
    with once_joined(begin) if joins else nullcontext():
        ended = run_script(script, arguments)
        for following in begun:
            following.close(ended.error if ended.code else None)
    if ended.code:
        return ended.code, begun[0] if begun else None
    if not begun:
        raise UsageError("this is one of several ranks, and the script did not call init_process_group(): no recording")
    following = begun[0]
    if following.failed:
        raise UsageError(
            f"the recording in {out} ended after step {following.updates}, with an error that the script kept to itself"
        )
    return ended.code, following


def require_script(script: Path) -> None:
    """Checks that there is a script.

    Raises:
        UsageError: There is no such file.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}; give the path of a Python file")


def run_script(script: Path, arguments: Sequence[str]) -> Ended:
    """Runs a script in this process as Python would; the traceback of an exception that ends it is printed."""
    with _as_program(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            return Ended(_code_of(stop), stop)
        except KeyboardInterrupt as stop:
            return Ended(_INTERRUPTED, stop)
        except BaseException as failure:
            _print(failure)
            return Ended(_FAILED, failure)
    return Ended(0)


@contextmanager
def once_joined(begin: Callable[[], None]) -> Iterator[None]:
    """Within it, the recording begins when the script calls `init_process_group`: only then the ranks are a job."""
    modules = (torch.distributed, torch.distributed.distributed_c10d)
    plain = torch.distributed.init_process_group

    @functools.wraps(plain)
    def join(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        leave()
        begin()

    def leave() -> None:
        for module in modules:
            setattr(module, "init_process_group", plain)  # noqa: B010 (for type checkers it cannot be assigned)

    for module in modules:
        setattr(module, "init_process_group", join)  # noqa: B010
    try:
        yield
    finally:
        leave()


@contextmanager
def _as_program(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Within it, the script finds what it would if Python ran it."""
    argv, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[0] = argv, path


def _code_of(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return _FAILED


def _print(failure: BaseException) -> None:
    """Prints a traceback that begins with the script's frames."""
    at = failure.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        at = at.tb_next
    traceback.print_exception(type(failure), failure, at)
