"""Starts one sealed worker: measures its image, confines it, vouches for its keys, and passes its outcome on.

The launcher sees public things only: the order, the worker's public keys, and an outcome that is encrypted. The
Prover's stream goes past it into the worker, and is never read here. What the worker leaves is in memory that ends with
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

from weighbridge.attest.quotes import Quoter
from weighbridge.attest.sealed_order import KEYED, OUTCOME, REFUSED, REPORT, STARTED, Order, SealedWorkerError
from weighbridge.attest.sealed_outcome import OUTCOME_LIMIT
from weighbridge.attest.sealed_ruling import RULING_SIZE
from weighbridge.attest.sealed_starts import append
from weighbridge.execution.fork_server import PARENT
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed import processors, requirements
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers import isolation

_BEFORE_WORKER = tuple(name for name in isolation.EVERYTHING if name != "not-dumpable")
_BOOT = "import sys; sys.path[:0] = ['/code', '/site']; from {} import main; main(sys.argv[1])"
_REPLAY, _SESSION = "weighbridge.execution.workers.sealed_worker", "verifier.sealed.session_worker"
_PART, _REFEREE = "verifier.sealed.part_worker", "weighbridge.execution.workers.sealed_referee"
"""What an image starts with: for a replay, for a whole inspection or a part of it, which only the Verifier's package
can do, and for the judgement of a dispute."""
_LENGTH = struct.Struct(">I")
_SLACK = 1 << 27
"""Bytes of a root beyond the files of its image: blocks are rounded up, and loops that have to be compiled are kept."""
_FILES_END = 1 << 16
_POLL_SECONDS = 0.01
_KEY, _KEY_SLACK = 32, 4096
_PR_SET_NO_NEW_PRIVS, _CAPABILITIES = 38, 0x20080522
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What a machine runs sealed workers with.

    Attributes:
        launcher: What states whose the worker's keys are: this machine's identity, or hardware of its own.
        image: Directory of the image.
        log: The log of starts.
        limits: On the worker's memory and time.
        inputs: So many bytes a job's files may have.
    """

    launcher: Quoter
    image: Path
    log: Path
    limits: Limits
    inputs: int


def run(site: Site, order: Order, stream: int, sink: BinaryIO) -> None:
    """Runs one job: writes attestation and then outcome, each after its length (four bytes, big-endian).

    Of a session it writes the worker's statement of its key between the two, and the encrypted report behind them. The
    outcome of a session leaves at the time that the order says, however early it is ready; after that there is none.
    So does the ruling of a dispute, which has one size.

    Args:
        site: Where it runs.
        order: The job.
        stream: The descriptor that the Prover's stream comes from.
        sink: Where attestation and outcome go.

    Raises:
        SealedWorkerError: The image is another than the order's, the machine lacks something that is required or has
            less than the parties to a dispute agreed on, a nonce is spent, or the worker refused its inputs or ended
            without an outcome. Nothing of the outcome was written.
        OSError: The log or the sink cannot be written.
    """
    image = images.load(site.image)
    if image.measurement != order.measurement:
        raise SealedWorkerError(
            "the image here is not the one that the order names; make it from what was agreed on", code="sealed.image"
        )
    requirements.processor(site.image)
    requirements.no_swap(Path("/proc/swaps"))
    requirements.offered(order, site.limits.memory, site.inputs, Path("/proc/meminfo"))
    start = append(site.log, order)
    begun = time.monotonic()
    leaves = None if order.leaves_after_s is None else begun + order.leaves_after_s
    deadline = begun + site.limits.seconds if leaves is None else leaves
    started_by = begun + site.limits.seconds if order.referee is not None else deadline
    ours, theirs = os.pipe()
    process = os.fork()
    if not process:
        _become_worker(site, order, image, stream, theirs, deadline)
    os.close(theirs)
    ended = False
    try:
        with os.fdopen(ours, "rb", buffering=0) as worker:
            said = _said(worker, STARTED, started_by)
            if order.referee is not None:  # the parties' time begins now, however long the start took
                leaves = deadline = time.monotonic() + order.referee.leaves_after_s
            attestation = site.launcher.quote(
                order, start, measurement=image.measurement, worker=said[:_KEY], signer=said[_KEY : 2 * _KEY],
                isolation=said[2 * _KEY :].decode("ascii", "replace").split(","),
            )  # fmt: skip
            _write(sink, attestation)
            if order.session is not None:
                _write(sink, _said(worker, KEYED, deadline))
            outcome = _said(worker, OUTCOME, deadline)
            report = None if order.session is None else _said(worker, REPORT, deadline)
            require_size(order, outcome)
            if _exactly(worker, 1, deadline):
                raise SealedWorkerError("the worker said more than an outcome")
        status = _waited(process, deadline)
        ended = status is not None
        if status != 0:
            raise SealedWorkerError("the worker did not end well, so its outcome is not released")
        if leaves is not None:
            time.sleep(max(0.0, leaves - time.monotonic()))
        _write(sink, outcome)
        if report is not None:
            _write(sink, report)
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def require_size(order: Order, outcome: bytes) -> None:
    """Checks that what is to leave has the size that it has whatever it says, if it has one.

    Raises:
        SealedWorkerError: It has another.
    """
    if order.referee is not None and len(outcome) != RULING_SIZE:
        raise SealedWorkerError("the worker said something else than a ruling, so it is not released")


def _become_worker(
    site: Site, order: Order, image: images.Image, stream: int, theirs: int, deadline: float
) -> NoReturn:
    """Turns this process into the worker, or says why not and ends."""
    refused = ["sealed.worker"]
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for end, standard in ((os.dup(stream), 0), (os.dup(theirs), 1), (null, 2)):
            os.dup2(end, standard)
        os.closerange(3, _FILES_END)
        os.environ[PARENT] = str(os.getppid())
        at = site.image.resolve()
        applied = isolation.enter(
            [_CPUS], at / images.EMPTY, scratch_bytes=site.inputs + isolation.SCRATCH_BYTES,
            fill=partial(_filled, image, at / images.FILES),
            root_bytes=image.size + len(image.files) * 4096 + _SLACK,
        )  # fmt: skip
        if missing := sorted(set(_BEFORE_WORKER) - set(applied)):
            refused = ["sealed.isolation", *missing]
        else:
            _execute(site, order, applied, deadline)
    except SealedWorkerError as error:
        refused = [error.reason]
    except BaseException:
        pass
    with contextlib.suppress(OSError):
        message = REFUSED + ",".join(refused).encode()
        os.write(1, _LENGTH.pack(len(message)) + message)
    os._exit(1)


def _filled(image: images.Image, source: Path, root: Path) -> None:
    isolation.hide_memory()  # from before the first byte that was measured
    images.copy(image, source, root)


def _execute(site: Site, order: Order, applied: list[str], deadline: float) -> None:
    told = {
        "order": order.to_cbor().hex(), "memory": site.limits.memory, "seconds": site.limits.seconds,
        "inputs": site.inputs, "applied": applied, "deadline": deadline,
    }  # fmt: skip
    environment = {
        "PATH": "/usr/bin", "HOME": "/", "LD_LIBRARY_PATH": "/lib", "TMPDIR": os.getcwd(), "OMP_NUM_THREADS": "1",
        PARENT: os.environ[PARENT], **processors.environment(Path("/", images.PROCESSOR).read_text()),
    }  # fmt: skip
    libc = ctypes.CDLL(None)
    # Without capabilities, and none to be gained: otherwise it could read its own interpreter, and be attached to.
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset(ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITIES, 0)), ctypes.create_string_buffer(24))
    boot = _BOOT.format(_main_of(order))
    arguments = ["python", "-I", "-S", "-B", "-X", "utf8", "-c", boot, json.dumps(told)]
    os.execve(f"/{images.INTERPRETER}", arguments, environment)


def _main_of(order: Order) -> str:
    if order.session is not None:
        return _SESSION
    if order.part is not None:
        return _PART
    return _REPLAY if order.referee is None else _REFEREE


def _said(worker: BinaryIO, kind: bytes, deadline: float) -> bytes:
    """Reads what a worker says next.

    Raises:
        SealedWorkerError: It is of another kind than was expected, or nothing.
    """
    header = _exactly(worker, _LENGTH.size, deadline)
    length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else 0
    said = _exactly(worker, length, deadline) if 0 < length <= OUTCOME_LIMIT + _KEY_SLACK else b""
    if said and len(said) == length and said[:1] == kind:
        return said[1:]
    code, *names = said[1:1024].decode("ascii", "replace").split(",") if said[:1] == REFUSED else ["sealed.worker"]
    if kind != STARTED and code not in ("sealed.channel", "sealed.inputs"):  # a Prover may speak here
        code = "sealed.worker"
    lacking = ", ".join(name[:50] for name in names if name.isprintable())
    message = {
        "sealed.isolation": f"this machine cannot run a sealed worker: {lacking} is missing",
        "sealed.image": "a file is not the one of the image; install what was agreed on, or agree on a new image",
        "sealed.channel": "the worker was sent what is not of its Prover for this job; it has ended without an outcome",
        "sealed.inputs": "the worker was sent other files than were committed to; it has ended without an outcome",
    }
    if code in message:
        raise SealedWorkerError(message[code], code=code)
    raise SealedWorkerError("the worker ended, or was ended, without an outcome")


def _waited(process: int, deadline: float) -> int | None:
    """Returns how a process ended; None if it does not in time, as one may that a Prover's files took over."""
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_SECONDS)


def _exactly(worker: BinaryIO, size: int, deadline: float) -> bytes:
    """Reads so many bytes, or fewer if the worker ends or its time is over."""
    found = bytearray()
    while len(found) < size:
        if not select.select([worker], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise SealedWorkerError("the worker's time is over; allow more (`--seconds`), with a new order")
        piece = worker.read(size - len(found))
        if not piece:
            break
        found += piece
    return bytes(found)


def _write(sink: BinaryIO, data: bytes) -> None:
    sink.write(_LENGTH.pack(len(data)) + data)
    sink.flush()
