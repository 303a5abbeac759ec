"""A Verifier's process that is killed with SIGKILL in the middle of an inspection, again and again, and comes back."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.station import LIMIT_OPTIONS, ROOT, Station, wait_for

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from verifier.registry import FINISHED, Chip, Registry
from weighbridge.rpc import endpoints

SAMPLES_SEED = b"0123456789abcdef"

CHANGING = frozenset(
    {
        "inspection",
        "created_at",
        "finished_at",
        "registered_at",
        "seconds",
        "uptime_days",
        "anchored_days",
        "proven_days",
        "proven",
        "expected",
        "p_few",
        "p_many",
        "facts",
        "ledger",
        "observed",
    }
)
"""Fields of a report that depend on when the inspection was, and so differ between two that find the same."""


class Verifier:
    """One Verifier with a database of its own, as a process that can be killed."""

    def __init__(self, station: Station, name: str, *, db: str | None = None, options: Sequence[str] = ()) -> None:
        """Registers all chips of a station; starts nothing.

        Args:
            station: Where the chips are.
            name: Of the Verifier's files.
            db: Its database; by default an SQLite file.
            options: Of `weighbridge serve verifier`.
        """
        self.root, self._station = station.root, station
        self.db = db or str(station.root / f"{name}.db")
        self._address_file = station.root / f"{name}.address"
        self._command = [
            *(sys.executable, "-m", "weighbridge.cli", "serve", "verifier", "--db", self.db),
            *("--cache", str(station.root / f"{name}-cache"), "--credentials", str(station.root / "verifier")),
            *(
                "--manufacturer",
                str(station.root / "manufacturer.pem"),
                "--firmware",
                str(station.root / "firmware.img"),
            ),
            *("--address-file", str(self._address_file), *LIMIT_OPTIONS, *options),
        ]
        registry = Registry(self.db)
        for chip in station.registry.chips():
            registry.register(Chip(**{field: getattr(chip, field) for field in _FIELDS}))
        registry.close()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts the process and waits until it serves."""
        self._address_file.unlink(missing_ok=True)
        self.starts += 1
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=environment)
        wait_for(self._address_file.exists, self._process, seconds=300)

    def kill(self) -> None:
        """Ends the process as a loss of power would; its replay workers must not outlive it."""
        assert self._process is not None
        there = workers(self._process.pid)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 120  # a worker that still imports its libraries looks for its parent then
        while alive := [pid for pid in there if is_worker(pid)]:
            assert time.monotonic() < deadline, f"replay workers {alive} live on"
            time.sleep(0.05)

    def stop(self) -> int:
        """Ends the process in order; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=120)

    def call(self, method: str, request: Any) -> Any:
        """Makes one unary call as an operator."""
        with endpoints.channel(self._address_file.read_text(), self._station.operator, "verifier") as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            return endpoints.call(getattr(stub, method), request)

    def watch(self, inspection: str, until: Callable[[list[Any]], bool] = lambda seen: False) -> list[Any]:
        """Follows an inspection to its end, or until it has said something; returns what it said."""
        seen: list[Any] = []
        with endpoints.channel(self._address_file.read_text(), self._station.operator, "verifier") as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            request = verifier_pb2.WatchInspectionRequest(inspection_id=inspection)
            for update in endpoints.stream(stub.WatchInspection, request, deadline_s=600):
                seen.append(update)
                if until(seen):
                    break
        return seen

    def disturbed(self, rng: random.Random, kills: int, lines: int) -> tuple[str, list[str]]:
        """Starts an inspection, and kills the process again and again until it has ended all the same.

        Args:
            rng: Says when.
            kills: How often to kill at most: an inspection may end before.
            lines: How many lines an undisturbed inspection says; a process is killed after any number of them.

        Returns:
            The inspection, and at which stages it was killed.
        """
        self.start()
        inspection, stages = self.begin(), list[str]()
        for _ in range(kills):
            much = rng.randint(1, lines)
            seen = self.watch(inspection, lambda said, much=much: len(_since_start(said)) >= much)  # type: ignore[misc]
            if seen[-1].stage in FINISHED:
                break
            time.sleep(rng.random() * 0.5)
            self.kill()
            stages.append(seen[-1].stage)
            self.start()
        assert self.watch(inspection)[-1].stage == "done"
        return inspection, stages

    def begin(self) -> str:
        """Starts an inspection of all chips; returns its identifier."""
        request = verifier_pb2.StartInspectionRequest(
            samples=len(self._station.registry.chips()),
            seed=SAMPLES_SEED,
            flops_threshold=2.0,
            chip_flops_per_day=1.0,
            period_days=2.0,
            snapshot_rate_per_day=1.0,
            replay_env={"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
        )
        return str(self.call("StartInspection", request).inspection_id)

    def report(self, inspection: str) -> dict[str, Any]:
        """Returns the report from the database."""
        registry = Registry(self.db)
        found = registry.inspection(inspection).report
        registry.close()
        assert found is not None
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def _since_start(said: list[Any]) -> list[Any]:
    """What the newest process said."""
    last = max((place for place, line in enumerate(said) if line.stage == "resume"), default=-1)
    return [line for line in said[last + 1 :] if not line.passing]


_FIELDS = ("ueid", "address", "prover_address", "owner", "site", "chip_type")


def essence(value: Any) -> Any:
    """Returns a report without what depends on when the inspection was."""
    if isinstance(value, dict):
        return {name: essence(each) for name, each in value.items() if name not in CHANGING}
    return [essence(each) for each in value] if isinstance(value, list) else value


def workers(pid: int) -> list[int]:
    """Returns the replay workers of a process that still run: those of its nurseries, and its own."""
    started = children(pid)
    return [
        each for each in [*started, *(worker for child in started for worker in children(child))] if is_worker(each)
    ]


def is_worker(pid: int) -> bool:
    """Whether a process is a replay worker that still runs."""
    try:
        running = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return running and "_work" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Returns the processes that one started and that have not been waited for."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
