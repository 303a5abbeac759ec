"""A difference that accuses nobody, made at will: entries are left out of a log, and an element is moved by a unit.

A replay that finds a few elements next to rounding boundaries, which together explain a difference, takes its bound for
too small. It comes to no verdict, and the snapshot is not verified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redteam.row import Outcome, Row
from redteam.workshop import Workshop, accusations
from support.clean_runs import forged
from support.forging import at_step
from support.recordings import train
from support.tied_rows import ones, square, ties
from torch import Tensor

from weighbridge.execution.following import Seen
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import formats, rounding_log
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.tape import Tape

Fields = dict[str, Any]


def committed(batch: dict[str, Tensor]) -> DataCommitment:
    """A commitment to one batch."""
    rows = len(next(iter(batch.values())))
    return DataCommitment.over([{name: t[i] for name, t in batch.items()} for i in range(rows)], range(rows))


def recorded(path: Path, build: Callable[[], tuple[Any, ...]], step: Callable[..., None], batch: Any) -> Path:
    train(path, build, step, [batch], data=committed(batch))
    return path


def relogged(fields: Fields, change: Callable[[OpEntries], OpEntries | None]) -> None:
    """Has every part of a step's log changed, or left out."""
    entries = [change(each) for each in rounding_log.decode(fields["rounding"], max_entries=1 << 20)]
    kept = [each for each in entries if each is not None]
    fields["rounding"], fields["logged"] = rounding_log.encode(kept), sum(len(each.positions) for each in kept)


def rechecked(fields: Fields, number: int, result: Tensor) -> None:
    """Puts the checksum of another result into a step's record."""
    sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
    sums[number] = np.uint64(formats.checksum(flat(result)))
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


def moved(honest: Path, target: Path, element: int = 0, **drafted: Any) -> Path:
    """The run of a device that rounded one element the other way, and whose bound was too small to log that."""
    seen = results(honest, (5, 3))[0]
    assert seen.entries is not None
    assert seen.wide is not None
    at = int(seen.entries.positions[element])
    own, wide = flat(seen.out)[at], float(flat(seen.wide)[at])
    other = seen.out.clone()
    flat(other)[at] = torch.nextafter(own, torch.tensor(np.inf if wide > float(own) else -np.inf))

    def elsewhere(_: Tape, fields: Fields) -> None:
        relogged(fields, lambda entries: None if entries.op == seen.op else entries)
        rechecked(fields, seen.index, other)

    return forged(honest, target, at_step(1, elsewhere), **drafted)


ELSEWHERE = "cpu of a kind that this machine is not"


RUNS = 2
"""Runs that are recorded; a Prover may have one such difference."""


def left_out(shop: Workshop, seed: int) -> Outcome:
    """In run after run a product's entries are left out and one of its elements is moved."""
    honest = recorded(shop.place() / "honest", ones, square, ties(seed))
    runs = shop.place()
    chips = [
        shop.bench.at_end(moved(honest, runs / f"run{n}", n, device=ELSEWHERE), replays=False) for n in range(RUNS)
    ]
    report = shop.bench.inspected(runs, *chips, apart=shop.apart)
    return Outcome(findings=accusations(report), gain=1 - report["counts"]["verified"] / RUNS, cost=1.0)


ROWS = (
    Row(
        name="entries are left out and an element is moved, so that replays say inconclusive",
        source="attacks on the rounding log",
        wants="keep snapshots from being verified",
        gains="the share of the runs' chips that did not verify",
        attack=left_out,
        expected=("replay.inconclusive.many",),
        note="Two runs, said to be recorded on a kind of device that the Verifier does not have. On the declared kind "
        "each is a mismatch. The chips count as withheld, so p falls.",
    ),
)
