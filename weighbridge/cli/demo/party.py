"""A party of the demo: a process that runs one command after the other, and has PyTorch loaded once for all of them.

`python -m weighbridge.cli.demo.party` reads JSON arrays of words, one a line, and answers each with its exit code and
what it printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from weighbridge.cli.bench.processes import STOP_S, ProcessError, environment, last_words


class Party:
    """A party's process, from this side; one command at a time."""

    def __init__(self, name: str, root: Path) -> None:
        """Starts it.

        Args:
            name: Of the party.
            root: Where it works; its log goes into `logs` there.
        """
        self._name, self._log, self._turn = name, root / "logs" / f"{name}.log", threading.Lock()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weighbridge.cli.demo.party"],
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment({}),
            )

    def call(self, *words: str | float | Path) -> Any:
        """Runs a command with `--json`, which may have found something; returns its answer.

        Raises:
            ProcessError: It failed.
        """
        text = self.run(*words, "--json")
        return json.loads(text) if text.strip() else {}

    def run(self, *words: str | float | Path) -> str:
        """Runs a command, which may have found something; returns what it printed.

        Raises:
            ProcessError: It failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            try:
                self._process.stdin.write(json.dumps([*map(str, words)]).encode() + b"\n")
                self._process.stdin.flush()
                code, text = json.loads(self._process.stdout.readline())
            except (OSError, ValueError):
                raise ProcessError(f"the process of {self._name} ended{last_words(self._log)}") from None
        if code not in (0, 1):
            said = " ".join(text.split())[:300]
            raise ProcessError(f"weighbridge {' '.join(map(str, words[:2]))} of {self._name} ended with {code}: {said}")
        return str(text)

    def stop(self) -> None:
        """Ends the process."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Runs commands until its input ends."""
    from weighbridge.cli.main import run

    for line in sys.stdin:
        printed = StringIO()
        with redirect_stdout(printed):
            code = int(run(json.loads(line)))
        print(json.dumps([code, printed.getvalue()]), flush=True)


if __name__ == "__main__":
    main()
