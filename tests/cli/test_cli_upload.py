"""`weighbridge transcript upload` as a Prover runs it, against a real Verifier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.station import Station, service
from support.untrained_transcripts import write_transcript

from weighbridge.cli.main import run
from weighbridge.transcript.job_record import RECORD, JobRecord, MeshCoordinate, rank_name


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Station, str]]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        root = station.root
        arguments = [
            *("--db", str(root / "v.db"), "--cache", str(root / "cache"), "--credentials", str(root / "verifier")),
            *("--manufacturer", str(root / "manufacturer.pem"), "--firmware", str(root / "firmware.img")),
        ]
        with service("serve verifier", arguments, root / "v.address") as address:
            yield station, address


def options(verifier: tuple[Station, str], role: str = "prover") -> list[str]:
    station, address = verifier
    return ["--verifier", address, "--credentials", str(station.root / role), "--patience", "0"]


def test_a_transcript_and_again(
    verifier: tuple[Station, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identifier = write_transcript(tmp_path / "run")
    assert run(["transcript", "upload", str(tmp_path / "run"), *options(verifier), "--json"]) == 0
    (first,) = json.loads(capsys.readouterr().out)["uploads"]
    size = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert (first["id"], first["bytes"], first["already"]) == (identifier, size, 0)
    assert (verifier[0].root / "cache" / identifier / "manifest.json").is_file()
    assert run(["transcript", "upload", str(tmp_path / "run"), *options(verifier)]) == 0
    assert f"{identifier}: whole and verified" in (said := capsys.readouterr().out)
    assert f"of which {size:,} were there already" in said


def test_all_ranks_of_a_job(verifier: tuple[Station, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = JobRecord(b"i" * 16, (("data", 2),))
    names = [
        write_transcript(tmp_path / rank_name(rank), name=str(rank), draft={"job": MeshCoordinate(job, rank).to_map()})
        for rank in range(2)
    ]
    (tmp_path / RECORD).write_bytes(job.encode())
    assert run(["transcript", "upload", str(tmp_path), *options(verifier), "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["uploads"]] == names


def test_what_cannot_be_uploaded(
    verifier: tuple[Station, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_transcript(tmp_path / "run", name="other")
    assert run(["transcript", "upload", str(tmp_path / "none"), *options(verifier)]) == 2
    assert "no manifest.json" in capsys.readouterr().err
    assert run(["transcript", "upload", str(tmp_path / "run"), *options(verifier, "operator")]) == 2
    assert "identity.role" in capsys.readouterr().err
    nobody = ["--verifier", "127.0.0.1:1", *options(verifier)[2:]]
    assert run(["transcript", "upload", str(tmp_path / "run"), *nobody]) == 2
    assert "rpc.verifier.unreachable" in capsys.readouterr().err
    shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    (tmp_path / "damaged" / "draft.cbor").write_bytes(b"x")
    assert run(["transcript", "upload", str(tmp_path / "damaged"), *options(verifier)]) == 1
    assert "transcript.file." in capsys.readouterr().err  # found before anything is sent
