"""Jobs on several ranks: what ranks make of their gradients together, and what one of them slips in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.recognised import reasons
from support.recording_store import RecordingStore
from support.sharded_runs import recorded

from weighbridge.execution.recognition.outcome import Summary, parse
from weighbridge.execution.workers.job_worker import JobReplay

TWO = ["primitives", "ddp", "unused", "static", "accumulate", "tensor", "fsdp", "meta", "pipeline", "false"]
"""Jobs that other tests record too."""

SHARDED = ["ddp", "unused", "static", "accumulate", "tensor", "fsdp", "meta"]
FALSE = {
    "brought": "the gradient of model.0.weight is changed by .* before the step",
    "sent": "the gradient of model.0.weight is changed by .* before the step",
    "overwritten": "is changed beside its optimizer's step",
    "hooked": "is not that of cross entropy",
    "held": "model.shift changes otherwise than by an optimizer, and a loss depends on it",
    "apart": "was changed before the step",
    "inside": "brings something else into rank 0's backward pass",
    "silently": "adds what is no gradient to one: .*x",
    "relayed": "adds what is no gradient to one",
    "among": "adds what is no gradient to one: .*x",
    "instead": "adds what is no gradient to one: .*x",
}


@pytest.fixture(scope="module")
def jobs(recordings: RecordingStore) -> Path:
    """Jobs of two ranks, one a kind."""
    return recorded(recordings, ["by-hand", *FALSE, "drawn", "sent-again", "sent-other"], 2)


def recognised(path: Path) -> list[Summary]:
    """Recognises all steps of a job in this process; one outcome for each rank."""
    request = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30,
        "recognise": [1 << 10, 0],
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        result = JobReplay(request, [], lambda message: None).run()
    assert result["verdict"] == "match"
    return [Summary([parse(each) for each in answer["recognised"]]) for answer in result["ranks"] if answer is not None]


@pytest.mark.parametrize(("ranks", "kind"), [(2, kind) for kind in SHARDED] + [(4, "fsdp-tensor")])
def test_what_pytorch_does_on_several_ranks_is_recognised(recordings: RecordingStore, ranks: int, kind: str) -> None:
    """Replicas, shards, and both; every step on every rank, as an update by the losses of all ranks."""
    found = recognised(recorded(recordings, TWO if ranks == 2 else ["fsdp-tensor"], ranks) / kind)
    assert [len(each.steps) for each in found] == [3] * ranks
    for each in found:
        assert each.recognised, reasons(each)
        assert each.found()[0] == (
            f"the update is AdamW of the gradient of cross entropy of the model and the batches of {ranks} ranks, "
            "verified on 3 steps"
        )
        assert each.freedom() < 1e-3


def test_sums_by_hand_are_recognised(jobs: Path) -> None:
    for each in recognised(jobs / "by-hand"):
        assert each.recognised, reasons(each)
        assert each.steps[0].losses[0].ranks == (0, 1)
        assert each.steps[0].float_bits >= 2 * 4 * 8 * 32  # what both ranks' batches bring


@pytest.mark.parametrize("kind", FALSE)
def test_what_one_rank_slips_in_is_found_on_all(jobs: Path, kind: str) -> None:
    """Switched off, it changes no number; what all ranks make of it is not recognised on any of them."""
    found = recognised(jobs / kind)
    for each in found:
        assert not each.recognised
        assert not any(step.recognised for step in each.steps)
    assert any(re.search(FALSE[kind], reasons(each)) for each in found), [reasons(each) for each in found]


@pytest.mark.parametrize(("kind", "named"), [("sent-again", False), ("sent-other", True)])
def test_what_a_rank_sends_again_in_the_backward_pass_is_named_if_it_is_something_else(
    jobs: Path, kind: str, named: bool
) -> None:
    """Rank 0 sees two broadcasts that are alike; that rank 1 brings something else to the second is on its tape."""
    for each in recognised(jobs / kind):
        assert each.recognised, reasons(each)
        assert all(bool(step.by_hand) is named for step in each.steps)


def test_a_rank_whose_loss_draws_weights_to_its_batch_is_named_on_all(jobs: Path) -> None:
    for rank, each in enumerate(recognised(jobs / "drawn")):
        assert each.recognised, reasons(each)
        loss = each.steps[0].losses[0]
        assert "cross entropy" in loss.kind
        assert "loss made by" in loss.kind
        assert any(name.startswith("model.0.weight") for name in loss.direct), (rank, loss.direct)


def test_ranks_that_do_not_train_are_not_recognised(recordings: RecordingStore) -> None:
    for each in recognised(recorded(recordings, TWO, 2) / "primitives"):
        assert "nothing is claimed of this program's training" in reasons(each)


def test_stages_of_a_pipeline_are_not_recognised_and_say_so(recordings: RecordingStore) -> None:
    for each in recognised(recorded(recordings, TWO, 2) / "pipeline"):
        assert not each.recognised
        assert "begins with more than one number" in reasons(each)
