"""Programs of released libraries, followed: the examples, and what people do with a pretrained model."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prover
from tests.prover.following.test_loops import OTHER_MACHINE
from weighbridge import replay
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

pytest.importorskip("accelerate", reason="of the extra `integrations`")
transformers = pytest.importorskip("transformers", reason="of the extra `integrations`")

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns an example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    for name in ("trainer", "accelerated"):
        sys.modules.pop(name, None)


def severities(run: Path) -> set[str]:
    """Replays on another kind of machine."""
    result = replay(run, env=OTHER_MACHINE)
    assert result.verdict == "match"
    return {finding.severity for finding in result.findings}


def names(transcript: Transcript, step: int) -> list[str]:
    return [name for name, _ in Tape.decode(transcript.tape(transcript.step(step).tape)).batch_views]


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_trainer_is_recorded_by_one_line(tmp_path: Path, example: Any) -> None:
    """With accumulation, clipping, a schedule, evaluations and saved checkpoints."""
    example("trainer").main(tmp_path / "run", dataloader_num_workers=1)
    assert severities(tmp_path / "run") == {"info"}
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.steps == 9
    assert names(transcript, 3) == ["0.input_ids", "0.labels", "1.input_ids", "1.labels"]
    assert len({record.tape for record in transcript.records()}) < 8
    assert {name for name, _ in transcript.step(0).formulas} >= {"lr", "decay", "adam_step", "adam_root"}
    assert list(tmp_path.glob("run-checkpoints/checkpoint-*/model.safetensors"))


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_a_loop_of_accelerate_is_recorded_by_one_line(tmp_path: Path, example: Any) -> None:
    example("accelerated").main(tmp_path / "run")
    assert severities(tmp_path / "run") == {"info"}
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.steps == 9
    assert names(transcript, 3) == ["0.0", "0.1", "1.0", "1.1"]


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = np.random.default_rng(number).integers(0, 64, 8)
        return {"input_ids": torch.tensor(row), "labels": int(row[0] > 30)}


def trained(tmp_path: Path, **options: Any) -> prover.Following:
    """Fine-tunes a small BERT that was read from files."""
    sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "base")
    with prover.follow(tmp_path / "run", seed=3) as run:
        model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=2)
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"), per_device_train_batch_size=8, num_train_epochs=2, report_to=[], use_cpu=True,
            eval_strategy="epoch", save_strategy="epoch", **options,
        )  # fmt: skip
        epoch = itertools.count()

        def metrics(found: Any) -> dict[str, float]:
            return {"right": float((found.predictions.argmax(1) == 0).mean()), "turn": float(next(epoch))}

        trainer = transformers.Trainer(
            model, arguments, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=metrics
        )
        trainer.train()
        assert 0 <= trainer.evaluate()["eval_right"] <= 1
    return run


def test_a_pretrained_model_comes_from_outside_and_nothing_else_does(tmp_path: Path) -> None:
    run = trained(tmp_path)
    assert not [each for each in run.undeclared if each.step]
    assert severities(tmp_path / "run") == {"info"}
    result = replay(tmp_path / "run")
    assert "tape.free_input" in {finding.id for finding in result.findings}


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize(("last", "before"), [(False, 5), (True, 9)])
def test_a_best_model_that_is_read_back_is_the_runs_own(tmp_path: Path, last: bool, before: int) -> None:
    """Whether it is that of the first epoch or of the last."""
    best = {"metric_for_best_model": "turn", "greater_is_better": last}
    run = trained(tmp_path, load_best_model_at_end=True, **best)
    assert not [each for each in run.undeclared if each.step]
    assert severities(tmp_path / "run") == {"info"}
    came = Transcript.open(tmp_path / "run").returned.tensors
    assert len(came) == 25
    assert {step for step, _ in came} == {9}
    assert {step for step, _ in came.values()} == {before}
