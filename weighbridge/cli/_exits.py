"""Exit codes, and the one place where an exception becomes a line for a person or an object for a program.

0: nothing found. 1: findings. 2: bad usage or unreadable input. 3: internal fault (its traceback goes to a file).
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from weighbridge.core.errors import Finding, WeighbridgeError


class Exit(IntEnum):
    """Exit codes of every command."""

    NOTHING_FOUND = 0
    FINDINGS = 1
    UNREADABLE = 2
    INTERNAL = 3


# Errors that say that evidence was altered or does not hold are findings; all others mean that nothing could be judged.
_FINDING_PREFIXES = (
    "transcript.",
    "tape.",
    "replay.",
    "data.",
    "merkle.",
    "chip.token",
    "chip.log",
    "chip.note",
    "chip.tiles",
    "snapshot.",
    "job.",
    "layout.",
    "document.sign",
    "evidence.altered",
    "outcome.nonce",
    "outcome.signature",
    "outcome.part",
    "rules.version",
    "registry.signature",
    "registry.handover",
    "registry.role",
    "registry.foreign",
)
_NO_FINDING_PREFIXES = (
    "transcript.write", "transcript.unknown", "transcript.upload", "replay.worker", "replay.rules.unknown",
    "replay.calibration.unknown", "replay.comparison", "replay.collectives.missing",
)  # fmt: skip


def exit_of(error: WeighbridgeError) -> Exit:
    """Returns the exit code of a command that `error` ended."""
    if error.reason == "internal":
        return Exit.INTERNAL
    if error.reason == "transcript.file.missing" and error.details.get("path") == "manifest.json":
        return Exit.UNREADABLE  # the directory is none of a transcript: most likely a mistyped path
    if error.reason.startswith(_FINDING_PREFIXES) and not error.reason.startswith(_NO_FINDING_PREFIXES):
        return Exit.FINDINGS
    return Exit.UNREADABLE


def one_line(text: str) -> str:
    """Returns `text` on one line, without control characters that a hostile input could steer a terminal with."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def counted(number: int, thing: str, things: str = "") -> str:
    """Returns a number with the word for what it counts: 1 message, 1,200 messages, 2 leaves.

    Args:
        number: How many there are.
        thing: The word for one.
        things: The word for several, if it is not `thing` and an s.
    """
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def print_json(value: Any) -> None:
    """Prints one JSON object on standard output; infinities and NaN have no place in it."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=False, allow_nan=False, default=str) + "\n")


def error_object(error: WeighbridgeError) -> dict[str, Any]:
    """Returns what `--json` prints when a command could not finish: the error, and the finding if it is one.

    No other answer of a command has a field `error`.
    """
    found = exit_of(error)
    said: dict[str, Any] = {
        "error": {"code": error.reason, "message": one_line(error.message), "exit_code": int(found)}
    }
    return said | ({"findings": [error.finding().to_json()]} if found is Exit.FINDINGS else {})


def fail(error: WeighbridgeError, *, as_json: bool) -> Exit:
    """Reports `error` as one line on stderr, or as one JSON object on stdout, and returns the exit code."""
    if as_json:
        print_json(error_object(error))
    else:
        print(f"weighbridge: {one_line(str(error))}", file=sys.stderr)
    return exit_of(error)


def crash(error: BaseException, *, as_json: bool) -> Exit:
    """Reports a bug: a short line that says where the traceback lies. Returns the exit code 3."""
    with tempfile.NamedTemporaryFile("w", prefix="weighbridge-", suffix=".log", delete=False) as log:
        log.write("".join(traceback.format_exception(error)))
    message = f"{type(error).__name__}: {one_line(str(error))[:200]}; this is a bug, its traceback is in {log.name}"
    return fail(WeighbridgeError(message, code="internal"), as_json=as_json)


def findings_line(finding: Finding) -> str:
    """Returns a finding as one line of text."""
    parts = [f"{finding.severity}: {finding.id}: {finding.message}"]
    if finding.subject:
        parts.append(f"[{finding.subject}]")
    return one_line(" ".join(parts))


def print_found(said: Mapping[str, Any], lines: Iterable[str], findings: Sequence[Finding], *, as_json: bool) -> Exit:
    """Prints what a command says, then its findings, and returns its exit code.

    Args:
        said: For a program.
        lines: The same for a person.
        findings: What it found.
        as_json: Whether a program asks.
    """
    if as_json:
        print_json({**said, "findings": [finding.to_json() for finding in findings]})
    else:
        for line in [*lines, *map(findings_line, findings)]:
            print(line)
    return Exit.FINDINGS if findings else Exit.NOTHING_FOUND
