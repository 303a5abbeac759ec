"""What a chip counts: everything that computes, however it is called, as the tape of the same operations counts it."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.disguised_products import PRODUCTS
from support.flop_counting import counted
from support.recordings import train
from support.rule_tables import restored
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import honest_job
from firmware_sim import ChipProcess, Shim
from firmware_sim.work_counter import Kernel, kernel_of
from prover import Recorder
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED
from weighbridge.numerics import Bound, Call, rule
from weighbridge.program.flops import flops, narrow
from weighbridge.program.operands import Operands, resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

N = 12
X = torch.randn(N, N, generator=torch.Generator().manual_seed(1))


@torch.library.custom_op("weighbridge_work::squared", mutates_args=())
def squared(x: Tensor) -> Tensor:
    """A product inside an operator of the Prover's own, of operations that a chip sees."""
    return x @ x


@torch.library.custom_op("weighbridge_work::hidden", mutates_args=())
def hidden(x: Tensor) -> Tensor:
    """The same in code that calls nothing of PyTorch's."""
    return torch.from_numpy(x.numpy() @ x.numpy())


lstm = nn.LSTM(N, N)
heads = nn.MultiheadAttention(N, 2)

WAYS: dict[str, tuple[Callable[[], Any], int]] = {
    **{name: (partial(product, X, X), 2 * N**3) for name, product in PRODUCTS.items()},
    "a form of two matrices": (lambda: F.bilinear(X, X, X.expand(N, N, N)), 2 * N**4),
    "attention": (lambda: F.scaled_dot_product_attention(X[None, None], X[None, None], X[None, None]), 4 * N**3),
    "a layer of attention": (lambda: heads(X[:, None], X[:, None], X[:, None]), 12 * N**3),
    "LSTM": (lambda: lstm(X[:, None]), 16 * N**3),
    "distances": (lambda: torch.cdist(X, X), N**3),
    "an inverse": (lambda: torch.linalg.inv(X), 2 * N**3),
    "singular values": (lambda: torch.linalg.svdvals(X), 4 * N**3),
    "a transform": (lambda: torch.fft.fft(X), 5 * N**2 * 3),
    "a sparse product": (lambda: torch.sparse.mm(X.to_sparse(), X), 2 * N**3),
    "a product of integers": (lambda: torch._int_mm(X.to(torch.int8), X.to(torch.int8)), 2 * N**3),
    "an operator of one's own": (lambda: squared(X), 2 * N**3),
}  # fmt: skip
"""Work, and how much of it there is at least."""
UNKNOWN = ("an operator of one's own", "an operator whose work is not to be seen")
PEAK = 1e12


def in_a_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_bare_thread(work: Callable[[], Any]) -> None:
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        work()
        done.release()

    _thread.start_new_thread(run, ())
    assert done.acquire(timeout=60)


def in_a_pool(work: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


PLACES: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "here": lambda work: work(), "thread": in_a_thread, "bare thread": in_a_bare_thread, "pool": in_a_pool,
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "gradients", [nullcontext, torch.no_grad, torch.inference_mode], ids=["grad", "no_grad", "inference"]
)
def test_work_counts_however_it_is_called(
    chip: ChipProcess, place: str, gradients: Callable[[], AbstractContextManager[Any]]
) -> None:
    with Shim.connect(chip.socket) as shim:
        for name, (work, least) in WAYS.items():

            def called(work: Callable[[], Any] = work) -> None:
                with gradients():
                    work()

            before = shim.work
            PLACES[place](called)
            done = shim.work - before
            assert done.flops_at_most(PEAK) >= least, name
            assert done.kernels > 0
            assert done.busy_ns > 0
            assert done.moved >= 4 * N
            assert bool(done.unknown_ns) is (name in UNKNOWN), name


def test_inference_mode_changes_no_count(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket) as shim:
        for name in ("@", "linear", "einsum", "convolution", "bilinear", "embedding bags", "a layer of attention"):
            counts = []
            for mode in (torch.no_grad, torch.inference_mode):
                before = shim.flops
                with mode():
                    WAYS[name][0]()
                counts.append(shim.flops - before)
            assert counts[0] == counts[1], name


def test_threads_lose_no_count(chip: ChipProcess) -> None:
    """Each has a tally of its own, so no two add to the same number at once."""
    x = torch.zeros(N, N)
    with Shim.connect(chip.socket) as shim:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(400):
                pool.submit(torch.mm, x, x)
        assert (shim.kernels, shim.flops) == (400, 400 * 2 * N**3)


def test_a_thread_may_outlive_the_shim(chip: ChipProcess) -> None:
    go, found = threading.Event(), list[Tensor]()

    def work() -> None:
        go.wait(60)
        found.append(X @ X)

    with Shim.connect(chip.socket) as shim:
        thread = threading.Thread(target=work)
        thread.start()
        before = shim.flops
    go.set()
    thread.join()
    assert torch.equal(found[0], X @ X)
    assert shim.flops == before
    in_a_thread(lambda: found.append(X @ X))  # and one that starts later has nothing to do with it
    assert len(found) == 2


def test_a_declared_operator_counts_what_it_declares(chip: ChipProcess) -> None:
    def much(operands: dict[str, Any], results: list[Any]) -> int:
        return int(10 * operands["x"].numel())

    def bounded(call: Call) -> list[Bound]:
        return [Bound(rel=1e-9)]

    with restored():
        rule("weighbridge_work::hidden", flops=much)(bounded)
        rule("weighbridge_work::squared", flops=much)(bounded)
        with Shim.connect(chip.socket) as shim:
            hidden(X)
            assert shim.flops == 10 * N**2
            squared(X)  # it says less than it does
            assert shim.flops == 10 * N**2 + 2 * N**3


def test_what_stands_behind_an_overload() -> None:
    aten = torch.ops.aten
    assert kernel_of(aten.mm.default) is Kernel.OWN
    assert kernel_of(aten.linear.default) is Kernel.COMPOSITE
    assert kernel_of(torch.ops.weighbridge_work.squared.default) is Kernel.FOREIGN


# -- the tape and the chip ---------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.layer(self.embed(x))))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.back = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.back(self.pool(torch.relu(self.norm(self.first(x)))))
        return torch.as_tensor(self.head(F.interpolate(h, scale_factor=2.0, mode="bilinear").mean((2, 3))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.bag = nn.LSTM(6, 8, batch_first=True), nn.EmbeddingBag(9, 8)
        self.pair = nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.cells(x)[0][:, -1]
        return torch.as_tensor(self.pair(h, self.bag(torch.arange(x.shape[0] * 2).reshape(-1, 2) % 9)))


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "transformer": (Transformer, lambda: torch.arange(24).reshape(3, 8)),
    "convolutional": (Convolutional, lambda: torch.randn(2, 3, 8, 8)),
    "recurrent": (Recurrent, lambda: torch.randn(2, 4, 6)),
}


def recorded(path: Path, name: str, link: Shim | None = None) -> list[tuple[Tape, list[Any]]]:
    """The tapes of a run of two updates, with the values of each step."""
    make, batch = ZOO[name]

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["x"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    train(path, build, step, [{"x": batch()}] * 2, **({} if link is None else {"chip": link}))
    transcript = Transcript.open(path)
    return [(Tape.decode(transcript.tape(record.tape)), list(record.values)) for record in transcript.records()]


def operations(tape: Tape, values: list[Any]) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    """The operations of a tape, with operands of its shapes, which hold nothing but zeros."""
    memory: dict[int, int] = {each.slot: each.bytes for each in tape.inputs}
    for node in tape.nodes:
        memory.update(node.births)
    slots = {slot: torch.zeros(size, dtype=torch.uint8) for slot, size in memory.items()}
    operands = Operands(torch.device("cpu"), tape, slots, values)
    for node in tape.nodes:
        yield (
            resolve(node.op),
            [operands.decode(a) for a in node.args],
            {name: operands.decode(a) for name, a in node.kwargs.items()},
        )


@pytest.mark.parametrize("name", ZOO)
def test_a_chip_counts_the_operations_of_a_tape_as_the_tape_does(chip: ChipProcess, tmp_path: Path, name: str) -> None:
    for tape, values in recorded(tmp_path / "run", name):
        calls = list(operations(tape, values))
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), Shim.connect(chip.socket) as shim:
            for (op, args, kwargs), node, expected in zip(calls, tape.nodes, flops(tape), strict=True):
                before = shim.flops
                op(*args, **kwargs)
                assert shim.flops - before == expected, node.op


@pytest.mark.parametrize("name", ZOO)
def test_recording_on_a_chip_adds_little(chip: ChipProcess, tmp_path: Path, name: str) -> None:
    """Bounds cost the chip something, loops of the host's spare it something: less than what a run may do beside."""
    with Shim.connect(chip.socket) as shim:
        tapes = recorded(tmp_path / "run", name, shim)
        total = sum(sum(flops(tape)) for tape, _ in tapes)
        assert 0.5 * total < shim.flops < (1 + SNAPSHOTS_AS_DESIGNED.work_share) * total


DRAWS: dict[str, Callable[[Tensor], Any]] = {
    name: getattr(nn.init, f"{name}_")
    for name in ("uniform", "normal", "trunc_normal", "xavier_uniform", "kaiming_normal", "orthogonal")
} | {
    "a sparse one": lambda weight: nn.init.sparse_(weight, 0.5),
    "dropout": lambda weight: weight.copy_(nn.functional.dropout(weight, 0.3)),
    "exponential": lambda weight: weight.exponential_(),
    "integers": lambda weight: weight.random_(0, 7),
    "choices": lambda weight: weight.copy_(torch.bernoulli(torch.full_like(weight, 0.2))),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_recorded_initialisation_takes_no_more_than_is_allowed(chip: ChipProcess, tmp_path: Path, name: str) -> None:
    """A draw is scaled and shifted; its tape had one FLOP for each element, and honest runs were accused."""
    with Shim.connect(chip.socket) as shim, Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation(), torch.no_grad():
            weight = torch.empty(400, 300)
            DRAWS[name](weight)
        done = shim.flops
        recorder.attach(nn.ParameterDict({"weight": nn.Parameter(weight)}))
    transcript = Transcript.open(tmp_path / "run")
    (record,) = transcript.records()
    total = sum(flops(Tape.decode(transcript.tape(record.tape))))
    assert done <= (1 + SNAPSHOTS_AS_DESIGNED.work_share) * total


@pytest.mark.parametrize("precision", ["autocast", "bfloat16"])
def test_recording_in_16_bits_takes_what_is_allowed(chip: ChipProcess, tmp_path: Path, precision: str) -> None:
    """A chip counted up to four times what the tape of a small model has: an honest run was accused."""
    step = honest_job.made("tiny", precision)
    described = honest_job.described(step.optimizer)
    with (
        Shim.connect(chip.socket) as shim,
        Recorder(tmp_path / "run", seed=1, policy="calibrated", formulas=described) as recorder,
    ):
        recorder.attach(*step.attached)
        for update in range(3):
            batch = step.batch(update)
            with recorder.step(batch):
                step.update(batch)
        done = shim.flops
    transcript = Transcript.open(tmp_path / "run")
    total, elements = 0, 0
    for record in transcript.records():
        counts = flops(tape := Tape.decode(transcript.tape(record.tape)))
        total, elements = total + sum(counts), elements + sum(narrow(tape, counts))
    allowed = SNAPSHOTS_AS_DESIGNED.recording_flops * elements
    assert (1 + SNAPSHOTS_AS_DESIGNED.work_share) * total < done < allowed + total


def test_the_bound_is_more_than_any_count_of_a_product() -> None:
    assert counted(lambda: torch.ops.weighbridge_work.hidden(X)) >= counted(lambda: X @ X)
    assert np.isfinite(X.numpy()).all()
