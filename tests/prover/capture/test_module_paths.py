"""Module paths on tapes: forward, backward and recomputation of real models, and nothing else changes by them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import train, verdict
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from prover import Recorder
from weighbridge.core.errors import RefusedOperationError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

PRODUCTS = ("mm.default", "addmm.default", "bmm.default")


def tapes(run: Path) -> list[Tape]:
    transcript = Transcript.open(run)
    return [Tape.decode(transcript.tape(record.tape)) for record in transcript.records()]


def paths_of(tape: Tape, *operations: str) -> list[str | None]:
    return [tape.path_of(op) for op, node in enumerate(tape.nodes) if not operations or node.op in operations]


def runs_of(paths: list[str | None]) -> list[str | None]:
    """Paths without immediate repetition."""
    return [path for i, path in enumerate(paths) if i == 0 or path != paths[i - 1]]


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.inner(self.norm(x)))  # type: ignore[no-any-return]


class Net(nn.Module):
    """Two blocks, checkpointed or not, between two uses of one layer that has two names."""

    def __init__(self, recompute: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.again = self.shared
        self.head = nn.Linear(8, 3)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(x)
        for block in self.blocks:
            x = self.recompute(block, x)
        return self.head(self.again(x))  # type: ignore[no-any-return]


MODES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "none": lambda block, x: block(x),
    "non-reentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
}


def recorded(path: Path, mode: str) -> Path:
    generator = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(4, 8, generator=generator), "y": torch.tensor([0, 1, 2, 0])} for _ in range(3)]

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Net(MODES[mode])
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    train(path, build, step, batches)
    return path


FORWARD = ["model.shared", "model.blocks.0.inner", "model.blocks.1.inner", "model.shared", "model.head"]


@pytest.mark.parametrize("mode", MODES)
def test_products_are_named_by_their_module_in_both_directions(mode: str, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", mode)
    assert verdict(run) == "match"
    init, first, second, third = tapes(run)
    assert init.paths == [], "nothing is called while the model is made"
    assert second == third, "names do not keep steps from sharing a tape"
    for tape in (first, second):
        products = paths_of(tape, "addmm.default")
        recomputed = [path for path in products if path is not None and path.endswith(":recomputed")]
        assert [path for path in products if path not in recomputed] == FORWARD
        again = ["model.blocks.1.inner:recomputed", "model.blocks.0.inner:recomputed"]
        assert recomputed == ([] if mode == "none" else again)
        back = [f"{path}:backward" for path in reversed(FORWARD)]
        assert runs_of(paths_of(tape, "mm.default")) == back
        norms = [f"model.blocks.{i}.norm:backward" for i in (1, 0)]
        assert paths_of(tape, "native_layer_norm_backward.default") == norms
        assert set(paths_of(tape, "nll_loss_forward.default", "nll_loss_backward.default")) == {None}
    assert [path for path in paths_of(second) if path == "optimizer"], "the optimizer's step is one"


@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_add_up_are_in_the_backward_pass(mode: str, tmp_path: Path) -> None:
    """Of a layer that is used twice, and where a residual parts: sums and leaves have the name of what came before."""
    tape = tapes(recorded(tmp_path / "run", mode))[2]
    paths = paths_of(tape)
    begin, end = paths.index("model.head:backward"), paths.index("optimizer")
    assert all(path is not None and path.endswith((":backward", ":recomputed")) for path in paths[begin:end])
    assert {"add.Tensor", "mm.default", "detach.default"} <= {node.op for node in tape.nodes[begin:end]}


def test_gpt2(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, n_ctx=16)

    def build() -> tuple[Any, ...]:
        model = transformers.GPT2LMHeadModel(config)
        # Of transformers 5.0 the oldest name is the only one.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Tensor, model: Any, optimizer: torch.optim.Optimizer) -> None:
        model.train()(input_ids=batch, labels=batch, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run = tmp_path / "gpt2"
    train(run, build, step, [torch.arange(16)[None].remainder(32)] * 2)
    assert verdict(run) == "match"
    products = paths_of(tapes(run)[2], *PRODUCTS)
    parts = ("attn.c_attn", "attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    modules = [f"model.transformer.h.{i}.{part}" for i in range(2) for part in parts] + ["model.lm_head"]
    assert runs_of([path for path in products if path is not None and ":" not in path]) == modules
    assert {path.removesuffix(":backward") for path in products if path and path.endswith(":backward")} == set(modules)
    again = {path.removesuffix(":recomputed") for path in products if path and path.endswith(":recomputed")}
    assert again <= set(modules[:-1])
    assert {path.split(".")[3] for path in again} == {"0", "1"}


class Judge(nn.Module):
    """Something that is called and not attached."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x).sum()  # type: ignore[no-any-return]


def test_parts_called_alone_and_modules_that_nobody_attached(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            first, second = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
        recorder.attach(first, *optimizers, critic=second)
        for _ in range(2):
            with recorder.step(x := torch.ones(2, 4)):
                Judge()(second(first[0](x))).backward()
                for optimizer in optimizers:
                    optimizer.step()
    assert verdict(tmp_path / "run") == "match"
    tape = tapes(tmp_path / "run")[2]
    names = [path for path in runs_of(paths_of(tape)) if path is not None]
    assert names[:4] == ["model.0", "critic", "Judge.scale", "Judge"]
    assert [name for name in names if name.startswith("optimizer")] == ["optimizer", "optimizer1"]


def test_a_failure_inside_a_module_leaves_no_trace(tmp_path: Path) -> None:
    """What a program catches is over: later operations are not said to be inside it."""

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("as intended")

    model = nn.Linear(4, 4)
    with Recorder(tmp_path / "run", seed=1) as recorder:
        recorder.attach(model)
        with recorder.step(x := torch.ones(2, 4)):
            with pytest.raises(ValueError, match="as intended"):
                nn.Sequential(nn.ReLU(), Fails())(x)
            x + 1
            model(x)
    assert paths_of(tapes(tmp_path / "run")[1])[:2] == ["Sequential.0", None]
    assert set(paths_of(tapes(tmp_path / "run")[1])[2:]) == {"model"}
    assert not nn.modules.module._global_forward_pre_hooks, "nothing stays hooked when the step is over"
    assert not nn.modules.module._global_forward_hooks


def test_names_that_are_no_text_are_written_as_text(tmp_path: Path) -> None:
    model = nn.Module()
    model.add_module("half \ud800", nn.ReLU())
    model.add_module("other \ud801", nn.ReLU())
    with Recorder(tmp_path / "run", seed=1) as recorder:
        recorder.attach(nn.Linear(2, 2), odd=model, t=torch.zeros(1))
        with recorder.step(x := torch.ones(2)):
            for part in model.children():
                part(x)
    assert verdict(tmp_path / "run") == "match"
    assert tapes(tmp_path / "run")[1].paths == ["odd.half ?", "odd.other ?"]


class Spectrum(nn.Module):
    """What a library's module may do that has no rule."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs()  # type: ignore[no-any-return]


def test_a_refusal_names_the_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Spectrum()))
    with Recorder(tmp_path / "run", seed=1) as recorder:
        recorder.attach(model)
        said = r"\[in model\.1\.0, at .*test_module_paths"
        with pytest.raises(RefusedOperationError, match=said) as caught, recorder.step(torch.ones(2, 8)):
            model(torch.ones(2, 8))
    assert caught.value.details["module"] == "model.1.0"
