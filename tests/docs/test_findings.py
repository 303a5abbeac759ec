"""docs/findings.md lists every identifier that a finding or error can carry, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from verifier.report.published_findings import published
from weighbridge.program.tape_policy import TapePolicy

ROOT = Path(__file__).parents[2]
ROOMS = ("weighbridge", "firmware_sim", "prover", "verifier")
AREAS = (
    "audit|chip|data|dispute|document|draw|evidence|format|identity|inspection|job|layout|merkle|order|outcome|"
    "process|prover|record|registry|replay|report|rpc|rule|rules|score|sealed|snapshot|tape|transcript|usage|verifier"
)
DOTTED = re.compile(rf"(?:{AREAS})(?:\.[a-z_]+)+")


FILES = (".log", ".service", ".cbor", ".json", ".sqlite", ".html", ".dsse", ".box", ".bin", ".assent")
NAMES = {"sealed.key", "report.key", "verifier.part"}
"""Endings of names of files, and of modules of others; and such names."""


def identifiers_in(path: Path) -> Iterator[str]:
    """Every string constant that has the form of an identifier, and the `code` of every error class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            if node.value.endswith(FILES) or node.value in NAMES:
                continue
            named = ROOT / node.value.replace(".", "/")
            if named.with_suffix(".py").exists() or (named / "__init__.py").exists():
                continue  # a module or package of ours
            yield node.value
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                target = line.target if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [None])[0]
                value = getattr(line, "value", None)
                if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant):
                    yield value.value


def in_code() -> set[str]:
    # _exits.py holds beginnings of identifiers, which decide exit codes.
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.name != "_exits.py"]
    return {found for path in paths for found in identifiers_in(path)}


def documented() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "findings.md").read_text(), re.MULTILINE)


def test_every_identifier_is_documented_once_and_none_is_made_up() -> None:
    listed = documented()
    assert len(listed) == len(set(listed))
    assert set(listed) == in_code()


def test_every_identifier_is_in_the_published_list() -> None:
    """Add new ones at the end of verifier/report/published_findings.txt, and take none away."""
    assert set(documented()) - set(published()) == set()


def test_identifiers_are_dotted_lower_case() -> None:
    assert [each for each in in_code() if not re.fullmatch(r"[a-z]+(\.[a-z_]+)*", each)] == []


def test_every_row_says_what_it_means_and_what_to_do() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in (ROOT / "docs" / "findings.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert all(len(row) == 3 and len(row[1]) > 15 and len(row[2]) > 10 for row in rows)


def severities() -> str:
    page = (ROOT / "docs" / "findings.md").read_text()
    return page.partition("\n## Severities\n")[2].partition("\n## ")[0]


def graded() -> set[str]:
    """The identifiers that the table of severities names."""
    rows = [line for line in severities().splitlines() if line.startswith("| ")][1:]
    return {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row.split(" | ")[1])}


def gentler_in_code() -> set[str]:
    """Identifiers of findings that are made with a severity of `info` or `warning`, or with one that depends."""
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    named = {each.arg: each.value for each in node.keywords}
                    name = named.get("id")
                    if isinstance(name, ast.Constant) and "severity" in named:
                        found.add(str(name.value))
    return found


def test_the_table_of_severities_names_all_that_are_not_always_violations() -> None:
    """Those of the code, and those whose row says so; each of them once."""
    assert graded() <= set(documented())
    assert gentler_in_code() - graded() == set()
    rows = [line for line in (ROOT / "docs" / "findings.md").read_text().splitlines() if line.startswith("| `")]
    said = {re.findall(r"`([^`]+)`", row)[0] for row in rows if re.search(r"[(;] ?[^(]*\b(info|warning)\b", row)}
    assert {each for each in said if "beacon" not in each} - graded() == set()


def test_severities_of_programs_are_those_of_the_policy() -> None:
    """What the table says of `tape.*` is what `TapePolicy` has by default."""
    told: dict[str, list[str]] = {}
    for row in severities().splitlines():
        cells = row.strip("| ").split(" | ")
        for name in re.findall(r"`(tape\.[a-z_.]+)`", cells[1] if len(cells) == 4 else ""):
            told.setdefault(name, []).append(re.split(r"[;, ]", cells[0])[0])
    policy = TapePolicy()
    assert told["tape.free_input"] == [policy.free_input, policy.free_value, policy.free_value]
    assert told["tape.undeclared"] == [policy.undeclared]
    assert told["tape.overwrite"] == [policy.overwrite]
    assert told["tape.no_gradient"] == [policy.no_gradient]
    assert told["tape.weights.undeclared"] == [policy.no_weights]
    assert "1,024 bits" in severities()
    assert policy.budgets["values"] == 1024


def test_every_identifier_has_a_test_that_shows_it_alone(request: pytest.FixtureRequest) -> None:
    """Looks at the marks `finding(ID)` of all that was collected, so only where that is everything."""
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "mark.finding" in path.read_text()}
    if not marked - {Path(__file__)} <= {item.path for item in request.session.items}:
        pytest.skip("only some tests were collected")
    shown = {mark.args[0] for item in request.session.items for mark in item.iter_markers("finding")}
    assert shown == set(documented())
