"""What a rounding log can and cannot be used for: the findings about it, alone in the report of an inspection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.exactly import exactly, found
from support.forging import at_step
from support.recordings import replay_here, train
from support.small_runs import forged
from support.written_chips import Bench
from torch import Tensor, nn

from weighbridge.data import DataCommitment
from weighbridge.following import Seen
from weighbridge.numerics import kernels, roundlog
from weighbridge.numerics.physical import flat
from weighbridge.numerics.rounding import ordered
from weighbridge.numerics.roundlog import OpEntries
from weighbridge.replay_worker import Replay
from weighbridge.tape import Tape

SIZE = 64
Fields = dict[str, Any]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("bench")) as bench:
        yield bench


def committed(batch: dict[str, Tensor]) -> DataCommitment:
    """A commitment to one batch."""
    rows = len(next(iter(batch.values())))
    return DataCommitment.over([{name: t[i] for name, t in batch.items()} for i in range(rows)], range(rows))


def recorded(path: Path, build: Callable[[], tuple[Any, ...]], step: Callable[..., None], batch: Any) -> Path:
    train(path, build, step, [batch], data=committed(batch))
    return path


def relogged(fields: Fields, change: Callable[[OpEntries], OpEntries | None]) -> None:
    """Has every part of a step's log changed, or left out."""
    entries = [change(each) for each in roundlog.decode(fields["rounding"], max_entries=1 << 20)]
    kept = [each for each in entries if each is not None]
    fields["rounding"], fields["logged"] = roundlog.encode(kept), sum(len(each.positions) for each in kept)


def rechecked(fields: Fields, number: int, result: Tensor) -> None:
    """Puts the checksum of another result into a step's record."""
    sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
    sums[number] = np.uint64(kernels.torch_checksum(flat(result)))
    fields["checksums"] = sums.tobytes()


def results(run: Path, shape: tuple[int, ...]) -> list[Seen]:
    """The results of this shape with log entries, as a replay makes them."""
    kept: list[Seen] = []
    request = {"path": str(run), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30}
    worker = Replay(request, [], lambda message: None)
    worker._executor.watch = lambda seen: kept.append(replace(seen, out=seen.out.clone()))
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        worker.run()
    return [seen for seen in kept if seen.entries is not None and tuple(seen.out.shape) == shape]


# -- a bound that is too small for the device --------------------------------------------------------------------------


def ties() -> dict[str, Tensor]:
    """Rows that add up to half way between two float32, with terms so large that float64 loses some of it in any order.

    Each row is 1, 3*2^-24, and 31 numbers of about 2^30 with their negatives, shuffled.
    """
    generator = torch.Generator().manual_seed(2)
    large = (torch.randint(0, 1 << 20, (5, 31), generator=generator) / 2**20 + 1) * 2.0**29
    rows = torch.cat([torch.ones(5, 1), torch.full((5, 1), 3 * 2.0**-24), large, -large], 1)
    return {"x": torch.stack([row[torch.randperm(64, generator=generator)] for row in rows])}


def ones() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(SIZE, 3, bias=False)
    nn.init.ones_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def square(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(batch["x"]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.finding("replay.inconclusive")
def test_a_difference_next_to_a_boundary(bench: Bench, tmp_path: Path) -> None:
    """The run of a device that rounded one element the other way, and whose bound was too small to log that."""
    honest = recorded(tmp_path / "honest" / "run", ones, square, ties())
    assert found(bench.inspected(tmp_path / "honest", bench.at_end(honest))) == set()
    seen = results(honest, (5, 3))[0]
    assert seen.entries is not None
    assert seen.wide is not None
    at = int(seen.entries.positions[0])
    own, wide = flat(seen.out)[at], float(flat(seen.wide)[at])
    other = seen.out.clone()
    flat(other)[at] = torch.nextafter(own, torch.tensor(np.inf if wide > float(own) else -np.inf))

    def elsewhere(_: Tape, fields: Fields) -> None:
        relogged(fields, lambda entries: None if entries.op == seen.op else entries)
        rechecked(fields, seen.index, other)

    run = forged(honest, tmp_path / "runs" / "run", at_step(1, elsewhere))
    report = bench.inspected(tmp_path / "runs", bench.at_end(run, replays=False))
    exactly(report, "replay.inconclusive")
    assert report["findings"][0]["severity"] == "info"
    assert report["counts"]["verified"] == 0


# -- a log as an input -------------------------------------------------------------------------------------------------


def smuggler() -> tuple[nn.Module]:
    return (nn.Linear(SIZE, 1, bias=False),)


def smuggle(batch: dict[str, Tensor], model: nn.Linear) -> None:
    """Zero by any reading of the program; yet its bound is wider than any weight."""
    with torch.no_grad():
        model.weight.copy_(batch["large"].t() @ batch["ones"])


CANCELLING = {"large": torch.tensor([[1e30], [-1e30]]), "ones": torch.ones(2, SIZE)}


@pytest.mark.finding("replay.rounding.freedom")
def test_weights_that_come_in_by_the_log(bench: Bench, tmp_path: Path) -> None:
    honest = recorded(tmp_path / "honest" / "run", smuggler, smuggle, CANCELLING)
    assert found(bench.inspected(tmp_path / "honest", bench.at_end(honest))) == set()
    (seen,) = results(honest, (1, SIZE))
    weights = np.random.default_rng(5).standard_normal(SIZE).astype(np.float32)

    def steered(entries: OpEntries) -> OpEntries:
        mask = (np.int64(1) << entries.widths.astype(np.int64)) - 1
        return replace(entries, bits=(ordered(weights) & mask).astype(np.uint64))

    def insert(_: Tape, fields: Fields) -> None:
        relogged(fields, lambda entries: steered(entries) if entries.op == seen.op else entries)
        rechecked(fields, seen.index, torch.from_numpy(weights))

    draft = forged(honest, tmp_path / "draft", at_step(1, insert))
    said = replay_here(draft)["first_difference"]  # it lacks but the digest of the state that comes of it
    assert said["operation"] == "state"

    def whole(tape: Tape, fields: Fields) -> None:
        insert(tape, fields)
        fields["state"] = bytes.fromhex(said["found"])

    run = forged(honest, tmp_path / "runs" / "run", at_step(1, whole))
    report = bench.inspected(tmp_path / "runs", bench.at_end(run))
    exactly(report, "replay.rounding.freedom")
    (snapshot,) = report["chips"][0]["snapshots"]
    assert snapshot["replay"]["verdict"] == "match", "which is why the finding is needed"
