"""What "exactly that finding" means in the tests marked `finding(ID)`; docs/findings.md needs one for each row."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from support.station import ROOT


def found(report: dict[str, Any]) -> set[str]:
    """Identifiers of all findings of a report, of every severity."""
    return {each["id"] for each in report["findings"]}


def exactly(report: dict[str, Any], identifier: str, beside: Collection[str] = ()) -> None:
    """Asserts that a report has this finding and no other.

    Args:
        report: An inspection's report, as JSON.
        identifier: The finding.
        beside: Findings that cannot but come with it. The caller's comment says why for each; every one must be there.
    """
    assert found(report) == {identifier, *beside}, [(each["id"], each["message"]) for each in report["findings"]]


def alone(report: dict[str, Any], identifier: str) -> None:
    """As `exactly`, and it is there once: one cause, one finding."""
    exactly(report, identifier)
    assert len(report["findings"]) == 1, [(each["id"], each["subject"]) for each in report["findings"]]


def marked(request: pytest.FixtureRequest) -> str:
    """The identifier that a test is marked with."""
    mark = request.node.get_closest_marker("finding")
    assert mark is not None
    return str(mark.args[0])


def command(*arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Runs `weighbridge ARGUMENTS` as a process; returns its exit status, stdout and stderr."""
    run = subprocess.run(
        [sys.executable, "-m", "weighbridge.cli", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return run.returncode, run.stdout, run.stderr


def refused(*arguments: str | Path, cwd: Path = ROOT) -> str:
    """Runs a command that must end with an error, and returns the identifier that its line on stderr begins with."""
    status, _, said = command(*arguments, cwd=cwd)
    return reason_of(status, said)


def reason_of(status: int, said: str) -> str:
    """Returns the identifier in what a command that ended with an error said on stderr."""
    line = said.strip().splitlines()[-1]
    word = re.match(r"weighbridge: ([a-z]+(?:\.[a-z_]+)*): ", line)
    assert status in (1, 2, 3), said
    assert word, said
    return word[1]


def documented() -> list[str]:
    """The identifiers of docs/findings.md, in its order."""
    return re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "findings.md").read_text(), re.MULTILINE)


def findings_of(output: str) -> set[str]:
    """Identifiers of the findings in a command's JSON output, wherever they are in it."""

    def walk(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["id"]} if "id" in value and "severity" in value else set()
            return own.union(*(walk(each) for each in value.values()))
        return set().union(*(walk(each) for each in value)) if isinstance(value, list) else set()

    return walk(json.loads(output))
