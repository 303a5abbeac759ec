"""The worker of a sealed inspection: the process that alone sees all of it, and lets out one record of fixed size.

It begins and ends as `confined` says. It says to the launcher: which keys it made; the key that the outcome is going to
be signed with; the record; and the full report, encrypted to the key that the order names for it. The record leaves in
time: what has not ended by then is `late`, what failed is `aborted`, and both have the length of every other.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from verifier.registry import Registry
from verifier.report import outcome
from verifier.sealed import inputs, parts
from verifier.sealed.case import Case, check_agreed
from verifier.sealed.confined import Worker, serve
from verifier.sealed.session import Examined, due, examine
from verifier.store.cache import Cache
from weighbridge.attest import manifest, worker_openings
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.attest.outcome_values import Outcome, RecordStatus
from weighbridge.attest.sealed_order import KEYED, OUTCOME, REPORT
from weighbridge.attest.sealed_outcome import OUTCOME_LIMIT, seal
from weighbridge.attest.sealed_part import SealedParts
from weighbridge.attest.sealed_report import SealedReport
from weighbridge.attest.sealed_session import Preface, admitted, state_key
from weighbridge.attest.signed_outcome import sign
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.worker_process import Limits

_SIGNING_SECONDS = 5.0
"""So long before the outcome leaves, the inspection has to have ended."""


def main(told: str) -> None:
    """Runs one session, and ends the process.

    Args:
        told: As `confined.serve` takes it; its deadline is when the outcome leaves.
    """
    serve(told, _run)


def _run(worker: Worker) -> None:
    order = worker.order
    preface = Preface.receive(worker.source)
    agreement, key = admitted(preface, order, worker.key)
    case = Case.from_cbor(preface.case)
    check_agreed(case, agreement)
    worker.send(KEYED, state_key(key.public, order, worker.signer))
    files = worker.scratch / "files"
    opened = worker_openings.receive(worker.source, order, worker.key)
    taken = None
    if order.session is not None and order.session.parts is not None:
        taken = parts.taken(SealedParts.receive(worker.source).opened(order, worker.key), worker.limits)
    worker.key.receive(worker.source, order.terms(worker.key.public), files, limit=worker.inputs)
    inputs.place(files, opened)
    session = Session(case, agreement, key, files, worker.deadline - _SIGNING_SECONDS, taken)
    record, report = session.run(worker.registry, Cache(worker.scratch / "cache"), worker.limits)
    worker.send(OUTCOME, record)
    worker.send(REPORT, seal(report, order, worker.signer))


class Session:
    """One session, once all that it needs is there."""

    def __init__(
        self,
        case: Case,
        agreement: Agreement,
        key: manifest.SigningKey,
        files: Path,
        deadline: float,
        taken: parts.Taken | None = None,
    ) -> None:
        """Takes what it needs; `taken` is what parts made, None in a session without any."""
        self._taken = taken
        self._case, self._agreement, self._key, self._files, self._deadline = case, agreement, key, files, deadline
        self._salt = inputs.salt(files)
        self._found: Examined | None = None

    def run(self, registry: Registry, cache: Cache, limits: Limits) -> tuple[bytes, bytes]:
        """Returns the signed record, and the full report; of an inspection without an end an empty one."""
        made = None if self._taken is None else self._taken.replays

        def work() -> None:
            with contextlib.suppress(Exception):  # of what it fails by, only that it failed may leave
                self._found = examine(
                    self._case, self._files, registry, cache,
                    CertificateAuthority.create("Sealed session").issue_role("verifier", "sealed-session"),
                    limits=limits, cancelled=lambda: time.monotonic() >= self._deadline, made=made,
                )  # fmt: skip

        thread = threading.Thread(target=work, name="inspection", daemon=True)
        thread.start()
        thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._found is None:
            status: RecordStatus = "late" if time.monotonic() >= self._deadline else "aborted"
            return self._without_end(status)
        if self._taken is not None:
            self._found.report["parts"] = self._taken.to_json()
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
