"""The worker of a sealed inspection: the process that alone sees all of it, and lets out one record of fixed size.

As a worker that replays one transcript (`weighbridge.execution.workers.sealed_worker`), it runs in a measured image and
is confined before it has a key. What a Prover's files can take over are not this process but those that it has read
them: each is forked from a server that was started before there was any key, and confines itself as any replay does.
Here the system calls of programs, of the network and of other processes are denied; of files, those on others' alone.

It says to the launcher: which keys it made; the key that the outcome is going to be signed with; the record; and the
full report, encrypted to the key that the order names for it. The record leaves in time: what has not ended by then is
`late`, what failed is `aborted`, and both have the length of every other.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verifier.registry import Registry
from verifier.report import outcome
from verifier.sealed import inputs
from verifier.sealed.case import Case, check_agreed
from verifier.sealed.session import Examined, due, examine
from verifier.store.cache import Cache
from weighbridge.attest import manifest, worker_openings
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.attest.outcome_values import Outcome, RecordStatus
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_order import KEYED, OUTCOME, REFUSED, REPORT, STARTED, Order, SealedWorkerError
from weighbridge.attest.sealed_outcome import OUTCOME_LIMIT, seal
from weighbridge.attest.sealed_report import SealedReport
from weighbridge.attest.sealed_session import Preface, admitted, state_key
from weighbridge.attest.signed_outcome import sign
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.errors import WeighbridgeError
from weighbridge.core.secret_memory import SecretMemory, secret
from weighbridge.execution import worker_process
from weighbridge.execution.fork_server import SEALED
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers.sealed_worker import REQUIRED, confined, is_traced

_LENGTH = struct.Struct(">I")
_SIGNING_SECONDS = 5.0
"""So long before the outcome leaves, the inspection has to have ended."""


def main(told: str) -> None:
    """Runs one session, and ends the process.

    Args:
        told: As JSON, nothing of it secret: the order, the limits, when the outcome leaves, and what the launcher has
            confined this process by.
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
            worker, signer = WorkerKey(memories[0]), WorkerSigner(memories[1])
            send(STARTED, worker.public + signer.public + ",".join(sorted(applied)).encode())
            source = os.fdopen(0, "rb")
            preface = Preface.receive(source)
            agreement, key = admitted(preface, order, worker)
            case = Case.from_cbor(preface.case)
            check_agreed(case, agreement)
            send(KEYED, state_key(key.public, order, signer))
            files = scratch / "files"
            opened = worker_openings.receive(source, order, worker)
            worker.receive(source, order.terms(worker.public), files, limit=int(given["inputs"]))
            inputs.place(files, opened)
            session = Session(case, agreement, key, files, float(given["deadline"]) - _SIGNING_SECONDS)
            record, report = session.run(registry, Cache(scratch / "cache"), limits)
            send(OUTCOME, record)
            send(REPORT, seal(report, order, signer))
            code = 0
    except (SealedInputError, SealedWorkerError) as error:
        refuse(error.reason)
    except WeighbridgeError:  # the agreement, the case or the Prover's list is none, or they do not fit each other
        refuse("sealed.inputs")
    finally:
        launcher.close()
        os._exit(code)  # what an inspection that is late still does is not waited for


class Session:
    """One session, once all that it needs is there."""

    def __init__(
        self, case: Case, agreement: Agreement, key: manifest.SigningKey, files: Path, deadline: float
    ) -> None:
        self._case, self._agreement, self._key, self._files, self._deadline = case, agreement, key, files, deadline
        self._salt = inputs.salt(files)
        self._found: Examined | None = None

    def run(self, registry: Registry, cache: Cache, limits: Limits) -> tuple[bytes, bytes]:
        """Returns the signed record, and the full report; of an inspection without an end an empty one."""

        def work() -> None:
            with contextlib.suppress(Exception):  # of what it fails by, only that it failed may leave
                self._found = examine(
                    self._case, self._files, registry, cache,
                    CertificateAuthority.create("Sealed session").issue_role("verifier", "sealed-session"),
                    limits=limits, cancelled=lambda: time.monotonic() >= self._deadline,
                )  # fmt: skip

        thread = threading.Thread(target=work, name="inspection", daemon=True)
        thread.start()
        thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._found is None:
            status: RecordStatus = "late" if time.monotonic() >= self._deadline else "aborted"
            return self._without_end(status)
        try:
            sealed = SealedReport(self._found.report, self._salt)
            record = outcome.of_report(self._found.report, self._bound(sealed), self._found.missing)
            content = json.dumps(self._found.report, sort_keys=True).encode()
            if len(content) > OUTCOME_LIMIT:  # its Prover can make it so; that is no way to have nothing leave
                return self._without_end("aborted")
            return sign(record, self._key), content
        except WeighbridgeError:  # the record has no room for what was found, or the terms are of another plan
            return self._without_end("aborted")

    def _without_end(self, status: RecordStatus) -> tuple[bytes, bytes]:
        content: dict[str, Any] = {}
        bound = self._bound(SealedReport(content, self._salt))
        record: Outcome = outcome.without_end(status, bound, due(self._case), population=len(self._case.agreed))
        return sign(record, self._key), json.dumps(content).encode()

    def _bound(self, sealed: SealedReport) -> outcome.Bound:
        agreed = self._agreement
        return outcome.Bound(terms=agreed.terms, nonce=agreed.nonce, key=self._key.public, sealed=sealed.commitment)


if __name__ == "__main__":
    main(sys.argv[1])
