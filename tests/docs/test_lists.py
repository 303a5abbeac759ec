"""Lists in the documents that mirror the code say what the code says."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
from support import reported

from verifier import checks, stages
from verifier.registry.transitions import roles_for
from weighbridge.attest import custody_statements
from weighbridge.attest.token_claims import BODIES
from weighbridge.cli._exits import Exit
from weighbridge.cli.main import application
from weighbridge.numerics import exchanges, units
from weighbridge.numerics.rule_table import Kind
from weighbridge.rpc.metrics import Metrics
from weighbridge.transcript import steps, tape

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = "weighbridge|firmware_sim|prover|verifier|analysis|protos|tests|benchmarks|examples"
CONTRACTS = {
    contract["containers"][0]: contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["type"] == "layers"
}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if "`" in line.split(" | ")[0]]


def marked(name: str) -> str:
    """What stands in docs/architecture.md between two marks."""
    (found,) = re.findall(rf"<!-- begin {name} -->\n(.*?)<!-- end {name} -->", read("docs/architecture.md"), re.DOTALL)
    return str(found)


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("package", sorted(CONTRACTS))
def test_layers_are_those_that_import_linter_holds(package: str) -> None:
    table = re.findall(r"^\| (\d+) \| `(\w+)` \|", marked(f"layers {package}"), re.MULTILINE)
    layers = [[each.strip() for each in layer.split("|")] for layer in CONTRACTS[package]]
    assert table == [(str(len(layers) - depth), name) for depth, layer in enumerate(layers) for name in layer]


def test_stages_are_those_that_run() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(marked("stages"))}
    names = [stage.__module__.rpartition(".")[2] for stage in stages.ALL]
    assert list(told) == names
    assert {row[0].strip("`"): row[1] for row in rows(str(stages.__doc__))} == told


def test_checks_are_those_that_run() -> None:
    lists: Sequence[Sequence[Any]] = (
        checks.CUSTODY, checks.LOG, checks.LOGS, checks.TRANSCRIPT, checks.SNAPSHOT, checks.CHIP, checks.INSPECTION,
    )  # fmt: skip
    lines = [line for line in marked("checks").splitlines()[2:] if line]
    assert [quoted(line) for line in lines] == [[check.name for check in each] for each in lists]


def test_kinds_of_rules_are_those_of_the_table() -> None:
    (told,) = re.findall(r"in the closed table: (.*?)\n3\.", read("docs/architecture.md"), re.DOTALL)
    words = re.findall(r"\w+", re.sub(r"\[job\]\S+|\band\b|for ranks of a", "", told))
    assert sorted(words) == sorted(kind.value for kind in Kind)


def test_modules_behind_refinements_of_rules_exist() -> None:
    section = read("docs/architecture.md").partition("## Numerics")[2].partition("\n## ")[0]
    modules = {path.stem for path in (ROOT / "weighbridge" / "numerics").rglob("*.py")}
    named = [name for each in re.findall(r"\(((?:`[a-z_]+`(?:, )?)+)\)", section) for name in quoted(each)]
    assert len(named) >= 10
    assert [name for name in named if name not in modules] == []


def test_matrix_units_are_those_that_are_declared() -> None:
    declared = [
        [
            ", ".join(f"`{name}`" for name in (unit.name, *unit.aliases)),
            unit.title,
            ", ".join(each.name for each in operation.formats),
            str(operation.accumulator).removeprefix("torch."),
            str(operation.arithmetic.products),
            operation.evidence,
        ]
        for unit in map(units.named, units.names())
        for operation in unit.operations
    ]
    assert rows(read("docs/matrix-units.md")) == declared


def test_collectives_are_those_that_there_are() -> None:
    (told,) = re.findall(r"`weighbridge::(all_reduce [a-z_ ]+)`", read("docs/sharding.md"))
    assert sorted(told.split()) == sorted(exchanges.NAMES)


@pytest.mark.parametrize("name", ["docs/recording.md", "docs/architecture.md", "docs/findings.md"])
def test_exit_codes_are_those_of_every_command(name: str) -> None:
    (told,) = re.findall(r"Exit codes(?: of every command)?: ([^.]*)\.", " ".join(read(name).split()))
    assert re.findall(r"\d", told) == [str(int(code)) for code in Exit]


def test_metrics_are_those_that_are_shown() -> None:
    families = list(Metrics().registry.collect())
    shown = {each.name for each in families if each.name.startswith("weighbridge_")}
    told = {
        row[0].strip("`").removesuffix("_total") for row in rows(read("docs/operating.md")) if "weighbridge_" in row[0]
    }
    assert told == shown


@pytest.mark.parametrize("name", ["docs/registry.md", "docs/formats/custody-events.md"])
def test_events_of_custody_are_those_that_parties_can_sign(name: str) -> None:
    kinds = set(get_args(custody_statements.Kind))
    table = [row for row in rows(read(name)) if set(quoted(row[0])) <= kinds]
    assert sorted(kind for row in table for kind in quoted(row[0])) == sorted(kinds)


def test_who_signs_an_event_is_what_the_registry_asks_for() -> None:
    for row in rows(read("docs/formats/custody-events.md")):
        for kind in quoted(row[0]):
            if kind in get_args(custody_statements.Kind):
                cells = [re.findall(r"\w+", cell) for cell in (*row[1:], "")][:2]
                assert tuple(map(tuple, cells)) == roles_for(kind), kind  # type: ignore[arg-type]


@cache
def commands() -> Any:
    """All commands; made once, as it takes a second."""
    return typer.main.get_command(application())


def test_the_analyses_of_the_page_are_the_commands_that_there_are() -> None:
    group = commands().commands["analysis"]
    told = re.findall(r"^weighbridge analysis (\w[\w-]*)", read("docs/analysis.md"), re.MULTILINE)
    assert set(told) <= set(group.commands)
    assert sorted(set(group.commands) - set(told)) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_a_document_names_exist(path: Path) -> None:
    text = re.sub(r"weighbridge [a-z ]+/1", "", path.read_text(encoding="utf-8"))  # domains of hashes and keys
    unknown = []
    for words in re.findall(r"(?:^|[`(] ?)weighbridge ((?:[a-z][\w-]* ?)+)", text, re.MULTILINE):
        command: Any = commands()
        for word in words.split():
            if not hasattr(command, "commands"):
                break  # what follows are arguments
            command = command.commands.get(word)
            if command is None:
                unknown.append(words)
                break
    assert unknown == []


def test_fields_of_a_report_are_those_that_it_has(tmp_path: Path) -> None:
    top = [row[0] for row in rows(read("docs/reports.md").partition("## Fields")[2].partition("\n## ")[0])]
    told = [name.removesuffix("[]") for cell in top for name in quoted(cell) if "." not in name]
    assert sorted(told) == sorted(reported.build(reported.collect(tmp_path)))


def test_keys_of_a_step_record_are_those_of_its_format() -> None:
    section = read("docs/formats/transcript.md").partition("\n## steps/\n")[2].partition("\n## ")[0]
    told = {name for row in rows(section) for name in quoted(row[0])}
    assert told == {*steps._CHECKS, *steps._MAY_LACK}


def test_types_of_a_tape_are_those_of_its_format() -> None:
    (told,) = re.findall(r"Dtypes: ([a-z0-9 ]+)\.", read("docs/formats/tape.md"))
    assert sorted(told.split()) == sorted(tape.DTYPES)


def test_claims_of_a_token_are_those_of_its_format() -> None:
    found: dict[str, set[str]] = {}
    kind = ""
    for line in read("docs/formats/snapshot-token.md").partition("| kind | key | value |")[2].splitlines()[2:]:
        if not line.startswith("| "):
            break
        cells = line.split("|")[1:-1]
        kind = cells[0].strip() or kind
        found.setdefault(kind, set()).update(quoted(cells[1]))
    assert found == {kind: set(body) for kind, body in BODIES.items()}


def test_every_benchmark_is_run_by_a_target_of_make() -> None:
    modules = [path.stem for kind in ("bench", "soak") for path in (ROOT / "benchmarks").glob(f"{kind}*.py")]
    run = re.findall(r"-m benchmarks\.(\w+)", read("Makefile"))
    helpers = {each for each in modules if "__main__" not in read(f"benchmarks/{each}.py")}
    assert sorted({*modules} - helpers - {*run}) == []


def test_every_document_has_its_place_on_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", read("mkdocs.yml"), re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == listed - {"index.md"}


def _names(text: str) -> set[str]:
    found = re.findall(r"`((?:weighbridge|firmware_sim|prover|verifier|analysis|protos)(?:\.\w+)+)\b(?!/)[^`]*`", text)
    return set(found) - set(re.findall(r"^\| `([^`]+)` \|", read("docs/findings.md"), re.MULTILINE))


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or something that one defines."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        if base.with_suffix(".py").exists() or (base / "__init__.py").exists():
            found: Any = importlib.import_module(".".join(parts[:length]))
            for part in parts[length:]:
                if not hasattr(found, part) and part not in _annotated(found):
                    return False
                found = getattr(found, part, None)
            return True
    return False


def _annotated(thing: object) -> dict[str, Any]:
    return getattr(thing, "__annotations__", {})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_code_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [name for name in sorted(_names(text)) if not _exists(name)] == []
    files = re.findall(rf"`((?:{PACKAGES})/[\w/.{{}},-]+\.\w+)`", text)
    found = [each for name in files for each in _expanded(name) if "/results/" not in name]
    assert [name for name in found if not (ROOT / name).exists()] == []


def _expanded(path: str) -> list[str]:
    """Writes `a/{b,c}.py` out as `a/b.py` and `a/c.py`."""
    before, brace, rest = path.partition("{")
    inner, _, after = rest.partition("}")
    return [before + each + after for each in inner.split(",")] if brace else [path]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^):]*(?:#[^)]*)?)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in _anchors(page)):
            missing.append(target)
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
