"""Kills trainings at every kind of moment, starts them again, and compares the result with an undisturbed run.

`python -m benchmarks.soak_resume [--kills N] [--seed N] [--width N] [--ranks N] [--beside NAME]` runs
`benchmarks.resume_job` in processes of its own, which take turns in the kind of rounding logs, in whether steps are
compiled, and in whether there is one process or a job of two ranks (`benchmarks.resume_ranks`), of which one is killed
or all. Half of the kills come before a given change of a file (in the middle of a write, a segment, a checkpoint, the
closing), half after a random time (in the middle of anything). Some starts after a kill are killed again. Each
transcript must have the same head, the same files bit for bit (but for `resumptions.cbor`), and the same state as the
run of its way that was not killed; the first and every tenth of each way is replayed too. Results go to
benchmarks/results/resume.json; of another width than 16, where large files are written beside the training, to
benchmarks/results/resume-wide.json; with `--beside NAME` to a place of their own in it.
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
from weighbridge.execution.job_replay import replay_job
from weighbridge.execution.replay import replay
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.log_kinds import KINDS
from weighbridge.transcript.reader import Transcript

JOB, RANK = "benchmarks.resume_job", "benchmarks.resume_ranks"
RANKS = 2
ALL = -1
_GONE_S = 120.0
"""Seconds within which a rank must end when another one was killed."""


@dataclass(frozen=True)
class Way:
    """How a job is recorded.

    Attributes:
        logs: The kind of its rounding logs.
        compiled: Whether steps are programs once they are known.
        width: Of the trained layer.
        ranks: Processes of the job.
        wrapped: Whether gradients are averaged by DDP, of a job on several ranks.
    """

    logs: str = "full"
    compiled: bool = False
    width: int = 16
    ranks: int = 1
    wrapped: bool = False

    def __str__(self) -> str:
        ranks = "" if self.ranks == 1 else f", {self.ranks} ranks{' (DDP)' if self.wrapped else ''}"
        return f"{self.logs}, {'compiled' if self.compiled else 'one by one'}{ranks}"

    def runs(self, path: Path) -> list[Path]:
        """Returns the transcripts of what is recorded at `path`."""
        return [path] if self.ranks == 1 else [path / rank_name(rank) for rank in range(self.ranks)]

    def arguments(self, path: Path, change: int) -> list[str]:
        """Returns what a process of the job is told first."""
        how = "wrapped" if self.wrapped else "compiled" if self.compiled else "one-by-one"
        return [str(path), str(change), str(self.width), self.logs, how]


@dataclass(frozen=True)
class Kill:
    """When to kill a process.

    Attributes:
        change: Before so many-th change of a file; 0 for none.
        seconds: After so long; None for never.
        rank: Which process, if there are several, or `ALL`.
    """

    change: int = 0
    seconds: float | None = None
    rank: int = ALL


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
    every = [Way(logs, compiled, width, ranks) for ranks in (1, RANKS) for compiled in (False, True) for logs in KINDS]
    return [*every, Way(width=width, ranks=RANKS, wrapped=True)]


def run(path: Path, kill: Kill = Kill(), way: Way = Way()) -> Ended | None:
    """Trains in processes of its own; returns what they say, or None if one was killed.

    Raises:
        RuntimeError: The program failed by itself.
    """
    if way.ranks > 1:
        return _run_ranks(path, kill, way)
    process = machine.start(
        JOB, *way.arguments(path, kill.change), environment=machine.HERE, stderr=subprocess.PIPE, errors="replace"
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
    changes, programs = map(int, out.split())
    return Ended(changes, programs, time.perf_counter() - begin)


def _run_ranks(path: Path, kill: Kill, way: Way) -> Ended | None:
    """Trains in a process for each rank; see `run`."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-ranks-") as store:
        processes = [
            machine.start(
                RANK, *way.arguments(path, kill.change if kill.rank in (ALL, rank) else 0), str(rank), str(way.ranks),
                f"{store}/store", environment=machine.HERE, stderr=subprocess.PIPE, errors="replace",
            )
            for rank in range(way.ranks)
        ]  # fmt: skip
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            begin = time.perf_counter()
            if kill.seconds is not None:
                time.sleep(kill.seconds)
                for rank, process in enumerate(processes):
                    if kill.rank in (ALL, rank):
                        process.kill()
            said = [process.communicate(timeout=_GONE_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    codes = [process.returncode for process in processes]
    if -signal.SIGKILL in codes:
        return None
    if any(codes) and all((run / "manifest.json").exists() for run in way.runs(path)):
        return Ended(0, 0, time.perf_counter() - begin)  # it closed what a crash had left open, and had no more to do
    if any(codes):
        rank = next(rank for rank, code in enumerate(codes) if code)
        raise RuntimeError(f"rank {rank} failed: {said[rank][1].strip().splitlines()[-1]}")
    changes, programs = (max(each) for each in zip(*(map(int, out.split()) for out, _ in said), strict=True))
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
        if all((run / "manifest.json").exists() for run in way.runs(path)):
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
        self.ended, self._references = ended, [Transcript.open(run) for run in way.runs(path)]
        self._reference = self._references[0]
        self._state = self._reference.step(self._reference.steps - 1).state.hex()
        self.before: list[int] = []
        self.programs = self.killed = self.resumed = self.replayed = 0
        self.different: list[dict[str, Any]] = []

    def kill(self, choose: random.Random) -> None:
        """Kills another run, in turn before a change of a file and after some time, and compares it."""
        seconds = self.ended.seconds
        if self.programs % 2 == 0:
            kill = Kill(change=choose.randint(1, self.ended.changes), rank=self._victim(choose))
            self.before.append(kill.change)
        else:
            kill = Kill(seconds=choose.uniform(0.0, seconds), rank=self._victim(choose))
        again = []
        if choose.random() < 0.3:
            again.append(Kill(seconds=choose.uniform(0.0, seconds / 2), rank=self._victim(choose)))
        path = self._base / str(self.programs) / "run"  # the directory's name is in the draft
        self.killed += until_done(path, [kill, *again], self._way)
        runs = self._way.runs(path)
        ok = all(same(run, reference) for run, reference in zip(runs, self._references, strict=True))
        self.resumed += any(Transcript.open(run).resumptions for run in runs)
        if self.programs % 10 == 0:
            self.replayed += 1
            ok = ok and self._replays(path)
        if not ok:
            self.different.append({"change": kill.change, "seconds": kill.seconds, "rank": kill.rank})
        self.programs += 1

    def _victim(self, choose: random.Random) -> int:
        """Returns which process is killed, or `ALL`."""
        return choose.choice([ALL, *range(self._way.ranks)]) if self._way.ranks > 1 else ALL

    def _replays(self, path: Path) -> bool:
        if self._way.ranks > 1:
            job = replay_job(path)
            return job.verdict == "match" and job.ranks[0] is not None and job.ranks[0].state == self._state
        result = replay(path)
        return result.verdict == "match" and result.state == self._state

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
    parser.add_argument("--ranks", type=int, help="only programs of so many processes")
    parser.add_argument("--beside", default="", help="keep the result under this name, beside what the file has")
    options = parser.parse_args()
    begin, name, different = time.perf_counter(), "resume" if options.width == 16 else "resume-wide", 0
    with tempfile.TemporaryDirectory(prefix="weighbridge-resume-") as directory:
        chosen = [way for way in ways(options.width) if options.ranks in (None, way.ranks)]
        for by_way in soak(Path(directory), options.kills, options.seed, chosen):
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
