"""Rules that do not see a run: it leaves out what they ask for, or spells it otherwise, or their numbers overflow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from redteam.row import Outcome, Row
from redteam.workshop import Training, Workshop, accusations, digits
from support.ruled import ruled
from support.written_chips import WrittenChip

from verifier.report.regime import Regime
from verifier.rules.errors import RuleError

STEPS = 3
KINDS = ("pretraining", "rl")
LIMITED = "rl"
LIMIT = "runs.all(r, r.flops < threshold || r.declared.kind != 'rl')"
"""A rule that limits runs of one kind; every run here is larger than it allows."""
ALIKE = {"r": "\u0433\uff52\U0001d42b", "l": "\u04cf\uff4c\U0001d425I1|"}
"""Letters that look like these two in some font."""


def unsaid(choose: Random) -> dict[str, str]:
    """A draft that does not say the run's kind, or under another name."""
    return choose.choice([{}, {"kid": LIMITED}, {"k\u0456nd": LIMITED}, {"note": LIMITED}])


def misspelt(choose: Random) -> dict[str, str]:
    """A draft that says it in letters that look alike."""
    letters = list(LIMITED)
    for place in choose.choice([(0,), (1,), (0, 1)]):
        letters[place] = choose.choice(ALIKE[letters[place]])
    return {"kind": "".join(letters)}


def honest(shop: Workshop, seed: int, **options: Any) -> tuple[Any, WrittenChip]:
    """An honest run, and a chip that has it in memory."""
    training = Training(batches=digits(seed, STEPS))
    run = shop.record(training, seed, verifiable=True, checkpoint_every=1, **options)
    return run, shop.bench.at_end(run.path)


def judged(shop: Workshop, run: Any, chip: WrittenChip, rules: Regime) -> tuple[frozenset[str], str]:
    """What a run is accused of under rules of one rule, and what became of that rule."""
    report = shop.bench.inspected(run.path.parent, chip, apart=shop.apart, regime=rules)
    (rule,) = report["rules"]["rules"]
    return accusations(report), rule["outcome"]


def hides_its_kind(spell: Callable[[Random], dict[str, str]], shop: Workshop, seed: int) -> Outcome:
    """A run of the limited kind, larger than its limit, which does not say so."""
    run, chip = honest(shop, seed, metadata=spell(Random(seed)))
    rules = ruled(shop.place(), LIMIT, declarations={"kind": list(KINDS)}, threshold=run.flops / 2)
    found, outcome = judged(shop, run, chip, rules)
    return Outcome(findings=found, gain=float(outcome != "violated"), cost=1.0)


def overflows(shop: Workshop, seed: int) -> Outcome:
    """A party proposes a rule whose numbers are so large that no run is ever seen to violate it."""
    choose = Random(seed)
    large = f"{choose.uniform(1, 1.7):.3f}e308"
    holds = choose.choice([
        f"runs.all(r, r.flops * {large} * 10.0 < threshold)",
        f"runs.all(r, sum([r.flops, {large}, {large}]) < threshold)",
        f"!runs.exists(r, r.flops * {large} * {large} - {large} * {large} > threshold)",
    ])  # fmt: skip
    run, chip = honest(shop, seed)
    found, outcome = judged(shop, run, chip, ruled(shop.place(), holds, threshold=1.0))
    return Outcome(findings=found, gain=float(outcome != "violated"), cost=1.0)


def whole_numbers(shop: Workshop, seed: int) -> Outcome:
    """As `overflows`, with whole numbers of 64 bits."""
    choose = Random(seed)
    holds = choose.choice([
        "runs.all(r, int(r.flops) < 1000)",
        f"runs.all(r, r.steps * {choose.randint(2, 9)} < 5)",
        f"runs.all(r, r.steps + {2**63 - choose.randint(1, 99)} > 0)",
        "runs.all(r, r.data.seen - r.data.used < 5)",
    ])  # fmt: skip
    try:
        ruled(shop.place(), holds)
    except RuleError as error:
        return Outcome(findings=frozenset([error.reason]), gain=0.0, cost=0.0)
    return Outcome(findings=frozenset(), gain=1.0, cost=0.0)


BY_RULES = "attacks on rules"
LAW = "keep a rule from applying to a run"
NOT_VIOLATED = "1 if the rule that the run breaks does not say so"

ROWS = (
    *(
        Row(
            name=name,
            source=BY_RULES,
            wants=LAW,
            gains=NOT_VIOLATED,
            attack=partial(hides_its_kind, spell),
            expected=(expected, "rule.undecided"),
            note=note,
        )
        for name, spell, expected, note in (
            (
                "a run that does not declare what a rule asks for",
                unsaid,
                "rule.declaration.missing",
                "A rule set names what every run must declare. The rule itself is undecided, and the report not clean.",
            ),
            (
                "a run that declares its kind in letters that look alike",
                misspelt,
                "rule.declaration.unknown",
                "A declaration is one of the rule set's words to the letter, or a violation.",
            ),
        )
    ),
    Row(
        name="a rule whose numbers overflow when it is applied",
        source=BY_RULES,
        wants=LAW,
        gains=NOT_VIOLATED,
        attack=overflows,
        expected=("rule.undecided",),
        note="A warning, so that the report is not clean; it does not accuse the Prover.",
    ),
    Row(
        name="a rule whose whole numbers could exceed 64 bits",
        source=BY_RULES,
        wants=LAW,
        gains="1 if a Verifier takes the rule",
        attack=whole_numbers,
        expected=("rules.malformed",),
        chips=0,
        least=0.0,
        most=0.0,
        note="It is refused before anything is evaluated, whatever the facts are.",
    ),
)
