"""How nonce and key of one record come from both parties' randomness, so that neither of them chooses either.

Each party draws a share and a secret, commits to both for these terms, and signs the commitment. Only when it holds the
other's commitment does it open its share; the nonce follows from both shares. The secrets go to the worker alone, which
derives from both the one key that it may sign this record with. So a party that tries many shares until it likes the
nonce has to do so before it has seen the other's, and no worker has a choice of keys or signatures in which to hide
bits: Ed25519 signs in one way.

What it does not do: a party may stop when it sees the nonce, which costs one of the inspection's attempts. A party that
has both secrets (the root of the worker's machine has) can sign anything. And that a key was derived in this way is
known only once both secrets are shown (`audit`), which makes the key worthless: keep the record before that.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from nacl import bindings

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_record import RECORD_LIMIT, decode, encode
from weighbridge.attest.outcome_terms import KEY_SIZE, TERMS_LIMIT, OutcomeError, OutcomeTerms, mapping
from weighbridge.attest.outcome_values import Outcome
from weighbridge.core.digests import cbor, record_digest

Role = Literal["prover", "verifier"]
ROLES: tuple[Role, Role] = ("prover", "verifier")

AGREEMENT_LIMIT = TERMS_LIMIT + (1 << 12)
_SIGNATURE_SIZE = 64
_SIGNED = b"weighbridge/outcome/1\x00"
_COMMITTED = b"weighbridge/outcome-commitment/1\x00"


def _refused(why: str) -> OutcomeError:
    return OutcomeError(f"{why}; take no part in this start, and agree on another", code="outcome.agreement")


@dataclass(frozen=True, slots=True)
class Committed:
    """What a party sends first.

    Attributes:
        commitment: To its share and secret, for these terms and this role (32 bytes).
        signature: Over that, by its key in the terms.
    """

    commitment: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """What a party sends once it has the other's commitment.

    Attributes:
        share: 32 bytes of which the nonce is made.
        secret_digest: Digest of the secret that its worker gets.
    """

    share: bytes
    secret_digest: bytes


class Side:
    """One party's side of the exchange, for one start.

    Attributes:
        secret: 32 bytes for the worker, and for no other party.
    """

    def __init__(self, terms: OutcomeTerms, role: Role, key: SigningKey) -> None:
        """Draws share and secret.

        Raises:
            OutcomeError: The terms name another key for this role.
        """
        if key.public != party_key(terms, role):
            raise _refused(f"the terms name another key for the {role}")
        self.secret = secrets.token_bytes(KEY_SIZE)
        self._terms, self._role, self._key = terms, role, key
        self._own = Opened(secrets.token_bytes(KEY_SIZE), _secret_digest(terms, role, self.secret))
        self._others: Committed | None = None

    def commit(self) -> Committed:
        """Returns this side's commitment."""
        commitment = _commitment(self._terms, self._role, self._own)
        return Committed(commitment, self._key.sign(_COMMITTED + commitment))

    def take(self, commitment: Committed) -> None:
        """Takes the other side's commitment; the first one stands.

        Raises:
            OutcomeError: It is not signed by the other party, or not the first.
        """
        if self._others is not None and self._others != commitment:
            raise _refused("the other party sent a second commitment")
        _check_committed(self._terms, other(self._role), commitment)
        self._others = commitment

    def open(self) -> Opened:
        """Returns this side's share.

        Raises:
            OutcomeError: The other side has not committed yet, and could choose what it commits to.
        """
        if self._others is None:
            raise _refused("the other party has not committed to its share, and asks for this one")
        return self._own

    def agree(self, opened: Opened) -> Agreement:
        """Returns what was agreed, given the other side's share.

        Raises:
            OutcomeError: It is not what the other side had committed to.
        """
        if self._others is None:
            raise _refused("the other party has not committed to its share")
        sent, shown = {self._role: self.commit(), other(self._role): self._others}, {self._role: self._own}
        shown[other(self._role)] = opened
        return Agreement(self._terms, sent["prover"], shown["prover"], sent["verifier"], shown["verifier"])


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both parties agreed on before a start; each can show it to any reader of the record.

    Attributes:
        terms: The terms.
        prover: The Prover's commitment.
        prover_opened: Its share.
        verifier: The Verifier's commitment.
        verifier_opened: Its share.
    """

    terms: OutcomeTerms
    prover: Committed
    prover_opened: Opened
    verifier: Committed
    verifier_opened: Opened

    def __post_init__(self) -> None:
        """Checks that both parties signed, and opened what they had committed to.

        Raises:
            OutcomeError: They did not.
        """
        for role in ROLES:
            sent, opened = self._of(role)
            _check_committed(self.terms, role, sent)
            if any(type(each) is not bytes or len(each) != KEY_SIZE for each in (opened.share, opened.secret_digest)):
                raise _refused(f"the share of the {role} is not 32 bytes")
            if not hmac.compare_digest(_commitment(self.terms, role, opened), sent.commitment):
                raise _refused(f"the {role} opened another share than it had committed to")

    def _of(self, role: Role) -> tuple[Committed, Opened]:
        one = role == "prover"
        return (self.prover, self.prover_opened) if one else (self.verifier, self.verifier_opened)

    @property
    def nonce(self) -> bytes:
        """The nonce of this start: no party could choose it, and it binds the terms."""
        return record_digest("outcome-nonce/1", [self.terms.digest, *self._shares()])

    def _shares(self) -> list[list[bytes]]:
        pairs = [self._of(role) for role in ROLES]
        return [[sent.commitment, opened.share, opened.secret_digest] for sent, opened in pairs]

    def worker_key(self, prover: bytes, verifier: bytes) -> SigningKey:
        """Returns the one key that this start's record may be signed with: in the worker.

        Args:
            prover: The Prover's secret.
            verifier: The Verifier's.

        Raises:
            OutcomeError: A party gave another secret than it had committed to.
        """
        for role, secret in zip(ROLES, (prover, verifier), strict=True):
            if not hmac.compare_digest(_secret_digest(self.terms, role, secret), self._of(role)[1].secret_digest):
                raise _refused(f"the {role} gave the worker another secret than it had committed to")
        seed = record_digest("outcome-key/1", [self.nonce, prover, verifier])
        return SigningKey(Ed25519PrivateKey.from_private_bytes(seed))

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this agreement."""
        parts = {
            role: [sent.commitment, sent.signature, opened.share, opened.secret_digest]
            for role in ROLES
            for sent, opened in (self._of(role),)
        }
        return cbor({"terms": self.terms.to_cbor(), **parts})

    @classmethod
    def from_cbor(cls, data: bytes) -> Agreement:
        """Reads an agreement.

        Law: `from_cbor(a.to_cbor()) == a`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OutcomeError: The bytes are no agreement, or one that a party did not sign.
        """
        match mapping(data, AGREEMENT_LIMIT, "an agreement on an outcome"):
            case {
                "terms": bytes(terms),
                "prover": [bytes(a), bytes(b), bytes(c), bytes(d)],
                "verifier": [bytes(e), bytes(f), bytes(g), bytes(h)],
                **rest,
            } if not rest:
                return cls(OutcomeTerms.from_cbor(terms), Committed(a, b), Opened(c, d), Committed(e, f), Opened(g, h))
        raise OutcomeError("an agreement on an outcome has terms, and four byte strings of each party")


def other(role: Role) -> Role:
    """Returns the other party's role."""
    return "verifier" if role == "prover" else "prover"


def party_key(terms: OutcomeTerms, role: Role) -> bytes:
    """Returns the public key that signs for a party."""
    return terms.prover if role == "prover" else terms.verifier


def _secret_digest(terms: OutcomeTerms, role: Role, secret: bytes) -> bytes:
    return record_digest("outcome-secret/1", [terms.digest, role, secret])


def _commitment(terms: OutcomeTerms, role: Role, opened: Opened) -> bytes:
    return record_digest("outcome-commitment/1", [terms.digest, role, opened.share, opened.secret_digest])


def _check_committed(terms: OutcomeTerms, role: Role, sent: Committed) -> None:
    if not _signed(party_key(terms, role), _COMMITTED + sent.commitment, sent.signature):
        raise _refused(f"the commitment is not signed by the {role} of the terms")


def _signed(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature verifies, by a key that is no point of low order: under those, anything may verify."""
    if len(signature) != _SIGNATURE_SIZE or not bindings.crypto_core_ed25519_is_valid_point(key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# -- signed records ----------------------------------------------------------------------------------------------------


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
    if not _SIGNATURE_SIZE < len(data) <= RECORD_LIMIT:
        raise OutcomeError("this is no signed record of an outcome: its length is that of none")
    body, signature = data[:-_SIGNATURE_SIZE], data[-_SIGNATURE_SIZE:]
    record = decode(body)
    if not _signed(record.key, _SIGNED + body, signature):
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
