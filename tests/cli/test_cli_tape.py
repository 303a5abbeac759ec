"""`weighbridge tape show` on real and on damaged transcripts; `test_cli_hostile_files` runs its worker apart."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forging import at_step, forge
from support.workers_here import workers_here

from weighbridge.cli.main import run
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    """The command's worker in this process."""
    with workers_here():
        yield


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["tape", "show", *arguments]) == 0
    return capsys.readouterr().out


def test_the_summary_names_what_a_person_asks_for(honest_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(honest_run))
    record = Transcript.open(honest_run).step(3)
    assert record.tape.hex() in text
    assert "step, 3 times, first in step 2" in text
    assert "image: f32[8, 1, 8, 8]" in text
    assert "model.0.weight" in text
    assert "<- itself, batch " in text
    assert "UNDECLARED" not in text
    assert "undeclared tensor" not in text
    assert len(text.splitlines()) < 60
    assert re.search(r"^programs +not fixed in the draft$", text, flags=re.MULTILINE)
    assert f"{record.tape.hex()[:12]} (3 times, first in step 2)" in text


def test_every_operation_is_listed_on_demand(honest_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transcript = Transcript.open(honest_run)
    tape = Tape.decode(transcript.tape(transcript.step(2).tape))
    text = shown(capsys, str(honest_run), "--step", "2", "--operations")
    assert sum(f" {node.op}(" in text for node in tape.nodes) == len(tape.nodes)
    assert sum(line.split(" ", 1)[0].isdigit() for line in text.splitlines()) == len(tape.nodes)


def test_json_has_flops_origins_and_reach(honest_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = Transcript.open(honest_run).step(2).tape.hex()
    facts = json.loads(shown(capsys, str(honest_run), digest[:16], "--json", "--operations"))
    assert facts["tape"] == digest
    assert facts["steps"] == 3
    assert facts["flops"] == sum(each["flops"] for each in facts["list"]) > 0
    assert facts["flops_by_operation"]["convolution.default"] > 0
    assert facts["values"]["unexplained"] == 0
    assert {item["origin"] for item in facts["inputs"]} == {"batch", "state"}
    (weights,) = (group for group in facts["changes"] if "model.0.weight" in group["changed"])
    assert weights["itself"]
    assert set(weights["batch"]) == {"image", "label"}
    assert facts["overwrites"] == facts["findings"] == []
    assert sum(facts["others"].values()) == 5
    assert facts["first_in_step"] == {each.hex(): n for each, n in Transcript.open(honest_run).programs().items()}


def test_undeclared_values_and_overwrites_are_named(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same transcript with another number in one step: it would not replay, and here it shows."""

    def change(tape: Tape, fields: dict[str, list[float]]) -> None:
        fields["values"] = [0.123 if value == -0.05 else value for value in fields["values"]]

    forged = forge(honest_run, tmp_path / "forged", at_step(3, change))
    text = shown(capsys, str(forged), "--step", "3")
    assert "follow no formula: UNDECLARED (0.123" in text
    assert "tape.free_input" in text


@pytest.mark.parametrize("arguments", [["--step", "99"], ["--step", "-1"], ["ffff"], [""], ["aa", "--step", "1"]])
def test_what_does_not_exist_is_a_usage_error(
    honest_run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tape", "show", str(honest_run), *arguments]) == 2
    assert capsys.readouterr().err.startswith("weighbridge: usage: ")


def test_a_damaged_transcript_is_a_finding(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = Path(shutil.copytree(honest_run, tmp_path / "run"))
    next((copied / "tapes").iterdir()).write_bytes(b"x")
    assert run(["tape", "show", str(copied)]) == 1
    assert "transcript.file." in capsys.readouterr().err
    assert run(["tape", "show", str(tmp_path / "none")]) == 2


def test_a_hostile_name_does_not_reach_the_terminal(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(step: int, tape: Tape, fields: dict[str, object]) -> None:
        tape.paths[:] = [f"\x1b[2J{path}" for path in tape.paths]

    forged = forge(honest_run, tmp_path / "forged", change)
    assert "\x1b" not in shown(capsys, str(forged), "--step", "3", "--operations")
