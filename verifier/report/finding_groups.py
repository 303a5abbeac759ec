"""Findings of a report that say the same about several things, put together: a reader sees each statement once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_GRAVEST_FIRST = ("violation", "warning", "info")


@dataclass(slots=True)
class FindingGroup:
    """Findings with one identifier, severity and message.

    Attributes:
        cases: The findings, in the report's order; they differ in their subjects, and in what was expected and found.
    """

    id: str
    severity: str
    message: str
    cases: list[Mapping[str, Any]] = field(default_factory=list)

    def shared(self) -> list[str]:
        """Returns the fields that have one value, and not an empty one, in all cases."""
        first = self.cases[0]
        return [name for name in first if first[name] and all(case.get(name) == first[name] for case in self.cases)]


def group(findings: Iterable[Mapping[str, Any]]) -> list[FindingGroup]:
    """Returns a report's findings in groups, the gravest first and otherwise in the order of their first cases.

    Args:
        findings: The report's `findings`.
    """
    groups: dict[tuple[str, str, str], FindingGroup] = {}
    for each in findings:
        key = (each["severity"], each["id"], each["message"])
        groups.setdefault(key, FindingGroup(each["id"], each["severity"], each["message"])).cases.append(each)
    return sorted(groups.values(), key=lambda one: _rank(one.severity))


def subjects_in_words(cases: Sequence[Mapping[str, Any]], most: int) -> str:
    """Returns the subjects of some findings, and how many more there are; empty if none has a subject."""
    named = [each["subject"] for each in cases if each["subject"]]
    more = f", and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def _rank(severity: str) -> int:
    return _GRAVEST_FIRST.index(severity) if severity in _GRAVEST_FIRST else len(_GRAVEST_FIRST)
