"""FLOPs of tapes against counters that count while the operations run: PyTorch's, of products, and a chip's."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support.recordings import train
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from weighbridge.core.errors import TapeError
from weighbridge.program.flops import flops
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).flatten(2).transpose(1, 2)
        return torch.as_tensor(self.head(self.attention(h, h, h)[0])).sum()


def test_products_count_as_in_pytorch(tmp_path: Path) -> None:
    batch = torch.randn(2, 3, 8, 8)

    def step(x: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(x).backward()
        optimizer.step()

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Net()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    train(tmp_path / "run", build, step, [batch])
    transcript = Transcript.open(tmp_path / "run")
    tape = Tape.decode(transcript.tape(transcript.step(1).tape))
    counts = dict[str, int]()
    for node, count in zip(tape.nodes, flops(tape), strict=True):
        counts[node.op.partition(".")[0]] = counts.get(node.op.partition(".")[0], 0) + count
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        step(batch, *build())
    theirs = {str(packet).removeprefix("aten."): count for packet, count in counter.get_flop_counts()["Global"].items()}
    theirs["convolution_backward"] += 2 * 6 * 4 * 4  # and the sum of the gradient of the bias
    assert {name: counts.pop(name) for name in theirs} == theirs
    assert all(counts[name] > 0 for name in ("_softmax", "mul", "sum"))


@pytest.mark.parametrize(
    "node",
    [
        Node("mm.default", (("t", 0),), {}, (0,)),
        Node("mm.default", (("t", 0), ("t", 1)), {}, (0,)),
        Node("mm.default", (3, "x"), {}, ()),
        Node("mm.default", (("t", 0), ("t", 0)), {"mat9": 4}, (0,)),
        Node("convolution.default", (("t", 0),) * 9, {}, (0,)),
        Node("bmm.default", (("t", 0), ("t", 0)), {}, (None, 0)),
        Node("system.default", (), {}, ()),
    ],
)
def test_hostile_operands_raise_only_our_errors(node: Node) -> None:
    """Hostile bytes raise only WeighbridgeError; a count, where there is one, is a natural number."""
    tape = Tape(refs=[(0, "f32", (2, 3), (3, 1), 0), (0, "f32", (), (), 0)], nodes=[node])
    with suppress(TapeError):
        assert all(count >= 0 for count in flops(tape))
