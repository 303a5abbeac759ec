"""The outcome of a sealed job: signed by the worker's one-time key, and encrypted to the aggregator's key alone.

The signature covers the order, so the outcome of one job cannot be played back as that of another; the key that makes
it is in the worker's attestation, so no party can make up an outcome that has none.
"""

from __future__ import annotations

import os
from pathlib import Path

from nacl import bindings
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox
from nacl.signing import VerifyKey

from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core import secret_files
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import UsageError

OUTCOME_LIMIT = 16 << 20
"""So many bytes an outcome may have."""
_KEY = 32
_DOMAIN = b"weighbridge/sealed-outcome/1\x00"


def seal(body: bytes, order: Order, signer: WorkerSigner) -> bytes:
    """Signs an outcome and encrypts it to the order's aggregator.

    Args:
        body: The outcome.
        order: The job that it is of.
        signer: The worker's one-time key.
    """
    if len(body) > OUTCOME_LIMIT:
        raise SealedWorkerError("the outcome is larger than an outcome may be; ask for fewer steps")
    signature = signer.sign(_bound(body, order))
    return bytes(SealedBox(PublicKey(order.aggregator)).encrypt(signature + body))


class AggregatorKey:
    """The key that outcomes of sealed jobs are encrypted to."""

    def __init__(self, secret: bytes) -> None:
        """Takes the secret half: 32 bytes."""
        self._key = PrivateKey(secret)
        self.public = bytes(self._key.public_key)

    @classmethod
    def load(cls, path: Path) -> AggregatorKey:
        """Reads a key file, or makes one (mode 0600).

        Raises:
            UsageError: It cannot be made, is none, or others may read it.
        """
        try:
            secret = secret_files.read_or_make(path, lambda: os.urandom(_KEY))
        except OSError as error:
            raise UsageError(f"cannot use {path} for a key ({error.strerror}); name another file") from None
        if len(secret) != _KEY:
            raise UsageError(f"{path} holds no key of an aggregator; name the right file")
        return cls(secret)

    def open(self, sealed: bytes, order: Order, signer: bytes) -> bytes:
        """Opens the outcome of a job; what it returns is bytes that a worker made of a Prover's files.

        Args:
            sealed: What the worker gave.
            order: The job.
            signer: The worker's one-time key, out of an attestation that was verified.

        Raises:
            SealedWorkerError: It is not to this key, of another job or worker, or was altered (`sealed.outcome`).
        """
        size = bindings.crypto_box_SEALBYTES + bindings.crypto_sign_BYTES
        if not size <= len(sealed) <= size + OUTCOME_LIMIT:
            raise SealedWorkerError("an outcome has a size that none has", code="sealed.outcome")
        try:
            opened = SealedBox(self._key).decrypt(sealed)
        except (CryptoError, ValueError):
            raise _refused() from None
        return signed_body(bytes(opened), order, signer)


def signed_body(opened: bytes, order: Order, signer: bytes) -> bytes:
    """Returns the outcome out of what was encrypted, if the order's worker signed it.

    Args:
        opened: What was encrypted.
        order: The job.
        signer: The worker's one-time key, out of an attestation that was verified.

    Raises:
        SealedWorkerError: It is of another job or worker (`sealed.outcome`).
    """
    signature, body = opened[: bindings.crypto_sign_BYTES], opened[bindings.crypto_sign_BYTES :]
    try:
        VerifyKey(signer).verify(_bound(body, order), signature)
    except (CryptoError, ValueError):
        raise _refused() from None
    return body


def _refused() -> SealedWorkerError:
    return SealedWorkerError("this is not the outcome of this order by this worker to this key", code="sealed.outcome")


def _bound(body: bytes, order: Order) -> bytes:
    return _DOMAIN + cbor([order.digest, bytes_digest(body)])
