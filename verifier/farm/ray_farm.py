"""Replays on the machines of a Ray cluster, or on a Ray of the Verifier's own on this machine.

A replay's request is made, and its answer read as hostile, by the same code in the Verifier's process as on the local
farm; only the confined worker runs elsewhere. All machines see the Verifier's cache directory under the same path.
Every client that reaches a Ray can run any program in it, and by default Ray authenticates none. So only a Ray that no
other machine reaches is used, or one with tokens, unless the operator vouches for the network.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from types import TracebackType
from typing import Any, Self

import torch

from verifier.farm.local_farm import Cancelled, Farm, LocalFarm, Progress, execute, side_by_side, slots
from verifier.model.replay_task import Outcome, Task
from weighbridge.core.errors import ReplayWorkerError, UsageError
from weighbridge.execution.worker_process import Limits

LOCAL = "local"
OLDEST = (2, 52)
"""The first Ray that can ask for tokens."""
START_SECONDS, END_SECONDS = 120.0, 20.0
AT_ONCE = 256
"""Tasks that are handed to Ray at a time; it queues what it has no room for."""
_MAX_LINE = 300 << 20
_ASK_SECONDS = 0.2
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, Ray listens at 127.0.0.1 only, on every system."""


class RayFarm:
    """Runs replays on Ray: each takes one CPU, and one GPU if it is for a GPU."""

    def __init__(self, address: str = "", *, trusted: bool = False) -> None:
        """Connects once, to see what is there.

        Args:
            address: Host and port of the cluster's head; empty for a Ray of one's own, which runs while replays do.
            trusted: Whether the operator vouches for a cluster that others may reach.

        Raises:
            UsageError: Ray is not installed, does not answer, or others may reach it.
        """
        _require_ray()
        self._address = address or LOCAL
        if not address:
            self._gpu = torch.cuda.is_available()
            return
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise UsageError(f"--farm takes ray or ray:HOST:PORT, not 'ray:{address:.100}'")
        safe = trusted or os.environ.get("RAY_AUTH_MODE") == "token"
        if not safe and not _is_loopback(host):
            raise _open_to_others(host)
        with _Driver(self._address) as driver:
            others = [node for node in driver.nodes if not _is_loopback(node)]
            if others and not safe:
                raise _open_to_others(others[0])
            self._gpu = driver.gpus >= 1

    @property
    def slots(self) -> int:
        """See `Farm`: what is not a replay runs on this machine, which is not Ray's to fill."""
        return 1

    def check(self, device: str) -> None:
        """See `Farm`."""
        if device != "cpu" and (device != "cuda" or not self._gpu):
            here = "cpu and cuda" if self._gpu else "cpu"
            raise UsageError(f"this Verifier replays on Ray, which chooses among its devices; plan with {here}")

    def run(
        self, tasks: Sequence[Task], progress: Progress, cancelled: Cancelled | None = None
    ) -> Iterator[tuple[Task, Outcome]]:
        """See `Farm`."""
        for task in tasks:
            self.check(task.device)
        if not tasks:
            return
        try:
            driver = _Driver(self._address)
        except UsageError as error:  # it was there when the Verifier was started
            yield from ((task, Outcome(ReplayWorkerError(error.message), 0.0)) for task in tasks)
            return

        def work(task: Task, slot: str | None, over: Cancelled) -> Outcome:
            worker = partial(driver.worker, task.device != "cpu")
            return execute(task, task.device, partial(progress, task), over, worker)

        with driver:
            yield from side_by_side(tasks, [None] * min(len(tasks), AT_ONCE), work, cancelled)


class _Driver:
    """A running `verifier.farm.ray_driver`.

    Attributes:
        nodes: Addresses of the cluster's machines.
        gpus: How many GPUs it has.
    """

    def __init__(self, address: str) -> None:
        """Starts it and waits until it is connected.

        Raises:
            UsageError: Ray does not answer.
        """
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        environment.pop("RAY_ADDRESS", None)
        self._scratch = ""
        if address == LOCAL:
            # On a machine with several users each of them reaches its loopback; they do not have this token.
            self._scratch = tempfile.mkdtemp(prefix="weighbridge-ray-")
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        if address == LOCAL or _is_loopback(address.rpartition(":")[0]):
            environment[_LOOPBACK] = "0"
        command = [sys.executable, "-m", "verifier.farm.ray_driver", address, self._scratch]
        self._numbers, self._waiting = itertools.count(), dict[int, queue.SimpleQueue[dict[str, Any]]]()
        self._lock, self._over = threading.Lock(), threading.Event()
        started: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise UsageError(f"no process for Ray could be started ({error.strerror}); free memory") from None
        threading.Thread(target=self._read, args=(started,), daemon=True).start()
        try:
            first = started.get(timeout=START_SECONDS)
        except queue.Empty:
            first = {}
        if not isinstance(first.get("ready"), dict):
            self.close()
            said = str(first.get("failed", "no answer in time"))[:300]
            raise UsageError(f"Ray does not answer at {address} ({said}); start it there, or correct --farm")
        self.nodes = [str(node) for node in first["ready"]["nodes"]]
        self.gpus = float(first["ready"]["gpus"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and with it whatever it runs."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def worker(
        self,
        gpu: bool,
        module: str,
        request: Mapping[str, Any],
        limits: Limits,
        env: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Runs a worker process on some node; as `execution.worker_process.run_worker`, whose answer is hostile.

        Raises:
            ReplayWorkerError: As there; or Ray, or what it ran on, died.
        """
        number, said = next(self._numbers), queue.SimpleQueue[dict[str, Any]]()
        self._waiting[number] = said
        task = {"module": module, "request": request, "limits": [limits.memory, limits.seconds], "env": dict(env or {})}
        try:
            assert self._process.stdin is not None
            with self._lock:
                self._process.stdin.write(json.dumps({"id": number, "gpu": gpu, "task": task}).encode() + b"\n")
                self._process.stdin.flush()
            while True:
                try:
                    message = said.get(timeout=_ASK_SECONDS)
                except queue.Empty:
                    if cancelled is not None and cancelled():
                        raise ReplayWorkerError("the caller does not wait for this replay any more") from None
                    if not self._over.is_set() or not said.empty():
                        continue
                    raise ReplayWorkerError("Ray's process died; see Ray's own logs and inspect again") from None
                if "progress" in message:
                    if progress is not None:
                        done, of = message["progress"]
                        progress(int(done), int(of))
                elif isinstance(message.get("answer"), dict):
                    return dict(message["answer"])
                else:
                    raise ReplayWorkerError(str(message.get("died", "a Ray node says nonsense"))[:2000])
        except (OSError, ValueError, TypeError) as error:
            raise ReplayWorkerError(f"Ray's process does not take or tell anything ({type(error).__name__})") from None
        finally:
            del self._waiting[number]

    def _read(self, started: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Hands what the driver says to the thread that waits for it."""
        assert self._process.stdout is not None
        try:
            for line in iter(lambda: self._process.stdout.readline(_MAX_LINE), b""):  # type: ignore[union-attr]
                message = json.loads(line)
                if "id" not in message:
                    started.put(message)
                elif (said := self._waiting.get(message["id"])) is not None:
                    said.put(message)
        except (ValueError, TypeError, RecursionError):
            self._process.kill()
        finally:
            self._over.set()
            started.put({})


def chosen(text: str, devices: str, *, trusted: bool) -> Farm:
    """Returns the farm that a command line asks for.

    Args:
        text: `local`, `ray` or `ray:HOST:PORT`.
        devices: The slots of a local farm, as `verifier.farm.local_farm.slots` reads them.
        trusted: Whether the operator vouches for a Ray that others may reach.

    Raises:
        UsageError: There is no such farm, or it cannot be used.
    """
    if text == "local":
        return LocalFarm(slots(devices))
    kind, _, address = text.partition(":")
    if kind != "ray" or (":" in text and not address):
        raise UsageError(f"--farm takes local, ray or ray:HOST:PORT, not {text!r:.100}")
    if devices:
        raise UsageError("--replay-devices is for the local farm; Ray has devices of its own, so leave it out")
    return RayFarm(address, trusted=trusted)


def _require_ray() -> None:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        version = ""
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
        found = f"it is {version} here" if version else "it is not here"
        raise UsageError(f"a farm on Ray needs Ray {OLDEST[0]}.{OLDEST[1]} and {found}; pip install 'weighbridge[ray]'")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _open_to_others(host: str) -> UsageError:
    return UsageError(
        f"every client that reaches the Ray at {host} can run programs in it and in what uses it; set "
        "RAY_AUTH_MODE=token on all its machines and here, or give --trust-ray-network if no other party reaches that "
        "network"
    )
