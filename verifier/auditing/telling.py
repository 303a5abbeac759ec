"""A verdict in lines for people. Work that was done is told in steps and shares of steps, never as a probability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def lines(said: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of a verdict.

    Args:
        said: What `verifier.auditing.verdict.judge` returned.
    """
    work, auditors = said["work"], len(said["auditors"])
    total = max(1, work["steps"])
    done = 0
    for count in range(auditors, 0, -1):
        done += work["matching_by"][count]
        if work["matching_by"][count]:
            yield (
                f"work done: {done / total:.1%} of {total} steps were found to match by at least {count} of {auditors} "
                "auditors"
            )
    if not done:
        yield f"work done: none of {total} steps was found to match by any of {auditors} auditors"
    yield f"work done: {work['referee_steps'] / total:.1%} of the steps were replayed by the referee"
    for honest, steps in enumerate(work["least_by_honest"], start=1):
        if steps is None:
            continue
        yield f"if at least {honest} of {auditors} are honest, whichever: {steps / total:.1%} of the steps at least"
    if work["share"]:
        yield (
            f"the referee drew {work['share']} of {work['drawn']} segments, and of {work['share_false']} the claims or "
            f"the steps were false; with confidence {work['confidence']:.0%}, of {work['false_at_most']} at most"
        )
    for each in said["auditors"]:
        told = (
            f"{each['name']}: {each['answered']} of {each['assigned']} segments, {each['confirmed']} confirmed, "
            f"{each['false']} false"
        )
        if each["planted"]:
            told += (
                f"; took {each['missed']} of {each['planted']} planted segments for true, so with confidence "
                f"{work['confidence']:.0%} at most {each['missed_at_most']:.0%} of such"
            )
        yield told
    for finding in said["findings"]:
        yield f"{finding['severity']} {finding['id']}: {finding['message']}"
    yield "not claimed: that auditors did not share one execution; that they are independent is an assumption"
