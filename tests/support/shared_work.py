"""What one inspection may take over from another: outcomes that only a transcript, a position and a salt decide.

An inspection that goes on after a kill takes its own outcomes up; here one takes up those of an earlier inspection, so
that a test of a hundred inspections replays, and counts, each thing once.
"""

from __future__ import annotations

from typing import Any

from verifier.units import Units

KINDS = ("replay", "examined")


class SharedWork:
    """Outcomes by kind and key; for inspections under the same limits and the same environment of replays."""

    def __init__(self) -> None:
        """Nothing was done yet."""
        self._known: dict[tuple[str, str], Any] = {}

    def without(self, kind: str) -> SharedWork:
        """The rest of it: for an inspection that shall do work of this kind itself."""
        rest = SharedWork()
        rest._known = {name: outcome for name, outcome in self._known.items() if name[0] != kind}
        return rest

    def give(self, units: Units) -> None:
        """Tells an inspection that is about to begin."""
        for (kind, key), outcome in self._known.items():
            units.put(kind, key, outcome)

    def take(self, units: Units) -> None:
        """Learns from an inspection that ended."""
        for kind, key in units._there:
            if kind in KINDS:
                self._known[kind, key] = units.get(kind, key, lambda raw: raw)
