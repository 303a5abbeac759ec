"""What runs must declare: a word of the rule set's own list for each of its declarations.

A declaration is the Prover's word. It is worth something because a false one is a lie that others can find out, so it
must not be possible to say nothing, or to say something that only looks like one of the words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from verifier.rules.ruleset import RuleSet
from verifier.rules.schema import DECLARED
from weighbridge.core.errors import Finding


def understood(rules: RuleSet, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts in which runs declare only what the rule set asks for, and in its words; all else is absent.

    Args:
        rules: The rule set.
        facts: Conforming facts; not changed.
    """
    runs = facts.get("runs")
    if runs is None:
        return dict(facts)
    return {**facts, "runs": [{**run, DECLARED: _understood(rules, run)} for run in runs]}


def _understood(rules: RuleSet, run: Mapping[str, Any]) -> dict[str, str]:
    said = run.get(DECLARED, {})
    return {name: said[name] for name, words in rules.declarations.items() if said.get(name) in words}


def findings(rules: RuleSet, facts: Mapping[str, Any]) -> list[Finding]:
    """Returns a violation for each declaration that a run leaves out, or makes in another word than the rule set's.

    Args:
        rules: The rule set.
        facts: Facts, JSON-compatible, that conform.
    """
    return [
        _finding(rules, name, run)
        for run in facts.get("runs", ())
        for name, words in rules.declarations.items()
        if run.get(DECLARED, {}).get(name) not in words
    ]


def _finding(rules: RuleSet, name: str, run: Mapping[str, Any]) -> Finding:
    words, said = rules.declarations[name], run.get(DECLARED, {}).get(name)
    about: dict[str, Any] = {
        "subject": f"rule set {rules.id} version {rules.version}: run {run.get('id', '')}"[:4000],
        "expected": f"one of {', '.join(words)}"[:300],
        "evidence": {"declaration": name, "run": run.get("id", ""), "rule_set": rules.digest},
    }
    if said is None:
        return Finding(
            id="rule.declaration.missing",
            message=f"the run does not declare its {name}, as the rule set demands of every run; have the Prover say "
            "why, and count the run as the one that the rules are strictest about",
            found="nothing",
            **about,
        )
    return Finding(
        id="rule.declaration.unknown",
        message=f"the run declares a {name} that is no word of the rule set{_likeness(said, words)}; have the Prover "
        "say why, and count the run as the one that the rules are strictest about",
        found=ascii(said)[:300],
        **about,
    )


def _likeness(said: str, words: tuple[str, ...]) -> str:
    """Returns what is to be said of characters that may look like those of a word."""
    strange = next((each for each in said if not each.isascii()), None)
    if strange is not None:
        name = unicodedata.name(strange, "without a name")
        return f", because its words are in ASCII and this has the character U+{ord(strange):04X} ({name})"
    near = said.strip().lower()
    return f", which would be {near}" if near in words else ""
