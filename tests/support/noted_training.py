"""A small training with all that a replay has to follow, and a chip that notes the training process's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder
from weighbridge.attest.chip_link import Position
from weighbridge.core.digests import region_digest
from weighbridge.transcript.tensor_file import raw_bytes

STEPS = 4
SALT = bytes(range(32))
UEID = b"\x01" * 17


class Notebook:
    """A chip that notes, at chosen positions, what the training process has in its named tensors."""

    ueid = UEID
    pending = True

    def __init__(self, positions: set[tuple[int, int]]) -> None:
        self.positions = positions
        self.tensors: Callable[[], list[Tensor]] = list
        self.seen: dict[tuple[int, int], tuple[bytes, bytes, list[tuple[int, bytes]]]] = {}

    def log_event(self, name: str, digest: bytes) -> int:
        return 0

    def witnessed(self, index: int) -> int | None:
        return None

    def declare_weights(self, tensors: Iterable[Tensor]) -> None:
        """This chip notes named tensors of its own choice."""

    def on_snapshot(self, note: Callable[[int], None] | None, where: Callable[[], Position] | None = None) -> None:
        """This chip takes snapshots at safepoints only."""

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        if (step, op) not in self.positions:
            return None
        flush()
        leaves = [(len(raw := raw_bytes(t)), region_digest(raw, SALT)) for t in self.tensors()]
        self.seen[step, op] = running, head, leaves
        return len(self.seen)


RATES = (0.1, 0.05, 0.1 / 3, 0.025)
"""From a table, so that no formula gives them."""

POSITIONS = {(1, 0), (2, 3), (2, 40), (3, 0), (3, 60), (4, 75)}


def build() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(
        nn.Embedding(12, 8), nn.Flatten(), nn.Linear(24, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 4)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def record(path: Path) -> Notebook:
    """Records a classifier of three symbols with dropout, momentum, clipping, a schedule, and a loss that Python reads.

    Returns:
        The chip, with what the process had in its named tensors at `POSITIONS`.
    """
    chip = Notebook(POSITIONS)
    generator = torch.Generator().manual_seed(5)
    with Recorder(path, seed=3, checkpoint_every=2, chip=chip) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        momentum = [b for s in optimizer.state.values() for b in s.values() if isinstance(b, Tensor)]
        chip.tensors = lambda: [p.detach() for p in model.parameters()] + momentum
        for number in range(STEPS):
            batch = {
                "x": torch.randint(0, 12, (6, 3), generator=generator),
                "y": torch.randint(0, 4, (6,), generator=generator),
            }
            optimizer.param_groups[0]["lr"] = RATES[number]
            with recorder.step(batch):
                loss = F.cross_entropy(model(batch["x"]), batch["y"])
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                assert loss.item() > 0
    return chip
