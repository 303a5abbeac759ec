"""What honest trainings bring in through each channel of the ledger of chosen bits, and what counting costs a replay.

`python -m benchmarks.bench_chosen_bits [--steps 20] [--no-zoo]` records the models of `benchmarks.models` and replays
them, and runs the tests of the zoo with recordings that are counted instead of replayed. The budgets of
`weighbridge.program.tape_policy` are four times the maxima found here. Written to benchmarks/results/chosen_bits.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, zoo_recordings
from benchmarks.models import MODELS, named
from prover import Recorder
from weighbridge.execution.workers import replay_worker
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.program import chosen_counts
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.origins import analyse
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

SUBJECTS = (*MODELS, "lstm", "mlp-2m", "gpt2-2m")


def counted(path: Path) -> dict[str, Any]:
    """Counts a transcript without replaying it: by channel bits, steps, and how large its programs and state are."""
    transcript, known, ledger = Transcript.open(path), dict[bytes, Tape](), ChosenBits()

    def tape(digest: bytes) -> Tape:
        if digest not in known:
            known[digest] = Tape.decode(transcript.tape(digest))
        return known[digest]

    chosen_counts.count(transcript, tape, analyse(transcript, tape), ledger)
    last = transcript.checkpoint_steps[-1] if transcript.checkpoint_steps else None
    state = 0 if last is None else 8 * sum(each.numel() for each in transcript.checkpoint(last).storages.values())
    return {
        "steps": transcript.steps, "tapes": len(known), "operations": sum(len(each.nodes) for each in known.values()),
        "state_bits": state, "bits": {name: round(entry["bits"], 1) for name, entry in ledger.to_json().items()},
    }  # fmt: skip


@contextmanager
def clocked() -> Iterator[list[float]]:
    """Notes the processor seconds that replays take to examine programs: data flow, origins and ledger."""
    seconds: list[float] = []
    examine = Replay._examine

    def timed(self: Replay) -> None:
        begun = time.process_time()
        examine(self)
        seconds.append(time.process_time() - begun)

    replay_worker.Replay._examine = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        replay_worker.Replay._examine = examine  # type: ignore[method-assign]


def model(name: str, path: Path, steps: int) -> dict[str, Any]:
    """Records and replays one model."""
    with Recorder(path, seed=7, checkpoint_every=steps) as recorder:
        with recorder.initialisation():
            made = named(name)()
        recorder.attach(*made.attached)
        for index in range(steps):
            batch = made.batch(index)
            with recorder.step(batch):
                made.update(batch)
    request = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 4 << 30,
        "seconds": 3600,
    }  # fmt: skip
    with clocked() as examined, torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        begun = time.process_time()
        found = Replay(request, [], lambda message: None).run()
        whole = time.process_time() - begun
    if found["verdict"] != "match":
        raise SystemExit(f"{name}: {found['verdict']}: {found['first_difference']}")
    return counted(path) | {"replay_seconds": round(whole, 3), "examined_seconds": round(sum(examined), 3)}


def main() -> None:
    """Counts, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", nargs="*", default=SUBJECTS)
    parser.add_argument("--no-zoo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = machine.about() | {"models": {}, "zoo": {}}
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as scratch:
            result["models"][name] = model(name, Path(scratch) / "run", arguments.steps)
        print(name, result["models"][name], flush=True)
    if not arguments.no_zoo:
        result["zoo"] = zoo_recordings.measured(counted)
    machine.save("chosen_bits", result)


if __name__ == "__main__":
    main()
