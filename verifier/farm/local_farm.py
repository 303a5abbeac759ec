"""Where replays run: each in a spawned process, several at a time, one on each device.

A `Task` is plain data and its outcome is read as hostile, so a task may as well run on another machine that sees the
same files. What a tape can do to the process that executes it is bounded by `weighbridge.execution.replay` and
`weighbridge.execution.workers.confinement`; here it costs one outcome, and no other replay.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from verifier.farm import sharded_jobs
from verifier.model.replay_task import Outcome, Task
from weighbridge.core.errors import Finding, ReplayWorkerError, UsageError, WeighbridgeError
from weighbridge.execution.job_replay import replay_cell, replay_job
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Worker
from weighbridge.transcript.job_record import rank_name

Progress = Callable[["Task", int, int], None]
"""Called with (task, steps done, steps to do), from any thread. What it raises ends the replay."""

Cancelled = Callable[[], bool]
"""Asked several times a second, from any thread."""


class Farm(Protocol):
    """Runs replays."""

    @property
    def slots(self) -> int:
        """How many processes it runs at a time."""

    def check(self, device: str) -> None:
        """Raises `UsageError` if no replay for such a device can ever run here."""

    def run(
        self, tasks: Sequence[Task], progress: Progress, cancelled: Cancelled | None = None
    ) -> Iterator[tuple[Task, Outcome]]:
        """Yields each task with its outcome, as they end.

        Args:
            tasks: What to replay.
            progress: Told how far each is.
            cancelled: Once it is true, all replays are ended, and `CancelledError` is raised. They also end when the
                iterator is closed.
        """


class CancelledError(Exception):
    """The caller does not wait for these replays any more."""


def execute(
    task: Task,
    device: str,
    progress: Callable[[int, int], None],
    cancelled: Cancelled,
    worker: Worker | None = None,
) -> Outcome:
    """Replays one task in a spawned process and waits for it.

    Args:
        task: What to replay.
        device: On what.
        progress: Called with (steps done, steps to do).
        cancelled: Once it is true, the process is ended.
        worker: Runs that process; by default on this machine.
    """
    started = time.monotonic()
    result: ReplayResult | WeighbridgeError
    try:
        if task.rank is None:
            result = _run(task, device, progress, cancelled, worker)
        elif task.results is not None:
            found = replay_cell(
                task.path, task.rank, results=task.results, steps=task.steps, device=device, stop=task.stop,
                salt=task.salt, limits=task.limits, env=task.env, progress=progress, cancelled=cancelled, worker=worker,
            )  # fmt: skip
            result = replace(found, findings=[_of_rank(each, task.rank) for each in found.findings])
        else:
            result = _job(task, task.rank, device, progress, cancelled, worker)
    except WeighbridgeError as error:
        result = error
    except OSError as error:  # no process could be started, or its pipes broke
        result = ReplayWorkerError(f"the replay worker could not be run ({error.strerror}); free memory and ask again")
    return Outcome(result, time.monotonic() - started)


def _run(
    task: Task, device: str, progress: Callable[[int, int], None], cancelled: Cancelled, worker: Worker | None
) -> ReplayResult:
    """Replays a run; once more without recognition if the worker fails with it.

    How much recognition takes depends on claims and programs, so a Prover could make it fail. That must not cost the
    replay, and is no recognition.
    """
    whole = partial(
        replay, task.path, steps=task.steps, device=device, stop=task.stop, salt=task.salt, limits=task.limits,
        env=task.env, progress=progress, cancelled=cancelled, worker=worker, sensitivity=task.sensitivity,
    )  # fmt: skip
    return _or_without(task, cancelled, lambda count, seed: whole(recognise=count, recognise_seed=seed))


def _job(
    task: Task, rank: int, device: str, progress: Callable[[int, int], None], cancelled: Cancelled,
    worker: Worker | None,
) -> ReplayResult:  # fmt: skip
    """Replays all ranks of a job, and says what that found of one; as `_run`."""
    whole = partial(
        replay_job, task.path, steps=task.steps, device=device,
        stop=None if task.stop is None else (rank, *task.stop), salt=task.salt, limits=task.limits, env=task.env,
        progress=progress, cancelled=cancelled, worker=worker,
    )  # fmt: skip
    return _or_without(
        task, cancelled,
        lambda count, seed: sharded_jobs.of_rank(whole(recognise=count, recognise_seed=seed), rank),
    )  # fmt: skip


def _or_without(task: Task, cancelled: Cancelled, replayed: Callable[[int, int | None], ReplayResult]) -> ReplayResult:
    """Replays with recognition, and without if the worker fails."""
    count, seed = task.recognise
    try:
        return replayed(count, seed)
    except WeighbridgeError as error:
        if not count or error.reason != ReplayWorkerError.code or cancelled():
            raise
        failed = error.message
    return replace(replayed(0, None), recognition_failed=failed)


def _of_rank(finding: Finding, rank: int) -> Finding:
    return replace(finding, subject=f"{rank_name(rank)}: {finding.subject}".rstrip(": "))


class LocalFarm:
    """Replays on this machine: one slot, and so one process at a time, for each device."""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        """Prepares slots.

        Args:
            devices: Of each slot: `cpu`, `cuda:0`, ...; one that is named twice takes two replays at a time. None:
                one slot for whatever device a task asks for.
        """
        self._devices = tuple(devices)

    @property
    def slots(self) -> int:
        """See `Farm`."""
        return len(self._devices) or 1

    def check(self, device: str) -> None:
        """See `Farm`."""
        if self._devices and not any(_fits(device, slot) for slot in self._devices):
            raise UsageError(
                f"this Verifier replays on {', '.join(sorted(set(self._devices)))} and not on {device}; "
                "plan with one of these, or start it with other --replay-devices"
            )

    def run(
        self, tasks: Sequence[Task], progress: Progress, cancelled: Cancelled | None = None
    ) -> Iterator[tuple[Task, Outcome]]:
        """See `Farm`."""
        for task in tasks:
            self.check(task.device)

        def work(task: Task, slot: str | None, over: Cancelled) -> Outcome:
            return execute(task, slot or task.device, partial(progress, task), over)

        yield from side_by_side(tasks, self._devices or (None,), work, cancelled)


def side_by_side(
    tasks: Sequence[Task],
    slots: Sequence[str | None],
    work: Callable[[Task, str | None, Cancelled], Outcome],
    cancelled: Cancelled | None,
) -> Iterator[tuple[Task, Outcome]]:
    """Yields each task with its outcome, as they end: one at a time in each slot.

    Args:
        tasks: What to do.
        slots: The device that each slot is for; None takes tasks for any.
        work: Does a task in a slot, in a thread of its own; told whom to ask whether the caller still waits.
        cancelled: As `Farm.run` takes it.
    """
    waiting, lock, closed = list(tasks), threading.Lock(), threading.Event()
    ended: queue.SimpleQueue[tuple[Task, Outcome | BaseException]] = queue.SimpleQueue()

    def over() -> bool:
        return closed.is_set() or (cancelled is not None and cancelled())

    def take(slot: str | None) -> Task | None:
        with lock:
            for place, task in enumerate(waiting):
                if slot is None or _fits(task.device, slot):
                    return waiting.pop(place)
        return None

    def serve(slot: str | None) -> None:
        while not closed.is_set() and (task := take(slot)) is not None:
            outcome: Outcome | BaseException
            try:
                if over():
                    raise CancelledError
                outcome = work(task, slot, over)
                if over():
                    raise CancelledError  # what the end of its process looked like says nothing
            except BaseException as error:  # raised again in the thread that waits for the outcome
                outcome = error
            ended.put((task, outcome))

    threads = [threading.Thread(target=serve, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    try:
        for _ in tasks:
            task, outcome = ended.get()
            if not isinstance(outcome, Outcome):
                raise outcome
            yield task, outcome
    finally:
        closed.set()
        with lock:
            waiting.clear()
        for thread in threads:
            thread.join()


def slots(text: str) -> list[str]:
    """Reads a list of devices, such as `cpu,cpu` or `cuda:0,cuda:1`; `cuda:*` is every CUDA device of this machine.

    Raises:
        UsageError: It names something else, or a CUDA device that is not there.
    """
    found: list[str] = []
    for name in filter(None, (each.strip() for each in text.split(","))):
        count = torch.cuda.device_count() if name.startswith("cuda") else 0
        if name == "cuda:*" and count:
            found += [f"cuda:{number}" for number in range(count)]
        elif name == "cpu" or name in {f"cuda:{number}" for number in range(count)}:
            found.append(name)
        else:
            raise UsageError(f"{name[:50]!r} is no device of this machine, which has cpu and {count} CUDA devices")
    return found


def _fits(device: str, slot: str) -> bool:
    """Whether a task for a device may take a slot."""
    return device == slot or device == slot.partition(":")[0]
