"""`weighbridge transcript export` and `recover` as a user runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.resume_job import train
from weighbridge.cli.main import run
from weighbridge.transcript.reader import Transcript


def test_export_prints_sizes_before_and_after(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transcript", "export", "--minimal", str(honest_run), str(tmp_path / "out"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["id"] == Transcript.open(tmp_path / "out").digest
    assert facts["left_out"] == [f"checkpoints/{step:08d}.safetensors" for step in (1, 3, 5)]
    assert facts["bytes_before"] - facts["bytes_after"] == facts["before"]["checkpoints"]
    assert run(["transcript", "export", str(honest_run), str(tmp_path / "whole")]) == 0
    assert "0 files left out\n" in capsys.readouterr().out
    assert run(["show", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left out"] == [1, 3, 5]


def test_a_damaged_transcript_is_not_exported(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(honest_run, damaged)
    with next((damaged / "batches").iterdir()).open("ab") as file:
        file.write(b"\0")
    assert run(["transcript", "export", str(damaged), str(tmp_path / "out")]) == 1
    assert "transcript.file.oversized" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(["transcript", "export", str(tmp_path / "nothing"), str(tmp_path / "out")]) == 2


def test_recover_closes_what_will_not_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = train(tmp_path / "run")
    for _ in range(6):
        next(running)
    with pytest.raises(KeyError):
        running.throw(KeyError)
    assert run(["replay", str(tmp_path / "run")]) == 2  # not yet a transcript
    key = str(tmp_path / "key.pem")
    assert run(["transcript", "recover", str(tmp_path / "run"), "--key", key, "--json"]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    transcript = Transcript.open(tmp_path / "run")
    assert (facts["id"], facts["steps"]) == (transcript.digest, 4)
    assert not transcript.manifest.complete
    assert run(["transcript", "recover", str(tmp_path / "run")]) == 2  # nothing to recover any more
    assert run(["transcript", "recover", str(tmp_path / "nothing")]) == 2
