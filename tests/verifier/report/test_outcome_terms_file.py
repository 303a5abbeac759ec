"""Terms that people wrote: what they leave out, what they get wrong, and that the rule set's digest is its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.drand_values import QUICKNET

from verifier.model.agreed_population import AgreedPopulation, AgreedPopulationError
from verifier.report import outcome_terms_file, published_findings
from verifier.rules import ruleset
from weighbridge.attest.beacon import parse_info
from weighbridge.core.errors import UsageError

TEXT = f"""
inspection = "november"
size = 1
leaves_after_s = 3600
flops_threshold = 1e21
chip_flops_per_day = 1e20
period_days = 30
snapshot_rate_per_day = 0.1
prover = "{"01" * 32}"
verifier = "{"02" * 32}"
inspection_bits = 2000
year_bits = 30000
"""
RULES = """
format = 1
id = "treaty"
version = 1
title = "Nothing is too large"

[[rules]]
id = "size"
title = "No run is too large"
holds = "runs.all(r, r.flops <= 1e23)"
"""


def written(at: Path, text: str = TEXT) -> Path:
    (at / "terms.toml").write_text(text)
    return at / "terms.toml"


def test_what_is_left_out_is_this_versions(tmp_path: Path) -> None:
    terms = outcome_terms_file.load(written(tmp_path))
    assert (terms.attempt, terms.rules, terms.rule_count, terms.speeds) == (0, b"", 0, ())
    assert (terms.hours, terms.flops) == (outcome_terms_file.HOURS, outcome_terms_file.FLOPS)
    assert (terms.findings, terms.finding_count) == (published_findings.digest(), len(published_findings.published()))
    assert terms.period_days == 30.0


def test_a_rule_set_beside_it_is_named_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "treaty.toml").write_text(RULES)
    terms = outcome_terms_file.load(written(tmp_path, 'rules = "treaty.toml"\nhours = [1, 2.5]\n' + TEXT))
    assert terms.rules.hex() == ruleset.load(tmp_path / "treaty.toml").digest
    assert (terms.rule_count, terms.hours) == (1, (1.0, 2.5))


def test_a_draw_is_named_by_its_population_and_its_beacon(tmp_path: Path) -> None:
    population = AgreedPopulation.of([(bytes(17), b""), (b"\x01" * 17, bytes(32))])
    (tmp_path / "population.tsv").write_bytes(population.text)
    (tmp_path / "beacon").mkdir()
    (tmp_path / "beacon" / "info").write_text(json.dumps(QUICKNET))
    drawing = 'samples = 1\npopulation = "population.tsv"\n' + TEXT
    terms = outcome_terms_file.load(written(tmp_path, drawing))
    assert (terms.samples, terms.population, terms.beacon) == (1, population.digest, b"")
    for name in ("beacon", "beacon/info"):
        terms = outcome_terms_file.load(written(tmp_path, f'beacon = "{name}"\nround = 340\n' + drawing))
        assert terms.beacon_info == parse_info(QUICKNET)
        assert terms.round == 340
    (tmp_path / "population.tsv").write_bytes(population.text + b"\n")
    with pytest.raises(AgreedPopulationError):
        outcome_terms_file.load(written(tmp_path, drawing))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("inspection = ", "cannot read"),
        (TEXT.replace("year_bits = 30000", ""), "lacks year_bits"),
        (TEXT + "rule_count = 3", "rule_count"),
        (TEXT + "rules = 3", "rules is the name"),
        (TEXT + 'rules = "missing.dsse"', "missing.dsse"),
        (TEXT + "hours = 3", "hours is a list"),
        (TEXT + 'hours = ["a"]', "hours is a number"),
        (TEXT + "hours = [2, 1]", "ascend"),
        (TEXT.replace("1e21", "true"), "flops_threshold is a number"),
        (TEXT.replace("1e21", "1" + "0" * 400), "flops_threshold is too large"),
        (TEXT.replace("1e21", "inf"), "finite"),
        (TEXT.replace("01" * 32, "01"), "prover is a public key"),
        (TEXT.replace("01" * 32, "02" * 32), "the parties are two"),
        (TEXT.replace("size = 1", "size = 9"), "size class"),
        (TEXT.replace('"november"', "11"), "inspection"),
        ("#" * (1 << 17), "more than"),
        (TEXT + "population = 3", "population is the name"),
        (TEXT + 'population = "missing.tsv"', "missing.tsv"),
        (TEXT + 'beacon = "missing"', "missing"),
        (TEXT + "samples = 3", "population if"),
        (TEXT + "round = 3", "beacon with a round"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        outcome_terms_file.load(written(tmp_path, text))
