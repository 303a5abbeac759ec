"""Drives processes that run hostile tapes, and records the runs that they start from."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from support.recordings import train
from torch import nn

TESTS = Path(__file__).parents[1]
SECONDS = 30
"""A tape of this size that takes longer hangs."""

ALLOWED = {"match", "inconclusive", "memory", "replay.mismatch", "replay.rounding.inadmissible"}
"""Outcomes besides the codes of malformed tapes and logs."""


def acceptable(answer: dict[str, Any]) -> bool:
    """True for a verdict or a finding; false for an exception, a death or a hang."""
    code = answer.get("outcome", "")
    return "unmade" in answer or code in ALLOWED or code.startswith(("tape.", "replay.rounding.", "transcript."))


class Child:
    """A process that answers one list of choices after the other; it is replaced when it dies."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = [str(run) for run in runs]
        self._process: subprocess.Popen[str] | None = None

    def _alive(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            path = os.pathsep.join(map(str, (TESTS, TESTS / "weighbridge" / "numerics", TESTS.parent)))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.fuzz_child", *self._runs], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return self._process

    def ask(self, choices: Sequence[int]) -> dict[str, Any]:
        """Returns the child's answer, or `died` with a signal's name, or `hangs`."""
        process = self._alive()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(choices)) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], SECONDS + 60)[0]:
            self.stop()
            return {"hangs": True}
        line = process.stdout.readline()
        if line:
            return dict(json.loads(line))
        code = process.wait()
        return {"died": signal.Signals(-code).name if code < 0 else f"exit {code}"}

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Attention(nn.Module):
    """Words through one block of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.qkv, self.drop, self.out = nn.Linear(8, 24), nn.Dropout(0.2), nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(self.embed(x))).view(*x.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        weight = (q @ k.mT / 2).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))
        return self.out(self.drop(F.gelu((weight.softmax(-1) @ v).transpose(1, 2).flatten(2)))).flatten(0, 1)


class Pictures(nn.Module):
    """Convolutions with both norms, pooling, a transposed convolution and interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.up, self.groups, self.out = nn.ConvTranspose2d(4, 4, 2, 2), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        h = self.groups(self.up(h)) + F.interpolate(F.avg_pool2d(h, 2), scale_factor=4, mode="bilinear")
        return self.out(F.adaptive_avg_pool2d(F.pad(h, (1, 1, 1, 1), mode="reflect"), 1).flatten(1))


class Recurrent(nn.Module):
    """An LSTM and what indexing, sorting and counting do to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x)[0][:, -1]
        order = h.detach().sum(1).argsort()
        h = h[order] + torch.zeros_like(h).index_add(0, order % 2, h) + h.cumsum(0).sort(1)[0]
        to = torch.bincount(order, minlength=len(h))[:, None].expand_as(h) - 1
        return self.out(torch.where(h > 0, h, h.scatter_add(0, to, h * torch.rand_like(h))))


def record_runs(folder: Path) -> list[Path]:
    """Records three small trainings with three optimizers, two steps each with a checkpoint before it."""

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() > 0

    generator = torch.Generator().manual_seed(3)
    words, labels = torch.randint(0, 11, (2, 5), generator=generator), torch.randint(0, 11, (10,), generator=generator)
    few = torch.randint(0, 3, (4,), generator=generator)
    kinds: list[tuple[str, Any, Any, dict[str, torch.Tensor]]] = [
        ("attention", Attention, lambda p: torch.optim.AdamW(p, foreach=True), {"x": words, "y": labels}),
        ("pictures", Pictures, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
         {"x": torch.randn(4, 1, 8, 8, generator=generator), "y": few}),
        ("recurrent", Recurrent, lambda p: torch.optim.RMSprop(p, foreach=False),
         {"x": torch.randn(4, 3, 3, generator=generator), "y": few}),
    ]  # fmt: skip

    def build(kind: Any, optimizer: Any) -> Any:
        def made() -> tuple[nn.Module, torch.optim.Optimizer]:
            model = kind()
            return model, optimizer(model.parameters())

        return made

    for name, kind, optimizer, batch in kinds:
        train(folder / name, build(kind, optimizer), step, [batch, batch], every=1)
    return [folder / name for name, *_ in kinds]
