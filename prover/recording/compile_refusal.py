"""Why a function cannot be a compiled step."""

from __future__ import annotations

from weighbridge.core.errors import UsageError

CODE = "record.compile.refused"


class CompileError(UsageError):
    """A function cannot be run as the program of its tape; recorded step by step it is as good as any."""

    code = CODE


def refused(reason: str) -> CompileError:
    """Returns the error that says why, and what to do."""
    return CompileError(
        f"the function cannot be compiled: {reason}. Or record it as it is, with `with recorder.step(batch): ...`",
        why=reason,
    )
