"""`weighbridge ops`: the table with its coverage, for a person and for a program."""

from __future__ import annotations

import json

import pytest
import torch

from weighbridge.cli.main import run
from weighbridge.numerics import overload_cache, rule_table
from weighbridge.numerics.rule_table import table_digest

aten = torch.ops.aten


def test_the_json_names_every_overload_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    operations = out["operations"]
    assert out["table"] == table_digest()
    assert out["torch"] == torch.__version__
    assert operations["mm.default"] == {"status": "rule", "kind": "rounded", "group": "core", "note": ""}
    assert operations["mul_.Tensor"]["kind"] == "exact"
    assert operations["_foreach_add.List"]["status"] == "decomposed"
    assert operations["_fused_adamw_.default"] == {"status": "decomposed", "kind": "", "group": "fused", "note": ""}
    assert operations["linalg_eig.default"]["note"]
    assert operations["linear_backward.default"]["status"] == "refused"
    counts = out["coverage"]
    assert counts["missing"] == 0
    assert sum(counts[status] for status in counts if status != "all") == counts["all"] > 900


def test_the_text_ends_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"core ATen of torch {torch.__version__}, ")
    assert lines[-1].endswith(" 0 missing")
    assert any(line.split()[:3] == ["mm.default", "rounded", "core"] for line in lines)


def test_one_kind_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--kind", "refused"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert lines
    assert all(line.split()[1] == "refused" for line in lines)


def test_what_is_missing_is_listed_and_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["ops", "--missing"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    monkeypatch.delitem(rule_table.RULES, "mm.default")
    overload_cache.forget()
    try:
        assert run(["ops", "--missing", "--json"]) == 1
        assert set(json.loads(capsys.readouterr().out)["operations"]) == {"mm.default", "mm.out"}
    finally:
        overload_cache.forget()
