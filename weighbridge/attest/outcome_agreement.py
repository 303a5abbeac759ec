"""How nonce and key of one record come from both parties' randomness, so that neither of them chooses either.

Each party draws a share and a secret, commits to both for these terms, and signs the commitment. Only when it holds the
other's commitment does it open its share; the nonce follows from both shares. The secrets go to the worker alone, which
derives from both the one key that it may sign this record with. So a party that tries many shares until it likes the
nonce has to do so before it has seen the other's, and no worker has a choice of keys or signatures in which to hide
bits: Ed25519 signs in one way.

What it does not do: a party may stop when it sees the nonce, which costs one of the inspection's attempts. A party that
has both secrets (the root of the worker's machine has) can sign anything. And that a key was derived in this way is
known only once both secrets are shown (`weighbridge.attest.signed_outcome.audit`), which makes the key worthless: keep
the record before that.
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
from weighbridge.attest.outcome_terms import KEY_SIZE, TERMS_LIMIT, OutcomeError, OutcomeTerms, mapping
from weighbridge.core.digests import cbor, record_digest

Role = Literal["prover", "verifier"]
ROLES: tuple[Role, Role] = ("prover", "verifier")

AGREEMENT_LIMIT = TERMS_LIMIT + (1 << 12)
_MESSAGE_LIMIT = 1 << 10
SIGNATURE_SIZE = 64
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

    @property
    def parts(self) -> list[bytes]:
        """Both, in the order in which they are written."""
        return [self.commitment, self.signature]

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this commitment."""
        return cbor({"committed": self.parts})

    @classmethod
    def from_cbor(cls, data: bytes) -> Committed:
        """Reads a commitment; who signed it is not checked here.

        Law: `from_cbor(c.to_cbor()) == c`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OutcomeError: The bytes are none.
        """
        return cls(*_two(data, "committed", "a party's commitment"))


@dataclass(frozen=True, slots=True)
class Opened:
    """What a party sends once it has the other's commitment.

    Attributes:
        share: 32 bytes of which the nonce is made.
        secret_digest: Digest of the secret that its worker gets.
    """

    share: bytes
    secret_digest: bytes

    @property
    def parts(self) -> list[bytes]:
        """Both, in the order in which they are written."""
        return [self.share, self.secret_digest]

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this share."""
        return cbor({"opened": self.parts})

    @classmethod
    def from_cbor(cls, data: bytes) -> Opened:
        """Reads a share; whether it is what its party had committed to is not checked here.

        Law: `from_cbor(o.to_cbor()) == o`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OutcomeError: The bytes are none.
        """
        return cls(*_two(data, "opened", "a party's share"))


def _two(data: bytes, name: str, what: str) -> tuple[bytes, bytes]:
    value = mapping(data, _MESSAGE_LIMIT, what)
    match value.get(name):
        case [bytes(one), bytes(two)] if len(value) == 1:
            return one, two
    raise OutcomeError(f"{what} is a map of {name!r} to two byte strings")


class Side:
    """One party's side of the exchange, for one start.

    Attributes:
        secret: 32 bytes for the worker, and for no other party.
        terms: The terms.
        role: Whose side it is.
    """

    def __init__(self, terms: OutcomeTerms, role: Role, key: SigningKey) -> None:
        """Draws share and secret.

        Raises:
            OutcomeError: The terms name another key for this role.
        """
        if key.public != party_key(terms, role):
            raise _refused(f"the terms name another key for the {role}")
        self.secret = secrets.token_bytes(KEY_SIZE)
        self.terms, self.role = terms, role
        self._own = Opened(secrets.token_bytes(KEY_SIZE), _secret_digest(terms, role, self.secret))
        commitment = _commitment(terms, role, self._own)
        self._committed = Committed(commitment, key.sign(_COMMITTED + commitment))
        self._others: Committed | None = None

    def commit(self) -> Committed:
        """Returns this side's commitment."""
        return self._committed

    def take(self, commitment: Committed) -> None:
        """Takes the other side's commitment; the first one stands.

        Raises:
            OutcomeError: It is not signed by the other party, or not the first.
        """
        if self._others is not None and self._others != commitment:
            raise _refused("the other party sent a second commitment")
        _check_committed(self.terms, other(self.role), commitment)
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
        sent, shown = {self.role: self.commit(), other(self.role): self._others}, {self.role: self._own}
        shown[other(self.role)] = opened
        return Agreement(self.terms, sent["prover"], shown["prover"], sent["verifier"], shown["verifier"])

    def to_cbor(self) -> bytes:
        """Returns this side for a file of its own party's, which holds its secret."""
        others = [] if self._others is None else self._others.parts
        own = [*self._committed.parts, self._own.share, self.secret]
        return cbor({"terms": self.terms.to_cbor(), "role": self.role, "own": own, "others": others})

    @classmethod
    def from_cbor(cls, data: bytes) -> Side:
        """Reads what `to_cbor` gave: this side goes on where it was.

        Raises:
            OutcomeError: The bytes are none of a side's.
        """
        match mapping(data, AGREEMENT_LIMIT, "one side of an agreement on an outcome"):
            case {
                "terms": bytes(terms),
                "role": "prover" | "verifier" as role,
                "own": [bytes(commitment), bytes(signature), bytes(share), bytes(secret)],
                "others": [] | [bytes(), bytes()] as others,
                **rest,
            } if not rest:
                side = cls.__new__(cls)
                side.terms, side.role, side.secret = OutcomeTerms.from_cbor(terms), role, secret
                side._own = Opened(share, _secret_digest(side.terms, role, secret))
                side._committed = Committed(commitment, signature)
                side._others = Committed(*others) if others else None
                return side
        raise OutcomeError("one side of an agreement has terms, a role, its own commitment and the other's")


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
        parts = {role: [*sent.parts, *opened.parts] for role in ROLES for sent, opened in (self._of(role),)}
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
    if not signed_by(party_key(terms, role), _COMMITTED + sent.commitment, sent.signature):
        raise _refused(f"the commitment is not signed by the {role} of the terms")


def signed_by(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature verifies, by a key that is no point of low order: under those, anything may verify."""
    if len(signature) != SIGNATURE_SIZE or not bindings.crypto_core_ed25519_is_valid_point(key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
