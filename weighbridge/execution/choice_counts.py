"""What a replay counts of a rounding log's choices, and the tests against chance that the counts amount to.

Reading an answer needs these and nothing else, so this module loads no PyTorch. `choice_statistics` does the counting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class Counts:
    """Counts over the replayed steps.

    Attributes:
        rounded: Elements rounded.
        narrow: Those of them that were rounded to 16 bits.
        entries: Entries of the log.
        overruled: Entries that changed the replayer's own rounding.
        bits: Sum over all entries of log2(number of admissible values): what the log could have brought in.
        bits_in: The same over the entries that overruled: at most so many bits came in as values.
        charged_bits: What the log brought in, which elements it overruled included (`rounding_surprise`).
        charged_step_bits: The same of the step with most.
        wide: Entries with more than 256 admissible values.
        wide_bits: Their part of `bits`.
        wide_bits_in: Their part of `bits_in`.
        up: Entries that round above the replayer's wide value. Of at most 4,096 entries of one output; and equal wide
            values that come near each other count once, here and in the next five: they are rounded alike.
        down: Entries that round below it.
        outward: Entries that round away from zero.
        inward: Entries that round towards zero.
        overruled_up: Entries that moved a result up from the replayer's own rounding.
        overruled_down: Entries that moved it down.
        only_logged: In one of 64 outputs, drawn anew by each replay: elements with an entry that the replayer does
            not find contested.
        only_here: There: elements without an entry that it finds contested.
        both: There: elements where they agree.
    """

    rounded: int = 0
    narrow: int = 0
    entries: int = 0
    overruled: int = 0
    bits: float = 0.0
    bits_in: float = 0.0
    charged_bits: float = 0.0
    charged_step_bits: float = 0.0
    wide: int = 0
    wide_bits: float = 0.0
    wide_bits_in: float = 0.0
    up: int = 0
    down: int = 0
    outward: int = 0
    inward: int = 0
    overruled_up: int = 0
    overruled_down: int = 0
    only_logged: int = 0
    only_here: int = 0
    both: int = 0

    def to_json(self) -> dict[str, int | float]:
        """Returns the counts by name."""
        return {name: getattr(self, name) for name in NAMES}


NAMES = tuple(f.name for f in fields(Counts))
"""What is counted, in order."""


def parse(raw: Mapping[str, Any]) -> Counts:
    """Reads counts that a worker sent.

    Raises:
        ValueError, TypeError, KeyError: They are not finite numbers of these names, at least 0.
    """
    values: dict[str, Any] = {name: (float if "bits" in name else int)(raw[name]) for name in NAMES}
    if not all(0 <= v < 2**63 for v in values.values()):
        raise ValueError("evidence")
    return Counts(**values)


def tests(counts: Counts) -> dict[str, dict[str, int | float]]:
    """Returns the tests of the counts against chance, by name.

    Each has `observed` of `of`, expected one half of them, and the two-sided binomial `p`:

    - `contested`: elements that only the log calls contested, among those that only one side does;
    - `up`: entries that round up; `outward`: entries that round away from zero;
    - `overruled_up`: overruled roundings that were moved up.
    """
    made = counts.to_json()
    pairs = {
        "contested": (made["only_logged"], made["only_here"]),
        "up": (made["up"], made["down"]),
        "outward": (made["outward"], made["inward"]),
        "overruled_up": (made["overruled_up"], made["overruled_down"]),
    }
    return {name: {"observed": a, "of": a + b, "p": even(int(a), int(a + b))} for name, (a, b) in pairs.items()}


def even(observed: int, of: int) -> float:
    """Returns the two-sided p-value of so many among `of` when each is one with probability one half (exact)."""
    from scipy.special import bdtr  # noqa: PLC0415 (a third of a second, and few need it)

    return min(1.0, 2.0 * float(bdtr(min(observed, of - observed), of, 0.5))) if of else 1.0


def report(counts: Counts) -> dict[str, Any]:
    """Returns counts and tests as JSON-compatible values."""
    return {**counts.to_json(), "tests": tests(counts)}
