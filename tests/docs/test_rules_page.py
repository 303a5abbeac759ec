"""docs/rules.md has the facts that there are, and its example is a rule set."""

from __future__ import annotations

import re
from pathlib import Path

from verifier.rules import ruleset
from verifier.rules.schema import markdown

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()


def test_the_tables_of_facts_are_those_of_the_code() -> None:
    assert PAGE.endswith(markdown()), "write verifier.rules.schema.markdown() to the end of docs/rules.md"


def test_the_example_is_a_rule_set(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(format = 1.*?)```", PAGE, re.DOTALL)
    assert example is not None
    text = re.sub(r'"[0-9a-f]{4}\.\.\.[^"]*"', '"' + "ab" * 32 + '"', example[1])
    (tmp_path / "rules.toml").write_text(text)
    rules = ruleset.load(tmp_path / "rules.toml")
    assert [rule.id for rule in rules.rules] == ["size", "reasoning"]
