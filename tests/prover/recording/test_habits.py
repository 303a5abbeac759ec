"""Habits of honest programs that a Recorder must take as they are, or stop with the reason."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from prover import Recorder
from weighbridge.core.errors import RefusedOperationError, StateChangedError, TapeError, UsageError
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


def replayed(path: Path) -> dict[str, Any]:
    """Replays a transcript in this process."""
    request = {
        "path": path, "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 28, "seconds": 60,
    }  # fmt: skip
    with torch.no_grad():
        return Replay(request, [], lambda _: None).run()


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(1, 8).expand(4, 8), "y": torch.arange(3).expand(2, 2, 3)},
        {"x": torch.arange(20.0).unfold(0, 8, 4)},
        {"x": torch.arange(32.0).reshape(8, 4).t()},
        {"x": torch.ones(4, 8), "none": torch.zeros(0, 3), "ids": torch.zeros(0, dtype=torch.int64)},
        {"x": torch.full((4, 8), float("nan"))},
    ],
    ids=["expanded", "sliding", "transposed", "empty", "nan"],
)
def test_batches_of_every_layout_replay(tmp_path: Path, batch: dict[str, Tensor]) -> None:
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        for _ in range(2):
            with recorder.step(batch):
                update(model, optimizer, batch["x"])
    assert replayed(tmp_path / "run")["verdict"] == "match"


@pytest.mark.finding("record.state.changed")
def test_what_initialisation_made_may_not_change_before_attach(tmp_path: Path) -> None:
    """Loading weights there would be no part of any tape, and the replay of an honest run would differ."""
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        with torch.no_grad():
            next(model.parameters()).fill_(1.0)
        with pytest.raises(StateChangedError, match=r"model\.weight was changed between") as caught:
            recorder.attach(model, optimizer)
    assert caught.value.reason == "record.state.changed"
    assert not Transcript.open(tmp_path / "run").manifest.complete


def test_a_step_that_cannot_be_written_ends_the_transcript(tmp_path: Path) -> None:
    """The model has moved on, so a step recorded after it could not be replayed without it."""
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        with recorder.step(torch.ones(4, 8)):
            update(model, optimizer, torch.ones(4, 8))
        with pytest.raises(UsageError, match="record ids"), recorder.step(torch.ones(4, 8), records=[1, 2]):
            update(model, optimizer, torch.ones(4, 8))
        with pytest.raises(UsageError, match="earlier step failed"), recorder.step(torch.ones(4, 8)):
            pass
    assert Transcript.open(tmp_path / "run").steps == 2
    assert not Transcript.open(tmp_path / "run").manifest.complete
    assert replayed(tmp_path / "run")["verdict"] == "match"


def test_a_tape_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    """Rather than a transcript that looks forged to a Verifier."""
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        batch = {"x" * 70_000: torch.ones(4, 8)}
        with pytest.raises(TapeError, match="shorten names of the batch"), recorder.step(batch):
            update(model, optimizer, torch.ones(4, 8))
    assert Transcript.open(tmp_path / "run").steps == 1
    assert replayed(tmp_path / "run")["verdict"] == "match"


@pytest.mark.finding("record.operation.refused")
def test_lazy_modules_are_told_to_say_their_sizes(tmp_path: Path) -> None:
    def attach() -> None:
        with Recorder(tmp_path / "attached", seed=1) as recorder:
            recorder.attach(nn.LazyLinear(3))

    def initialise() -> None:
        with Recorder(tmp_path / "recorded", seed=1) as recorder, recorder.initialisation():
            nn.LazyLinear(3)(torch.ones(2, 4))

    reasons = []
    for run, error in ((attach, UsageError), (initialise, RefusedOperationError)):
        with pytest.raises(error, match=r"nn\.Linear for nn\.LazyLinear") as caught:
            run()
        reasons.append(caught.value.reason)
    assert reasons == ["usage", "record.operation.refused"]


def test_lazy_modules_that_ran_before_are_modules_like_others(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    model(torch.ones(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "run", seed=1) as recorder:
        recorder.attach(model, optimizer)
        x = torch.arange(8.0).reshape(2, 4)
        with recorder.step({"x": x}):
            update(model, optimizer, x)
    assert replayed(tmp_path / "run")["verdict"] == "match"


def test_a_skeleton_on_the_meta_device_is_no_state(tmp_path: Path) -> None:
    """As in PyTorch's recipe for ensembles: it has no content, so nothing of it is hashed or kept."""
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
            skeleton = copy.deepcopy(model).to("meta")
        recorder.attach(model, optimizer)
        for _ in range(2):
            with recorder.step(torch.ones(4, 8)):
                functional_call(skeleton, dict(model.named_parameters()), torch.ones(4, 8)).sum().backward()
                optimizer.step()
    assert replayed(tmp_path / "run")["verdict"] == "match"
    with Recorder(tmp_path / "used", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
            skeleton = copy.deepcopy(model).to("meta")
        recorder.attach(model, optimizer)
        with pytest.raises(RefusedOperationError, match="has no content"), recorder.step():
            torch.zeros_like(next(skeleton.parameters()), device="cpu")


@pytest.mark.filterwarnings(
    "ignore:Using `torch.compile.module.` when there are global hooks:UserWarning",
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
)
def test_compiled_models_are_recorded_operation_by_operation(tmp_path: Path) -> None:
    """PyTorch compiles nothing under the Recorder's mode, so that no compiler can drop a rounding."""
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        compiled = torch.compile(model)
        for _ in range(2):
            with recorder.step(torch.ones(4, 8)):
                compiled(torch.ones(4, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    transcript = Transcript.open(tmp_path / "run")
    operations = [node.op for node in Tape.decode(transcript.tape(transcript.step(1).tape)).nodes]
    assert operations.count("addmm.default") == 1
    assert replayed(tmp_path / "run")["verdict"] == "match"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_default_type_is_named_on_the_tape(tmp_path: Path, dtype: torch.dtype) -> None:
    """A replay has float32 for it; libraries set another one while they build a model of that type."""
    with Recorder(tmp_path / "run", seed=1, policy="calibrated") as recorder:
        with recorder.initialisation():
            torch.set_default_dtype(dtype)
            try:
                model, optimizer = build()
                model.register_buffer("ramp", torch.linspace(0, 1, 8) + torch.rand(8) + torch.arange(0, 4, 0.5))
            finally:
                torch.set_default_dtype(torch.float32)
        recorder.attach(model, optimizer)
        with recorder.step(torch.ones(4, 8)):
            model(torch.ones(4, 8, dtype=dtype)).square().mean().backward()
            optimizer.step()
            torch.set_default_dtype(dtype)
            try:
                model(torch.ones(4, 8) * torch.full((8,), 0.5)).sum().backward()
                with pytest.raises(RefusedOperationError, match="convert its operand"):
                    torch.arange(3) / 2
            finally:
                torch.set_default_dtype(torch.float32)
    assert next(model.parameters()).dtype is dtype
    assert replayed(tmp_path / "run")["verdict"] == "match"


def in_a_thread(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    thread = threading.Thread(target=update, args=(model, optimizer, x))
    thread.start()
    thread.join()


def by_an_old_array(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    ARRAYS["bias"] *= 0.5


def on_the_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    update(model, optimizer, x)
    ARRAYS["x"][0] = 3


def on_a_tensor_from_outside(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    array = np.full((4, 8), 2.0, dtype=np.float32)
    outside = ARRAYS["outside"] = torch.from_numpy(array)
    update(model, optimizer, x + outside)
    array[:] = 9
    update(model, optimizer, x + outside)


ARRAYS: dict[str, Any] = {}


@pytest.mark.finding("record.state.changed")
@pytest.mark.parametrize("change", [in_a_thread, by_an_old_array, on_the_batch, on_a_tensor_from_outside])
def test_changes_that_no_operation_makes_are_told_at_once(tmp_path: Path, change: Any) -> None:
    """Else the transcript of an honest training would end in a mismatch."""
    x = torch.ones(4, 8)
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        ARRAYS.update(x=x.numpy(), bias=model.bias.detach().numpy())  # type: ignore[union-attr,operator]
        recorder.attach(model, optimizer)
        with recorder.step(x):
            update(model, optimizer, x)
        with pytest.raises(StateChangedError, match="by nothing that was recorded"), recorder.step(x):
            change(model, optimizer, x)
    assert Transcript.open(tmp_path / "run").steps == 2
    assert replayed(tmp_path / "run")["verdict"] == "match"


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_arrays_that_a_step_asks_for_can_be_read_only(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        with recorder.step(x := torch.ones(4, 8)):
            doubled = x * 2
            assert doubled.numpy().sum() == np.asarray(doubled).sum() == 64
            np.array(doubled)[:] = 0  # a copy, which PyTorch's tensors leave to NumPy
            for array in (doubled.numpy(), np.asarray(doubled)):
                with pytest.raises(ValueError, match="read-only"):
                    array[:] = 0
            update(model, optimizer, doubled)
    assert replayed(tmp_path / "run")["verdict"] == "match"


def test_a_tensor_from_outside_that_died_is_not_taken_for_the_next_at_its_address(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        with recorder.step(x := torch.ones(4, 8)):
            kept = []
            for number in range(200):
                outside = torch.from_numpy(np.full((4, 8), number, dtype=np.float32))
                x = x + outside * 0.01
                del outside
                kept.append(torch.full((4, 8), 2.0))
            update(model, optimizer, x)
    assert replayed(tmp_path / "run")["verdict"] == "match"
