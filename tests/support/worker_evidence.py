"""What a chip is shown of a sealed worker: an order, and what a launcher says of its worker."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from support.sealed_orders import sealed_order

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_attestation import Launcher, LauncherVerifier
from weighbridge.attest.sealed_channel import WorkerKey
from weighbridge.attest.sealed_order import Order, Session
from weighbridge.attest.sealed_starts import Start
from weighbridge.attest.worker_openings import Trusted
from weighbridge.core.digests import bytes_digest

PROVER, IMAGE = b"p" * 32, b"i" * 48
START = Start(
    index=0, time=1, order="", verifier_nonce="", prover_nonce="", measurement="", previous="00" * 32
)  # fmt: skip


def session_order(**changed: Any) -> Order:
    """Returns the order of an inspection, by the Prover and of the image that chips are started for."""
    session = Session(case=bytes(32), agreement=bytes(32), leaves_after_s=60)
    return sealed_order(**{"prover": PROVER, "measurement": IMAGE, "steps": None, "session": session, **changed})


@dataclass
class Site:
    """An authority, a launcher that it vouches for, and a worker."""

    maker: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.create("Both sides' authority"))
    worker: WorkerKey = field(default_factory=WorkerKey)
    order: Order = field(default_factory=session_order)

    def __post_init__(self) -> None:
        self.launcher = Launcher.issue(self.maker, b"\x07" * 17)

    @property
    def trusted(self) -> Trusted:
        """What a chip is told of it."""
        named = bytes_digest(self.maker.certificate.public_bytes(Encoding.DER))
        return Trusted(
            workers=LauncherVerifier(self.maker.certificate), authority=named, prover=PROVER, images=frozenset({IMAGE})
        )

    def evidence(self, order: Order | None = None, **changed: Any) -> tuple[bytes, bytes]:
        """Order and attestation."""
        order = order or self.order
        said = {"measurement": order.measurement, "worker": self.worker.public, **changed}
        return order.to_cbor(), self.launcher.quote(order, START, signer=os.urandom(32), isolation=["memory"], **said)
