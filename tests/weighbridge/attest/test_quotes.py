"""What says whose a worker's keys are may have any form: the rest of the protocol reads it through two methods."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from support.sealed_orders import sealed_order
from support.worker_evidence import IMAGE, PROVER, START, Site, session_order

from weighbridge.attest.quotes import Quoter, QuoteVerifier
from weighbridge.attest.sealed_attestation import Attested, LauncherVerifier
from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.sealed_starts import Start
from weighbridge.attest.worker_openings import Trusted
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError


@dataclass
class Registers:
    """A signer of another form: measurement and 64 bytes of the caller's, as in quotes. The claims lie beside."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))

    def quote(
        self, order: Order, start: Start, *, measurement: bytes, worker: bytes, signer: bytes, isolation: list[str]
    ) -> bytes:
        claims = cbor([order.digest, worker, signer, start.index, start.head, sorted(isolation)])
        signed = measurement + hashlib.sha512(claims).digest()
        return cbor([claims, measurement, self.key.sign(signed, ec.ECDSA(hashes.SHA384()))])

    def verify(self, data: bytes, order: Order) -> Attested:
        try:
            claims, measurement, signature = decode_cbor(data)
            signed = measurement + hashlib.sha512(claims).digest()
            self.key.public_key().verify(signature, signed, ec.ECDSA(hashes.SHA384()))
            digest, worker, signer, index, head, isolation = decode_cbor(claims)
        except (ValueError, TypeError, InvalidSignature):
            raise SealedWorkerError("no quote", code="sealed.attestation") from None
        if (digest, measurement) != (order.digest, order.measurement):
            raise SealedWorkerError("another order or image", code="sealed.attestation")
        return Attested(
            launcher=bytes(17), certificate=bytes(32), worker=worker, signer=signer, index=index, head=head,
            isolation=tuple(isolation),
        )  # fmt: skip


def both() -> list[tuple[Quoter, QuoteVerifier]]:
    site, registers = Site(), Registers()
    return [(site.launcher, LauncherVerifier(site.maker.certificate)), (registers, registers)]


@pytest.mark.parametrize(("quoter", "verifier"), both())
def test_a_statement_says_whose_the_keys_are(quoter: Quoter, verifier: QuoteVerifier) -> None:
    order, worker, signer = sealed_order(), os.urandom(32), os.urandom(32)
    data = quoter.quote(order, START, measurement=order.measurement, worker=worker, signer=signer, isolation=["b", "a"])
    found = verifier.verify(data, order)
    assert (found.worker, found.signer, found.head, found.isolation) == (worker, signer, START.head, ("a", "b"))
    for other in (sealed_order(), sealed_order(measurement=order.measurement)):
        with pytest.raises(SealedWorkerError) as caught:
            verifier.verify(data, other)
        assert caught.value.reason == "sealed.attestation"


def test_a_chip_opens_to_workers_whatever_vouches_for_them() -> None:
    registers, worker = Registers(), os.urandom(32)
    trusted = Trusted(workers=registers, authority=bytes(32), prover=PROVER, images=frozenset({IMAGE}))
    order = session_order()
    data = registers.quote(order, START, measurement=IMAGE, worker=worker, signer=os.urandom(32), isolation=[])
    assert trusted.check(order.to_cbor(), data)[1].worker == worker
    for evidence in (Site().evidence(order), (order.to_cbor(), data[:-1] + bytes([data[-1] ^ 1]))):
        with pytest.raises(ChipError) as caught:
            trusted.check(*evidence)
        assert caught.value.reason == "chip.worker"
