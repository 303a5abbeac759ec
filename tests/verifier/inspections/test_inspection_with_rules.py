"""A whole inspection under signed rules, with a benchmark: real chip, training, Prover and replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.outcomes import release
from support.station import Station, ids
from torch.nn import functional as F

from verifier.report import consistency, outcome_consistency, regime, signing
from verifier.report.outcome import Drawn
from verifier.report.regime import Regime
from verifier.rules import ruleset
from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.signed_outcome import verify
from weighbridge.cli.main import run as weighbridge
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import UsageError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tensor_file import write_tensors

KEYS = [SigningKey.generate() for _ in range(2)]
STEP_FLOPS = 3 * 2 * 16 * (32 * 64 + 64 * 8) - 2 * 16 * 32 * 64
"""Forward, and the gradients of weights and of activations, of which the first layer's are not needed."""


def held_out(path: Path) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(77)
    batch = {"x": torch.randn(16, 32, generator=generator), "y": torch.randint(0, 8, (16,), generator=generator)}
    write_tensors(path, {**{f"0/{name}": value for name, value in batch.items()}, "0/expected": batch["y"]})
    return batch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ruled")


@pytest.fixture(scope="module")
def batch(root: Path) -> dict[str, torch.Tensor]:
    (root / "benchmarks").mkdir()
    return held_out(root / "benchmarks" / "held_out.safetensors")


@pytest.fixture(scope="module")
def applied(root: Path, batch: dict[str, torch.Tensor]) -> Regime:
    """A rule set that two parties signed, read from files as the service reads it."""
    document = {
        "format": 1, "id": "example", "version": 1, "title": "Example",
        "benchmarks": [
            {"id": "held_out", "metric": "cross_entropy",
             "data": bytes_digest((root / "benchmarks" / "held_out.safetensors").read_bytes()).hex()}
        ],
        "rules": [
            {"id": "size", "title": "No run of 1e20 FLOPs", "holds": "runs.all(r, r.flops < threshold)",
             "threshold": 1e20},
            {"id": "score", "title": "More than 1e5 FLOPs need a loss above 100",
             "holds": "runs.all(r, r.flops < 1e5 || r.scores.held_out > 100.0)", "remedy": "ask for approval"},
            {"id": "data", "title": "Data are committed to", "holds": "runs.all(r, r.data.committed)",
             "severity": "warning"},
            {"id": "used", "title": "Data are used once", "holds": "runs.all(r, r.data.seen <= r.data.records)"},
            {"id": "approved", "title": "No embeddings", "holds":
             "runs.all(r, !r.operations.exists(o, o.startsWith('embedding')) && r.replayed && r.complete)"},
            {"id": "fixed", "title": "Programs are fixed in the draft", "holds": "runs.all(r, r.programs_fixed)",
             "severity": "warning"},
            {"id": "early", "title": "No program comes late", "holds":
             "runs.all(r, r.programs_fixed || r.programs.all(p, p.first < 4))"},
        ],
    }  # fmt: skip
    (root / "rules.dsse").write_bytes(ruleset.sign(ruleset.parse(document), KEYS))
    parties = "".join(f'party{n} = "{key.public.hex()}"\n' for n, key in enumerate(KEYS))
    (root / "parties.toml").write_text(f"quorum = 2\n[parties]\n{parties}")
    (root / "policy.toml").write_text('[severities]\n"rule.undecided" = "info"\n')
    return regime.load(
        rules=root / "rules.dsse",
        parties=root / "parties.toml",
        policy=root / "policy.toml",
        benchmarks=root / "benchmarks",
    )


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        station.chip("honest")
        assert station.train("declared", "honest").wait(timeout=100) == 0
        station.register("honest", station.prover())
        yield station


@pytest.fixture(scope="module")
def report(station: Station, applied: Regime) -> dict[str, Any]:
    return station.inspect("honest", regime=applied)


def test_the_facts_are_what_the_run_was(
    report: dict[str, Any], station: Station, batch: dict[str, torch.Tensor]
) -> None:
    (run,) = report["facts"]["runs"]
    assert 4 * STEP_FLOPS < run["step_flops"] < 4 * 1.3 * STEP_FLOPS  # and what is computed for each element
    assert run["steps"] == 4
    assert run["parameters"] == 32 * 64 + 64 + 64 * 8 + 8
    assert run["replayed"]
    assert run["complete"]
    assert "addmm.default" in run["operations"]
    final = Transcript.open(station.runs / "honest").checkpoint(5)
    weights = {view.name: view.tensor(final.storages) for view in final.views}
    hidden = F.relu(F.linear(batch["x"], weights["model.0.weight"], weights["model.0.bias"]))
    scores = F.linear(hidden, weights["model.2.weight"], weights["model.2.bias"])
    assert run["scores"]["held_out"] == pytest.approx(float(F.cross_entropy(scores, batch["y"])), rel=1e-4)


def test_each_rule_is_judged(report: dict[str, Any]) -> None:
    outcomes = {each["id"]: each["outcome"] for each in report["rules"]["rules"]}
    assert outcomes == {
        "size": "holds", "score": "violated", "data": "violated", "used": "undecided", "approved": "holds",
        "fixed": "violated", "early": "holds",
    }  # fmt: skip
    assert report["rules"]["signers"] == ["party0", "party1"]
    found = {each["evidence"].get("rule"): each["severity"] for each in report["findings"] if "rule" in each["id"]}
    assert found == {"score": "violation", "data": "warning", "used": "info", "fixed": "warning"}
    assert set(ids(report, "violation")) == {"rule.violated"}  # nothing else is held against the honest run
    assert report["chips"][0]["verified"]


def test_the_ledger_knows_the_run(report: dict[str, Any]) -> None:
    (chip,) = report["ledger"]["chips"]
    assert sum(chip["ms"].values()) == 2 * 86_400_000
    assert chip["ms"]["explained"] > 0
    (explained,) = [row for row in chip["rows"] if row["basis"] == "snapshots"]
    assert explained["transcript"] == report["transcripts"][0]["id"]
    # Of three steps: two whole ones, and the third up to the snapshot in its forward pass.
    assert 2 * STEP_FLOPS < explained["flops"] < 3 * 1.3 * STEP_FLOPS
    assert explained["counted"] == pytest.approx(explained["flops"], rel=0.2)


def test_the_signed_report_is_verified_by_the_command(
    report: dict[str, Any], root: Path, applied: Regime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert consistency.check(report, applied.rules.rules if applied.rules else None) == []
    key = signing.load_key(root / "verifier.report-key")
    path = root / "report.dsse"
    path.write_bytes(signing.sign(report, key))
    common = ["report", "verify", str(path), "--key"]
    rules = ["--rule-set", str(root / "rules.dsse"), "--parties", str(root / "parties.toml")]
    assert weighbridge([*common, str(root / "verifier.report-key.pub"), *rules]) == 0
    assert "every figure follows" in capsys.readouterr().out
    assert weighbridge([*common, KEYS[0].public.hex()]) == 1
    assert "report.signer" in capsys.readouterr().out
    assert weighbridge(["report", "show", str(path), "--html", str(root / "page.html")]) == 1
    shown = capsys.readouterr().out
    assert "violated: score" in shown
    assert "ledger of the sampled chips" in shown
    assert "2H" in (root / "page.html").read_text()
    assert weighbridge(["rules", "eval", str(root / "rules.dsse"), "--facts", str(path), "--json"]) == 1
    again = {each["id"]: each["outcome"] for each in json.loads(capsys.readouterr().out)["rules"]}
    assert again == {each["id"]: each["outcome"] for each in report["rules"]["rules"]}


def test_the_report_becomes_the_record_of_an_outcome(report: dict[str, Any]) -> None:
    """As a sealed worker would release it: every figure follows, and the rules have their three values."""
    released = release(report)
    terms = released.start.agreement.terms
    record = verify(released.data, released.start.agreement, released.start.key.public)
    assert (
        outcome_consistency.check(record, terms, [Drawn(False, len(each["snapshots"])) for each in report["chips"]])
        == []
    )
    assert record.rules == ("holds", "violated", "violated", "undecided", "holds", "violated", "holds")
    assert [list(each.snapshots) for each in record.chips] == [
        [one["status"] for one in each["snapshots"]] for each in report["chips"]
    ]
    assert record.derived.verdict == report["verdict"] == "findings"
    for word in (report["transcripts"][0]["id"], report["transcripts"][0]["name"], report["chips"][0]["ueid"]):
        assert word.encode() not in released.data


def test_a_regime_that_does_not_fit_together_is_refused(root: Path, applied: Regime) -> None:
    with pytest.raises(UsageError, match="need the keys"):
        regime.load(rules=root / "rules.dsse")
    with pytest.raises(UsageError, match="needs a file with the digest"):
        regime.load(rules=root / "rules.dsse", parties=root / "parties.toml")
    with pytest.raises(UsageError, match="no directory"):
        regime.load(benchmarks=root / "nothing")
