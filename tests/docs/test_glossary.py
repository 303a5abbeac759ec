"""docs/glossary.md names code that exists, and the documents use its words."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]
TERMS = [row for row in ROWS if row[0] != "term"]

BANNED = {
    r"made again|makes? (\w+ )?again|made once more": "recomputed",
    r"turns? of the loop": "iteration",
    r"nobody|anybody|somebody|everybody|whoever": "the party that is meant: Prover, Verifier, reader, caller, no party",
    r"free (value|tensor|input)s?": "undeclared input",
    r"nobody can have looked for": "rules out seed grinding",
    r"rank's place|place of (a|the) rank|place of the root": "mesh coordinate, or group rank",
}
"""What documents and docstrings do not say, and what they say instead."""
PACKAGES = ("analysis", "firmware_sim", "prover", "verifier", "weighbridge")


def old_words(text: str) -> dict[str, str]:
    """Returns the words of a text that the glossary replaces, code in backticks aside."""
    plain = re.sub(r"`[^`]*`", "", " ".join(text.split()))
    return {old: new for old, new in BANNED.items() if re.search(rf"(?i)\b({old})\b", plain)}


def resolve(name: str) -> object:
    """Imports the longest module of a dotted name and looks the rest up in it."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", sorted({row[3].strip("`") for row in TERMS}))
def test_what_the_glossary_names_exists(name: str) -> None:
    assert resolve(name) is not None


def test_every_term_is_there_once_with_all_columns() -> None:
    assert [row for row in TERMS if len(row) != 4 or not all(row)] == []
    names = [row[0] for row in TERMS]
    assert len(names) == len(set(names))
    assert len(names) > 50


def test_the_readme_links_to_the_glossary() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_documents_use_the_words_of_the_glossary(path: Path) -> None:
    assert old_words(path.read_text(encoding="utf-8")) == {}, "old words, and what to write instead"


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_use_the_words_of_the_glossary(package: str) -> None:
    said = {
        (path.relative_to(ROOT).as_posix(), node.lineno): words
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if (words := old_words(node.value.value))
    }
    assert said == {}, "old words, and what to write instead"
