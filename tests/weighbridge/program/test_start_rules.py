"""Which rule a start should follow: the one in force, and now and then another that came as regularly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weighbridge.program.start_rules import Rule, Site


def surprises(rules: Sequence[Rule]) -> list[int]:
    """At which of some starts another rule was due than the one that they follow."""
    site, found = Site(0, "number"), []
    for at, rule in enumerate(rules):
        if site.due != rule:
            found.append(at)
        site.follow(rule)
    return found


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(["number"] * 9, [], id="goes on"),
        pytest.param([1] * 9, [0, 1], id="another rule from now on"),
        pytest.param(["number", "number", 1] * 5, [2, 5], id="another one every three starts"),
        pytest.param([*["number", "number", 1] * 3, *["number"] * 6], [2, 5, 11], id="that then does not come"),
        pytest.param(["number", 1, "number", "number", 1, "number", 1, "number"], [1, 4, 6], id="now and then"),
    ],
)
def test_what_comes_again_is_due_again(rules: Sequence[Rule], expected: Sequence[int]) -> None:
    assert surprises(rules) == expected


def test_a_start_from_nothing_ends_a_habit() -> None:
    site = Site(0, "number")
    for rule in ("number", 1, "number", 1, "number"):
        site.follow(rule)
    assert site.due == 1
    site.begin_anew(50)
    assert (site.due, site.apart, site.seeded) == ("number", 50, 50)
