"""`weighbridge replay`, `show` and `ops` as a user runs them: real processes, exit codes, one line or one object."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import command_line

from weighbridge.cli.main import run


def weighbridge(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from weighbridge.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False)


def one_error_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


@pytest.mark.slow
def test_honest_run_matches_with_other_instruction_sets(honest_run: Path) -> None:
    states = set()
    for capability in ("default", "avx2"):
        done = weighbridge("replay", str(honest_run), "--json", ATEN_CPU_CAPABILITY=capability, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["verdict"] == "match"
        assert result["steps"] == [0, 5]
        assert {"kind", "count", "operations", "free_values"} <= set(next(iter(result["tapes"].values())))
        assert result["followed"] >= 0
        assert result["evidence"]["overruled"] == result["followed"]
        assert all(0 < test["p"] <= 1 for test in result["evidence"]["tests"].values())
        states.add(result["state"])
    assert len(states) == 1


def test_human_output_names_verdict_and_roundings(honest_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(honest_run), "--steps", "3:5"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("match  steps 3:5")
    assert "without it" in printed


def test_altered_run_names_first_step_and_operation(altered_run: Path) -> None:
    done = weighbridge("replay", str(altered_run))
    assert done.returncode == 1
    assert done.stdout.startswith("mismatch")
    assert "first difference: step 1, operation" in done.stdout
    done = weighbridge("replay", str(altered_run), "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["verdict"] == "mismatch"
    assert result["first_difference"]["step"] == 1
    assert [f["id"] for f in result["findings"] if f["severity"] == "violation"] == ["replay.mismatch"]


@pytest.mark.parametrize("json_wanted", [False, True])
def test_one_flipped_byte_is_one_finding(honest_run: Path, tmp_path: Path, json_wanted: bool) -> None:
    files = [path.relative_to(honest_run) for path in sorted(honest_run.rglob("*")) if path.is_file()]
    assert len(files) > 8
    for name in files:
        copy = tmp_path / "run"
        shutil.copytree(honest_run, copy)
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
        arguments = ["replay", str(copy), *(["--json"] if json_wanted else [])]
        code, stdout, stderr = command_line.weighbridge(*arguments)
        assert code in (1, 2), name
        if json_wanted:
            assert len(json.loads(stdout)["findings"]) == 1, name
        else:
            assert one_error_line(stderr).startswith("weighbridge: "), name
        shutil.rmtree(copy)


def test_missing_and_foreign_files_are_findings(honest_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(honest_run, copy)
    (copy / "extra").write_text("x")
    code, _, stderr = command_line.weighbridge("replay", str(copy))
    assert code == 1
    assert "transcript.file.unlisted" in one_error_line(stderr)
    (copy / "extra").unlink()
    (copy / "draft.cbor").unlink()
    code, _, stderr = command_line.weighbridge("show", str(copy))
    assert code == 1
    assert "transcript.file.missing" in one_error_line(stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "/nonexistent"],
        ["replay", "RUN", "--steps", "3:1"],
        ["replay", "RUN", "--steps", "0:99"],
        ["replay", "RUN", "--steps", "-1:2"],
        ["replay", "RUN", "--steps", "one"],
        ["replay", "RUN", "--device", "abacus"],
        ["replay", "RUN", "--frobnicate"],
        ["show", "/nonexistent"],
        ["ops", "--kind", "magic"],
        ["bogus"],
        [
            "analysis",
            "samples",
            "--probability",
            "2",
            "--flops",
            "1e24",
            "--chips",
            "9",
            "--period-days",
            "30",
            "--rate",
            "1",
        ],
    ],
)
def test_bad_usage_is_exit_2_and_one_line(honest_run: Path, arguments: list[str]) -> None:
    arguments = [str(honest_run) if argument == "RUN" else argument for argument in arguments]
    code, stdout, stderr = command_line.weighbridge(*arguments)
    assert code == 2, (stdout, stderr)
    assert one_error_line(stderr).startswith("weighbridge: usage")
    assert stdout == ""
    if (
        arguments[0] != "bogus"
        and "--frobnicate" not in arguments
        and len(arguments) > 1
        and "samples" not in arguments
    ):
        code, stdout, stderr = command_line.weighbridge(*arguments, "--json")
        assert code == 2
        assert json.loads(stdout)["error"]["code"].startswith("usage")


def test_a_bug_is_exit_3_without_a_traceback(honest_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("wires crossed")

    monkeypatch.setattr("weighbridge.cli.show.describe", broken)
    code, stdout, stderr = command_line.weighbridge("show", str(honest_run))
    assert (stdout, code) == ("", 3)
    line = one_error_line(stderr)
    assert "wires crossed" in line
    log = Path(line.rpartition(" ")[2])
    assert "Traceback" in log.read_text()
    log.unlink()


def test_terminal_escapes_in_messages_are_neutral(tmp_path: Path) -> None:
    code, _, stderr = command_line.weighbridge("replay", str(tmp_path / "\x1b[2Jrun\nsecond line"))
    assert code == 2
    assert "\x1b" not in one_error_line(stderr)


def test_show_lists_what_a_transcript_contains(honest_run: Path) -> None:
    code, stdout, _ = command_line.weighbridge("show", str(honest_run), "--json")
    facts = json.loads(stdout)
    assert code == 0
    assert facts["steps"] == {"init": 1, "step": 4}
    assert facts["complete"] is True
    assert facts["checkpoints"] == [1, 3, 5]
    assert command_line.weighbridge("show", honest_run)[1].startswith("name")
