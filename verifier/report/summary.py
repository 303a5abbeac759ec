"""A few figures of a report, for lists of inspections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifier.report import extent
from verifier.report.earlier_reports import as_current


def of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a list says of a report: fields of `ListedInspection` in protos/weighbridge/v1/verifier.proto.

    Args:
        report: A report that this Verifier made, also with an earlier version.
    """
    report = as_current(report)
    counts, p = report["counts"], report["miss"]["p"]
    out = {
        "verdict": "findings" if extent.undecided(report) else report["verdict"],
        "violations": counts["violations"],
        "warnings": counts["warnings"],
        "snapshots": counts["snapshots"],
        "explained": counts["explained"],
    }
    return out if p is None else {**out, "p": p}
