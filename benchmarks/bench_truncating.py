"""What it costs to follow and to judge a truncating unit: the policies `unit-a100` and `unit-h100`.

`python -m benchmarks.bench_truncating [--rounds N] [--only NAME ...]` measures three things:

- *products*: processor time of one multiplication and addition, operands in bfloat16: the compiled models of both
  units, the sums and bounds of a replayer, and PyTorch's float64; least of the rounds.
- *elements*: single elements that a model judges in a second of processor time, by the number of their terms.
- *steps*: a step under autocast in bfloat16, recorded with a model in the device's place and replayed without: entries
  and bytes of the log, flips, elements that could flip, flips that are expected, processor time of the replay with and
  without judging, beside one under `mixed`. And the *power* of a sample: with which probability a Prover is seen who
  suppresses 32 flips drawn at random, if so many elements are judged, by their probability to flip.

Results go to benchmarks/results/truncating.json; models that were not run keep their last ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_steps import SEED, build
from prover import Recorder
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.unit_adjudication import TERMS, Adjudication, Drawn
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.numerics.units import injection, truncated_products, unit_bounds
from weighbridge.transcript.reader import Transcript

NAMES = ("gpt2, bf16 autocast", "gpt2-11m, bf16 autocast")
UNITS = truncated_products.UNITS
SHAPES = ((512, 384, 1536), (512, 1536, 384), (1024, 1024, 1024), (64, 4096, 64))
"""(M, K, N), as of `bench_unit_products`."""
LENGTHS = (64, 256, 1024, 4096)
ELEMENTS = 1 << 14
SUPPRESSED = 32
SAMPLES = (1_000, 3_000, 10_000, 30_000, 100_000)
Tensor = torch.Tensor


def _seconds(way: Callable[[], object]) -> float:
    started = time.process_time()
    way()
    return time.process_time() - started


def product_times(rounds: int) -> list[dict[str, Any]]:
    """Measures products alone."""
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        **{unit: lambda a, b, unit=unit: truncated_products.product(a, b, unit) for unit in UNITS},  # type: ignore[misc]
        "replayer": unit_bounds.of_unit("h100").of,
        "float64": lambda a, b: a.double() @ b.double(),
    }
    found = []
    for m, k, n in SHAPES:
        a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
        taken = {name: min(_seconds(lambda: way(a, b)) for _ in range(rounds)) for name, way in ways.items()}  # noqa: B023
        found.append({"shape": [m, k, n], **{name: 1e9 * each / (m * k * n) for name, each in taken.items()}})
        print(json.dumps(found[-1]), flush=True)
    return found


def element_rates(rounds: int) -> list[dict[str, Any]]:
    """Measures how fast single elements are judged."""
    found = []
    for k in LENGTHS:
        a, b = (torch.randn(ELEMENTS, k).bfloat16() for _ in range(2))
        taken = {u: min(_seconds(lambda: truncated_products.dots(a, b, u)) for _ in range(rounds)) for u in UNITS}  # noqa: B023
        found.append({"terms": k, **{unit: ELEMENTS / each for unit, each in taken.items()}})
        print(json.dumps(found[-1]), flush=True)
    return found


class Noting(Adjudication):
    """Keeps what it looked at: how probable flips were, and which there were."""

    def __init__(self) -> None:
        super().__init__(budget=1 << 62)
        self.drawn: list[Drawn] = []

    def note(self, drawn: Drawn) -> None:
        """See `Adjudication.note`."""
        self.drawn.append(drawn)


def record(name: str, path: Path, policy: str) -> dict[str, int]:
    """Records the initialisation and one step."""
    unit = policy.removeprefix("unit-")
    here: Any = injection.injected(unit) if unit in UNITS else nullcontext()
    with here, Recorder(path, seed=SEED, policy=policy) as recorder:
        with recorder.initialisation():
            made = build(name)
        recorder.attach(*made.attached)
        batch = made.batch(0)
        with recorder.step(batch):
            made.update(batch)
    transcript = Transcript.open(path)
    return {"logged": transcript.step(1).logged, "log_bytes": len(transcript.rounding(1) or b"")}


def replayed(path: Path, adjudication: Adjudication | None = None, **tapes: Any) -> tuple[dict[str, Any], float]:
    """Replays in this process; returns what was found and the processor's seconds."""
    request = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 8 << 30,
        "tapes": tapes,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        made = Replay(request, [], lambda message: None)
        if adjudication is not None:
            made.judge_with(adjudication)
        found: dict[str, Any] = {}
        taken = _seconds(lambda: found.update(made.run()))
    if found["verdict"] != "match":
        raise SystemExit(f"{path}: {found['verdict']} {found['first_difference']}")
    return found, taken


def power(drawn: list[Drawn], samples: int) -> float:
    """Returns the probability that a sample has at least one of the suppressed flips.

    Elements are drawn without replacement with these weights; each is in the sample with probability 1 - exp(-t w),
    where t is such that these add up to the sample (successive sampling, Rosén 1972).
    """
    weights = torch.cat([each.weights for each in drawn]).double()
    flips = torch.cat([each.flips for each in drawn])
    if samples >= len(weights):
        return 1.0
    low, high = 0.0, 1.0
    while float((1 - torch.exp(-high * weights)).sum()) < samples:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        few = float((1 - torch.exp(-middle * weights)).sum()) < samples
        low, high = (middle, high) if few else (low, middle)
    return 1 - float(torch.exp(-low * weights[flips]).mean()) ** SUPPRESSED


def measured(name: str) -> dict[str, Any]:
    """Measures one model under each unit, and under `mixed`."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        for policy in ("mixed", *(f"unit-{unit}" for unit in UNITS)):
            path = Path(directory) / policy
            each: dict[str, Any] = record(name, path, policy)
            whole, taken = replayed(path)
            each |= {"rounded": whole["rounded"], "calibrated": whole["calibrated"], "replay_s": taken}
            if policy != "mixed":
                noting = Noting()
                unit, _ = replayed(path, noting)
                _, plain = replayed(path, unit_terms=0)
                could = sum(len(d.weights) for d in noting.drawn)
                each |= {
                    "unit": whole["unit"], "all": unit["unit"], "replay_unjudged_s": plain, "could": could,
                    "power": {str(n): power(noting.drawn, n) for n in SAMPLES if n < could},
                }  # fmt: skip
            found[policy] = each
            print(f"{name}, {policy}: {json.dumps(each)}", flush=True)
    return found


def main() -> None:
    """Measures products, elements and every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    keep_freed()
    kept = (machine.load("truncating") or {}).get("models", {})
    found: dict[str, Any] = {
        **machine.about(), "seed": SEED, "terms": TERMS, "suppressed": SUPPRESSED,
        "products": product_times(options.rounds), "elements": element_rates(options.rounds),
    }  # fmt: skip
    for name in options.only or NAMES:
        kept[name] = measured(name)
        machine.save("truncating", {**found, "models": {each: kept[each] for each in NAMES if each in kept}})


if __name__ == "__main__":
    main()
