"""The spinner of commands that are silent for long, on a real terminal and off it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time
from weighbridge.cli import _progress
from weighbridge.cli._progress import waiting, working_on
with waiting("at work", after_s=0.05):
    {body}
    print("the answer", flush=True)
    time.sleep(0.3)
print("outside", flush=True)
"""
SLOW = """
    while sys.stderr.isatty() and _progress._now._live is None:
        time.sleep(0.02)
    time.sleep(0.4)
    working_on("further")
    time.sleep(0.4)
"""


def on_terminal(body: str, **environment: str) -> tuple[str, str]:
    """What a program writes to standard output, a pipe, and to standard error, a terminal."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment},
        )  # fmt: skip
        os.close(theirs)
        out, _ = process.communicate(timeout=120)
        said = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so at the end
                piece = b""
            if not piece:
                break
            said += piece
    finally:
        os.close(ours)
    assert process.returncode == 0, said
    return out.decode(), said.decode()


def test_a_terminal_shows_a_spinner_and_the_answer_stays_clean() -> None:
    out, err = on_terminal(SLOW)
    assert out == "the answer\noutside\n"
    assert "at work" in err
    assert "further" in err
    assert err.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))  # wiped, and the cursor is back
    assert "\x1b[?25h" in err
    assert "\x1b[32m" in err


def test_colours_are_off_if_the_user_wants_none() -> None:
    _, err = on_terminal(SLOW, NO_COLOR="1")
    assert "at work" in err
    assert "\x1b[32m" not in err


def test_who_answers_at_once_shows_no_spinner() -> None:
    out, err = on_terminal("pass")
    assert (out, err) == ("the answer\noutside\n", "")


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=SLOW)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert (done.stdout, done.stderr) == ("the answer\noutside\n", "")
