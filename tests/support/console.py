"""As `support.exactly`, but all `weighbridge` commands run in one process of their own, which starts only once.

For tests with many commands that only read files. What a command leaves behind in its process, the next one finds.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

from support.exactly import reason_of
from support.station import ROOT


def command(*arguments: str | Path, cwd: Path = ROOT) -> tuple[int, str, str]:
    """Runs `weighbridge ARGUMENTS`; returns its exit status, stdout and stderr."""
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([str(cwd), list(map(str, arguments))]) + "\n")
    process.stdin.flush()
    status, out, said = json.loads(process.stdout.readline())
    return int(status), str(out), str(said)


def refused(*arguments: str | Path, cwd: Path = ROOT) -> str:
    """Runs a command that must end with an error, and returns the identifier that its line on stderr begins with."""
    status, _, said = command(*arguments, cwd=cwd)
    return reason_of(status, said)


@cache
def _process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.console"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    return process


def _answer(arguments: Sequence[str]) -> tuple[int, str, str]:
    from weighbridge.cli.main import run

    out, said = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(said):
        status = run(arguments)
    return int(status), out.getvalue(), said.getvalue()


def _serve() -> None:
    """Reads commands from standard input, one a line, until its end."""
    for line in sys.stdin:
        directory, arguments = json.loads(line)
        os.chdir(directory)
        print(json.dumps(_answer(arguments)), flush=True)


if __name__ == "__main__":
    _serve()
