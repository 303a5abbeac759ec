"""Kills trainings at every kind of moment, starts them again, and compares the result with an undisturbed run.

`python -m benchmarks.soak_resume [--kills N] [--seed N] [--width N] [--beside NAME]` runs `benchmarks.resume_job` in
processes of its own, which take turns in the kind of rounding logs and in whether steps are compiled. Half of the kills
come before a given change of a file (in the middle of a write, a segment, a checkpoint, the closing), half after a
random time (in the middle of anything). Some starts after a kill are killed again. Each transcript must have the same
head, the same files bit for bit (but for `resumptions.cbor`), and the same state as the run of its way that was not
killed; the first and every tenth of each way is replayed too. Results go to benchmarks/results/resume.json; of another
width than 16, where large files are written beside the training, to benchmarks/results/resume-wide.json; with
`--beside NAME` to a place of their own in it.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from weighbridge.execution.replay import replay
from weighbridge.transcript.log_kinds import KINDS
from weighbridge.transcript.reader import Transcript

JOB = "benchmarks.resume_job"


@dataclass(frozen=True)
class Way:
    """How a job is recorded.

    Attributes:
        logs: The kind of its rounding logs.
        compiled: Whether steps are programs once they are known.
        width: Of the trained layer.
    """

    logs: str = "full"
    compiled: bool = False
    width: int = 16

    def __str__(self) -> str:
        return f"{self.logs}, {'compiled' if self.compiled else 'one by one'}"


@dataclass(frozen=True)
class Kill:
    """When to kill a process.

    Attributes:
        change: Before so many-th change of a file; 0 for none.
        seconds: After so long; None for never.
    """

    change: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class Ended:
    """What a job that was not killed says.

    Attributes:
        changes: Changes of files.
        programs: Steps that ran as programs.
        seconds: What it took.
    """

    changes: int
    programs: int
    seconds: float


def ways(width: int) -> list[Way]:
    """Returns all ways of a width, in the order in which programs take turns."""
    return [Way(logs, compiled, width) for compiled in (False, True) for logs in KINDS]


def run(path: Path, kill: Kill = Kill(), way: Way = Way()) -> Ended | None:
    """Trains in a process of its own; returns what it says, or None if it was killed.

    Raises:
        RuntimeError: The program failed by itself.
    """
    process = machine.start(
        JOB, str(path), str(kill.change), str(way.width), way.logs, "compiled" if way.compiled else "one-by-one",
        environment=machine.HERE, stderr=subprocess.PIPE, errors="replace",
    )  # fmt: skip
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
    changes, programs = map(int, out.split())
    return Ended(changes, programs, time.perf_counter() - begin)


def same(path: Path, reference: Transcript) -> bool:
    """Tells whether a transcript is the reference, bit for bit, but for what it says of resumptions."""
    found = Transcript.open(path)
    files = [file for file in found.manifest.files if file[0] != "resumptions.cbor"]
    whole = found.manifest.complete and found.manifest.head == reference.manifest.head
    return whole and files == [file for file in reference.manifest.files if file[0] != "resumptions.cbor"]


def until_done(path: Path, kills: list[Kill], way: Way = Way()) -> int:
    """Starts a program until it ends, killing each start by the next of `kills`; returns how many were killed."""
    killed = 0
    for kill in [*kills, Kill()]:
        if (path / "manifest.json").exists():
            break  # the kill came after the end
        killed += run(path, kill, way) is None
    return killed


class Undisturbed:
    """The run of a way that is not killed, and what came of those that were."""

    def __init__(self, base: Path, way: Way) -> None:
        """Makes the run, in the directory `base`."""
        self._base, self._way = base, way
        path = base / "whole" / "run"
        ended = run(path, way=way)
        assert ended is not None, "it was not killed"
        self.ended, self._reference = ended, Transcript.open(path)
        self._state = self._reference.step(self._reference.steps - 1).state.hex()
        self.before: list[int] = []
        self.programs = self.killed = self.resumed = self.replayed = 0
        self.different: list[dict[str, Any]] = []

    def kill(self, choose: random.Random) -> None:
        """Kills another run, in turn before a change of a file and after some time, and compares it."""
        seconds = self.ended.seconds
        if self.programs % 2 == 0:
            kill = Kill(change=choose.randint(1, self.ended.changes))
            self.before.append(kill.change)
        else:
            kill = Kill(seconds=choose.uniform(0.0, seconds))
        again = [Kill(seconds=choose.uniform(0.0, seconds / 2))] if choose.random() < 0.3 else []
        path = self._base / str(self.programs) / "run"  # the directory's name is in the draft
        self.killed += until_done(path, [kill, *again], self._way)
        ok = same(path, self._reference)
        self.resumed += bool(Transcript.open(path).resumptions)
        if self.programs % 10 == 0:
            result = replay(path)
            self.replayed += 1
            ok = ok and result.verdict == "match" and result.state == self._state
        if not ok:
            self.different.append({"change": kill.change, "seconds": kill.seconds})
        self.programs += 1

    def to_json(self) -> dict[str, Any]:
        """Returns plain data."""
        return {
            "programs": self.programs, "killed": self.killed, "resumed": self.resumed, "replayed": self.replayed,
            "different": self.different, "before_changes_of_files": sorted(self.before),
            "changes_of_files": self.ended.changes, "steps_as_programs": self.ended.programs,
            "head": self._reference.manifest.head, "state": self._state,
        }  # fmt: skip


def soak(base: Path, kills: int, seed: int, chosen: Sequence[Way]) -> Iterator[dict[str, dict[str, Any]]]:
    """Kills so many programs, in turn of each way; yields after each what came of all of them, by way."""
    choose = random.Random(seed)
    undisturbed: dict[Way, Undisturbed] = {}
    for number in range(kills):
        way = chosen[number % len(chosen)]
        if way not in undisturbed:
            undisturbed[way] = Undisturbed(base / str(len(undisturbed)), way)
        undisturbed[way].kill(choose)
        yield {str(way): each.to_json() for way, each in undisturbed.items()}


def main() -> int:
    """Runs the soak; returns 1 if a transcript differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="how many first kills")
    parser.add_argument("--seed", type=int, default=1, help="chooses the moments")
    parser.add_argument("--width", type=int, default=16, help="of the trained layer; see benchmarks.resume_job")
    parser.add_argument("--beside", default="", help="keep the result under this name, beside what the file has")
    options = parser.parse_args()
    begin, name, different = time.perf_counter(), "resume" if options.width == 16 else "resume-wide", 0
    with tempfile.TemporaryDirectory(prefix="weighbridge-resume-") as directory:
        for by_way in soak(Path(directory), options.kills, options.seed, ways(options.width)):
            totals = {key: sum(each[key] for each in by_way.values()) for key in ("programs", "killed", "resumed")}
            different = sum(len(each["different"]) for each in by_way.values())
            seconds = round(time.perf_counter() - begin, 1)
            result = {
                **machine.about(), "seed": options.seed, "width": options.width, **totals, "ways": by_way,
                "seconds": seconds,
            }  # fmt: skip
            machine.save(name, result, options.beside)
            print(f"{totals['killed']} kills in {totals['programs']} programs, {different} different", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
