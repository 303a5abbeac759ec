"""docs/custom-operators.md, typed in as it stands: records, replays with the rule, and not without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "custom-operators.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))
(COMMAND,) = re.findall(r"```sh\nweighbridge (.*?)\n```", PAGE)


def run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files of the page and the transcript that they make."""
    directory = tmp_path_factory.mktemp("page")
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
    done = run(directory, "train.py")
    assert done.returncode == 0, done.stderr
    return directory


def replayed(directory: Path, *options: str, **environment: str) -> tuple[int, dict[str, object]]:
    words = [word for word in COMMAND.split() if word not in ("--op-rules", "mylib.py")]
    done = run(directory, "-m", "weighbridge.cli", *words, *options, "--json", **environment)
    return done.returncode, json.loads(done.stdout)


def test_the_page_has_what_this_test_types() -> None:
    assert set(FILES) == {"mylib.py", "train.py"}
    assert COMMAND == "replay runs/custom --op-rules mylib.py"


def test_with_the_rule_it_replays_on_another_instruction_set(recorded: Path) -> None:
    code, result = replayed(recorded, "--op-rules", "mylib.py", ATEN_CPU_CAPABILITY="default")
    assert (code, result["verdict"]) == (0, "match")
    assert result["steps"] == [0, 4]


def test_without_the_rule_nobody_is_accused(recorded: Path) -> None:
    code, result = replayed(recorded)
    assert code == 2
    assert result["error"]["code"] == "replay.rules.unknown"  # type: ignore[index]
    assert "--op-rules" in result["error"]["message"]  # type: ignore[index]


def test_a_verifier_whose_operator_computes_something_else_finds_a_mismatch_there(
    recorded: Path, tmp_path: Path
) -> None:
    other = tmp_path / "mylib.py"
    other.write_text(FILES["mylib.py"].replace("return x / torch", "return x * 1.001 / torch", 1), encoding="utf-8")
    code, result = replayed(recorded, "--op-rules", str(other))
    assert (code, result["verdict"]) == (1, "mismatch")
    assert result["first_difference"]["operation"] == "mylib::unit_rows.default"  # type: ignore[index]


@pytest.mark.slow
def test_rules_that_cannot_be_loaded_are_bad_usage(recorded: Path) -> None:
    (recorded / "broken.py").write_text("raise RuntimeError('not today')\n", encoding="utf-8")
    code, result = replayed(recorded, "--op-rules", "broken.py")
    assert code == 2
    assert result["error"]["code"] == "usage"  # type: ignore[index]
    assert "not today" in result["error"]["message"]  # type: ignore[index]


@pytest.mark.parametrize("named", ["file", "module"])
def test_rules_find_what_lies_beside_them(recorded: Path, named: str) -> None:
    """A worker that is confined to namespaces of its own shows them their directory, or what PYTHONPATH names."""
    beside = recorded / "rules"
    beside.mkdir(exist_ok=True)
    (beside / "parts.py").write_text(FILES["mylib.py"], encoding="utf-8")
    (beside / "factor.txt").write_text("1", encoding="utf-8")
    (beside / "whole.py").write_text(
        "from pathlib import Path\nimport parts\nassert Path(__file__).with_name('factor.txt').read_text() == '1'\n",
        encoding="utf-8",
    )
    code, result = (
        replayed(recorded, "--op-rules", "rules/whole.py")
        if named == "file"
        else replayed(recorded, "--op-rules", "whole", PYTHONPATH="rules")
    )
    assert (code, result.get("verdict")) == (0, "match"), result


def test_rules_beside_a_workers_own_scratch_directory_are_found(recorded: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tempfile.gettempdir()) as top:
        (Path(top) / "mylib.py").write_text(FILES["mylib.py"], encoding="utf-8")
        code, result = replayed(recorded, "--op-rules", str(Path(top) / "mylib.py"), TMPDIR=top)
    assert (code, result.get("verdict")) == (0, "match"), result


@pytest.mark.slow
@pytest.mark.finding("device.arithmetic")
def test_rules_may_not_change_how_the_device_computes(recorded: Path) -> None:
    """The worker tests its device after it has loaded them, here as a module on the path."""
    (recorded / "flushing.py").write_text(
        "import torch\ntorch.set_flush_denormal(True)\nimport mylib\n", encoding="utf-8"
    )
    code, result = replayed(recorded, "--op-rules", "flushing", PYTHONPATH=str(recorded))
    assert code == 2
    assert result["error"]["code"] == "device.arithmetic"  # type: ignore[index]
    assert "findings" not in result  # it accuses no party


@pytest.mark.finding("record.operation.unknown")
def test_without_a_rule_the_recording_stops_and_says_how_to_register_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILES["train.py"], encoding="utf-8")
    bare = FILES["mylib.py"].replace('@rule("mylib::unit_rows")\n', "")
    (tmp_path / "mylib.py").write_text(bare, encoding="utf-8")
    done = run(tmp_path, "train.py")
    assert done.returncode != 0
    assert "record.operation.unknown" in done.stderr
    assert "@weighbridge.numerics.rule('mylib::unit_rows.default')" in done.stderr
