"""Runs a script as Python would, and records it."""

from __future__ import annotations

import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prover.following.follow import follow
from weighbridge.core.errors import UsageError

_FAILED = 1
_INTERRUPTED = 128 + signal.SIGINT


def record_script(script: Path, arguments: Sequence[str], out: Path, **options: Any) -> int:
    """Runs a script in this process while `follow` records it.

    Args:
        script: A Python file.
        arguments: What the script finds in `sys.argv` after its name.
        out: New or empty directory for the transcript.
        **options: Of `follow`.

    Returns:
        The script's own exit code: of `sys.exit`, 1 after an exception (whose traceback is printed), 130 after Ctrl-C.

    Raises:
        WeighbridgeError: The script is no file, or ended well and has left no whole transcript.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}; give the path of a Python file")
    following = follow(out, **options)
    code = 0
    error: BaseException | None = None
    with _as_program(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            code, error = _code_of(stop), stop
        except KeyboardInterrupt as stop:
            code, error = _INTERRUPTED, stop
        except BaseException as failure:
            _print(failure)
            code, error = _FAILED, failure
        finally:
            following.close(error if code else None)
    if not code and following.failed:
        raise UsageError(
            f"the recording in {out} ended after step {following.updates}, with an error that the script kept to itself"
        )
    return code


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
