"""How a worker of a sealed inspection begins and ends: the session's, and those of its parts.

As a worker that replays one transcript (`weighbridge.execution.workers.sealed_worker`), it runs in a measured image and
is confined before it has a key. What a Prover's files can take over are not this process but those that it has read
them: each is forked from a server that was started before there was any key, and confines itself as any replay does.
Here the system calls of programs, of the network and of other processes are denied; of files, those on others' alone.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from verifier.registry import Registry
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_order import REFUSED, STARTED, Order, SealedWorkerError
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.errors import WeighbridgeError
from weighbridge.core.secret_memory import SecretMemory, secret
from weighbridge.execution import worker_process
from weighbridge.execution.fork_server import SEALED
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers.sealed_worker import REQUIRED, confined, is_traced

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A worker that is confined and has its keys.

    Attributes:
        order: Its job.
        key: Its key of the channel.
        signer: Its key that signs what it says.
        source: Where its Prover speaks.
        scratch: A directory in memory, which ends with it.
        registry: An empty one.
        limits: Of each replay.
        inputs: So many bytes its files may have.
        deadline: When the launcher waits no longer, by `time.monotonic`.
        send: Says something of a kind to the launcher.
    """

    order: Order
    key: WorkerKey
    signer: WorkerSigner
    source: BinaryIO
    scratch: Path
    registry: Registry
    limits: Limits
    inputs: int
    deadline: float
    send: Callable[[bytes, bytes], None]


def serve(told: str, job: Callable[[Worker], None]) -> None:
    """Runs one job, and ends the process.

    Args:
        told: As JSON, nothing of it secret: the order, the limits, the deadline, and what the launcher has confined
            this process by.
        job: What to do once keys are made and stated. What it raises is said by one of three identifiers.
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
        os.environ |= {SEALED: "1", "PYTHONPATH": os.pathsep.join(("/code", "/site"))}
        forking, registry = worker_process.prepare(), Registry(scratch / "registry")
        memories = [SecretMemory(), SecretMemory()]  # before the system calls for them are denied
        applied = list(map(str, given["applied"])) + confined(limits, scratch) + secret(memories)
        if (missing := set(REQUIRED) - set(applied)) or is_traced() or not forking:
            refuse("sealed.isolation", sorted(missing) or ["not-traced" if forking else "fork-server"])
        else:
            key, signer = WorkerKey(memories[0]), WorkerSigner(memories[1])
            send(STARTED, key.public + signer.public + ",".join(sorted(applied)).encode())
            job(
                Worker(
                    order=order, key=key, signer=signer, source=os.fdopen(0, "rb"), scratch=scratch, registry=registry,
                    limits=limits, inputs=int(given["inputs"]), deadline=float(given["deadline"]), send=send,
                )
            )  # fmt: skip
            code = 0
    except (SealedInputError, SealedWorkerError) as error:
        refuse(error.reason)
    except WeighbridgeError:  # the agreement, the case or the Prover's list is none, or they do not fit each other
        refuse("sealed.inputs")
    finally:
        launcher.close()
        os._exit(code)  # what an inspection that is late still does is not waited for
