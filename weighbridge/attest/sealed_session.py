"""What a worker of a sealed inspection hears first, and the key that it answers with.

Before the Prover's stream come six messages: the agreement on the outcome and the Verifier's case, which the order
names by their digests; each party's signature over the order; and each party's secret, encrypted to the worker's
one-time key. The agreement names both parties' keys, and commits each to its secret. So a worker takes up nothing that
both did not sign, whichever party carries the messages.

Out of both secrets it derives the one key that the outcome may be signed with, and states it, under its attested key,
before it is sent any file.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import BinaryIO

from nacl.exceptions import CryptoError
from nacl.public import PublicKey, SealedBox
from nacl.signing import VerifyKey

from weighbridge.attest import manifest
from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, SIGNATURE_SIZE, Agreement, Role, party_key, signed_by
from weighbridge.attest.outcome_terms import KEY_SIZE
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey, exactly
from weighbridge.attest.sealed_order import Order, Parts, Session
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UsageError

CASE_LIMIT = 64 << 20
"""So many bytes a case may have."""
STATEMENT_SIZE = KEY_SIZE + SIGNATURE_SIZE

_ASSENT = b"weighbridge/sealed-assent/1\x00"
_KEY = b"weighbridge/sealed-outcome-key/1\x00"
_SECRET = b"weighbridge/sealed-secret/1\x00"
BOX_SIZE = 48 + len(_SECRET) + 32 + KEY_SIZE
"""So many bytes an encrypted secret has."""
_LENGTH = struct.Struct(">I")
_LIMITS = (AGREEMENT_LIMIT, CASE_LIMIT, SIGNATURE_SIZE, SIGNATURE_SIZE, BOX_SIZE, BOX_SIZE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preface:
    """What comes before a Prover's stream, in this order; each message comes after its length in four bytes.

    Attributes:
        agreement: What both parties agreed on about the outcome, encoded.
        case: The Verifier's case, encoded.
        prover_assent: The Prover's signature over the order.
        verifier_assent: The Verifier's.
        prover_box: The Prover's secret, encrypted to the worker.
        verifier_box: The Verifier's.
    """

    agreement: bytes
    case: bytes
    prover_assent: bytes
    verifier_assent: bytes
    prover_box: bytes
    verifier_box: bytes

    def send(self, sink: BinaryIO) -> None:
        """Writes all messages.

        Raises:
            OSError: They cannot be written.
        """
        for each in astuple(self):
            sink.write(_LENGTH.pack(len(each)) + each)
        sink.flush()

    @classmethod
    def receive(cls, source: BinaryIO) -> Preface:
        """Reads all messages; nothing of them is parsed here.

        Raises:
            SealedInputError: One has a length that it cannot have, or does not come.
        """
        return cls(**dict(zip(cls.__slots__, (message(source, limit) for limit in _LIMITS), strict=True)))


def case_digest(case: bytes) -> bytes:
    """Returns what an order names a case by (32 bytes).

    Args:
        case: The Verifier's case, encoded.
    """
    return record_digest("sealed-case/1", case)


def session_of(agreement: Agreement, case: bytes, parts: Parts | None = None) -> Session:
    """Returns what an order of this inspection names.

    Args:
        agreement: What both parties agreed on.
        case: The Verifier's case, encoded.
        parts: By which other workers replays may be made.

    Raises:
        UsageError: The terms name machines of which one is drawn, so nothing may be made elsewhere.
    """
    if parts is not None and agreement.terms.machines:
        raise UsageError(
            "the terms draw the one machine that is used, so no part may be made on another; order it without parts"
        )
    return Session(
        case=case_digest(case),
        agreement=record_digest("sealed-agreement/1", agreement.to_cbor()),
        leaves_after_s=agreement.terms.leaves_after_s,
        parts=parts,
    )


def assent(order: Order, key: manifest.SigningKey) -> bytes:
    """Returns a party's signature over an order."""
    return key.sign(_ASSENT + order.digest)


def seal_secret(secret: bytes, order: Order, worker: bytes) -> bytes:
    """Encrypts a party's secret to the worker that was attested for an order.

    Args:
        secret: The party's, which the agreement commits it to.
        order: The order.
        worker: The worker's public key, out of an attestation that was verified.

    Raises:
        UsageError: The secret is none.
    """
    if len(secret) != KEY_SIZE:
        raise UsageError("a party's secret is 32 bytes; give the file that `weighbridge outcome agree` wrote")
    return bytes(SealedBox(PublicKey(worker)).encrypt(_SECRET + order.digest + secret))


def admitted(preface: Preface, order: Order, key: WorkerKey) -> tuple[Agreement, manifest.SigningKey]:
    """Checks what came before a Prover's stream: in the worker.

    Args:
        preface: As it came.
        order: What the worker was started with.
        key: The worker's own.

    Returns:
        The agreement, and the one key that the outcome may be signed with.

    Raises:
        SealedInputError: The agreement or the case is another than the order names, a party did not sign the order, or
            a secret is another than its party is committed to. It says nothing of the content.
        OutcomeError: What both parties named is no agreement.
    """
    named = order.session
    if named is None or record_digest("sealed-agreement/1", preface.agreement) != named.agreement:
        raise SealedInputError("this is not the agreement that the order names")
    if case_digest(preface.case) != named.case:
        raise SealedInputError("this is not the case that the order names")
    agreement = Agreement.from_cbor(preface.agreement)
    if agreement.terms.leaves_after_s != named.leaves_after_s:
        raise SealedInputError("the order has its outcome leave at another time than was agreed")
    if named.parts is not None and agreement.terms.machines:
        raise SealedInputError("the order has parts made elsewhere than on the machine that is drawn")
    if order.verifier_nonce != agreement.verifier_opened.share or order.prover_nonce != agreement.prover_opened.share:
        raise SealedInputError("the nonces of the order are not the shares of the agreement")
    signed: tuple[tuple[Role, bytes], ...] = (("prover", preface.prover_assent), ("verifier", preface.verifier_assent))
    for role, signature in signed:
        if not signed_by(party_key(agreement.terms, role), _ASSENT + order.digest, signature):
            raise SealedInputError(f"the {role} did not sign this order")
    secrets = [_opened(box, order, key) for box in (preface.prover_box, preface.verifier_box)]
    return agreement, agreement.worker_key(*secrets)


def state_key(key: bytes, order: Order, signer: WorkerSigner) -> bytes:
    """Returns the worker's statement of the key that the outcome is going to be signed with (96 bytes).

    Args:
        key: That public key.
        order: The order.
        signer: The worker's one-time key, which its attestation names.
    """
    return key + signer.sign(_KEY + order.digest + key)


def stated_key(statement: bytes, order: Order, signer: bytes) -> bytes:
    """Returns the public key that a worker stated.

    Args:
        statement: As it came.
        order: The order.
        signer: The worker's one-time key, out of an attestation that was verified.

    Raises:
        SealedInputError: The worker did not say so of this order.
    """
    key, signature = statement[:KEY_SIZE], statement[KEY_SIZE:]
    if len(statement) == STATEMENT_SIZE:
        try:
            VerifyKey(signer).verify(_KEY + order.digest + key, signature)
        except (CryptoError, ValueError):
            pass
        else:
            return key
    raise SealedInputError("this is no statement of a key by this worker of this order")


def _opened(box: bytes, order: Order, key: WorkerKey) -> bytes:
    opened, bound = key.open(box), _SECRET + order.digest
    if not opened.startswith(bound) or len(opened) != len(bound) + KEY_SIZE:
        raise SealedInputError("a party's secret is not for this order")
    return opened[len(bound) :]


def message(source: BinaryIO, limit: int) -> bytes:
    """Reads one message that comes before a Prover's stream, after its length in four bytes.

    Raises:
        SealedInputError: It has a length that it cannot have, or does not come.
    """
    header = exactly(source, _LENGTH.size)
    (length,) = _LENGTH.unpack(header)
    if not 0 < length <= limit:
        raise SealedInputError("a message before a sealed job's stream has a length that none has")
    return exactly(source, length)
