"""What straight-line programs save a replay: the same steps in one process, as programs and operation by operation.

`python -m benchmarks.bench_programs [--rounds N] [--only NAME ...]`. Each model has a process of its own with one
thread. It records the steps with logs of either kind, then replays them with two Executors that take turns, one that
may use programs and one that may not; both must arrive at the recorded state of every step, with the same counts. A
step's time is the processor time of the process, all its threads together: recording with all that the Recorder does
beside, replaying with reading of log and batch and the digest of the state. The first steps, which compile kernels, are
not counted. Ratios are of medians, and of minima. Results go to benchmarks/results/programs.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_steps import FULL, FULL_ROUNDS, SEED, build
from benchmarks.stepping import Times, ratio, summary
from prover import Recorder
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.executor import Executor
from weighbridge.execution.workers import serving
from weighbridge.numerics.conformance import bound_policy
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

NAMES = (
    "gpt2", "resnet", "llama", "lstm", "perceptron", "gpt2-11m", "resnet50", "gpt2-124m", "gpt2, bf16 autocast",
    "gpt2-11m, bf16 autocast", "gpt2-11m, bf16",
)  # fmt: skip
RATIOS = (("one_by_one", "recorded"), ("program", "recorded"), ("program", "one_by_one"))
KINDS: tuple[LogKind, ...] = ("full", "on-demand")
WARM = 4


def recorded(name: str, path: Path, logs: LogKind, steps: int) -> list[float]:
    """Records; returns the processor time of each step in milliseconds."""
    times = []
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20, logs=logs, device="cpu") as recorder:
        with recorder.initialisation():
            made = build(name)
        recorder.attach(*made.attached)
        begin = time.process_time()
        for number in range(steps):
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)
            begin, last = time.process_time(), begin
            times.append(1e3 * (begin - last))
    return times


class Replayed:
    """A replay of a transcript, step by step."""

    def __init__(self, transcript: Transcript, *, programs: bool) -> None:
        self._transcript, self._tapes = transcript, dict[bytes, Tape]()
        policy = bound_policy.declared(transcript.draft)
        self.executor = Executor("cpu", SEED, 64 << 30, policy)
        self.executor.programs = programs

    def step(self, number: int) -> tuple[float, tuple[int, ...]]:
        """Replays a step; returns its processor time in milliseconds, and what was counted."""
        transcript = self._transcript
        begin = time.process_time()
        record = transcript.step(number)
        if record.tape not in self._tapes:
            self._tapes[record.tape] = Tape.decode(transcript.tape(record.tape))
        context = self.executor.run(
            self._tapes[record.tape], record.tape, record, transcript.log(number), transcript.batch(number),
            transcript.undeclared(number),
        )  # fmt: skip
        same = self.executor.state_digest() == record.state
        taken = 1e3 * (time.process_time() - begin)
        if not same:
            raise SystemExit(f"step {number} came to another state")
        return taken, (context.followed, context.rounded_elements, context.checked, context.hosts)

    def covered(self) -> dict[str, int]:
        """Of the program with the most operations: how many there are, and how many of them are done in which way."""
        made = [each for each in self.executor.made.values() if each is not None]
        largest = max(made, key=lambda each: each.operations)
        return {"operations": largest.operations, "listed": largest.listed, "widened": largest.widened}


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Measures one model."""
    serving.prepare("cpu")
    found: dict[str, Any] = {"rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        for logs in KINDS:
            path = Path(directory) / logs
            with torch.enable_grad():
                recording = recorded(name, path, logs, WARM + rounds)
            transcript = Transcript.open(path)
            ways = Replayed(transcript, programs=True), Replayed(transcript, programs=False)
            times: tuple[list[float], list[float]] = ([], [])
            for number in range(transcript.steps):
                counts = []
                for way, taken in zip(ways, times, strict=True):
                    spent, counted = way.step(number)
                    taken.append(spent)
                    counts.append(counted)
                if counts[0] != counts[1]:
                    raise SystemExit(f"step {number} has other counts as a program")
            ways_taken: Times = {
                "recorded": recording[WARM:],
                **{way: taken[WARM + 1 :] for way, taken in zip(("program", "one_by_one"), times, strict=True)},
            }
            found[logs] = {
                **{way: summary(taken) for way, taken in ways_taken.items()},
                "ratios": {f"{way} / {base}": ratio(ways_taken, way, base) for way, base in RATIOS},
                **ways[0].covered(),
            }
    return found


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.child:
        torch.manual_seed(SEED)
        keep_freed()
        print(json.dumps(measured(options.child, options.rounds)))
        return
    models: dict[str, Any] = {}
    for name in options.only or NAMES:
        rounds = min(options.rounds, FULL_ROUNDS) if name in FULL else options.rounds
        given = ("--rounds", str(rounds), "--child", name)
        models[name] = machine.ask("benchmarks.bench_programs", *given, environment=machine.HERE)
        print(f"{name}: {json.dumps(models[name])}", flush=True)
    about = {**machine.about(), "seed": SEED}
    known = machine.load("programs") or {}
    if options.only and all(known.get(key) == value for key, value in about.items() if key != "date"):
        models = known["models"] | models
    machine.save("programs", {**about, "models": models})


if __name__ == "__main__":
    main()
