"""The shim: what the chip's firmware sees and does inside the training process.

It stands at the dispatcher, below everything that Python can see, so it meets every kernel, of every thread that
starts while it is entered. It keeps track of the storages that kernels read or wrote, adds each kernel to the chip's
counters, and when the chip interrupts it hashes all live storages, reports to the chip, and lets no kernel run until
the chip says that the snapshot is durable.

Enter it *outside* a Recorder, so that it sees the kernels that really run. While nothing is pending, a kernel costs a
few microseconds more: no hashing, no system call.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from firmware_sim.frames import Connection
from firmware_sim.snapshot_report import pack_leaves
from firmware_sim.threads import entered
from firmware_sim.work_counter import Kernel, WorkCounter, in_force, kernel_of, opened
from firmware_sim.work_page import Slots
from weighbridge.attest.chip_link import Position
from weighbridge.attest.work import Work
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ChipError, FormatError
from weighbridge.core.host_memory import alive
from weighbridge.core.socket_paths import short_path
from weighbridge.core.treehash.tree import storage_digest

ANSWER_TIMEOUT_S = 60.0
_DEVICES = frozenset({"cpu", "cuda"})
_WAITING = frozenset({torch.ops.aten._local_scalar_dense.default})
"""Overloads that wait until a GPU has done everything that it was given before."""
Storage = torch.UntypedStorage


def _sort_of(types: tuple[type, ...]) -> str:
    """Says what operands of these types are: `plain` ones are memory; a kernel runs on them.

    A `wrapper` has a rule of its own that takes it apart, and the kernels inside come back to the shim. For `fake`
    tensors nothing runs at all.
    """
    if any(getattr(each, "__torch_dispatch__", None) == FakeTensor.__torch_dispatch__ for each in types):
        return "fake"
    plain = all(getattr(each, "__torch_dispatch__", None) == Tensor.__torch_dispatch__ for each in types)
    return "plain" if plain else "wrapper"


def _is_empty(storage: Storage) -> bool:
    """Whether a storage has a size and no memory: a wrapper's, such as a DTensor's, or one that is being freed."""
    try:
        return storage.nbytes() > 0 and storage.data_ptr() == 0
    except RuntimeError:
        return True  # "invalid"


def _living(references: Iterable[weakref.ref[Storage]]) -> list[Storage]:
    return [storage for storage in map(alive, list(references)) if storage is not None]


_SHIMS: weakref.WeakSet[Shim] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child (a worker of a DataLoader) the chip is the parent's: its link must not be touched here.

    What the child computes is counted all the same.
    """
    for shim in _SHIMS:
        shim._forked, shim.pending = True, False
        shim._work.forked()


os.register_at_fork(after_in_child=_after_fork)


class Shim(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attaches this process to a chip; implements `weighbridge.attest.chip_link.ChipLink`.

    Attributes:
        ueid: The chip's identity.
        pending: Whether the chip has raised an interrupt that waits for a safepoint.
    """

    def __init__(self, connection: Connection) -> None:
        """Takes over a connection; use `connect`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.pending = False
        self._threads = contextlib.ExitStack()
        self._detached = False
        self._connection = connection
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._dead = False
        self._live: dict[int, weakref.ref[Storage]] = {}
        self._weights: list[weakref.ref[Storage]] = []
        self._sorts: dict[tuple[type, ...], str] = {}
        self._held = 0
        self._note: Callable[[int], None] | None = None
        self._where: Callable[[], Position] | None = None
        self._forked = False
        self._on_gpu = False
        self._busy_until = 0
        self._capturing = threading.Lock()
        threading.Thread(target=self._listen, name="shim", daemon=True).start()
        try:
            hello = self._ask({"do": "hello"})
            self._slots = Slots(hello["work"])
            self._work = WorkCounter(self._slots)
        except ChipError:
            connection.close()
            raise
        self.ueid: bytes = hello["ueid"]
        self._salt: bytes = hello["salt"]
        self._hold: int = hello["hold"]
        _SHIMS.add(self)

    @classmethod
    def connect(cls, path: str | Path, weights: Iterable[Tensor] | None = None) -> Self:
        """Attaches to the chip behind a Unix socket; leave the shim as a context manager to detach.

        Args:
            path: The chip's socket.
            weights: As for `declare_weights`.

        Raises:
            ChipError: No chip answers there, or it has another workload (`chip.busy`).
        """
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(Path(path)) as short:
                end.connect(os.fspath(short))
        except OSError as error:
            end.close()
            raise ChipError(f"No chip answers at {path} ({error}); start it, then connect again.") from error
        shim = cls(Connection(end))
        if weights is not None:
            shim.declare_weights(weights)
        return shim

    @property
    def work(self) -> Work:
        """What all threads of this process have done so far."""
        return self._work.total

    @property
    def kernels(self) -> int:
        """Kernels so far, of all threads."""
        return self.work.kernels

    @property
    def flops(self) -> int:
        """FLOPs of these (`weighbridge.numerics.flops`)."""
        return self.work.flops

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._threads.enter_context(entered(lambda: in_force(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.close()
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.close()

    def close(self) -> None:
        """Detaches from the chip. An interrupt that is pending then is served first."""
        if self._forked:
            return
        with contextlib.suppress(ChipError):  # A chip that is gone is detached already.
            self._unasked()
            self._settle()
            self._ask({"do": "bye"})
        self._dead = self._detached = True
        self._connection.close()
        self._slots.close()

    # --- The workload's side: weighbridge.attest.chip_link.ChipLink and what tests need beyond it.

    def declare_weights(self, tensors: Iterable[Tensor]) -> None:
        """See `ChipLink.declare_weights`."""
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
        for address, storage in storages.items():
            if address not in self._live and storage.device.type in _DEVICES and not _is_empty(storage):
                self._watch(storage)
        self._weights = [self._live[address] for address in storages if address in self._live]

    def on_snapshot(self, note: Callable[[int], None] | None, where: Callable[[], Position] | None = None) -> None:
        """See `ChipLink.on_snapshot`."""
        self._note, self._where = note, where

    def log_event(self, name: str, digest: bytes) -> int:
        """See `ChipLink.log_event`.

        Raises:
            ChipError: The chip refuses it or does not answer.
        """
        return int(self._ask({"do": "event", "name": name, "digest": digest})["index"])

    def witnessed(self, index: int) -> int | None:
        """See `ChipLink.witnessed`.

        Raises:
            ChipError: The chip does not answer.
        """
        found = self._ask({"do": "witnessed", "index": index})["time_s"]
        return None if found is None else int(found)

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        """See `ChipLink.safepoint`.

        Raises:
            ChipError: The chip refuses the snapshot or does not answer.
        """
        if not self.pending:
            return None
        started = time.monotonic_ns()
        flush()
        if any(map(_is_empty, _living(self._live.values()))):
            return None  # Another thread is freeing memory of which its owner does not know yet; the next one will do.
        return self._capture(started, safepoint=True, step=step, op=op, running=running, head=head)

    def request_snapshot(self) -> None:
        """Asks the chip for an interrupt; `pending` is true afterwards. Only for chips that allow it.

        Raises:
            ChipError: The chip does not (`chip.forced`), or does not answer.
        """
        self._ask({"do": "force"})

    # --- The firmware's side.

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one kernel, after the snapshot if one is due."""
        if types:
            key = tuple(types)
            sort = self._sorts.get(key)
            if sort is None:
                sort = self._sorts[key] = _sort_of(key)
            if sort == "wrapper":
                return NotImplemented
            if sort == "fake":
                return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        if self._detached:  # a thread that outlives the shim
            return func(*args, **kwargs)
        kernel = kernel_of(func)
        if kernel is Kernel.COMPOSITE:
            with in_force(self):
                return func.decompose(*args, **kwargs)
        if self.pending:
            if self._held >= self._hold:
                self._unasked()
            else:
                self._held += 1
        if self._dead:
            raise ChipError("The chip does not answer any more, so no kernel may run; restart chip and training.")
        foreign = kernel is Kernel.FOREIGN
        if foreign:
            self._settle()
        since = self._work.so_far if foreign else None
        began = perf_counter_ns()
        try:
            if foreign:
                with in_force(self):
                    out = opened(func, args, kwargs)
                self._wait_for_gpu()
            else:
                out = func(*args, **kwargs)
        except BaseException:
            self._work.failed(busy_ns=perf_counter_ns() - began, since=since or self._work.so_far)
            raise
        ended = perf_counter_ns()
        moved = self._meet(args) + self._meet(out)
        if kwargs:
            moved += self._meet(tuple(kwargs.values()))
        if self._on_gpu and not foreign:
            began, self._busy_until = self._busy_until or began, 0 if func in _WAITING else ended
        if moved or foreign:
            self._work.add(func, args, kwargs, out, ended - began, moved, since)
        return out

    def _settle(self) -> None:
        """Waits for a GPU, and counts its time since the last kernel was launched."""
        until = self._busy_until
        self._wait_for_gpu()
        if until:
            self._work.wait(perf_counter_ns() - until)

    def _wait_for_gpu(self) -> None:
        if self._on_gpu and not self._forked:
            torch.cuda.synchronize()
            self._busy_until = 0

    def _meet(self, value: Any) -> int:
        """Notes the storages of all tensors in `value`; returns the bytes of those with memory, as their shapes say."""
        if isinstance(value, Tensor):
            try:
                storage = value.untyped_storage()
            except NotImplementedError:
                if value.layout is torch.strided:
                    raise  # Memory that cannot be seen must not be computed on.
                # Sparse and MKL-DNN layouts have no storage of their own; `_unobserved` counts their parts.
                return value.numel() * value.element_size()
            if storage._cdata in self._live:
                return value.nbytes
            if storage.device.type not in _DEVICES:
                return 0
            self._on_gpu |= storage.device.type == "cuda"
            self._watch(storage)
            return value.nbytes
        moved = 0
        if isinstance(value, (tuple, list)):
            for each in value:
                moved += self._meet(each)
        return moved

    def _watch(self, storage: Storage) -> None:
        address = storage._cdata
        live = self._live

        def gone(reference: weakref.ref[Storage]) -> None:
            # Another storage may have been made at the same address in the meantime.
            if live.get(address) is reference:
                del live[address]

        live[address] = weakref.ref(storage, gone)

    def _unasked(self) -> None:
        """Takes a snapshot that is due at a moment that the workload did not offer."""
        started = time.monotonic_ns()
        step, op, head = (-1, -1, b"") if self._where is None or not self.pending else self._where()
        index = self._capture(started, safepoint=False, step=step, op=op, running=b"", head=head)
        if index is not None and self._note is not None:
            self._note(index)

    def _capture(self, started: int, **claims: Any) -> int | None:
        """Hashes memory, reports, and returns the log index once the snapshot is durable."""
        with self._capturing:
            if not self.pending:
                return None  # Another thread's kernel has served the interrupt.
            # From the chip's answer on, the next interrupt may come at any time, so this one ends here.
            self.pending = False
            held, self._held = self._held, 0
            self._settle()
            report = {
                "leaves": pack_leaves(self._leaves(list(self._live.values()))),
                "weights": pack_leaves(self._leaves(self._weights)),
                "held": held,
                "unobserved": self._unobserved(),
                "stall_us": (time.monotonic_ns() - started) // 1000,
                **claims,
            }
            try:
                return int(self._ask({"do": "snapshot", **report})["index"])
            except ChipError:
                self._dead = True  # The chip did not let the workload go on.
                raise

    def _unobserved(self) -> int:
        """Counts the bytes that this process holds where no live storage is, on the device if it uses one."""
        live = _living(self._live.values())
        there = sum(storage.nbytes() for storage in live if storage.device.type == "cuda")
        if there:
            held = sum(torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count()))
            return max(0, held - there)
        statm = Path("/proc/self/statm")
        if not statm.exists():
            return 0  # only Linux says it so
        resident = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return max(0, resident - sum(storage.nbytes() for storage in live))

    def _leaves(self, references: list[weakref.ref[Storage]]) -> list[Leaf]:
        storages = [storage for storage in _living(references) if storage.nbytes() and not _is_empty(storage)]
        return [(storage.nbytes(), self._digest(storage)) for storage in storages]

    def _digest(self, storage: Storage) -> bytes:
        if storage.device.type == "cuda":
            torch.cuda.synchronize(storage.device)
        return storage_digest(storage, self._salt)

    # --- The link.

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._forked:
            raise ChipError("This process was forked from the one that the chip is attached to; connect it anew.")
        with self._asking:
            if self._dead:
                raise ChipError("The chip does not answer any more; restart chip and training.")
            try:
                self._connection.send(message)
                answer = self._answers.get(timeout=ANSWER_TIMEOUT_S)
                while answer is not None and "wait" in answer:  # The chip lives, and waits itself.
                    answer = self._answers.get(timeout=ANSWER_TIMEOUT_S)
            except (OSError, queue.Empty):
                answer = None
            if answer is None:
                # An answer that comes too late would be taken for the next one's.
                self._dead = True
                raise ChipError("The chip does not answer any more; restart chip and training.")
        if "error" in answer:
            raise ChipError(str(answer.get("message")), code=str(answer["error"]))
        return answer

    def _listen(self) -> None:
        """Receives interrupts and answers until the chip is gone; runs in a thread of its own."""
        with contextlib.suppress(FormatError):
            while (message := self._connection.receive()) is not None:
                if "interrupt" in message:
                    self.pending = True
                else:
                    self._answers.put(message)
        self._dead = True
        self._answers.put(None)
