"""A sealed worker: the process that runs in a measured image, takes one Prover's files, replays them, and ends.

`weighbridge.execution.sealed.launcher` starts it, in a root that holds the image and nothing else. It is confined
before it has a key, and has no outcome that is not encrypted. To the launcher it says three things, each in one frame:
that it is confined and which keys it made; its outcome, encrypted to the aggregator; or the identifier of a finding,
with no other word. What it reads is the stream of its Prover; until that is authenticated, nothing of it is parsed.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch._dynamo  # the shape functions of some operations import it; here, and not in the job
import torch._refs  # noqa: F401

from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_order import OUTCOME, REFUSED, STARTED, Order, SealedWorkerError
from weighbridge.attest.sealed_outcome import seal
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.errors import WeighbridgeError
from weighbridge.core.secret_memory import SecretMemory, secret
from weighbridge.execution.replay import request_of
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers import confinement, isolation
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.execution.workers.serving import prepare
from weighbridge.program.tape_policy import AS_DESIGNED

REQUIRED = (
    *isolation.EVERYTHING, "memory", "processor-time", "no-other-files", "no-changed-modes", "no-network",
    "no-other-processes", "no-new-programs",
)  # fmt: skip
"""What a sealed worker has to be confined by; without one of these it makes no key."""
READABLE = ("/usr", "/site", "/code", "/lib", "/lib64", "/sys")
"""Directories of an image, and what the kernel says of processors."""
_LENGTH = struct.Struct(">I")


def main(told: str) -> None:
    """Runs one job.

    Args:
        told: As JSON, nothing of it secret: the order, the limits, and what the launcher has confined this process by.
    """
    warnings.filterwarnings("ignore")
    given = json.loads(told)
    order, scratch = Order.from_cbor(bytes.fromhex(given["order"])), Path(tempfile.gettempdir())
    limits = Limits(memory=int(given["memory"]), seconds=int(given["seconds"]))
    launcher = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes nowhere

    def send(kind: bytes, content: bytes) -> None:
        launcher.write(_LENGTH.pack(1 + len(content)) + kind + content)
        launcher.flush()

    def refuse(code: str, names: Iterable[str] = ()) -> None:
        send(REFUSED, ",".join((code, *names)).encode())

    code = 1
    try:
        prepare("cpu")
        gc.collect()
        gc.freeze()  # what was imported is not looked through again and again while it replays
        memories = [SecretMemory(), SecretMemory()]  # before the system calls for them are denied
        applied = list(map(str, given["applied"])) + confined(limits, scratch) + secret(memories)
        if (missing := set(REQUIRED) - set(applied)) or is_traced():
            refuse("sealed.isolation", sorted(missing) or ["not-traced"])
            return
        worker, signer = WorkerKey(memories[0]), WorkerSigner(memories[1])
        send(STARTED, worker.public + signer.public + ",".join(sorted(applied)).encode())
        source = os.fdopen(0, "rb")
        worker.receive(source, order.terms(worker.public), scratch / "job", limit=int(given["inputs"]))
        body = json.dumps(_replayed(order, scratch / "job", limits, applied)).encode()
        send(OUTCOME, seal(body, order, signer))
        code = 0
    except (SealedInputError, SealedWorkerError) as error:
        refuse(error.reason)
    except WeighbridgeError:  # the Prover's list is none
        refuse("sealed.inputs")
    finally:
        launcher.close()
        os._exit(code)  # to end an interpreter takes a second, for which the launcher would hold the outcome back


def _replayed(order: Order, path: Path, limits: Limits, applied: list[str]) -> dict[str, Any]:
    """Returns the answer to the order's question as an ordinary replay gives it."""
    request = request_of(path, order.steps, "cpu", None, None, limits, (), AS_DESIGNED)
    try:
        return {"result": Replay(request, sorted(applied), lambda _: None).run()}
    except WeighbridgeError as error:
        return {"error": {"code": error.reason, "message": error.message}}
    except (MemoryError, RuntimeError):
        return {"error": {"code": "replay.worker", "message": "the replay ran out of memory"}}


def confined(limits: Limits, scratch: Path) -> list[str]:
    """Gives up what no sealed worker needs, whatever its job is, and returns it by name."""
    applied = confinement.limit_resources(2 * limits.memory + (2 << 30), limits.seconds, address_space=True)
    applied += isolation.hide_memory()
    applied += confinement.restrict_files([Path(each) for each in READABLE], scratch)
    return applied + confinement.deny_system_calls(allow_exec=False)


def is_traced() -> bool:
    """Whether another process reads along."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("TracerPid")).split()[1] != "0"


if __name__ == "__main__":
    main(sys.argv[1])
