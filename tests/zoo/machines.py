"""The zoo: models of many kinds, each trained for a few steps, recorded, and replayed here and on two other machines.

The other machines are processes with another instruction set and another number of threads. They serve a whole session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.recordings import Build, Step, replay_here, train

from weighbridge.transcript.reader import Transcript

ELSEWHERE = (
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
        "OMP_NUM_THREADS": "2",
    },
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "3"},
)

NOTES = "WEIGHBRIDGE_ZOO_ROUNDINGS"
"""Names the file for what the logs chose, if that is wanted."""

RECOGNISED = "WEIGHBRIDGE_ZOO_RECOGNISED"
"""Names the file for what training was recognised as, if that is wanted."""


class Machine:
    """A process that replays what it is told to."""

    def __init__(self, environment: dict[str, str]) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zoo.replay_many"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment, "PYTHONPATH": f"{root / 'tests'}{os.pathsep}{root}"},
        )  # fmt: skip

    def ask(self, path: Path) -> None:
        """Starts a replay."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Waits for the result."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other machine died"
        return json.loads(line)

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()  # it has nothing to finish, and interpreters take their time to leave
        self._process.communicate()


@dataclass
class Zoo:
    """Records trainings and asserts that they replay everywhere."""

    path: Path
    machines: list[Machine]

    def holds(
        self, build: Build, step: Step, batches: Iterable[Any], *, seed: int = 7, **options: Any
    ) -> list[dict[str, Any]]:
        """Asserts that a training replays to the same state after every step; returns the three results.

        A replay compares the digest of the whole state, optimizer included, after each step with the recorded one.
        """
        train(self.path, build, step, batches, seed=seed, **options)
        if RECOGNISED in os.environ:
            found = replay_here(self.path, recognise=8)["recognised"]
            with Path(os.environ[RECOGNISED]).open("a") as notes:
                notes.write(json.dumps({"test": os.environ["PYTEST_CURRENT_TEST"], "steps": found}) + "\n")
        for machine in self.machines:
            machine.ask(self.path)
        results = [replay_here(self.path), *(machine.answer() for machine in self.machines)]
        transcript = Transcript.open(self.path)
        final = transcript.step(transcript.steps - 1).state.hex()
        if NOTES in os.environ:
            self._note(transcript, results, Path(os.environ[NOTES]))
        for result in results:
            where = result["device"]
            assert result["verdict"] == "match", f"{where}: {result['first_difference']} {result['findings']}"
            assert result["steps"] == [0, transcript.steps]
            assert result["state"] == final, where
            assert not [f for f in result["findings"] if f["id"].startswith("replay.rounding")], where
        return results

    def _note(self, transcript: Transcript, results: list[dict[str, Any]], file: Path) -> None:
        """Adds to a file what the log of this training chose in each replay, for `benchmarks.bench_roundings`."""
        facts = {
            "steps": transcript.steps,
            "policy": transcript.draft["policy"],
            "replays": [{"verdict": each["verdict"], **each["evidence"]} for each in results],
        }
        with file.open("a") as notes:
            notes.write(json.dumps(facts) + "\n")

    def trains_as_without(self, build: Build, step: Step, batches: Iterable[Any]) -> None:
        """Asserts that recording, whose checkpoints follow every step, changed the parameters by roundings only.

        For trainings without randomness after the initialisation.
        """
        transcript = Transcript.open(self.path)

        def recorded(number: int) -> list[torch.Tensor]:
            storages = transcript.checkpoint(number).storages
            named = model.named_parameters()
            return [storages[f"model.{n}"].view(torch.float32).view(p.shape) for n, p in named]

        model, *others = build()
        for p, first in zip(model.parameters(), recorded(1), strict=True):
            p.data.copy_(first)
        for number, batch in enumerate(batches, start=2):
            step(batch, model, *others)
            for p, wanted in zip(model.parameters(), recorded(number), strict=True):
                torch.testing.assert_close(p.detach(), wanted, rtol=1e-3, atol=1e-4)
