"""What chips are called in text for people: the registry's name with the beginning of the UEID.

The JSON of a report names chips by their whole UEID everywhere, so that names need not be unique and may change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_UEID = re.compile(r"(?<![0-9a-f])[0-9a-f]{34,66}(?![0-9a-f])")
_SHORT = 8


def short(ueid: str, name: str = "") -> str:
    """Returns what a chip is called: `gpu-0 (01d41f8e)`, or `01d41f8e` if it has no name.

    Args:
        ueid: In hexadecimal.
        name: The registry's; empty for none.
    """
    return f"{name} ({ueid[:_SHORT]})" if name else ueid[:_SHORT]


def names(report: Mapping[str, Any]) -> dict[str, str]:
    """Returns what each drawn chip of a report is called, by its UEID in hexadecimal.

    Chips without a name are left out: a text that speaks of them keeps the UEID, which a reader may have to copy.
    """
    return {chip["ueid"]: short(chip["ueid"], chip["name"]) for chip in report["chips"] if chip.get("name")}


def named(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with the UEIDs of chips that have a name replaced.

    Args:
        text: For people, e.g. the subject of a finding.
        names: As `names` returns them.
    """
    return _UEID.sub(lambda found: names.get(found[0], found[0]), text)
