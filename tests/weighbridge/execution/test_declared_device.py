"""On the kind of device that a transcript says recorded it, a difference has no excuse; elsewhere it may have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.forging import at_step, forge
from support.recordings import replay_here, train
from torch import nn

from prover import Recorder
from weighbridge.numerics.conformance.device_kind import device_kind
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.declared_device import declared_device
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.resumption_notes import Resumption
from weighbridge.transcript.tape import Tape

SIZE = 64
ELSEWHERE = "cpu of a kind that this machine is not"


def build() -> tuple[nn.Module]:
    model = nn.Linear(SIZE, 3, bias=False)
    nn.init.ones_(model.weight)
    return (model,)


def multiply(batch: dict[str, torch.Tensor], model: nn.Module) -> None:
    with torch.no_grad():
        model(batch["x"])


def tie() -> dict[str, torch.Tensor]:
    """A row that adds up to half way between two float32, with terms so large that float64 loses some of it."""
    generator = torch.Generator().manual_seed(2)
    large = (torch.randint(0, 1 << 20, (1, 31), generator=generator) / 2**20 + 1) * 2.0**29
    row = torch.cat([torch.ones(1, 1), torch.full((1, 1), 3 * 2.0**-24), large, -large], 1)
    return {"x": row[:, torch.randperm(64, generator=generator)]}


def shifted(run: Path, target: Path, **drafted: Any) -> dict[str, Any]:
    """Leaves the log out and moves one element by one unit in the last place; returns what a replay says."""

    def change(_: Tape, fields: dict[str, Any]) -> None:
        fields["rounding"], fields["logged"] = rounding_log.encode([]), 0
        sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
        sums[-1] = (int(sums[-1]) + moves[run]) % (1 << 64)
        fields["checksums"] = sums.tobytes()

    return replay_here(forge(run, target, at_step(1, change), **drafted))


moves: dict[Path, int] = {}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One product, the three elements of which are contested."""
    path = tmp_path_factory.mktemp("declared") / "run"
    train(path, build, multiply, [tie()])
    # Which way the first element may move depends on its wide value; its weight in the checksum is 1.
    moves[path] = 1
    if shifted(path, path.parent / "up", device=ELSEWHERE)["verdict"] != "inconclusive":
        moves[path] = -1
    return path


def test_a_recording_says_where_it_computes(run: Path, tmp_path: Path) -> None:
    draft = Transcript.open(run).draft
    assert draft["device"] == device_kind("cpu") == replay_here(run)["device"]
    assert f"{torch.get_num_threads()} threads" in draft["device"]
    with Recorder(tmp_path / "named", seed=1, device="cpu") as recorder, recorder.initialisation():
        pass
    assert Transcript.open(tmp_path / "named").draft["device"] == device_kind("cpu")


def test_settings_of_libraries_make_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    here = device_kind("cpu")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert device_kind("cpu") == f"{here}, MKL_CBWR=COMPATIBLE"


def test_where_it_was_recorded_a_difference_is_a_mismatch(run: Path, tmp_path: Path) -> None:
    found = shifted(run, tmp_path / "run", device=device_kind("cpu"))
    assert found["verdict"] == "mismatch"
    (finding,) = [each for each in found["findings"] if each["severity"] == "violation"]
    assert finding["id"] == "replay.mismatch"
    assert "the kind of device that recorded it" in finding["message"]


@pytest.mark.parametrize("device", [ELSEWHERE, "", 7])
def test_elsewhere_it_is_none_and_says_where_it_must_match(run: Path, tmp_path: Path, device: Any) -> None:
    found = shifted(run, tmp_path / "run", device=device)
    assert found["verdict"] == "inconclusive"
    (finding,) = [each for each in found["findings"] if each["id"].startswith("replay.")]
    assert (finding["id"], finding["severity"]) == ("replay.inconclusive", "info")
    assert finding["evidence"]["declared"] == (ELSEWHERE if device == ELSEWHERE else "")


def test_a_resumed_recording_may_have_moved() -> None:
    resumptions = [Resumption(4, 2, (), "second"), Resumption(9, 8)]
    said = [declared_device({"device": "first"}, resumptions, step) for step in (3, 4, 8, 9)]
    assert said == ["first", "second", "second", None]


@pytest.mark.parametrize("text", ["\x1b[2Jcpu", "cpu\u202e", "cpu\nclean", "c" * 501, "", 7, None])
def test_a_text_that_is_written_for_the_report_names_no_device(text: Any) -> None:
    assert declared_device({"device": text}, (), 1) is None
    assert declared_device({"device": ELSEWHERE}, (), 1) == ELSEWHERE
