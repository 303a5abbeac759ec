"""A report of many chips and findings, with long names and identifiers: what a page must have room for."""

from __future__ import annotations

import copy
from typing import Any


def many_chips(report: dict[str, Any], chips: int, findings: int) -> dict[str, Any]:
    """Returns a report with more chips and findings than one has; its figures no longer follow from each other.

    Args:
        report: A report with at least two chips.
        chips: How many chips to have.
        findings: How many times to state each finding, each time about another chip.
    """
    out = copy.deepcopy(report)
    pattern, accounts = out["chips"][:2], out["ledger"]["chips"][:2]
    ueids = [f"01{number:06x}{number:026x}" for number in range(1, chips + 1)]
    out["chips"] = [
        {**copy.deepcopy(pattern[n % 2]), "ueid": ueid, "name": f"rack-{n:02}" if n % 3 else "", "site": "Hall " * 12}
        for n, ueid in enumerate(ueids)
    ]
    out["ledger"]["chips"] = [{**copy.deepcopy(accounts[n % 2]), "ueid": ueid} for n, ueid in enumerate(ueids)]
    out["findings"] = [
        {**each, "subject": f"chip {ueids[n % chips]} entry {n}", "evidence": {"digests": [f"{n:064x}", "ab" * 32]}}
        for each in report["findings"]
        for n in range(findings)
    ]
    return out
