"""`weighbridge report verify --agreement`: what follows from an outcome, and what only the sealed report supports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.outcomes import PROVER, Released, release
from support.reported import build, collect

from weighbridge.cli.main import run


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return release(build(collect(tmp_path_factory.mktemp("collected"))))


@pytest.fixture
def command(released: Released, tmp_path: Path) -> list[str]:
    (tmp_path / "outcome.bin").write_bytes(released.data)
    (tmp_path / "agreement.cbor").write_bytes(released.start.agreement.to_cbor())
    return [
        "report", "verify", str(tmp_path / "outcome.bin"), "--key", released.start.key.public.hex(), "--agreement",
        str(tmp_path / "agreement.cbor"),
    ]  # fmt: skip


def test_an_honest_record_is_verified(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 0
    text = capsys.readouterr().out
    assert "outcome of inspection 0123456789abcdef, complete: findings" in text
    assert "violations: snapshot.unexplained" in text
    assert f"agreed by the Prover with key {PROVER.public.hex()} and the Verifier with key" in text
    assert "793 bytes left, with at most " in text
    assert "only the sealed report supports:\n  that each snapshot has the status that a replay gave it" in text
    assert "give --due" in text
    assert run([*command, "--due", "1,1,0", "--chips", "8"]) == 0
    assert "give --" not in capsys.readouterr().out


def test_a_program_gets_the_same(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--due", "1,1,0", "--chips", "8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verified"] is True
    assert said["record"]["snapshots"] == {"explained": 1, "unexplained": 1}
    assert sum(each["length"] for each in said["disclosed"]["ledger"]) == said["disclosed"]["bytes"] == 793
    assert len(said["only_the_sealed_report_supports"]) == 8


def test_a_record_that_leaves_a_snapshot_out_is_a_finding(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--due", "1,2,0"]) == 1
    assert "outcome.status.missing" in capsys.readouterr().out
    assert run([*command, "--chips", "9"]) == 1
    assert "outcome.inconsistent" in capsys.readouterr().out
    assert run([*command, "--due", "1,2,0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_an_altered_or_played_back_record_is_a_finding(
    command: list[str], released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outcome.bin").write_bytes(released.data[:-1] + bytes([released.data[-1] ^ 1]))
    assert run(command) == 1
    assert "outcome.signature" in capsys.readouterr().err
    other = release(build(collect(tmp_path / "other")))
    (tmp_path / "outcome.bin").write_bytes(other.data)
    assert run([*command[:4], other.start.key.public.hex(), *command[5:]]) == 1
    assert "outcome.nonce" in capsys.readouterr().err


@pytest.mark.parametrize("due", ["", "1,x", "1,-1", "1,,2", "1.0", "99999999999", "1,c", "1,1,0d"])
def test_what_is_no_list_of_numbers_is_bad_usage(
    command: list[str], due: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--due", due]) == 2
    assert "usage" in capsys.readouterr().err


def test_other_files_are_refused(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("outcome.bin", "agreement.cbor"):
        before = (tmp_path / name).read_bytes()
        for data in (b"", b"{}", before[:-1], b"\x00" * 100_000):
            (tmp_path / name).write_bytes(data)
            assert run(command) in (1, 2)
        (tmp_path / name).write_bytes(before)
    capsys.readouterr()
    assert run(command[:5]) == 2  # without an agreement it is no report
    assert "is no report" in capsys.readouterr().err
