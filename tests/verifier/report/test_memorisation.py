"""Memorisation: weights remember the batches that they learned from, and not those that were only claimed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from prover import Recorder
from verifier.report import memorisation
from verifier.report.memorisation import Memory, compare, remember
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution import batch_losses as evaluated
from weighbridge.execution.scoring import ScoringError
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.execution.workers.losses_worker import losses as in_this_process
from weighbridge.transcript.reader import Transcript

STEPS, EVERY = 24, 8


def batch_of(number: int) -> dict[str, torch.Tensor]:
    """Noise with labels by chance: all that can be learned is the batch itself."""
    generator = torch.Generator().manual_seed(number)
    return {
        "x": torch.randn(8, 16, generator=generator),
        "y": torch.randint(0, 4, (8,), generator=generator),
    }


def record(path: Path, *, shown: int = 0, squared: bool = False) -> OpenedTranscript:
    """Records a training. Step t trains on batch t + `shown` and writes batch t into the transcript."""
    with Recorder(path, seed=2, checkpoint_every=EVERY) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        recorder.attach(model, optimizer)
        for step in range(1, STEPS + 1):
            batch, names = batch_of(step), ("x", "y")
            views = {name: batch[name].numpy() for name in names}  # the same memory, which the Recorder does not watch
            claimed, used = batch_of(step), batch_of(step + shown)
            arrays = [{name: each[name].numpy() for name in names} for each in (used, claimed)]
            with recorder.step(batch):
                for name, view in views.items():
                    view[...] = arrays[0][name]
                out = model(batch["x"])
                (out.square().mean() if squared else F.cross_entropy(out, batch["y"])).backward()
                optimizer.step()
                optimizer.zero_grad()
                for name, view in views.items():
                    view[...] = arrays[1][name]
    return open_confined(path)


def here(transcript: OpenedTranscript) -> memorisation.Losses:
    """Evaluates in this process: the code that the worker runs, without its start-up time and its confinement."""

    def losses(checkpoints: Sequence[int], steps: Sequence[int]) -> list[list[float]]:
        request = {
            "path": str(transcript.path), "checkpoints": list(checkpoints), "steps": list(steps), "device": "cpu",
            "memory": 1 << 30,
        }  # fmt: skip
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            answer = {"result": in_this_process(request, [], lambda message: None)}
        return evaluated.parse(answer, rows=len(checkpoints), columns=len(steps))

    return losses


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> OpenedTranscript:
    return record(tmp_path_factory.mktemp("runs") / "honest")


def memories(transcript: OpenedTranscript) -> list[Memory]:
    edges = transcript.checkpoint_steps
    found = [remember(transcript, a, b, here(transcript)) for a, b in pairwise(edges)]
    return [each for each in found if isinstance(each, Memory)]


def test_honest_segments_are_remembered(honest: OpenedTranscript) -> None:
    found = memories(honest)
    assert [(each.begin, each.end) for each in found] == [(1, 9), (9, 17)]  # nothing comes after the last one
    for each in found:
        assert len(each.own) == len(each.control) == 8
        assert each.auc > 0.9
        assert each.p < 0.01
        assert each.to_json()["auc"] == each.auc


def test_batches_that_were_only_claimed_are_not(tmp_path: Path) -> None:
    """The transcript names other data than those that the weights learned from: evidence without any replay."""
    for each in memories(record(tmp_path / "run", shown=1000)):
        assert each.auc < 0.85
        assert each.p > 0.01


def test_losses_are_the_runs_own(honest: OpenedTranscript) -> None:
    """At checkpoint 1, the loss of the first batch is the one that the program computed in step 1."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    state = Transcript.open(honest.path).checkpoint(1)
    model.load_state_dict({v.name.removeprefix("model."): v.tensor(state.storages) for v in state.views})
    with torch.no_grad():
        expected = [float(F.cross_entropy(model(batch_of(n)["x"]), batch_of(n)["y"])) for n in (1, 5)]
    assert here(honest)([1], [1, 5])[0] == pytest.approx(expected, rel=1e-5)


def test_a_confined_worker_evaluates_the_same(honest: OpenedTranscript) -> None:
    found = evaluated.losses(honest.path, [1, 9], [3, 12], env={"OMP_NUM_THREADS": "1"})
    assert found == [pytest.approx(row, rel=1e-6) for row in here(honest)([1, 9], [3, 12])]


def test_a_program_without_such_a_loss_cannot_be_memories(tmp_path: Path) -> None:
    transcript = record(tmp_path / "run", squared=True)
    found = remember(transcript, 1, 9, here(transcript))
    assert isinstance(found, ScoringError)


def test_what_there_is_to_compare(honest: OpenedTranscript) -> None:
    own, control = honest.comparable(1, 9)
    assert own == list(range(1, 9))
    assert control == list(range(9, 17))
    assert honest.comparable(17, 25) == ([], [])
    assert remember(honest, 2, 9, here(honest)) is None
    assert remember(honest, 17, 25, here(honest)) is None


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_scores_are_shares(own: list[float], control: list[float]) -> None:
    """AUC(own, control) + AUC(control, own) == 1, and all are between 0 and 1."""
    auc, p = compare(own, control)
    assert 0 <= auc <= 1
    assert 0 <= p <= 1
    assert auc + compare(control, own)[0] == pytest.approx(1)


@pytest.mark.parametrize(
    "answer",
    [{}, {"result": {}}, {"result": {"losses": [[1.0]]}}, {"result": {"losses": [[1.0, float("nan")]]}},
     {"result": {"losses": [[1.0, 2]]}}, {"result": {"losses": 7}}, {"error": {"code": "x.y", "message": "no"}}],
    ids=str,
)  # fmt: skip
def test_hostile_answers(answer: dict[str, object]) -> None:
    with pytest.raises(WeighbridgeError):
        evaluated.parse(answer, rows=1, columns=2)
    assert evaluated.parse({"result": {"losses": [[1.0, 2.0]]}}, rows=1, columns=2) == [[1.0, 2.0]]
