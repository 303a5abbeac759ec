"""Kills trainings at every kind of moment, starts them again, and compares the result with an undisturbed run.

`python -m benchmarks.soak_resume [--kills N] [--seed N] [--width N]` runs `benchmarks.resume_job` in processes of its
own. Half of the kills come before a given change of a file (in the middle of a write, a segment, a checkpoint, the
closing), half after a random time (in the middle of anything). Some starts after a kill are killed again. Each
transcript must have the same head, the same files bit for bit (but for `resumptions.cbor`), and the same state as the
run that was not killed; every tenth is replayed too. Results go to benchmarks/results/resume.json; of another width
than 16, where large files are written beside the training, to benchmarks/results/resume-wide.json.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from weighbridge.execution.replay import replay
from weighbridge.transcript.reader import Transcript

JOB = "benchmarks.resume_job"


@dataclass(frozen=True)
class Kill:
    """When to kill a process.

    Attributes:
        change: Before so many-th change of a file; 0 for none.
        seconds: After so long; None for never.
    """

    change: int = 0
    seconds: float | None = None


def run(path: Path, kill: Kill = Kill(), width: int = 16) -> tuple[int, float] | None:
    """Trains in a process of its own; returns the changes of files that it made and seconds, or None if it was killed.

    Raises:
        RuntimeError: The program failed by itself.
    """
    process = machine.start(
        JOB,
        str(path),
        str(kill.change),
        str(width),
        environment=machine.HERE,
        stderr=subprocess.PIPE,
        errors="replace",
    )
    assert process.stdout is not None
    process.stdout.readline()  # "ready": everything is imported
    begin = time.perf_counter()
    if kill.seconds is not None:
        try:
            process.wait(kill.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    out, errors = process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    if process.returncode:
        raise RuntimeError(f"the program failed: {errors.strip().splitlines()[-1]}")
    return int(out), time.perf_counter() - begin


def same(path: Path, reference: Transcript) -> bool:
    """Tells whether a transcript is the reference, bit for bit, but for what it says of resumptions."""
    found = Transcript.open(path)
    files = [file for file in found.manifest.files if file[0] != "resumptions.cbor"]
    whole = found.manifest.complete and found.manifest.head == reference.manifest.head
    return whole and files == [file for file in reference.manifest.files if file[0] != "resumptions.cbor"]


def until_done(path: Path, kills: list[Kill], width: int = 16) -> int:
    """Starts a program until it ends, killing each start by the next of `kills`; returns how many were killed."""
    killed = 0
    for kill in [*kills, Kill()]:
        if (path / "manifest.json").exists():
            break  # the kill came after the end
        killed += run(path, kill, width) is None
    return killed


def main() -> int:
    """Runs the soak; returns 1 if a transcript differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="how many first kills")
    parser.add_argument("--seed", type=int, default=1, help="chooses the moments")
    parser.add_argument("--width", type=int, default=16, help="of the trained layer; see benchmarks.resume_job")
    options = parser.parse_args()
    choose = random.Random(options.seed)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weighbridge-resume-") as directory:
        base = Path(directory)
        whole = run(base / "whole" / "run", width=options.width)
        assert whole is not None, "it was not killed"
        changes, seconds = whole
        reference = Transcript.open(base / "whole" / "run")
        state = reference.step(reference.steps - 1).state.hex()
        at = choose.sample(range(1, changes + 1), min(options.kills // 2, changes))
        first = [Kill(change=n) for n in at]
        first += [Kill(seconds=choose.uniform(0.0, seconds)) for _ in range(options.kills - len(at))]
        different: list[dict[str, Any]] = []
        killed = resumed = replayed = 0
        for number, kill in enumerate(first):
            path = base / str(number) / "run"  # the directory's name is in the draft
            again = [Kill(seconds=choose.uniform(0.0, seconds / 2))] if choose.random() < 0.3 else []
            killed += until_done(path, [kill, *again], options.width)
            ok = same(path, reference)
            resumed += bool(Transcript.open(path).resumptions)
            if number % 10 == 0:
                result = replay(path)
                replayed += 1
                ok = ok and result.verdict == "match" and result.state == state
            if not ok:
                different.append({"change": kill.change, "seconds": kill.seconds})
        result_file = {
            **machine.about(), "seed": options.seed, "programs": len(first), "killed": killed, "resumed": resumed,
            "before_changes_of_files": sorted(at), "changes_of_files": changes, "replayed": replayed,
            "different": different, "head": reference.manifest.head, "state": state,
            "seconds": round(time.perf_counter() - begin, 1),
        }  # fmt: skip
    if options.width == 16:
        machine.save("resume", result_file)
    else:
        machine.save("resume-wide", {**result_file, "width": options.width})
    print(f"{killed} kills in {len(first)} programs, {resumed} resumed, {len(different)} different", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
