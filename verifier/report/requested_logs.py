"""What a report says of rounding logs that Provers were asked for, computed again from its own list of requests.

A Verifier who favours a Prover would count a request as answered, or leave out the finding that it was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifier.model.supplement_facts import MISSING, finding_of, subject_of


def again(report: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Computes again what `evidence.supplements` says of each Prover, and which findings follow from its requests.

    Returns:
        (subject, what follows, what is stated) of each part; the two are equal in an honest report.

    Raises:
        KeyError, TypeError, ValueError: It is no report.
    """
    section = report["evidence"].get("supplements")
    if section is None:  # a report from before there were logs on demand
        return []
    counts: dict[str, list[int]] = {}
    short = []
    for each in section["requests"]:
        whole = each["came"] == each["end"] - each["begin"]
        count = counts.setdefault(each["prover"], [0, 0])
        count[0] += 1
        count[1] += whole
        if not whole:
            subject = f"transcript {each['transcript']}"
            short.append((finding_of(each["why"]), subject, each["prover"], each["begin"], each["end"]))
    stated = [[each["prover"], each["asked"], each["regenerated"]] for each in section["provers"]]
    found = [_named(each) for each in report["findings"]]
    wanted = [*short, *((MISSING, subject_of(prover)) for prover, (asked, made) in counts.items() if made < asked)]
    lacking = [each for each in wanted if each not in found]
    return [
        (
            "counts of requests for rounding logs",
            [[prover, *count] for prover, count in sorted(counts.items())],
            stated,
        ),
        ("findings of requests for rounding logs", [], lacking),
    ]


def _named(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what tells a finding about one request, or about one Prover, from others."""
    if finding["id"] == MISSING:
        return finding["id"], finding["subject"]
    evidence = finding["evidence"]
    about = (evidence.get(name) for name in ("prover", "begin", "end"))
    return finding["id"], finding["subject"], *about
