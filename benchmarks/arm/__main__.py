"""Replays transcripts on emulated ARM processors, and records there what is replayed here.

`python -m benchmarks.arm [--only WORDS ...] [--on PROCESSOR ...] [--roundings N]` sets up what is missing in `.arm/`
(Debian's Python for ARM, QEMU, the pinned packages), then for each subject:

- records it on this machine and replays it on each processor;
- records it on each processor and replays it on this machine, and compares the programs of both recordings.

Each result is written to benchmarks/results/arm.json as soon as it is known; subjects that are not run keep their last
ones. Exit code 1 if a replay did not match, or if the operations of both recordings are not the same.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.arm import setting_up, subjects
from benchmarks.arm.debian import SetupError
from benchmarks.arm.processors import PROCESSORS, Machine

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"


class Evidence:
    """The result file: what is known of each subject and processor."""

    def __init__(self) -> None:
        found = machine.load("arm") or {}
        self._runs: dict[str, dict[str, Any]] = {f"{r['subject']} {r['way']}": r for r in found.get("runs", [])}
        self._processors: dict[str, Any] = found.get("processors", {})

    def processor(self, name: str, about: dict[str, Any]) -> None:
        """Notes what a processor said of itself."""
        says = PROCESSORS[name].says if name in PROCESSORS else "this machine"
        self._processors[name] = {"says": says, **{k: v for k, v in about.items() if k not in ("cores", "seconds")}}

    def add(self, subject: str, way: str, result: dict[str, Any]) -> None:
        """Notes the outcome of one replay and writes the file."""
        self._runs[f"{subject} {way}"] = {"subject": subject, "way": way, "date": machine.about()["date"], **result}
        runs = sorted(self._runs.values(), key=lambda run: (run["way"], subjects.NAMES.index(run["subject"])))
        machine.save("arm", {
            **machine.about(), "seed": subjects.SEED, "emulator": "QEMU 10, user mode", "processors": self._processors,
            "roundings": sum(run["rounded"] for run in runs),
            "roundings_that_differed": sum(run["followed"] for run in runs),
            "calibrated": sum(run["calibrated"] for run in runs),
            "replays": len(runs), "agreed": all(run["agreed"] for run in runs), "runs": runs,
        })  # fmt: skip

    def roundings(self) -> int:
        """Returns how many results were rounded in all replays that are known."""
        return sum(run["rounded"] for run in self._runs.values())


def outcome(replayed: dict[str, Any], recorded: dict[str, Any] | None) -> dict[str, Any]:
    """Puts together what one replay showed.

    Args:
        replayed: The answer to a replay.
        recorded: The answer to the recording, or None of a transcript that was there before.
    """
    agreed = replayed["verdict"] == "match" and (recorded is None or replayed["states"] == [recorded["state"]])
    facts = {} if recorded is None else {"policy": recorded["policy"], "steps": recorded["steps"]}
    names = ("verdict", "rounded", "calibrated", "logged", "followed", "first_difference", "seconds")
    return {**facts, "agreed": agreed, **{name: replayed[name] for name in names}}


class Comparison:
    """Everything that is done with one emulated processor."""

    def __init__(self, processor: str, here: Machine, runs: Path, evidence: Evidence) -> None:
        self._name, self._here, self._runs, self._evidence = processor, here, runs, evidence
        self.failed = 0

    def begin(self, home: Path) -> None:
        """Starts the processor; its loops are compiled when it first runs, which takes ten minutes."""
        self._there = Machine(self._name, home, self._runs)
        about = self._there.ask("about")
        self._evidence.processor(self._name, about)
        print(f"{self._name}: started in {about['seconds']:.0f} s, {about['capability']}", flush=True)

    def end(self) -> None:
        """Ends the processor's process."""
        self._there.stop()

    def golden(self, subject: str) -> None:
        """Replays an old transcript there."""
        run = subject.removeprefix("golden: ")
        target = self._runs / f"golden-{run}"
        if not target.exists():
            shutil.copytree(GOLDEN / run, target)
        self._note(subject, f"x86 to {self._name}", outcome(self._there.ask("replay", target.name), None))

    def recorded_here(self, subject: str, run: str, recorded: dict[str, Any]) -> None:
        """Replays there what was recorded here."""
        self._note(subject, f"x86 to {self._name}", outcome(self._there.ask("replay", run), recorded))

    def recorded_there(self, subject: str, recorded: dict[str, Any]) -> None:
        """Records there, replays here, and compares the programs with those of the recording here."""
        run = f"{self._name}-{subjects.NAMES.index(subject)}"
        made = self._there.ask("record", run, subject=subject)
        result = outcome(self._here.ask("replay", run), made)
        programs = self._here.ask("programs", run, other=f"here-{subjects.NAMES.index(subject)}")
        result["agreed"] = result["agreed"] and programs["same_operations"] == recorded["steps"] == made["steps"]
        result |= {name: programs[name] for name in ("equal_tapes", "same_operations")}
        result["record_seconds"] = made["seconds"]
        self._note(subject, f"{self._name} to x86", result)

    def _note(self, subject: str, way: str, result: dict[str, Any]) -> None:
        self._evidence.add(subject, way, result)
        self.failed += not result["agreed"]
        print(
            f"{subject}, {way}: {'agreed' if result['agreed'] else 'DIFFERS'}, {result['verdict']}, "
            f"{result['rounded']:,} roundings, {result['followed']:,} of {result['logged']:,} logged ones otherwise, "
            f"{result['seconds']:.0f} s"
            + (f", equal tapes {result['equal_tapes']}" if "equal_tapes" in result else ""),
            flush=True,
        )


def main() -> int:
    """Runs what was asked for; returns 1 if anything differed, 2 if it cannot be set up here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="subjects whose names contain these words; may be repeated")
    parser.add_argument("--on", action="append", choices=list(PROCESSORS), help="processor; may be repeated")
    parser.add_argument("--there", action="append", help="what to record on the processors too; by default the same")
    parser.add_argument("--home", type=Path, default=setting_up.HOME, help="where what is set up is kept")
    parser.add_argument("--where-possible", action="store_true", help="end with 0 where it cannot be set up")
    options = parser.parse_args()
    chosen = [name for name in subjects.NAMES if not options.only or any(words in name for words in options.only)]
    there = [name for name in chosen if not options.there or any(words in name for words in options.there)]
    try:
        home = setting_up.ready(options.home)
    except (SetupError, subprocess.CalledProcessError) as error:
        print(f"no ARM processor can be emulated here: {error}", file=sys.stderr)
        return 0 if options.where_possible else 2
    with tempfile.TemporaryDirectory(dir=home / "runs") as scratch:
        return _run(chosen, there, options.on or list(PROCESSORS), home, Path(scratch))


def _run(chosen: list[str], there: list[str], on: list[str], home: Path, runs: Path) -> int:
    evidence, failed = Evidence(), 0
    here = Machine(None, home, runs)
    try:
        evidence.processor("here", here.ask("about"))
        recorded = {}
        for name in chosen:
            if name in subjects.RECORDED:
                recorded[name] = here.ask("record", f"here-{subjects.NAMES.index(name)}", subject=name)
                print(f"{name}: recorded here, {recorded[name]['rounded']:,} roundings", flush=True)
        for processor in on:
            comparison = Comparison(processor, here, runs, evidence)
            comparison.begin(home)
            try:
                for name in chosen:
                    if name not in recorded:
                        comparison.golden(name)
                        continue
                    comparison.recorded_here(name, f"here-{subjects.NAMES.index(name)}", recorded[name])
                    if name in there:
                        comparison.recorded_there(name, recorded[name])
            finally:
                comparison.end()
            failed += comparison.failed
    finally:
        here.stop()
    print(
        f"{evidence.roundings():,} roundings in all replays so far; {failed} of this call's did not agree", flush=True
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
