"""Runs that were recorded with logs on demand, and supplements that a Prover makes honestly or to order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from support.recordings import train
from support.tied_rows import ones, square, ties

from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.core.digests import bytes_digest
from weighbridge.execution.regeneration import Regenerated, regenerate
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.supplements import Statement, decode, encode, folder_of, key_path, supplement_name

ELSEWHERE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
"""No vector instructions, and the products of the oldest processor that MKL knows: ties of these runs go other ways."""

STEPS = 3


def record(path: Path, **options: Any) -> Path:
    """Records three steps on ties, with logs on demand; `options` are those of the Recorder."""
    train(path, ones, square, [ties(seed) for seed in range(STEPS)], every=2, **{"logs": "on-demand", **options})
    return path


def key_of(run: Path) -> SigningKey:
    """The key of a run's Prover."""
    return load_or_create_key(key_path(run))


def regenerated(run: Path, **options: Any) -> Regenerated:
    """Makes supplements as an honest Prover does; `options` are those of `regenerate`."""
    return regenerate(run, key_of(run), **options)


def copied(run: Path, folder: Path) -> Path:
    """Copies a run with its key and supplements; returns the copy."""
    for source in (run, key_path(run), folder_of(run)):
        if source.is_dir():
            shutil.copytree(source, folder / source.name)
        elif source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / source.name)
    return folder / run.name


def place(run: Path, step: int) -> Path:
    """Where the supplement of a step lies."""
    return folder_of(run) / supplement_name(step)


def resigned(
    run: Path, step: int, *, entries: Callable[[OpEntries], OpEntries | None] = lambda each: each,
    said: Callable[[Statement], Statement] = lambda each: each, key: SigningKey | None = None, out: Path | None = None,
) -> Path:  # fmt: skip
    """Changes a supplement as its Prover can, and signs it again; returns its place.

    Args:
        run: The run.
        step: The step.
        entries: Has every section of the log, and may leave it out.
        said: Has the statement, which names the new log already.
        key: Who signs; the Prover by default.
        out: Where to write; by default over the supplement.
    """
    old = decode(place(run, step).read_bytes())
    kept = [entries(each) for each in rounding_log.decode(old.log(DEFAULT_LIMITS), max_entries=1 << 20)]
    sections = [each for each in kept if each is not None]
    log = rounding_log.encode(sections)
    logged = sum(len(each.positions) for each in sections)
    statement = said(replace(old.statement, rounding=bytes_digest(log).hex(), logged=logged))
    target = out or place(run, step)
    target.write_bytes(encode(statement, log, key or key_of(run)))
    return target


def flipped(each: OpEntries) -> OpEntries:
    """Turns the first entry of a section: the element is rounded the other way."""
    bits = each.bits.copy()
    bits[0] ^= np.uint64(1)
    return OpEntries(each.op, each.output, each.positions, each.widths, bits)
