"""Each identifier of a call that makes no sense as it stands, and of faults around the command line, alone."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path

import pytest
from support import exactly
from support.console import command, refused
from support.station import ROOT

from firmware_sim.boot import FLASH
from verifier.registry import Registry
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.cli import main, ops
from weighbridge.cli.bench.layout import Bench, Settings

RUN = ["--flops", "5.76e23"]
SCENARIOS = sorted((ROOT / "analysis" / "scenarios").glob("*.toml"))[:2]


def test_a_call_that_makes_sense_is_answered(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    sweep: list[str | Path] = ["--vary", "rate=0.1,0.2", "--samples", "1080", "--chips", "1e5", *RUN, "--out", table]
    status, _, said = command("analysis", "sweep", *sweep)
    assert (status, said) == (0, "")
    assert len(table.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("identifier", "arguments"),
    [
        pytest.param(identifier, arguments.split(), marks=pytest.mark.finding(identifier), id=identifier)
        for identifier, arguments in (
            ("usage", "show nowhere --colour"),
            ("usage.domain", "analysis samples --chips 1e5 --flops -1 --probability 0.9"),
            ("usage.plan", "analysis plan --budget 1e6 --flops 5.76e23"),
            ("usage.fleet", "analysis simulate --chips 1e5 --holding chips=10 --flops 5.76e23 --samples 1080"),
            ("usage.sweep", "analysis sweep --vary rate=0.1,0.2 --samples 1080 --flops 5.76e23"),
            ("usage.report", f"analysis report {SCENARIOS[0]} {SCENARIOS[1]} --out one.html"),
        )
    ],
)
def test_a_call_that_makes_none_is_refused(identifier: str, arguments: list[str], tmp_path: Path) -> None:
    assert refused(*arguments, cwd=tmp_path) == identifier
    assert list(tmp_path.iterdir()) == []


@pytest.mark.finding("usage.table")
def test_a_table_cannot_be_written_over_a_directory(tmp_path: Path) -> None:
    (tmp_path / "table.csv").mkdir()
    sweep: list[str | Path] = [
        "--vary",
        "rate=0.1,0.2",
        "--samples",
        "1080",
        "--chips",
        "1e5",
        *RUN,
        "--out",
        tmp_path / "table.csv",
    ]
    assert refused("analysis", "sweep", *sweep) == "usage.table"


@pytest.mark.finding("rpc.verifier.unreachable")
def test_nobody_answers_at_an_address(tmp_path: Path) -> None:
    CertificateAuthority.create("Station").issue_role("operator", "alice").save(tmp_path)
    nobody: list[str | Path] = ["--verifier", "127.0.0.1:9", "--credentials", tmp_path]  # the discard port
    assert refused("inspect", "chips", *nobody) == "rpc.verifier.unreachable"


@pytest.mark.finding("verifier.revision")
@pytest.mark.parametrize("revision", ["0001", "9999"])
def test_a_database_of_another_revision(tmp_path: Path, revision: str) -> None:
    Registry(tmp_path / "registry.db").close()
    assert command("registry", "show", "--db", tmp_path / "registry.db")[0] == 0
    with sqlite3.connect(tmp_path / "registry.db") as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    database.close()
    assert refused("registry", "show", "--db", tmp_path / "registry.db") == "verifier.revision"


@pytest.mark.finding("process.failed")
def test_a_chip_of_a_bench_has_no_firmware(tmp_path: Path) -> None:
    """It cannot start; the message names the log that says why."""
    bench = Bench(tmp_path / "bench", Settings(("one",), 1.0, 1.0))
    bench.keep()
    bench.make()
    (bench.chip("one") / FLASH).unlink()
    try:
        status, _, said = exactly.command("up", "--dir", bench.directory)
    finally:
        exactly.command("down", "--dir", bench.directory)
    assert status == 2
    (line,) = said.splitlines()
    assert line.startswith("weighbridge: process.failed: weighbridge chip boot ended with 2")
    assert "chip.image.missing" in Path(line.rpartition("see ")[2]).read_text()


@pytest.mark.finding("internal")
def test_a_fault_of_ours_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ops, "print_json", broken)
    assert main.run(["ops", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["exit_code"]) == ("internal", 3)
    (traceback,) = tmp_path.iterdir()
    assert str(traceback) in error["message"]
    assert "nobody thought of this" in traceback.read_text()
