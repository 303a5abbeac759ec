"""`weighbridge` in the test's own process. `support.exactly` and `support.console` run it in processes of its own."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from weighbridge.cli.main import run


def weighbridge(*arguments: str | Path) -> tuple[int, str, str]:
    """Runs `weighbridge ARGUMENTS`; returns its exit code and what it wrote to standard output and standard error."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(map(str, arguments)))
    return code, out.getvalue(), err.getvalue()


def answer(*arguments: str | Path, code: int = 0) -> Any:
    """Runs a command with `--json` that ends with `code` and writes nothing to standard error; returns its answer."""
    found, out, err = weighbridge(*arguments, "--json")
    assert (found, err) == (code, ""), (found, out, err)
    return json.loads(out)


def fails(*arguments: str | Path) -> str:
    """Runs a command that ends with exit code 2 and one line on standard error; returns the reason code in it."""
    code, out, err = weighbridge(*arguments)
    assert (code, out) == (2, ""), (code, out, err)
    (line,) = err.splitlines()
    program, reason, _ = line.split(": ", 2)
    assert program == "weighbridge"
    return reason
