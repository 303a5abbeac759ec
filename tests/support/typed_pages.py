"""Types what a page of the documentation says into an empty directory, and compares what comes out.

Blocks are taken in order: `python title="F"` becomes the file F, `sh` is run by one shell, and the `text` block after
it is what it prints. There, `...` on a line of its own stands for any lines. Digests and identifiers differ from run to
run: two of them must be equal if and only if the page has them equal. Numbers may differ by a tenth, whole ones by ten.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"[0-9a-f]{8,}|\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|[^\W\d]+|\S")
_DIGEST = re.compile(r"(?=.*\d)[0-9a-f]{8,}")
_NUMBER = re.compile(r"\d[\d,]*(?P<point>\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Typed:
    """What was typed, what the page says that it prints (None if it says nothing), and what it printed."""

    command: str
    said: str | None
    printed: str


def blocks(page: str) -> Iterator[tuple[str, str | None, str]]:
    """Yields kind, title and text of each fenced block."""
    for match in _BLOCK.finditer(page):
        yield match["kind"], match["title"], match["text"]


def typed(page: str, directory: Path, *, seconds: float, refused: Sequence[str] = ()) -> list[Typed]:
    """Types a page into `directory`; a command that fails is an `AssertionError` with what it printed.

    Args:
        page: Markdown.
        directory: Empty.
        seconds: For each block at most.
        refused: Commands that may end with exit code 1, as those do that find something.
    """
    found, done = list(blocks(page)), list[Typed]()
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    for number, (kind, title, text) in enumerate(found):
        if title is not None:
            (directory / title).write_text(text)
        if kind != "sh":
            continue
        ended = subprocess.run(
            ["bash", "-ec", text], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        allowed = (0, 1) if any(each in text for each in refused) else (0,)
        assert ended.returncode in allowed, f"{text}ended with {ended.returncode}:\n{ended.stdout}"
        after = found[number + 1] if number + 1 < len(found) else ("", None, "")
        done.append(Typed(text, after[2] if after[0] == "text" else None, ended.stdout))
    return done


def differs(said: str, printed: str, known: dict[str, str]) -> str | None:
    """Returns the first line of the page that was not printed as it says, or None.

    Args:
        said: By the page.
        printed: By the command.
        known: For each digest that the page has, the one that stood in its place so far; is added to.
    """
    lines = [line for line in printed.splitlines() if line.strip()]
    gap = False
    for expected in said.splitlines():
        if expected.strip() == "...":
            gap = True
            continue
        if not expected.strip():
            continue
        while lines:
            line = lines.pop(0)
            if _alike(expected, line, known):
                break
            if not gap:
                return f"{expected!r}, not {line!r}"
        else:
            return expected
        gap = False
    return None if gap or not lines else f"nothing more, not {lines[0]!r}"


def _alike(expected: str, line: str, known: dict[str, str]) -> bool:
    here, there = _WORD.findall(expected), _WORD.findall(line)
    if len(here) != len(there):
        return False
    new = dict(known)
    for one, other in zip(here, there, strict=True):
        if _DIGEST.fullmatch(one) and _DIGEST.fullmatch(other):
            if new.setdefault(one, other) != other or list(new.values()).count(other) > 1:
                return False
        elif _NUMBER.fullmatch(one) and (number := _NUMBER.fullmatch(other)):
            a, b = float(one.replace(",", "")), float(other.replace(",", ""))
            if abs(a - b) > max(abs(a) / 10, 0 if number["point"] else 10):
                return False
        elif one != other:
            return False
    known.update(new)
    return True
