"""Where the time of a step goes: processor time of the process, all its threads counted, part by part.

`python -m benchmarks.bench_parts [--rounds N] [--only NAME ...]` takes each model three ways, in processes of their own
with one thread: *recorded* operation by operation with full logs, *compiled* with logs on demand, and *replayed* from
the latter. It times what we do by ourselves, each part without the parts within it. The clocks cost a few microseconds
for each operation, which count as the part that calls. Beside the parts:

- *the limit of the machine* (`benchmarks.physical_limit`), measured in the same process before the steps.

Beside those of *recorded*:

- *a digest of the state* and *a mark of the state*: BLAKE3 and XXH3 over all storages. A step hashed its state twice
  by BLAKE3 before there were marks, and now once, and marks it twice.
- *a checkpoint*: how long it holds up the program (a copy of the state), and how long it takes with what is written
  beside the program, for which the program waited before.

Medians over rounds. Results go to benchmarks/results/parts.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from benchmarks import bench_programs, bench_steps, machine, physical_limit
from prover import Recorder
from prover.capture import step_capture
from prover.capture.recording_context import Recording
from prover.capture.step_capture import Capture
from prover.capture.without_modes import storage_bytes
from prover.recording import change_guard, memory_marks, recorder
from prover.recording.next_call import NextCall
from prover.recording.state_tracker import StateTracker
from prover.recording.step_runner import StepRunner
from prover.recording.tape_store import TapeStore
from weighbridge.core.digests import bytes_digest
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.executor import Executor
from weighbridge.execution.straight_line.general import General
from weighbridge.execution.straight_line.rounded import Rounded
from weighbridge.execution.straight_line.sequence import Sequence
from weighbridge.execution.workers import serving
from weighbridge.numerics.rounding.outputs_digest import OutputsDigest
from weighbridge.numerics.rounding.rounding_log import LogWriter
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import TranscriptWriter

NAMES = (
    "gpt2", "gpt2-11m", "resnet", "lstm", "gpt2-124m", "resnet50", "gpt2-11m, bf16 autocast", "gpt2-11m, bf16",
)  # fmt: skip
WARM = {"recorded": 3, "compiled": 7, "replayed": 3}
REST = {
    "recorded": "the program, autograd and PyTorch's dispatcher",
    "compiled": "between the operations",
    "replayed": "between the operations",
}

_PROGRAM: tuple[tuple[Any, str, str], ...] = (
    (Sequence, "__call__", "operations in lists: kernels and checksums"),
    (Rounded, "__call__", "operations rounded at once: kernels on wide operands, casts and checksums"),
    (General, "__call__", "other operations, by their rules"),
    (OutputsDigest, "add", "digest of the outputs"),
)
_RECORDED: tuple[tuple[Any, str, str], ...] = (
    (Recording, "rounded", "rounding: contested elements, log entries, checksums"),
    (Recording, "exact", "exact results: the canonical NaN, checksums"),
    (step_capture, "evaluate", "kernels on wide operands, casts, bounds"),
    (Capture, "__torch_dispatch__", "operands and nodes of the tape"),
    (StepRunner, "collect", "garbage collection before the step"),
    (StateTracker, "changed", "mark of the state before the step"),
    (StateTracker, "hash", "digest and mark of the state after it"),
    (StateTracker, "name_survivors", "names of what survives"),
    (change_guard, "by_operations", "comparison of marks with the tape"),
    (change_guard, "while_running", "comparison of the batch"),
    (recorder, "host_copies", "copy of the batch"),
    (TapeStore, "put", "comparison of the tape with the last ones"),
    (LogWriter, "finish", "encoding of the log"),
    (TranscriptWriter, "append_step", "the step's record and file"),
)
PARTS = {
    "recorded": _RECORDED,
    "compiled": (*_PROGRAM, (NextCall, "begin", "look at Python and the batch before it"), *_RECORDED[4:]),
    "replayed": (
        *_PROGRAM,
        (Executor, "state_digest", "digest of the state"),
        *((Transcript, each, "reading of record, log and batch") for each in ("step", "log", "batch", "undeclared")),
    ),
}


class Clock:
    """Processor time by part; time within an inner part counts for that part only."""

    def __init__(self, way: str) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open = [REST[way]]
        self._since = time.process_time()
        for owner, attribute, part in PARTS[way]:
            setattr(owner, attribute, self.timed(getattr(owner, attribute), part))

    def switch(self) -> None:
        """Counts the time since the last change for the part in progress."""
        now = time.process_time()
        self.spent[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Returns a function that does the same and is timed as a part."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            self._open.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self._open.pop()

        return run


def recorded(name: str, rounds: int) -> dict[str, Any]:
    """Records one model and returns milliseconds for each part of a step, and of what stands beside."""
    clock = Clock("recorded")
    parts: list[dict[str, float]] = []
    walls: list[float] = []
    digests: list[float] = []
    marks: list[float] = []
    held: list[float] = []
    whole: list[float] = []
    processors: list[float] = []
    keep: Callable[..., None] = TranscriptWriter.checkpoint
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-parts-") as directory,
        Recorder(Path(directory) / "run", seed=1, checkpoint_every=1 << 20) as recording,
    ):
        with recording.initialisation():
            made = bench_steps.build(name)
        recording.attach(*made.attached)
        warm = WARM["recorded"]
        for number in range(warm + rounds):
            batch = made.batch(number)
            clock.switch()
            clock.spent.clear()
            begin = time.perf_counter()
            with recording.step(batch):
                made.update(batch)
            clock.switch()
            if number >= warm:
                walls.append(time.perf_counter() - begin)
                parts.append(dict(clock.spent))
                digests.append(_over_state(recording, bytes_digest))
                marks.append(_over_state(recording, memory_marks.mark))
        for _ in range(1 if rounds < 2 else 2):
            with recording.edit():
                torch.zeros(1)
            begin, spent = time.perf_counter(), time.process_time()
            keep(recording._out, recording._steps.state.checkpoint(recording.step_number, recording._attached))
            held.append(time.perf_counter() - begin)
            recording._out.settle()
            whole.append(time.perf_counter() - begin)
            processors.append(time.process_time() - spent)
        state = sum(size for size, _ in recording._steps.state.digests.values())
    return {
        **_found("recorded", parts),
        "state_megabytes": round(state / 1e6, 1),
        "step_wall_ms": _ms(walls),
        "digest_of_state_cpu_ms": _ms(digests),
        "mark_of_state_cpu_ms": _ms(marks),
        "checkpoint_holds_up_ms": _ms(held),
        "checkpoint_takes_ms": _ms(whole),
        "checkpoint_cpu_ms": _ms(processors),
    }


def _found(way: str, parts: list[dict[str, float]]) -> dict[str, Any]:
    names = dict.fromkeys([*(part for _, _, part in PARTS[way]), REST[way]])
    return {
        "rounds": len(parts),
        "step_cpu_ms": _ms([sum(each.values()) for each in parts]),
        "parts_cpu_ms": {part: _ms([each.get(part, 0.0) for each in parts]) for part in names},
    }


def compiled(name: str, rounds: int) -> dict[str, Any]:
    """Records one model with logs on demand, each step as a program, and returns milliseconds for each part."""
    clock = Clock("compiled")
    parts: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-parts-") as directory,
        Recorder(Path(directory) / "run", seed=1, checkpoint_every=1 << 20, logs="on-demand") as recording,
    ):
        with recording.initialisation():
            made = bench_steps.build(name)
        recording.attach(*made.attached)
        call = recording.compile(made.update)
        for number in range(WARM["compiled"] + rounds):
            batch = made.batch(number)
            clock.switch()
            clock.spent.clear()
            call(batch)
            clock.switch()
            if number >= WARM["compiled"]:
                if call.reason:
                    raise SystemExit(f"step {number} did not run as a program: {call.reason}")
                parts.append(dict(clock.spent))
    return _found("compiled", parts)


def replayed(name: str, rounds: int) -> dict[str, Any]:
    """Records one model with logs on demand, replays it as programs, and returns milliseconds for each part."""
    serving.prepare("cpu")
    rates = physical_limit.measured()
    parts: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="weighbridge-parts-") as directory:
        path = Path(directory) / "run"
        with torch.enable_grad():
            bench_programs.recorded(name, path, "on-demand", WARM["replayed"] + rounds)
        transcript = Transcript.open(path)
        again = bench_programs.Replayed(transcript, programs=True)
        clock = Clock("replayed")
        for number in range(transcript.steps):
            clock.switch()
            clock.spent.clear()
            again.step(number)
            clock.switch()
            if number > WARM["replayed"]:
                parts.append(dict(clock.spent))
        tape = Tape.decode(transcript.tape(transcript.step(transcript.steps - 1).tape))
    limit = physical_limit.of_tape(tape, rates)
    return {
        **_found("replayed", parts),
        "limit": {
            "gflop": round(limit.flops / 1e9, 3),
            "megabytes": round(limit.bytes / 1e6, 1),
            "ms": round(1e3 * limit.seconds, 2),
            "gflop_per_s": round(rates.products / 1e9, 1),
            "gigabytes_per_s": {str(size): round(rate / 1e9, 1) for size, rate in rates.copies.items()},
        },
    }


def _over_state(recording: Recorder, look: Callable[[memoryview], bytes]) -> float:
    """Returns the processor seconds that looking at all of the state takes."""
    state = recording._steps.state
    begin = time.process_time()
    for address in state.names:
        look(storage_bytes(state._storage(address)).data)
    return time.process_time() - begin


def _ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=list(WARM), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.child:
        torch.manual_seed(1)
        keep_freed()
        ways = {"recorded": recorded, "compiled": compiled, "replayed": replayed}
        print(json.dumps(ways[options.way](options.child, options.rounds)))
        return
    about = machine.about()
    known = machine.load("parts") or {}
    same = all(known.get(key) == value for key, value in about.items() if key != "date")
    models = dict(known["models"]) if same and options.only else {}
    for name in options.only or NAMES:
        given = ("--child", name, "--rounds", str(options.rounds))
        models[name] = {
            way: machine.ask("benchmarks.bench_parts", "--way", way, *given, environment=machine.HERE) for way in WARM
        }
        print(f"{name}: {json.dumps(models[name])}", flush=True)
        machine.save("parts", {**about, "models": models})


if __name__ == "__main__":
    main()
