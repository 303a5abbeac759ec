"""Comparing two recorded runs: equal ones are equal, and each kind of change is named where it was made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import compare_job
from support.recordings import compare_here

from weighbridge.core.errors import ReplayWorkerError, UsageError, WeighbridgeError
from weighbridge.execution.comparison import _parse, compare

ROOT = Path(__file__).parents[3]
OTHER_MACHINE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
Record = Callable[..., Path]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Records a run of `compare_job`, each kind once; with an environment, in a fresh process."""
    root = tmp_path_factory.mktemp("compared")

    def recorded(change: str = "", **env: str) -> Path:
        path = root / f"{change or 'run'}{len(env)}"
        if path.exists():
            return path
        if not env:
            compare_job.main(str(path), change)
            return path
        command = [sys.executable, compare_job.__file__, str(path), change]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
        subprocess.run(command, check=True, env=environment, cwd=ROOT, timeout=120)
        return path

    return recorded


def kinds(found: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in found["differences"]]


def test_a_run_recorded_twice_is_equal(record: Record, tmp_path: Path) -> None:
    shutil.copytree(record(), tmp_path / "again")
    found = compare_here(record(), tmp_path / "again")
    assert (found["equal"], found["differences"], found["results"]) == (True, [], [])
    assert found["steps"] == [5, 5]


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")
def test_two_machines_part_at_a_contested_rounding(record: Record) -> None:
    """Recorded on their own, they round ties differently; both logs say so, and the wide values here are the same."""
    found = compare(record(), record("", **OTHER_MACHINE), elements=3)
    assert not found.equal
    assert [each["kind"] for each in found.differences] == ["result", "state"]
    assert found.operation is not None
    place = {k: found.operation[k] for k in ("step", "op", "operation", "path")}
    assert place == {"step": 1, "op": 1, "operation": "mm.default", "path": "model.0"}
    assert [source["origin"] for source in found.operation["upstream"]] == ["batch", "state"]
    (result,) = found.results
    assert 1 <= result["differing"] <= 15, "how many ties they round differently is the processor's"
    assert len(result["listed"]) == min(3, result["differing"])
    for element in result["listed"]:
        a, b = element["a"], element["b"]
        assert a["hex"] != b["hex"]
        assert a["wide"] == b["wide"]
        assert (a["contested"], b["contested"]) == (True, True)
        assert a["logged"] or b["logged"]
        for side in (a, b):
            assert np.uint32(int(side["hex"], 16)).view(np.float32) == np.float32(side["value"])
            assert abs(float(side["value"]) - float(side["wide"])) <= 2 * float(side["bound"])


def test_another_learning_rate(record: Record) -> None:
    found = compare_here(record(), record("lr"))
    assert kinds(found) == ["value", "result", "state"]
    value = found["differences"][0]
    assert (value["step"], value["a"], value["b"], value["path"]) == (2, "-0.0", "-0.25", "optimizer")
    assert found["operation"]["op"] == value["op"], (
        "the first result that differs is that of the operation that uses it"
    )
    assert {"value", "operation", "state"} == {source["origin"] for source in found["operation"]["upstream"]}


def test_another_batch(record: Record) -> None:
    found = compare_here(record(), record("batch"))
    assert kinds(found)[:2] == ["batch", "result"]
    batch = found["differences"][0]
    assert (batch["step"], batch["name"]) == (2, "tensor")
    assert batch["a"].endswith("at [2, 3] (1 of 320 elements differ)")
    assert [element["index"][0] for element in found["results"][0]["listed"]] == [2] * 3, "the row that was changed"


def test_another_seed(record: Record) -> None:
    found = compare_here(record(), record("seed"))
    assert found["draft"] == [{"name": "seed", "a": "7", "b": "8"}]
    assert kinds(found) == ["random", "result", "state"]
    assert found["differences"][0]["operation"] == "bernoulli_.float"
    drawn = [source["op"] for source in found["operation"]["upstream"] if source["origin"] == "random"]
    assert drawn == [found["differences"][0]["op"]]


def test_one_flipped_bit_of_the_weights(record: Record) -> None:
    found = compare_here(record(), record("bit"))
    assert kinds(found) == ["value", "state"]
    assert found["operation"] is None
    (result,) = found["results"]
    assert (result["name"], result["differing"], result["elements"]) == ("model.0.weight", 1, 192)
    (element,) = result["listed"]
    assert (element["index"], element["a"]["hex"], element["b"]["hex"]) == ([1, 5], "0x3f800000", "0x3f800004")


def test_another_length_and_another_program(record: Record) -> None:
    longer = compare_here(record(), record("longer"))
    assert (longer["equal"], kinds(longer)) == (False, ["length"])
    other = compare_here(record(), record("program"))
    (program,) = other["differences"]
    assert (program["kind"], program["step"]) == ("program", 2)
    assert program["a"].startswith("mul.Tensor(self: f32[5, 3]")
    assert program["b"].startswith("abs.default(self: f32[5, 3]")
    with pytest.raises(UsageError, match="same program"):
        compare_here(record(), record("program"), step=2, op=0)


def test_one_step_and_one_operation_of_it(record: Record) -> None:
    before = compare_here(record(), record("lr"), step=1)
    assert before["equal"]
    later = compare_here(record(), record("lr"), step=4)
    assert kinds(later)[0] == "value"
    tape_op = later["operation"]["op"]
    same = compare_here(record(), record("lr"), step=1, op=1)
    assert (same["equal"], same["operation"]["operation"], same["results"][0]["differing"]) == (True, "mm.default", 0)
    shown = compare_here(record(), record("lr"), step=4, op=tape_op)
    assert shown["results"][0]["differing"] > 0
    drawn = compare_here(record(), record("seed"), step=1, op=3)
    assert (drawn["operation"]["operation"], drawn["results"][0]["listed"][0]["a"]["wide"]) == (
        "bernoulli_.float",
        None,
    )


@pytest.mark.parametrize(("step", "op"), [(9, None), (-1, None), (1, 10_000), (1, -1)])
def test_places_that_do_not_exist_are_bad_usage(record: Record, step: int, op: int | None) -> None:
    with pytest.raises(UsageError):
        compare_here(record(), record("lr"), step=step, op=op)


def test_an_operation_needs_its_step(record: Record) -> None:
    with pytest.raises(UsageError, match="step"):
        compare(record(), record("lr"), op=3)


def test_a_run_that_does_not_replay_cannot_be_shown(record: Record, tmp_path: Path) -> None:
    """Its checksums are of something else than its tape computes, so what it had there is not known."""
    from support.forging import at_step, forge

    def lie(_: Any, fields: dict[str, Any]) -> None:
        fields["checksums"] = bytes(8) + fields["checksums"][8:]

    liar = forge(record(), tmp_path / "liar", at_step(1, lie))
    with pytest.raises(WeighbridgeError, match="run B cannot be executed") as caught:
        compare_here(record(), liar)
    assert caught.value.reason == "replay.comparison"


def test_the_command(record: Record, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from weighbridge.cli.main import run

    a, b = str(record()), str(record("bit"))
    assert run(["compare", a, a, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert run(["compare", a, b]) == 1
    printed = capsys.readouterr().out
    assert "model.0.weight float32[3, 64]: 1 of 192 elements differ" in printed
    assert "B 1.0000005 (0x3f800004)" in printed
    shutil.copytree(b, tmp_path / "altered")
    (tmp_path / "altered" / "draft.cbor").write_bytes(b"x")
    for arguments in (["compare", a, b, "--op", "1"], ["compare", a, str(tmp_path / "altered")]):
        assert run(arguments) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


ANSWER: dict[str, Any] = {
    "equal": True, "steps": [1, 1], "compared": [0, 1], "draft": [], "differences": [], "operation": None,
    "results": [], "device": "cpu", "confinement": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [1]}, {"compared": "ab"}, {"draft": {}}, {"differences": [1]}, {"results": [{"a": 0.5}]},
        {"operation": {}}, {"results": [[[[[[[[]]]]]]]]}, {"confinement": None},
        {"operation": {"step": 1, "op": 1, "operation": "x", "path": 1, "upstream": []}},
    ],
)  # fmt: skip
def test_an_answer_of_another_form_is_refused(change: dict[str, Any]) -> None:
    assert _parse({"result": ANSWER}, ("a", "b")).equal
    with pytest.raises(ReplayWorkerError):
        _parse({"result": {**ANSWER, **change}}, ("a", "b"))
