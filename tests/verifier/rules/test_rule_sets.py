"""Rule sets: their form, who signed them, what follows what; and what is said of rules that do not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.rules import ruleset
from verifier.rules.errors import FactsError, RuleError
from verifier.rules.judge import findings, judge
from verifier.rules.ruleset import MEDIA_TYPE, RuleSet
from weighbridge.attest.dsse import DocumentError, Trust, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import Finding, WeighbridgeError

KEYS = [SigningKey.generate() for _ in range(3)]
TRUST = Trust({key.public: name for key, name in zip(KEYS, "abc", strict=True)}, 2)
SOURCE = '''
format = 1
id = "example.treaty"
version = 2
title = "What both sides agreed on"

[declarations]
kind = ["pretraining", "rl"]

[lists]
approved = ["d1"]

[[benchmarks]]
id = "maths"
metric = "accuracy"
data = "{digest}"

[[rules]]
id = "size"
title = "No run above the threshold without approval"
holds = "runs.all(r, r.flops < threshold || r.draft in lists.approved)"
threshold = 1e25
remedy = "demand that it stops"

[[rules]]
id = "reasoning"
title = "More than 1e24 FLOPs of one kind of training requires a low score"
holds = """
sum(runs.filter(r, r.declared.kind == 'rl').map(r, r.flops)) <= 1e24 || runs.all(r, r.scores.maths < 0.6)
"""
severity = "warning"
'''.replace("{digest}", "ab" * 32)


def run(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "draft": "d0", "flops": 3e24, "scores": {"maths": 0.5}, "declared": {"kind": "rl"}} | fields


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "rules.toml").write_text(SOURCE)
    return ruleset.load(tmp_path / "rules.toml")


def outcomes(rules: RuleSet, *runs: dict[str, Any]) -> list[str]:
    return [each.outcome for each in judge(rules, {"runs": list(runs)})]


def found(rules: RuleSet, *runs: dict[str, Any], planned: float | None = None) -> list[Finding]:
    facts = {"runs": list(runs)}
    return findings(rules, judge(rules, facts, planned), facts)


def test_honest_runs_keep_the_rules(rules: RuleSet) -> None:
    assert outcomes(rules, run()) == ["holds", "holds"]
    assert outcomes(rules, run(flops=3e25, draft="d1")) == ["holds", "holds"]
    assert outcomes(rules) == ["holds", "holds"]
    assert found(rules, run(), planned=5e24) == []


def test_a_run_that_breaks_a_rule_is_named_with_its_rule_and_severity(rules: RuleSet) -> None:
    said = found(rules, run(flops=3e25, scores={"maths": 0.7}))
    assert [(each.id, each.severity, each.evidence["rule"]) for each in said] == [
        ("rule.violated", "violation", "size"),
        ("rule.violated", "warning", "reasoning"),
    ]
    assert "demand that it stops" in said[0].message
    assert said[0].evidence["rule_set"] == rules.digest


def test_a_run_split_into_parts_is_summed(rules: RuleSet) -> None:
    parts = [run(id=str(part), flops=0.3e24, scores={"maths": 0.9}) for part in range(4)]
    assert outcomes(rules, *parts[:3]) == ["holds", "holds"]
    assert outcomes(rules, *parts) == ["holds", "violated"]


def test_facts_that_were_not_established_accuse_nobody(rules: RuleSet) -> None:
    unknown = run()
    del unknown["flops"]
    judged = judge(rules, {"runs": [unknown]})
    assert [each.outcome for each in judged] == ["undecided", "holds"]
    assert judged[0].missing == ("run.flops",)
    (finding,) = found(rules, unknown)
    assert (finding.id, finding.severity, finding.found) == ("rule.undecided", "warning", "not established: run.flops")
    assert outcomes(rules, run(scores={})) == ["holds", "undecided"]


@pytest.mark.parametrize(
    ("declared", "identifier", "message"),
    [
        ({}, "rule.declaration.missing", "does not declare its kind"),
        ({"kid": "rl"}, "rule.declaration.missing", "does not declare its kind"),
        ({"k\u0456nd": "rl"}, "rule.declaration.missing", "does not declare its kind"),
        ({"kind": ""}, "rule.declaration.unknown", "no word of the rule set;"),
        ({"kind": "other"}, "rule.declaration.unknown", "no word of the rule set;"),
        ({"kind": "RL "}, "rule.declaration.unknown", "which would be rl"),
        ({"kind": "r\u04cf"}, "rule.declaration.unknown", "U+04CF (CYRILLIC SMALL LETTER PALOCHKA)"),
        ({"kind": "\uff52\uff4c"}, "rule.declaration.unknown", "U+FF52 (FULLWIDTH LATIN SMALL LETTER R)"),
        ({"kind": "rl\u200b"}, "rule.declaration.unknown", "U+200B (ZERO WIDTH SPACE)"),
        ({"kind": "\ue000rl"}, "rule.declaration.unknown", "U+E000 (without a name)"),
    ],
)
def test_a_run_that_hides_its_kind_is_a_violation(
    declared: dict[str, str], identifier: str, message: str, rules: RuleSet
) -> None:
    """The attack: a rule that sums over runs of kind `rl` would not see this one, and would hold."""
    hidden = run(flops=3e24, scores={"maths": 0.9}, declared=declared)
    said = found(rules, hidden)
    assert [(each.id, each.severity) for each in said] == [(identifier, "violation"), ("rule.undecided", "warning")]
    assert message in said[0].message
    assert said[0].found.isascii()
    assert said[0].expected == "one of pretraining, rl"
    assert outcomes(rules, hidden) == ["holds", "undecided"]
    assert [each.id for each in found(rules, hidden | {"declared": {"kind": "rl"}})] == ["rule.violated"]
    assert found(rules, hidden | {"declared": {"kind": "pretraining", "note": "\u0444"}}) == []


@settings(max_examples=60, deadline=None)
@given(said=st.text(max_size=12))
def test_no_other_text_is_a_word(said: str) -> None:
    """Law: a declaration is one of the words to the letter, or a violation."""
    rules = ruleset.parse(
        {"format": 1, "id": "a", "version": 1, "title": "A", "declarations": {"kind": ["rl", "sft"]},
         "rules": [{"id": "r", "title": "R", "holds": "runs.all(r, r.declared.kind == 'sft')"}]}
    )  # fmt: skip
    honest = said in ("rl", "sft")
    assert (
        "rule.declaration.unknown" not in [each.id for each in found(rules, run(declared={"kind": said}))]
    ) is honest


def test_too_many_runs_for_a_rule_leave_it_undecided(tmp_path: Path) -> None:
    text = SOURCE.replace("r.flops < threshold ||", "runs.all(q, q.flops < threshold) ||")
    (tmp_path / "rules.toml").write_text(text)
    judged = judge(ruleset.load(tmp_path / "rules.toml"), {"runs": [run()] * 400})
    assert judged[0].outcome == "undecided"
    assert "do not nest" in judged[0].reason


def test_the_2h_rule_is_said(rules: RuleSet) -> None:
    """p for H covers undeclared runs of 2H: a rule about runs of 1e25 needs an inspection planned for 5e24."""
    good, bad = (judge(rules, {"runs": []}, planned=planned)[0] for planned in (5e24, 6e24))
    assert good.to_json()["threshold"]["h_needed"] == 5e24
    assert (good.backed, bad.backed) == (True, False)
    (finding,) = findings(rules, [bad], {"runs": []})
    assert (finding.id, finding.severity) == ("rule.unbacked", "info")
    assert judge(rules, {"runs": []}, planned=9e24)[1].backed is None


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"runz": []}, "has no fact 'runz'"),
        ({"runs": [{"flops": "many"}]}, "facts.runs[0].flops must be a double"),
        ({"runs": [{"flops": float("nan")}]}, "must be a double"),
        ({"runs": [{"steps": 1.5}]}, "must be a int"),
        ({"runs": [{"steps": True}]}, "must be a int"),
        ({"runs": [{"steps": 1 << 63}]}, "must be a int"),
        ({"runs": {}}, "must be a list of run"),
        ({"runs": [{"scores": {"a": None}}]}, "facts.runs[0].scores['a'] must be a double"),
        ({"runs": [{"id": "x" * 5000}]}, "at most 4000"),
    ],
)
def test_facts_of_another_form_are_refused(facts: dict[str, Any], message: str, rules: RuleSet) -> None:
    with pytest.raises(FactsError) as caught:
        judge(rules, facts)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "format 1 only"),
        ("version = 2", "version = 0", "from 1 upwards"),
        ("version = 2", "version = true", "from 1 upwards"),
        ('title = "What', 'titel = "What', "no 'title'"),
        ("[declarations]", "surprise = 1\n[declarations]", "unknown key 'surprise'"),
        ('id = "size"', 'id = "reasoning"', "the same id"),
        ('id = "size"', 'id = "Size!"', "the id of rule 0 must match"),
        ("threshold = 1e25", "threshold = -1.0", "positive number of FLOPs"),
        ("threshold = 1e25", "", "no 'threshold' in the facts"),
        ("lists.approved", "lists.banned", "rule size: there is no 'banned' in a lists"),
        ('severity = "warning"', 'severity = "fatal"', "one of info, warning, violation"),
        ('metric = "accuracy"', 'metric = "beauty"', "one of cross_entropy, accuracy"),
        ("version = 2", 'version = 2\nsupersedes = "x"', "64 hexadecimal digits"),
        ("[lists]", "[lists]\nx = 3", "must be a list"),
        ("format = 1", "format = ", "cannot read"),
        ("[declarations]\nkind", "[declarations]\nsort", "does not say what runs may declare as 'kind'"),
        ("== 'rl'", "== 'rI'", "'rI' is none of the words that runs may declare: pretraining, rl"),
        ("r.declared.kind == 'rl'", "'sft' == r.declared.kind", "'sft' is none of the words"),
        ("== 'rl'", "in ['rl', 'sft']", "'sft' is none of the words"),
        ("== 'rl'", "in lists.approved", "'d1' is none of the words"),
        ("'rl'", "r.id + 'l'", "cannot be calculated with"),
        ("r.declared.kind == 'rl'", "r.declared['kind'] == 'rl'", "[ ] takes"),
        ("r.declared.kind == 'rl'", "'kind' in r.declared", "`in` looks for"),
        ('"pretraining", "rl"', '"pretraining", "r\u04cf"', "must match"),
        ('"pretraining", "rl"', '"rl", "rl"', "a word twice"),
        ('kind = ["pretraining", "rl"]', "kind = []", "1 to 1000 words"),
    ],
)
def test_a_rule_set_of_another_form_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SOURCE
    (tmp_path / "rules.toml").write_text(SOURCE.replace(old, new, 1))
    with pytest.raises(RuleError) as caught:
        ruleset.load(tmp_path / "rules.toml")
    assert message in caught.value.message


def test_a_rule_set_that_reads_differently_in_another_program_is_refused(rules: RuleSet, tmp_path: Path) -> None:
    """Whoever drafts it would have others sign a laxer rule than the one that they read."""
    text = json.dumps(rules.to_map())
    place = text.index('"holds":')
    (tmp_path / "rules.json").write_text(f'{text[:place]}"holds": "false", {text[place:]}')
    with pytest.raises(RuleError, match="twice"):
        ruleset.load(tmp_path / "rules.json")


def test_toml_and_json_of_the_same_content_have_one_digest(rules: RuleSet, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(rules.to_map()))
    assert ruleset.load(tmp_path / "rules.json").digest == rules.digest
    assert len(rules.digest) == 64


@settings(max_examples=60, deadline=None)
@given(
    version=st.integers(1, 2**31 - 1),
    title=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40),
    threshold=st.none() | st.floats(1.0, 1e30),
    texts=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
)
def test_signing_and_reading_gives_the_rule_set(
    version: int, title: str, threshold: float | None, texts: list[str]
) -> None:
    """Law: read(sign(rules)) == rules, and the digest is that of the content."""
    raw: dict[str, Any] = {
        "format": 1, "id": "a.b", "version": version, "title": title, "lists": {"some": texts},
        "rules": [{"id": "r", "title": title, "holds": "runs.all(r, r.id in lists.some)"}],
    }  # fmt: skip
    if threshold is not None:
        raw["rules"][0]["threshold"] = threshold
    rules = ruleset.parse(raw)
    again, keys = ruleset.read(ruleset.sign(rules, KEYS[:2]))
    assert (again, again.digest, keys) == (rules, rules.digest, tuple(key.public for key in KEYS[:2]))


@settings(max_examples=150, deadline=None)
@given(payload=st.binary(max_size=80))
def test_signed_nonsense_raises_only_our_errors(payload: bytes) -> None:
    with pytest.raises(WeighbridgeError):
        ruleset.read(seal(payload, MEDIA_TYPE, KEYS[:1]))


@settings(max_examples=150, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["format", "id", "version", "title", "rules", "lists", "holds"]), inner)
        ),
        max_leaves=12,
    )
)
def test_documents_of_any_form_raise_only_our_errors(value: Any) -> None:
    with pytest.raises(RuleError):
        ruleset.parse(value)


def test_too_few_signers_and_strangers_are_refused(rules: RuleSet) -> None:
    found = ruleset.verify(ruleset.sign(rules, KEYS[:2]), TRUST)
    assert (found.signers, found.rules.digest) == (("a", "b"), rules.digest)
    for keys in (KEYS[:1], [KEYS[0], SigningKey.generate()]):
        with pytest.raises(DocumentError) as caught:
            ruleset.verify(ruleset.sign(rules, keys), TRUST)
        assert caught.value.reason == "document.signers"


def test_a_rule_set_that_was_changed_after_it_was_signed_is_refused(rules: RuleSet) -> None:
    signed = ruleset.sign(rules, KEYS)
    other = ruleset.parse(rules.to_map() | {"title": "Another"})
    forged = json.loads(signed) | {"payload": json.loads(ruleset.sign(other, KEYS[:1]))["payload"]}
    data = json.dumps(forged, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(DocumentError) as caught:
        ruleset.verify(data, TRUST)
    assert caught.value.reason == "document.signature"
    padded = rules.to_map() | {"rules": [each | {"severity": "violation"} for each in rules.to_map()["rules"]]}
    del padded["supersedes"]
    with pytest.raises(RuleError, match="not the canonical form"):
        ruleset.verify(seal(cbor(padded), MEDIA_TYPE, KEYS), TRUST)


def test_an_older_version_does_not_come_back(rules: RuleSet) -> None:
    newer = ruleset.parse(rules.to_map() | {"version": 3, "supersedes": rules.digest})
    stray = ruleset.parse(rules.to_map() | {"version": 4, "supersedes": "0" * 64})
    assert ruleset.verify(ruleset.sign(newer, KEYS), TRUST, after=rules).rules.version == 3
    assert ruleset.verify(ruleset.sign(rules, KEYS), TRUST, after=rules).rules.version == 2
    for wrong, former in ((rules, newer), (stray, rules)):
        with pytest.raises(RuleError) as caught:
            ruleset.verify(ruleset.sign(wrong, KEYS), TRUST, after=former)
        assert caught.value.reason == "rules.version"
