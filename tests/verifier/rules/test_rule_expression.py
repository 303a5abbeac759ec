"""Rules' expressions: what is wrong shows before anything is evaluated, and absent facts leave a rule undecided."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.rules.errors import RuleError
from verifier.rules.expression import MAX_WORK, UndecidedError, check
from verifier.rules.schema import FACTS, conform, record
from weighbridge.core.errors import WeighbridgeError


def run(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "flops": 3.0, "steps": 4, "scores": {"maths": 0.5}, "declared": {"kind": "rl"}} | fields


FACTS_HERE = {"period_days": 30.0, "runs": [run(), run(id="s", flops=9.0, scores={}, declared={})], "findings": []}


def evaluate(text: str, facts: dict[str, Any] | None = None) -> bool:
    return check(text, FACTS).evaluate(conform(facts or FACTS_HERE, FACTS, record("")))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("runs.all(r, r.flops < 10.0)", True),
        ("runs.all(r, r.flops < 5.0)", False),
        ("sum(runs.filter(r, r.flops > 5.0).map(r, r.flops)) == 9.0", True),
        ("sum(findings.map(f, 1)) == 0.0", True),
        ("double(greatest(runs.map(r, r.steps))) - double(least(runs.map(r, r.steps))) == 0.0", True),
        ("greatest(runs.map(r, r.id.size())) * size(runs) - 3 < 0", True),
        ("runs[0].steps / 2 == 2 && -runs[0].steps < 9223372036854775807", True),
        ("runs.exists_one(r, r.id == 's') && runs.size() == 2", True),
        ("runs.all(r, r.id in ['r', 's'])", True),
        ("'maths' in runs[0].scores && runs[0].scores['maths'] <= 0.5", True),
        ("runs[0].scores.maths > 0.4 ? true : false", True),
        ("period_days / 3.0 > 9.9 && -1 < 0 && !(7 % 4 == 2)", True),
        ("runs.all(r, double(r.steps) * 1e3 > 2.0)", True),
        ("runs.exists(r, r.declared.kind.startsWith('r') && 'kind' in r.declared)", True),
        # A fact that is absent does not matter where the others decide.
        ("runs.exists(r, r.scores['maths'] > 0.4)", True),
        ("runs[1].flops > 5.0 || runs[1].scores['maths'] < 0.4", True),
        ("runs.all(r, r.flops > 4.0 || r.scores['maths'] > 0.6)", False),
        ("runs.all(r, !has(r.complete))", True),
    ],
)
def test_what_holds_and_what_does_not(text: str, holds: bool) -> None:
    assert evaluate(text) is holds


@pytest.mark.parametrize(
    "text",
    [
        "runs.all(r, r.scores['maths'] < 0.6)",  # the second run has no score
        "runs.all(r, r.complete)",
        "fleet.sampled > 1",
        "runs[5].flops > 1.0",
        "1 / 0 > 1",
        "greatest(findings.map(f, 1)) > 0",
        "runs[0].flops * 1e308 * 10.0 > 1.0",
        "!(runs[0].flops * 1e308 * 1e308 - runs[1].flops * 1e308 * 1e308 > 1.0)",  # NaN would let it hold
        "sum([1e308, 1e308]) > 1.0",
    ],
)
def test_what_the_facts_do_not_decide(text: str) -> None:
    with pytest.raises(UndecidedError):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1 to 2000"),
        ("true &&" * 400 + "true", "1 to 2000"),
        ("(" * 30 + "true" + ")" * 30, "nested deeper"),
        ("!" * 900 + "true", "too many parts"),
        ("true &&", "no CEL"),
        ("for x in y", "no CEL"),
        ("zz > 1", "no 'zz' in the facts; it has period_days"),
        ("runs.all(r, r.flopz < 1.0)", "no 'flopz' in a run; it has id"),
        ("runs.all(r, r.flops < 5)", "double cannot be compared with int; write 3.0"),
        ("runs[0].flops + 1 > 1.0", "calculated with; write 3.0"),
        ("period_days", "true or false, and this is of type double"),
        ("runs == runs", "cannot be compared so"),
        ("true < false", "cannot be compared so"),
        ("!period_days > 1.0", "cannot stand before a double"),
        ("-true == true", "cannot stand before a bool"),
        ("1.5 % 2.0 == 0.0", "whole numbers"),
        ("runs['a'].flops > 1.0", "[ ] takes"),
        ("period_days in runs", "`in` looks for"),
        ("runs.all(period_days, true)", "takes a new name"),
        ("runs.all(r, runs.all(r, true))", "takes a new name"),
        ("runs.all(r, r.flops)", "true or false, not a double"),
        ("period_days && true", "&& and || join bools"),
        ("period_days > 1.0 ? 1 : 2.0", "? : needs"),
        ("size(1) > 0", "no size() of a int"),
        ("matches('a', 'b')", "no function of 2 values"),
        ("'a'.matches('(a+)+$')", "no .matches() of a string"),
        ("runs.reduce(a, b, c, d) > 1", "no 'a' in the facts"),
        ("{'a': 1}.a == 1", "cannot use map lit"),
        ("x{a: 1} == 1", "cannot use member object"),
        ("b'a' == b'a'", "cannot use"),
        ("null == null", "cannot use"),
        ("[] == []", "at least one element"),
        ("[1, 'a'].size() == 2", "all of one type"),
        ("has(1)", "asks for one fact"),
        ("runs.size() < 99999999999999999999", "64 bits"),
        ("int(5e24) > 0", "int() can exceed 64 bits"),
        ("runs.all(r, int(r.flops) < 1000)", "compare doubles, as in r.flops < 5e24"),
        ("9223372036854775807 + runs[0].steps > 0", "exceed the 64 bits"),
        ("runs.all(r, r.steps * 2 < 5)", "double(r.steps) * 2.0"),
        ("runs[0].steps - runs[1].steps == 0", "exceed the 64 bits"),
        ("greatest(runs.map(r, r.steps)) + 1 > 0", "exceed the 64 bits"),
        ("(true ? 4611686018427387904 : 1) * 2 > 0", "exceed the 64 bits"),
        ("runs.all(r, r.flops < 1e400)", "larger than any double"),
        ("runs.all(r, r.id != '\u0433l')", "beyond ASCII"),
        (r"runs.all(r, r.id != '\u0433l')", "beyond ASCII"),
        (r"runs.all(r, r.id != '\U00110000')", "escape for no character"),
        ("runs.all(a, runs.all(b, runs.all(c, true)))", "do not nest"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_evaluated(text: str, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        check(text, FACTS)
    assert message in caught.value.message


def test_work_is_bounded_by_the_lists_that_there_are() -> None:
    pairs = "runs.all(a, runs.all(b, a.id != b.id || a.flops == b.flops))"
    assert check(pairs, FACTS).work < MAX_WORK
    with pytest.raises(RuleError, match="do not nest"):
        check(pairs, FACTS, {("", "runs"): 200})
    listed = "runs.all(r, r.operations.all(o, o != 'aten.mm.default'))"
    assert check(listed, FACTS, {("", "runs"): 10, ("run", "operations"): 100}).work < MAX_WORK
    with pytest.raises(RuleError, match="do not nest"):
        check(listed, FACTS, {("", "runs"): 10, ("run", "operations"): 5000})


def test_the_most_work_that_is_allowed_ends_soon() -> None:
    facts = {"runs": [run(id=str(number)) for number in range(100)]}
    expression = check("runs.all(a, runs.all(b, a.flops == b.flops))", FACTS, {("", "runs"): 100})
    assert expression.work > MAX_WORK / 2
    started = time.process_time()
    assert expression.evaluate(conform(facts, FACTS, record("")))
    assert time.process_time() - started < 30


def test_the_facts_that_it_needs_are_known() -> None:
    expression = check("runs.all(r, has(r.complete) && r.data.used > 1 && 'a' in r.scores)", FACTS)
    assert expression.needs == (("", "runs"), ("data", "used"), ("run", "data"), ("run", "scores"))


WORDS = (
    "runs r . all exists map filter ( ) , flops scores [ ] 'a' 1 2.5 < == && || ! - + * / % in has size ? : true sum"
)
TOKENS = st.sampled_from(WORDS.split())


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(st.lists(TOKENS, max_size=25).map(" ".join), st.text(max_size=60)))
def test_hostile_texts_raise_only_our_errors(text: str) -> None:
    """Law: a text is refused, or it is checked and then holds, does not hold, or is undecided."""
    try:
        expression = check(text, FACTS)
    except WeighbridgeError:
        return
    try:
        assert expression.evaluate(FACTS_HERE) in (True, False)
    except UndecidedError:
        return
