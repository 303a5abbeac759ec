"""The same imports as in `redteam.values`, where the parties' rules ask that every run is recognised as training.

Recognition accuses nobody, since honest programs train in ways that it does not know. Parties who can do without such
programs make it a rule.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from redteam import values
from redteam.row import Outcome, Row
from redteam.workshop import Workshop
from support.ruled import ruled

RULE = "runs.all(r, r.training.outcome == 'recognised' && size(r.training.direct) == 0)"
"""That of docs/rules.md."""


def under_the_rule(row: Row, shop: Workshop, seed: int) -> Outcome:
    """Tries a row under the rule."""
    regime = ruled(shop.place() / "rules", RULE)
    usual, shop.usual = shop.usual, {**shop.usual, "regime": regime}
    try:
        return row.attack(shop, seed)
    finally:
        shop.usual = usual


ROWS = tuple(
    replace(
        row,
        name=f"{row.name}, under the rule that runs are recognised",
        attack=partial(under_the_rule, row),
        expected=("rule.violated",),
        note="The rule is `" + RULE + "`, over what the default plan recognises.",
    )
    for row in values.ROWS[:4]
)
