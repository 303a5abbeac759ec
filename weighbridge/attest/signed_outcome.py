"""The signature of the record of an outcome: there is one key, and one signature by it, that a worker may use."""

from __future__ import annotations

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_agreement import SIGNATURE_SIZE, Agreement, signed_by
from weighbridge.attest.outcome_record import RECORD_LIMIT, decode, encode
from weighbridge.attest.outcome_terms import OutcomeError
from weighbridge.attest.outcome_values import Outcome

_SIGNED = b"weighbridge/outcome/1\x00"


def sign(record: Outcome, key: SigningKey) -> bytes:
    """Returns the record with its signature behind it; its length, too, follows from the size class alone.

    Raises:
        OutcomeError: The record names another key.
    """
    if record.key != key.public:
        raise OutcomeError("the record names another key than it is to be signed with")
    data = encode(record)
    return data + key.sign(_SIGNED + data)


def open_record(data: bytes) -> Outcome:
    """Reads a signed record. Whether its key and nonce are the agreed ones, `verify` tells.

    Raises:
        OutcomeError: It is malformed, or its signature does not verify.
    """
    if not SIGNATURE_SIZE < len(data) <= RECORD_LIMIT:
        raise OutcomeError("this is no signed record of an outcome: its length is that of none")
    body, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
    record = decode(body)
    if not signed_by(record.key, _SIGNED + body, signature):
        raise OutcomeError("the signature of the record does not verify; get it again", code="outcome.signature")
    return record


def verify(data: bytes, agreement: Agreement, key: bytes) -> Outcome:
    """Returns a signed record, if it is of this start.

    Args:
        data: Hostile.
        agreement: What was agreed before the start.
        key: The public key that the worker stated when it started.

    Raises:
        OutcomeError: It is malformed, altered, signed by another key, or of another start or size class.
    """
    record = open_record(data)
    if record.key != key:
        raise OutcomeError(
            "the record is signed by another key than the worker stated when it started", code="outcome.signature"
        )
    if record.nonce != agreement.nonce or record.size != agreement.terms.size:
        raise OutcomeError(
            "the record is of another start than was agreed; treat it as played back", code="outcome.nonce"
        )
    return record


def audit(data: bytes, agreement: Agreement, prover: bytes, verifier: bytes) -> None:
    """Checks that a record has the one key and the one signature that it may have, given both secrets.

    Raises:
        OutcomeError: It has others: the worker chose them, and may have hidden bits in them.
    """
    key = agreement.worker_key(prover, verifier)
    record = verify(data, agreement, key.public)
    if sign(record, key) != data:
        raise OutcomeError(
            "the signature is not the one that Ed25519 makes; the worker chose it", code="outcome.signature"
        )
