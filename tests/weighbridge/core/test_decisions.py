"""A party decides once: also if two processes try at once, and if the file is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weighbridge.core.decisions import decide
from weighbridge.core.errors import UsageError

ROOT = Path(__file__).parents[3]
RACER = """
import sys
from pathlib import Path
from weighbridge.core.decisions import decide
print("ready", flush=True)
sys.stdin.readline()
print(int(decide(Path(sys.argv[1]), b"agreement", sys.argv[2].encode())), flush=True)
"""


def test_a_subject_is_decided_once(tmp_path: Path) -> None:
    book = tmp_path / "book"
    assert decide(book, b"one", b"a")
    assert decide(book, b"one", b"a")
    assert not decide(book, b"one", b"b")
    assert decide(book, b"two", b"b")
    assert book.stat().st_mode & 0o077 == 0


def test_of_many_processes_at_once_one_decides(tmp_path: Path) -> None:
    """Each has read nothing yet when all are let go: a check and a write that are two steps let several through."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "book"), str(number)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for number in range(6)
    ]  # fmt: skip
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    assert sum(int(each.communicate()[0]) for each in racers) == 1


def test_a_link_stands_for_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("book")
    assert decide(tmp_path / "link", b"one", b"a")
    assert not decide(tmp_path / "book", b"one", b"b")


@pytest.mark.parametrize("content", [b"\n", b"6f 61", b"6F 61\n", b"6f 61\n6f 61\n", b"\xff\n", b"6f\n", b"6f 61 61\n"])
def test_a_damaged_file_takes_no_decision(tmp_path: Path, content: bytes) -> None:
    book = tmp_path / "book"
    book.write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        decide(book, b"two", b"b")
    assert book.read_bytes() == content


def test_a_file_that_cannot_be_written_takes_no_decision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot use"):
        decide(tmp_path / "missing" / "book", b"one", b"a")
