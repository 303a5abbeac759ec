"""Recurrent networks: on the CPU PyTorch runs a vendor's kernel, which is decomposed here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, real, whole

SEQUENCES = [{"x": real(4, 5, 6, seed=i), "y": whole(3, 4, seed=i)} for i in range(3)]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"num_layers": 2, "dropout": 0.1}),
        (nn.LSTM, {"bidirectional": True, "proj_size": 4}),
        (nn.GRU, {"num_layers": 2}),
        (nn.GRU, {"bidirectional": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
    ids=["lstm", "lstm-both-ways", "gru", "gru-both-ways", "rnn"],
)
def test_a_recurrent_network(zoo: Zoo, kind: Any, options: dict[str, Any]) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        width = options.get("proj_size", 8) * (2 if options.get("bidirectional") else 1)
        model = nn.ModuleDict({"core": kind(6, 8, batch_first=True, **options), "head": nn.Linear(width, 3)})
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: Any, optimizer: torch.optim.Optimizer) -> None:
        out, _ = model["core"](batch["x"])
        F.cross_entropy(model["head"](out[:, -1]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, SEQUENCES, every=1)
    if not options.get("dropout"):
        zoo.trains_as_without(build, step, SEQUENCES)


def test_sequences_of_different_length(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.ModuleDict({"core": nn.LSTM(6, 8, batch_first=True), "head": nn.Linear(8, 3)})
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: Any, optimizer: torch.optim.Optimizer) -> None:
        packed = nn.utils.rnn.pack_padded_sequence(batch["x"], batch["n"], batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(model["core"](packed)[0], batch_first=True)
        F.cross_entropy(model["head"](out.mean(1)), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(
        build,
        step,
        [{**b, "n": torch.tensor(n)} for b, n in zip(SEQUENCES, ([3, 5, 2, 3], [1, 5, 5, 4]), strict=False)],
    )


def test_cells_in_a_loop(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.ModuleDict({"a": nn.LSTMCell(6, 8), "b": nn.GRUCell(8, 3)})
        return model, torch.optim.RMSprop(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: Any, optimizer: torch.optim.Optimizer) -> None:
        state, out = None, None
        for t in range(3):
            state = model["a"](batch["x"][:, t], state)
            out = model["b"](state[0], out)
        F.cross_entropy(out, batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, SEQUENCES)
