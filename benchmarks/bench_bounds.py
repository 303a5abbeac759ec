"""What probabilistic bounds promise and use, and what other bounds would save: the figures of docs/bounds.md.

`python -m benchmarks.bench_bounds [--only PART ...]` measures five parts, each of which keeps the others' results:

- *margins*: errors of dot products of float32 operands in float64 over their probabilistic bounds, by the kind of
  operands and the order of summation, beside sums in long doubles, which must have 64 bits. The bounds are made of the
  sums of absolute terms, which are sharper than the norms in those of the rules.
- *steps*: roundings of a step of GPT-2 124 M, from which the probability of a failed bound follows.
- *growth*: entries and bytes of the logs of GPT-2 11 M in float32 if bounds grew otherwise with the number of terms, or
  if products had the sums of their absolute terms and not norms. Only the recorder's bounds are changed, for counting:
  nothing replays under them.
- *blocked*: what steps of GPT-2 11 M log under the policies with blocks and under strict bounds, and the processor time
  of recording them, side by side.
- *split*: processor time of products that are split into blocks, over that of whole ones.

Results go to benchmarks/results/bounds.json; `python -m benchmarks.margins --table` writes the page.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks import machine, models
from benchmarks.bench_steps import FULL
from prover import Recorder
from weighbridge.numerics import bounds
from weighbridge.numerics.arrays import blocked_products
from weighbridge.numerics.conformance.bound_policy import BLOCKS
from weighbridge.numerics.operations import rounded
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rule_table import FAMILIES
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

Tensor = torch.Tensor
Doubles = npt.NDArray[np.float64]
SEED = 11
STEPS = 1
TERMS = tuple(1 << power for power in (8, 10, 12, 14, 16, 18))
ROWS = 16
BLOCK = 256

# --- margins ----------------------------------------------------------------------------------------------------------


def operands(kind: str, count: int) -> tuple[Tensor, Tensor]:
    """Returns float32 operands of dot products, one in each row; float64 holds each of their products exactly."""
    generator = torch.Generator().manual_seed(count)
    a, b = torch.randn(2, ROWS, count, generator=generator)
    if kind == "constants":
        return a[:, :1].expand(ROWS, count).contiguous(), b[:, :1].expand(ROWS, count).contiguous()
    if kind == "one sign, of very different size":
        return (4 * a).exp(), b.abs()
    return (a.abs(), b.abs()) if kind == "one sign" else (a, b)


def _one_by_one(products: Doubles) -> Doubles:
    return np.cumsum(products, axis=1)[:, -1]


def _in_blocks(products: Doubles) -> Doubles:
    return _one_by_one(_one_by_one(products.reshape(-1, BLOCK)).reshape(len(products), -1))


ORDERS: dict[str, Callable[[Tensor, Tensor], Doubles]] = {
    "one by one": lambda a, b: _one_by_one((a * b).numpy()),
    f"in blocks of {BLOCK}": lambda a, b: _in_blocks((a * b).numpy()),
    "PyTorch's sum": lambda a, b: (a * b).sum(1).numpy(),
    "PyTorch's dot product": lambda a, b: np.array([float(x @ y) for x, y in zip(a, b, strict=True)]),
    "PyTorch's matrix product": lambda a, b: (a @ b.T).diagonal().numpy(),
}
KINDS = ("normal", "one sign", "one sign, of very different size", "constants")


def margins() -> list[dict[str, Any]]:
    """Returns the largest error over the bound for each kind of operands and order, and at how many terms."""
    ratios: dict[tuple[str, str], dict[int, float]] = {}
    for kind in KINDS:
        for count in TERMS:
            a, b = (x.double() for x in operands(kind, count))
            exact = (a * b).numpy().astype(np.longdouble).sum(axis=1)  # in pairs, so that it errs by 2^-59 at most
            with bounds.probable_growth():
                bound = bounds.gamma(count) * (a * b).abs().sum(1).numpy()
            for order, total in ORDERS.items():
                errors = np.abs(total(a, b) - exact).astype(np.float64)
                ratios.setdefault((kind, order), {})[count] = float((errors / bound).max())
    found = []
    for (kind, order), each in ratios.items():
        at = max(each, key=lambda count: each[count])
        outside = min((count for count, ratio in each.items() if ratio > 1), default=None)
        found.append({"terms": kind, "order": order, "margin": round(each[at], 4), "at": at, "outside_from": outside})
    return found


# --- steps ------------------------------------------------------------------------------------------------------------


def step_of(name: str) -> dict[str, Any]:
    """Returns how many elements a step rounds."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory) / "run"
        made = FULL[name]()
        with Recorder(path, seed=SEED, checkpoint_every=9, policy="probabilistic", logs="on-demand") as recorder:
            recorder.attach(*made.attached)
            batch = made.batch(0)
            with recorder.step(batch):
                made.update(batch)
        transcript = Transcript.open(path)
        return {"model": name, "rounded": transcript.step(transcript.steps - 1).rounded}


# --- growth -----------------------------------------------------------------------------------------------------------

GROWTHS: dict[str, tuple[str, Callable[[float], float]]] = {
    "strict": ("n", lambda n: n),
    "half": ("n/2", lambda n: n / 2),
    "blocks": (f"blocks of {BLOCK}, and of their sums: {BLOCK} + n/{BLOCK}", lambda n: min(n, BLOCK + n / BLOCK)),
    "small blocks": ("blocks of 32, and of their sums: 32 + n/32", lambda n: min(n, 32 + n / 32)),
    "pairs": ("pairs, the least that any order has: log2 n", lambda n: min(n, 1 + math.ceil(math.log2(n + 1)))),
}


@contextmanager
def growing(count: Callable[[float], float]) -> Iterator[None]:
    """Within it, n roundings are counted as another number, in all rules."""

    def gamma(n: float) -> float:
        n = count(n)
        return n * bounds.U / (1 - n * bounds.U)

    with pytest.MonkeyPatch.context() as patch:
        for module in (bounds, *FAMILIES):
            if hasattr(module, "gamma"):
                patch.setattr(module, "gamma", gamma)
        yield


@contextmanager
def absolute_terms() -> Iterator[None]:
    """Within it, bounds of products are made of the sums of their absolute terms, which cost a second product."""
    usual = rounded.scaled

    def sharp(limits: list[Bound], *rest: Any) -> list[Bound]:
        return [_sharp(limit) for limit in usual(limits, *rest)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounded, "scaled", sharp)
        yield


def _sharp(bound: Bound) -> Bound:
    if bound.products is None:
        return bound
    sums = bound.products.left.detach().double().abs() @ bound.products.right.detach().double().abs()
    return replace(bound, factors=(sums * bound.products.multiple,))


def recorded(policy: str) -> dict[str, Any]:
    """Records steps of GPT-2 11 M; returns roundings, entries (also by operation) and bytes a step."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory) / "run"
        torch.manual_seed(SEED)
        made = models.named("gpt2-11m")()
        with Recorder(path, seed=SEED, checkpoint_every=STEPS + 1, policy=policy) as recorder:
            recorder.attach(*made.attached)
            for number in range(STEPS):
                batch = made.batch(number)
                with recorder.step(batch):
                    made.update(batch)
        transcript = Transcript.open(path)
        records = [transcript.step(number) for number in range(transcript.steps)]
        data = [transcript.rounding(record.step) for record in records]
        entries = Counter[str]()
        for record, log in zip(records, data, strict=True):
            tape = Tape.decode(transcript.tape(record.tape))
            for section in rounding_log.decode(log, max_entries=record.logged):
                entries[tape.nodes[section.op].op] += len(section.positions)
        return {
            "rounded": sum(record.rounded for record in records) // STEPS,
            "entries": sum(entries.values()) // STEPS,
            "bytes": sum(len(log) for log in data) // STEPS,
            "by_operation": dict(entries.most_common(6)),
        }


def growth() -> dict[str, Any]:
    """Returns what a step logs with other bounds."""
    found = {}
    for name, (_, count) in GROWTHS.items():
        with growing(count):
            found[name] = recorded("strict")
        print(name, found[name], flush=True)
    with absolute_terms():
        found["absolute terms"] = recorded("strict")
    found["probabilistic"] = recorded("probabilistic")
    return found


# --- split ------------------------------------------------------------------------------------------------------------

SHAPES = ((512, 384, 1536), (512, 1536, 384), (384, 512, 1152), (512, 768, 3072), (512, 3072, 768))
_TRIES = 9


def splitting() -> list[dict[str, Any]]:
    """Returns how long split products in float64 take over whole ones, by policy; the least of several, in turn."""
    found = []
    for rows, count, columns in SHAPES:
        a, b = torch.randn(rows, count, dtype=torch.float64), torch.randn(count, columns, dtype=torch.float64)
        ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"whole": torch.mm}
        for name, block in BLOCKS.items():
            ways[name] = partial(blocked_products.split, torch.mm, block=blocked_products.length(count, block))
        least = dict.fromkeys(ways, math.inf)
        for _ in range(_TRIES):
            for name, way in ways.items():
                begin = time.thread_time()
                way(a, b)
                least[name] = min(least[name], time.thread_time() - begin)
        milliseconds = {name: round(1e3 * seconds, 2) for name, seconds in least.items()}
        ratios = {name: round(least[name] / least["whole"], 3) for name in BLOCKS}
        found.append({"shape": [rows, count, columns], **milliseconds, "ratios": ratios})
    return found


# --- blocked ----------------------------------------------------------------------------------------------------------

_ROUNDS = 3
_STEPS = 3


def timed(policy: str, path: Path) -> tuple[float, dict[str, int]]:
    """Records steps of GPT-2 11 M; returns the least seconds of one after the first, and entries and bytes a step."""
    torch.manual_seed(SEED)
    made = models.named("gpt2-11m")()
    seconds = []
    with Recorder(path, seed=SEED, checkpoint_every=_STEPS + 1, policy=policy) as recorder:
        recorder.attach(*made.attached)
        for number in range(_STEPS):
            batch = made.batch(number)
            begin = time.process_time()
            with recorder.step(batch):
                made.update(batch)
            seconds.append(time.process_time() - begin)
    transcript = Transcript.open(path)
    steps = [record.step for record in transcript.records() if record.kind != "init"]
    return min(seconds[1:]), {
        "rounded": sum(transcript.step(step).rounded for step in steps) // len(steps),
        "entries": sum(transcript.step(step).logged for step in steps) // len(steps),
        "bytes": sum(len(transcript.rounding(step)) for step in steps) // len(steps),
    }


def blocked() -> dict[str, Any]:
    """Returns what steps log under each policy, and the least processor time of a step, all policies in turn."""
    least: dict[str, float] = dict.fromkeys(("strict", *BLOCKS), math.inf)
    counts: dict[str, dict[str, int]] = {}
    for _ in range(_ROUNDS):
        for policy in least:
            with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
                seconds, counts[policy] = timed(policy, Path(directory) / "run")
            least[policy] = min(least[policy], seconds)
            print(policy, seconds, counts[policy], flush=True)
    return {policy: {**counts[policy], "seconds": round(least[policy], 3)} for policy in least}


def main() -> None:
    """Measures, and writes the results."""
    parts: dict[str, Callable[[], Any]] = {
        "margins": margins, "steps": lambda: step_of("gpt2-124m"), "growth": growth, "split": splitting,
        "blocked": blocked,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=parts, default=list(parts), help="measure these parts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for part in options.only:
        measured = {"machine": machine.about(), "found": parts[part]()}
        machine.save("bounds", {**(machine.load("bounds") or {}), part: measured})


if __name__ == "__main__":
    main()
