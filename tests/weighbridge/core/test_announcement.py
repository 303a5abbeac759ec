"""A wait is announced as a bar on a terminal, and elsewhere as few lines."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from weighbridge.core import announcement
from weighbridge.core.announcement import Announcement


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_there_is_a_line_at_first_at_last_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 106.0, 107.0, 108.0])
    monkeypatch.setattr(
        announcement, "time", SimpleNamespace(monotonic=lambda: next(clock))
    )  # its own: threads ask too
    said = Announcement("baking bread")
    for done in range(5):
        said(done, 4)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"weighbridge: baking bread: {said}" for said in ("0/4, 0 s", "2/4, 6 s", "4/4, 8 s")]


def test_a_part_that_takes_long_is_seen_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(
        announcement, "time", SimpleNamespace(monotonic=lambda: next(clock))
    )  # its own: threads ask too
    said = Announcement("baking bread")
    for _ in range(3):
        said(1, 4)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == ["0 s", "10 s", "20 s"]


def test_nothing_is_said_after_the_last_part(capsys: pytest.CaptureFixture[str]) -> None:
    said = Announcement("baking bread")
    for total in range(100):
        said(total, total)
    assert capsys.readouterr().err == "weighbridge: baking bread: 0/0, 0 s\n"


def test_a_terminal_has_one_line_that_ends_with_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    said = Announcement("baking bread")
    said(0, 2)
    said(1, 2)
    assert "\n" not in terminal.getvalue()
    said(2, 2)
    lines = terminal.getvalue().split("\r")[1:]
    assert lines[1] == f"weighbridge: baking bread: 1/2, 0 s [{'#' * 15}{' ' * 15}]"
    assert lines[2].endswith("#]\n")


def test_a_program_without_a_console_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Announcement("baking bread")(1, 2)
    assert sys.stderr is None
