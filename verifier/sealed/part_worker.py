"""The worker of one part of a sealed inspection: it replays, and says what it found to the session's worker alone.

It begins and ends as `confined` says, and takes the same files as the session's worker. To the launcher it says which
keys it made, and then its results, encrypted to the key of the session's worker and filled up to a power of two.
"""

from __future__ import annotations

import sys

from verifier.sealed import parts
from verifier.sealed.case import Case
from verifier.sealed.confined import Worker, serve
from verifier.store.cache import Cache
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_channel import SealedInputError
from weighbridge.attest.sealed_order import OUTCOME
from weighbridge.attest.sealed_outcome import seal
from weighbridge.attest.sealed_part import PartPreface

_SIGNING_SECONDS = 5.0
"""So long before the launcher waits no longer, replays have to have ended."""


def main(told: str) -> None:
    """Runs one part, and ends the process.

    Args:
        told: As `confined.serve` takes it.
    """
    serve(told, _run)


def _run(worker: Worker) -> None:
    order, named = worker.order, worker.order.part
    if named is None:
        raise SealedInputError("this is no order of a part")
    preface = PartPreface.receive(worker.source)
    divided = preface.of_part(order)
    case, files = Case.from_cbor(preface.case), worker.scratch / "files"
    worker.key.receive(worker.source, order.terms(worker.key.public), files, limit=worker.inputs)
    made = parts.make(
        case, files, worker.registry, Cache(worker.scratch / "cache"),
        CertificateAuthority.create("Sealed part").issue_role("verifier", "sealed-part"),
        number=named.number, count=divided.count, limits=worker.limits,
        cancelled=parts.until(worker.deadline - _SIGNING_SECONDS),
    )  # fmt: skip
    worker.send(OUTCOME, seal(made.to_bytes(), order, worker.signer))


if __name__ == "__main__":
    main(sys.argv[1])
