"""Each finding about rule sets, signed documents and reports, alone, out of `weighbridge rules` and `report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.console import command, refused
from support.exactly import exactly
from support.reported import build, collect

from verifier.report import signing
from verifier.report.regime import Regime
from verifier.rules import ruleset
from weighbridge.attest.dsse import Trust
from weighbridge.attest.manifest import SigningKey, load_or_create_key

KEY = SigningKey.generate()
SOURCE = """
format = 1
id = "example"
version = 1
title = "Example"

[[rules]]
id = "small"
title = "No run above 2000 FLOPs"
holds = "runs.all(r, r.flops < 2000.0)"
"""


@dataclass(frozen=True)
class House:
    """What two parties signed, and a report with nothing against it that applied it.

    Attributes:
        path: Directory with `rules.toml`, `rules.dsse`, `parties.toml`, and keys of the parties a, b and c.
        report: The report's content.
    """

    path: Path
    report: dict[str, Any]

    def sign(self, source: str, *names: str) -> bytes:
        """Signs a rule set with the keys of parties."""
        (self.path / "signed.toml").write_text(source)
        keys = [load_or_create_key(self.path / f"{name}.key") for name in names]
        return ruleset.sign(ruleset.load(self.path / "signed.toml"), keys)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    path = tmp_path_factory.mktemp("house")
    keys = {name: load_or_create_key(path / f"{name}.key").public.hex() for name in "ab"}
    lines = "".join(f'{name} = "{key}"\n' for name, key in keys.items())
    (path / "parties.toml").write_text(f"quorum = 2\n[parties]\n{lines}")
    (path / "rules.toml").write_text(SOURCE)
    signed = House(path, {}).sign(SOURCE, "a", "b")
    (path / "rules.dsse").write_bytes(signed)
    regime = Regime(rules=ruleset.verify(signed, Trust.load(path / "parties.toml")))
    return House(path, build(collect(path / "inspected", honest=True), regime))


# Reports.


def verify(house: House, report: dict[str, Any], path: Path, key: SigningKey = KEY) -> tuple[int, str, str]:
    """Verifies a report that the Verifier with a key signed, against the key and the rule set that a reader knows."""
    path.write_bytes(signing.sign(report, key))
    rules: list[str | Path] = ["--rule-set", house.path / "rules.dsse", "--parties", house.path / "parties.toml"]
    return command("report", "verify", path, "--key", KEY.public.hex(), *rules, "--json")


def test_an_honest_report_has_none(house: House, tmp_path: Path) -> None:
    status, out, said = verify(house, house.report, tmp_path / "report.dsse")
    assert (status, json.loads(out)["findings"]) == (0, []), said


@pytest.mark.finding("report.signer")
def test_a_report_that_somebody_else_signed(house: House, tmp_path: Path) -> None:
    status, out, _ = verify(house, house.report, tmp_path / "report.dsse", SigningKey.generate())
    exactly(json.loads(out), "report.signer")
    assert status == 1


@pytest.mark.finding("report.inconsistent")
def test_a_report_that_promises_too_much(house: House, tmp_path: Path) -> None:
    """The Verifier itself says that a violation would have been caught more likely than follows from its samples."""
    report = json.loads(json.dumps(house.report))
    report["miss"]["unseen_at_most"] /= 2
    status, out, _ = verify(house, report, tmp_path / "report.dsse")
    exactly(json.loads(out), "report.inconsistent")
    assert status == 1


@pytest.mark.finding("report.rules")
def test_a_report_under_other_rules(house: House, tmp_path: Path) -> None:
    weaker = Regime(
        rules=ruleset.verify(
            house.sign(SOURCE.replace("2000.0", "9000.0"), "a", "b"), Trust.load(house.path / "parties.toml")
        )
    )
    report = build(collect(tmp_path / "inspected", honest=True), weaker)
    status, out, _ = verify(house, report, tmp_path / "report.dsse")
    exactly(json.loads(out), "report.rules")
    assert status == 1


@pytest.mark.finding("report.malformed")
def test_a_report_without_a_part(house: House, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({k: v for k, v in house.report.items() if k != "miss"}))
    assert refused("report", "show", tmp_path / "report.json") == "report.malformed"


# Rule sets.


@pytest.mark.finding("rules.malformed")
def test_a_rule_that_speaks_of_what_there_is_not(house: House, tmp_path: Path) -> None:
    assert command("rules", "check", house.path / "rules.toml")[0] == 0
    (tmp_path / "rules.toml").write_text(SOURCE.replace("r.flops", "r.colour"))
    assert refused("rules", "check", tmp_path / "rules.toml") == "rules.malformed"


@pytest.mark.finding("rules.facts")
def test_facts_of_another_type(house: House, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(json.dumps({"runs": [{"id": "r", "flops": "many"}]}))
    assert refused("rules", "eval", house.path / "rules.toml", "--facts", tmp_path / "facts.json") == "rules.facts"


def unchanged(house: House) -> bytes:
    return (house.path / "rules.dsse").read_bytes()


def of_no_form(house: House) -> bytes:
    return unchanged(house)[:-1]


def altered(house: House) -> bytes:
    envelope = json.loads(unchanged(house))
    signatures = envelope["signatures"]
    signatures[0]["sig"] = signatures[1]["sig"]
    return json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode()


def of_one_party(house: House) -> bytes:
    return house.sign(SOURCE, "a", "c")  # c is not a known signer


def of_no_version_after(house: House) -> bytes:
    return house.sign(SOURCE.replace("2000.0", "9000.0"), "a", "b")


@pytest.mark.parametrize(
    ("signed", "identifier"),
    [
        pytest.param(signed, identifier, marks=pytest.mark.finding(identifier), id=identifier)
        for signed, identifier in (
            (of_no_form, "document.malformed"),
            (altered, "document.signature"),
            (of_one_party, "document.signers"),
            (of_no_version_after, "rules.version"),
        )
    ],
)
def test_a_rule_set_that_does_not_count(
    house: House, tmp_path: Path, signed: Callable[[House], bytes], identifier: str
) -> None:
    (tmp_path / "rules.dsse").write_bytes(signed(house))
    trust: list[str | Path] = ["--parties", house.path / "parties.toml", "--after", house.path / "rules.dsse"]
    assert refused("rules", "verify", tmp_path / "rules.dsse", *trust) == identifier


@pytest.mark.finding("document.trust")
def test_a_quorum_that_cannot_be_reached(house: House, tmp_path: Path) -> None:
    parties = (house.path / "parties.toml").read_text()
    (tmp_path / "parties.toml").write_text(parties.replace("quorum = 2", "quorum = 3"))
    said = refused("rules", "verify", house.path / "rules.dsse", "--parties", tmp_path / "parties.toml")
    assert said == "document.trust"


def test_a_rule_set_that_both_signed_counts(house: House) -> None:
    rules = house.path / "rules.dsse"
    assert command("rules", "verify", rules, "--parties", house.path / "parties.toml", "--after", rules)[0] == 0
