"""Scores of a final state on other data: equal to what its owner would measure, and refused where they mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from prover import Recorder
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.scoring import Metric, parse, score
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers import scoring_worker
from weighbridge.transcript.tensor_file import write_tensors

BATCH, WIDTH, CLASSES, STEPS = 8, 5, 3, 6
LIMITS = Limits(memory=2 << 30, seconds=120)
ENV = {"OMP_NUM_THREADS": "1"}


def draw(seed: int, count: int = BATCH) -> dict[str, torch.Tensor]:
    """Points around one of three centres; one answer is left out, as padding is."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (count,), generator=generator)
    x = torch.randn(count, WIDTH, generator=generator) + 2 * F.one_hot(label, WIDTH)
    label[0] = -100
    return {"x": x, "label": label}


def train(path: Path, *, host: bool = False, swap: bool = False, weigh: bool = False) -> torch.nn.Module:
    """Trains a small classifier; a program may read a number back, ask for other answers, or weigh classes."""
    with Recorder(path, seed=1) as recorder:
        with recorder.initialisation():
            model = torch.nn.Linear(WIDTH, CLASSES)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            loss = torch.nn.CrossEntropyLoss(weight=torch.ones(CLASSES) if weigh else None)
        recorder.attach(model, optimizer, loss)
        for number in range(STEPS):
            batch = draw(number)
            x, label = batch["x"], batch["label"]
            with recorder.step(batch):
                if host:
                    x = x * x.abs().max().item()
                asked = label.flip(0) if swap else label
                loss(model(x), asked).backward()
                optimizer.step()
                optimizer.zero_grad()
    return model


def benchmark(path: Path, batches: list[dict[str, torch.Tensor]]) -> Path:
    tensors = {f"{n}/{name}": value for n, batch in enumerate(batches) for name, value in batch.items()}
    for n, batch in enumerate(batches):
        tensors[f"{n}/expected"] = batch["label"][batch["label"] != -100].clone()
    write_tensors(path, tensors)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    path = tmp_path_factory.mktemp("scoring") / "run"
    return path, train(path)


HELD_OUT = [draw(100), draw(101)]


@pytest.mark.parametrize("metric", ["cross_entropy", "accuracy"])
def test_the_score_is_what_the_owner_would_measure(
    metric: Metric, run: tuple[Path, torch.nn.Module], tmp_path: Path
) -> None:
    path, model = run
    data = benchmark(tmp_path / "b.safetensors", HELD_OUT)
    if metric == "accuracy":
        found = score(path, data, metric, limits=LIMITS, env=ENV)
    else:
        request = {"path": str(path), "benchmark": str(data), "metric": metric, "device": "cpu", "memory": 2 << 30}
        found = parse({"result": scoring_worker.score(request, [], lambda message: None)})
    x, label = (torch.cat([batch[name] for batch in HELD_OUT]) for name in ("x", "label"))
    with torch.no_grad():
        given = model(x)
    if metric == "cross_entropy":
        wanted = float(F.cross_entropy(given.double(), label))
    else:
        wanted = float((given.argmax(dim=1) == label)[label != -100].double().mean())
    assert found.value == pytest.approx(wanted, rel=1e-5)
    assert found.answers == 2 * (BATCH - 1)


def refused(path: Path, data: Path) -> str:
    """Returns why a run cannot be scored, asking the worker's own function."""
    request = {"path": str(path), "benchmark": str(data), "metric": "accuracy", "device": "cpu", "memory": 2 << 30}
    with pytest.raises(WeighbridgeError) as caught:
        scoring_worker.score(request, [], lambda message: None)
    return str(caught.value)


def test_answers_that_are_not_the_benchmarks_are_refused(run: tuple[Path, torch.nn.Module], tmp_path: Path) -> None:
    data = benchmark(tmp_path / "b.safetensors", HELD_OUT)
    train(tmp_path / "swapped", swap=True)
    assert "asks for other answers" in refused(tmp_path / "swapped", data)
    train(tmp_path / "weighed", weigh=True)
    assert "weighs classes" in refused(tmp_path / "weighed", data)


def test_a_program_that_depends_on_what_it_reads_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", host=True)
    assert "reads a number back" in refused(tmp_path / "run", benchmark(tmp_path / "b.safetensors", HELD_OUT))


def test_batches_of_another_form_and_altered_transcripts_are_refused(
    run: tuple[Path, torch.nn.Module], tmp_path: Path
) -> None:
    assert "cannot be executed once more" in refused(run[0], benchmark(tmp_path / "small.safetensors", [draw(1, 4)]))
    write_tensors(tmp_path / "bare.safetensors", {"0/x": HELD_OUT[0]["x"], "0/label": HELD_OUT[0]["label"]})
    assert "expected" in refused(run[0], tmp_path / "bare.safetensors")
    write_tensors(tmp_path / "none.safetensors", {"other": torch.zeros(1)})
    assert "no answers" in refused(run[0], tmp_path / "none.safetensors")


@given(
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    answers=st.none() | st.booleans() | st.integers() | st.floats(),
)
def test_hostile_answers_raise_only_our_errors(value: Any, answers: Any) -> None:
    """Law: an answer is refused, or it is a finite number over at least one answer."""
    try:
        found = parse({"result": {"value": value, "answers": answers}})
    except WeighbridgeError:
        return
    assert abs(found.value) < float("inf")
    assert found.answers > 0
