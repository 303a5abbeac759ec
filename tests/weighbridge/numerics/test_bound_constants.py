"""A bound that comes to give other numbers has another name: no transcript is replayed under bounds not its own.

Drafts name the digest of the table of rules, which has the names of bounds' functions and not their constants. Here is
what every bound gives for fixed operands, beside the digest of the table that gave it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.bound_errors import listen
from support.operator_examples import EXAMPLES, Maker

from weighbridge.numerics import bounds
from weighbridge.numerics.arrays import blocked_products
from weighbridge.numerics.conformance.bound_policy import BLOCKS
from weighbridge.numerics.rounding.bound import dense_bound
from weighbridge.numerics.rule_table import RULES, table_digest

GOLDEN = Path(__file__).parent / "bound_constants.json"
GROWTHS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "strict": nullcontext, "calibrated": bounds.without_growth, "probabilistic": bounds.probable_growth,
}  # fmt: skip
LONG = (100, 1_000_000)
"""Terms of sums; the probabilistic bound is another one for the second."""
EXACT = {"max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default"}
"""Whose examples add up so few terms that the bounds are 0."""
EQUAL = 1e-6
"""Relative difference up to which bounds are the same: instruction sets round the norms in them otherwise."""


def given() -> dict[str, dict[str, float]]:
    """What the bounds of each rule come to, added up over its examples, by growth and rule."""
    return {name: dict(sorted(_of_examples(growth))) for name, growth in GROWTHS.items()}


def _of_examples(growth: Callable[[], AbstractContextManager[None]]) -> Iterator[tuple[str, float]]:
    with growth():
        for key, make in EXAMPLES.items():
            for style in ("plain", "mixed"):  # sums of plain operands may be exact, and then have no bound
                total = 0.0
                for example in make(Maker(style, 5)):
                    for wide, bound in listen(example)[0]:
                        limits = dense_bound(wide, bound).double()
                        total += float(limits[limits.isfinite()].sum())
                yield f"{key}, {style}", total
        for n in LONG:
            yield f"gamma({n})", bounds.gamma(n)
            yield f"drift({n})", bounds.drift(n)
            for name, block in BLOCKS.items():
                yield f"{name}({n})", blocked_products.roundings(n, block)


def differing(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Returns the rules whose bounds are other ones under the same digest of the table.

    Args:
        now: `digest` and `bounds`.
        before: The same, of the golden file.
    """
    if now["digest"] != before["digest"]:
        return []
    return [
        f"{growth}: {key}"
        for growth, values in before["bounds"].items()
        for key, value in values.items()
        if not math.isclose(now["bounds"][growth].get(key, math.nan), value, rel_tol=EQUAL)
    ]


def measured() -> dict[str, Any]:
    return {"digest": table_digest(), "bounds": given()}


def test_no_bound_gives_other_numbers_under_the_same_digest(request: pytest.FixtureRequest) -> None:
    now = measured()
    before = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"digest": "", "bounds": {}}
    changed = differing(now, before)
    assert not changed, (
        f"give the functions of these bounds other names, or old transcripts replay under them: {changed}"
    )
    if request.config.getoption("--update-goldens"):
        GOLDEN.write_text(json.dumps(now, indent=1) + "\n")
    assert now["digest"] == json.loads(GOLDEN.read_text())["digest"], "a new table: write it with --update-goldens"


def test_every_rounded_rule_is_among_them() -> None:
    golden = json.loads(GOLDEN.read_text())["bounds"]
    rounded = {key for key, rule in RULES.items() if rule.bound is not None}
    for values in golden.values():
        found = {key for key in rounded if values[f"{key}, plain"] + values[f"{key}, mixed"] > 0}
        assert rounded - found <= EXACT


def test_a_changed_constant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads(GOLDEN.read_text())
    monkeypatch.setattr(bounds, "U", bounds.U * (1 + 2.0**-10))
    changed = differing(measured(), before)
    assert "strict: mm.default, plain" in changed
    assert "calibrated: mm.default, plain" in changed
    assert "probabilistic: mm.default, plain" in changed
    monkeypatch.undo()
    assert differing(measured(), before) == []
    monkeypatch.setattr(bounds, "SPREAD", 15)
    changed = differing(measured(), before)
    assert "probabilistic: gamma(1000000)" in changed
    assert all(each.startswith("probabilistic") for each in changed)


def test_under_another_digest_bounds_may_differ() -> None:
    before = json.loads(GOLDEN.read_text())
    now = {"digest": "0" * 64, "bounds": {growth: dict.fromkeys(v, 1.0) for growth, v in before["bounds"].items()}}
    assert differing(now, before) == []
    assert len(differing(now | {"digest": before["digest"]}, before)) > 300
