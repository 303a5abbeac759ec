"""What is asserted of two devices; `test_gpu_replay` asserts it of CPU and GPU, `test_without_a_gpu` of the CPU alone.

A comparison of the CPU with itself shows that the functions here work, and no more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu.trainings import KINDS, UPDATES
from support.forging import at_step, forge

from prover import Recorder
from weighbridge.execution.replay import replay
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.operations import quotients, writes
from weighbridge.numerics.random import variates
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, cpu_kernels, cpu_passes, device_passes, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

Tensor = torch.Tensor
aten = torch.ops.aten


def record(path: Path, kind: str, device: str, half: bool) -> None:
    """Records some updates with AdamW, gradient clipping and, if `half`, products in bfloat16."""
    training = KINDS[kind]
    with Recorder(path, seed=5, policy="calibrated" if half else "strict") as recorder:
        with recorder.initialisation(), torch.device(device):
            model = training.model().train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        recorder.attach(model, optimizer)
        for number in range(UPDATES):
            batch = {name: t.to(device) for name, t in training.batch(number).items()}
            with recorder.step(batch):
                with torch.autocast(device, torch.bfloat16, enabled=half):
                    loss = training.loss(model, batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                optimizer.step()
                optimizer.zero_grad()


def replays(path: Path, device: str) -> None:
    """Asserts that a transcript replays to the same state after every step: in this process, which saves a start."""
    request = {"path": str(path), "steps": None, "device": device, "stop": None, "salt": None, "memory": 8 << 30}
    with torch.no_grad(), conforming():
        found = Replay(request, [], lambda message: None).run()
    transcript = Transcript.open(path)
    assert found["verdict"] == "match", (found["first_difference"], found["findings"])
    assert found["steps"] == [0, transcript.steps]
    assert found["state"] == transcript.step(transcript.steps - 1).state.hex()


def replays_confined(path: Path, device: str) -> None:
    """The same in the worker, which gives up files, network and other programs before it opens the transcript."""
    found = replay(path, device=device)
    transcript = Transcript.open(path)
    assert found.verdict == "match", (found.first_difference, found.findings)
    assert found.state == transcript.step(transcript.steps - 1).state.hex()
    assert "no-network" in found.confinement


def catches_other_data(path: Path, device: str) -> None:
    """Asserts that data other than trained on, signed all the same, are found at their step on the device too."""

    def other(tape: Tape, fields: dict[str, Any]) -> None:
        name, tokens = next(iter(sorted(fields["batch"].items())))
        fields["batch"] = {**fields["batch"], name: (tokens + 1) % 64}

    found = replay(forge(path, path.parent / "forged", at_step(2, other)), device=device)
    assert found.verdict == "mismatch"
    assert found.first_difference is not None
    assert found.first_difference["step"] == 2


def draws_agree(device: str) -> None:
    """The same Philox bits, also where a draw is made in several pieces."""
    where = torch.device(device)
    for seed, counter, count in ((0, 0, 1), (7, 1 << 40, 1003), (2**64 - 1, 2**64 - 1, 70_001)):
        draw = Draw(seed, 1 << 12, counter)
        for make in (
            lambda at: variates.unit(draw, count, at),  # noqa: B023
            lambda at: variates.normal(draw, count, at),  # noqa: B023
            lambda at: variates.integers(draw, -3, 1 << 30, count, at),  # noqa: B023
            lambda at: variates.integers(draw, 0, 1 << 62, count, at),  # noqa: B023
            lambda at: variates.permutation(draw, count, at),  # noqa: B023
        ):
            same_bits(make(torch.device("cpu")), make(where))


def same_bits(a: Tensor, b: Tensor) -> None:
    """Asserts that two tensors have the same type, shape and bytes."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    other = b.cpu().contiguous()
    assert torch.equal(a.contiguous().view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


def patterns(count: int, seed: int) -> Tensor:
    """Float32 of any bit pattern, NaN among them canonical."""
    raw = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    x = torch.from_numpy(raw.copy())
    return torch.where(x != x, torch.tensor(float("nan")), x)


def quotients_agree(device: str) -> None:
    """Divisions, reciprocals and roots of any bit patterns: the CPU's instructions against the way of a GPU."""
    x, y = patterns(100_000, 1), patterns(100_000, 2)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (aten.div.Tensor, {"self": x, "other": y}),
        (aten.div.Tensor, {"self": x, "other": 3.0}),
        (aten.div.Tensor, {"self": torch.arange(100_000), "other": 7}),
        (aten.reciprocal.default, {"self": x}),
        (aten.sqrt.default, {"self": x.abs()}),
    ]
    for op, operands in cases:
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in operands.items()}
        ours, theirs = quotients.evaluate(op, operands, native=True), quotients.evaluate(op, moved, native=False)
        for result in (ours, theirs):
            device_passes.canonicalise(flat(result))
        same_bits(ours, theirs)


def exact_operations_agree(device: str) -> None:
    """What has one right answer and runs as it is: sums, products and conversions of any bit patterns."""
    x, y = patterns(300_000, 3), patterns(300_000, 4)
    small = patterns(300_000, 5) * 2.0**-100  # products of these are subnormal, or nearly
    near = x * (1 + torch.randn(x.shape, generator=torch.Generator().manual_seed(6)) * 2.0**-20)  # differences cancel
    operations: list[Any] = [
        lambda a, b, c, d: a + b,
        lambda a, b, c, d: a - d,
        lambda a, b, c, d: a * b,
        lambda a, b, c, d: c * 2.0**-40,
        lambda a, b, c, d: a * 0.1,
        lambda a, b, c, d: 3.7 - a,
        lambda a, b, c, d: a.to(torch.bfloat16),
        lambda a, b, c, d: a.to(torch.float16),
        lambda a, b, c, d: a.to(torch.bfloat16).float() * b.to(torch.bfloat16).float(),
        lambda a, b, c, d: torch.clamp(a, -1.0, 1.0) + 0.0,
        lambda a, b, c, d: torch.maximum(a, b) + 0.0,
        lambda a, b, c, d: torch.relu(a) + 0.0,
    ]
    for operation in operations:
        ours, theirs = operation(x, y, small, near), operation(*(t.to(device) for t in (x, y, small, near)))
        for result in (ours, theirs):
            device_passes.canonicalise(result)
        same_bits(ours, theirs)


def ties_agree(device: str) -> None:
    """Of equal values the one with the lowest index wins; of values that are no number too."""
    x = torch.randint(0, 4, (6, 40, 40), generator=torch.Generator().manual_seed(8)).float()
    x[0, 3, 5] = x[0, 3, 9] = x[2, 0, 0] = float("nan")
    for t in (x, torch.zeros_like(x), x.transpose(1, 2)):
        for reduce in (torch.max, torch.min):
            for dim in range(3):
                for ours, theirs in zip(reduce(t, dim), reduce(t.to(device), dim), strict=True):
                    same_bits(ours, theirs)
        for choose in (torch.argmax, torch.argmin):
            same_bits(choose(t), choose(t.to(device)))
            same_bits(choose(t, 1), choose(t.to(device), 1))
        for ours, theirs in zip(
            torch.sort(t, stable=True, descending=True), torch.sort(t.to(device), stable=True, descending=True),
            strict=True,
        ):  # fmt: skip
            same_bits(ours, theirs)
        for pool in (aten.max_pool2d_with_indices.default, aten.adaptive_max_pool2d.default):
            for ours, theirs in zip(pool(t, [3, 3]), pool(t.to(device), [3, 3]), strict=True):
                same_bits(ours, theirs)


def wide_values(seed: int) -> Tensor:
    """Float64 near float32 and 16-bit boundaries, of all sizes, with what is not finite."""
    rng = np.random.default_rng(seed)
    exact = torch.from_numpy(rng.standard_normal(65536) * 2.0 ** rng.integers(-160, 128, 65536)).to(torch.float32)
    near = exact.double() * (1 + torch.from_numpy(rng.choice([0.0, 2.0**-24, 2.0**-9, 2.0**-12, -(2.0**-53)], 65536)))
    special = torch.tensor([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-150), 1e308], dtype=torch.float64)
    return torch.cat([near, special.repeat(8)])


def passes_agree(device: str) -> None:
    """Rounding, contested elements and checksums of the same wide values: the CPU's kernels against the device's."""
    for seed, shape in enumerate([(65600,), (25, 2624), (5, 64, 205), (41, 5, 8, 40)]):
        x = wide_values(seed).view(shape)
        rows = (x.abs().nan_to_num(posinf=1.0).clamp_max(1e30).amax(-1, keepdim=True) + 2.0**-140) * 2.0**-40
        for factors in ((), (rows,), (rows, torch.ones(shape[-1], dtype=torch.float64))):
            bound = Bound(2.0**-45, 2.0**-150, factors)
            moved = Bound(bound.rel, bound.absolute, tuple(f.to(device) for f in factors))
            ours = torch.empty(x.shape)
            checksum, positions, _, es = cpu_passes.record(x, bound, ours)
            theirs = torch.empty(x.shape, device=device)
            found = device_passes.record(x.to(device), moved, theirs, cpu_kernels.REACH)
            same_bits(ours, theirs)
            assert checksum == found[0]
            assert positions.tolist() == found[1].tolist()
            np.testing.assert_array_equal(es, found[2].cpu().numpy())
            out, again = contested.round_plain(x.to(device))
            same_bits(ours, out)
            assert again == checksum
        for dtype in formats.NARROW:
            mine, total = narrow.round_plain(x.float(), dtype)
            yours = torch.empty(x.shape, dtype=dtype, device=device)
            assert device_passes.round_plain(x.float().to(device), yours) == total
            same_bits(mine, yours)


def last_writes_win(device: str) -> None:
    """Places that an index names several times hold the last value written, whatever order threads run in."""
    generator = torch.Generator().manual_seed(9)
    for _ in range(5):
        index = torch.randint(0, 50, (3000, 8), generator=generator)
        values = torch.arange(3000 * 8, dtype=torch.float32).view(3000, 8)
        expected = torch.zeros(50, 8)
        for row in range(3000):
            expected[index[row], torch.arange(8)] = values[row]
        x = torch.zeros(50, 8, device=device)
        longer = writes.scatter(x, 0, index.to(device), values.to(device))
        assert longer is not None
        same_bits(expected, longer[0].scatter(0, *longer[1:])[:50])
        columns = torch.arange(8).expand(3000, 8)
        fewer = writes.index_put(x, [index.to(device), columns.to(device)], values.to(device))
        assert fewer is not None
        same_bits(expected, x.index_put(tuple(i for i in fewer[0] if i is not None), fewer[1]))
