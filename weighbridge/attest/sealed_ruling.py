"""The ruling of a sealed dispute: the one record of 101 bytes that leaves its worker, and the file that it is kept in.

Each byte has one place whatever the record says. It names its order and nothing of what the parties gave, so what it
tells of that are the verdicts, and the class of one operation where both parties agreed to have it shown. It is signed
by the worker's one-time key, which was made, and vouched for by the launcher, before the worker was sent anything.

A ruling cannot be judged again: what it rests on ended with the worker. What follows from its file alone, and what only
the worker's word supports, `FOLLOWS` and `ONLY_SEALED` say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from cryptography import x509
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from weighbridge.attest.disclosure import Disclosed, Start
from weighbridge.attest.sealed_attestation import ATTESTATION_LIMIT, Attested, verify_attestation
from weighbridge.attest.sealed_dispute import SEAT_LIMIT, TERMS_LIMIT, Admission, DisputeTerms, SealedDisputeError
from weighbridge.attest.sealed_order import Order
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError

FORMAT = 1
SIGNATURE_SIZE = 64
RULING_SIZE = 37 + SIGNATURE_SIZE
"""So many bytes every signed ruling has."""
FILE_LIMIT = TERMS_LIMIT + 2 * SEAT_LIMIT + ATTESTATION_LIMIT + 1024

SealedVerdict = Literal["none", "false", "admissible", "undecided", "forfeit"]
VERDICTS: tuple[SealedVerdict, ...] = get_args(SealedVerdict)
"""Of a party's claim; `none` if none of it was judged."""
RulingStatus = Literal["complete", "late", "aborted"]
STATUSES: tuple[RulingStatus, ...] = get_args(RulingStatus)
CLASSES = (
    "none", "element", "row", "column", "product", "reduction", "index", "place", "window", "plane", "norm", "whole",
    "step",
)  # fmt: skip
"""Classes of operations as `weighbridge.numerics.slices` has them; `whole` is every other operation, `step` what enters
or leaves the step, `none` that none was judged, or that it is not shown."""

FOLLOWS = (
    "both parties signed the terms, and each its seat: nonce, key and the commitment to its files",
    "the launcher of the terms vouches that the image of the terms ran, confined, for this order",
    "the ruling is of this order, and of no other dispute or start, and that worker's key signed it",
)
ONLY_SEALED = (
    "each verdict: what was judged ended with the worker, and no reader can judge it again",
    "that a party that forfeited did not show in time what it had committed to: the site carried both parties' files",
    "what the launcher vouches for, as far as its machine's root and its account are trusted",
)

_SIGNED = b"weighbridge/sealed-ruling/1\x00"
_FIELDS = (("format", 1), ("order", 32), ("status", 1), ("challenger", 1), ("defender", 1), ("class", 1))
_KIND = "sealed-dispute"


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedRuling:
    """What a sealed referee says.

    Attributes:
        order: Digest of the order that it is of (32 bytes).
        status: Whether it came to its end.
        challenger: The verdict on the challenger's claim.
        defender: The verdict on the defender's claim.
        operation: Class of the operation that was judged; `none` if that is not shown.
    """

    order: bytes
    status: RulingStatus
    challenger: SealedVerdict = "none"
    defender: SealedVerdict = "none"
    operation: str = "none"

    def __post_init__(self) -> None:
        """Checks that the fields fit each other.

        Raises:
            SealedDisputeError: They do not.
        """
        verdicts = (self.challenger, self.defender)
        if type(self.order) is not bytes or len(self.order) != 32 or self.status not in STATUSES:
            raise SealedDisputeError("a ruling names its order by 32 bytes, and has a status")
        if any(each not in VERDICTS for each in verdicts) or self.operation not in CLASSES:
            raise SealedDisputeError("a ruling has two verdicts and a class of operations")
        if (self.status == "complete") == (verdicts == ("none", "none")):
            raise SealedDisputeError("a ruling has a verdict if, and only if, it came to its end")
        if self.status != "complete" and self.operation != "none":
            raise SealedDisputeError("a ruling without an end has no class of operations")

    def to_bytes(self) -> bytes:
        """Returns the one encoding of this ruling, without its signature: 37 bytes."""
        places = (
            STATUSES.index(self.status), VERDICTS.index(self.challenger), VERDICTS.index(self.defender),
            CLASSES.index(self.operation),
        )  # fmt: skip
        return bytes([FORMAT]) + self.order + bytes(places)

    @classmethod
    def from_bytes(cls, data: bytes) -> SealedRuling:
        """Reads a ruling without its signature.

        Law: `from_bytes(r.to_bytes()) == r`; and where `from_bytes(data)` returns, its `to_bytes()` is `data`.

        Raises:
            SealedDisputeError: The bytes are no ruling.
        """
        if len(data) != RULING_SIZE - SIGNATURE_SIZE or data[0] != FORMAT:
            raise SealedDisputeError("this is no ruling of a sealed dispute: it has another length or format")
        status, challenger, defender, operation = data[33:]
        try:
            return cls(
                order=data[1:33], status=STATUSES[status], challenger=VERDICTS[challenger],
                defender=VERDICTS[defender], operation=CLASSES[operation],
            )  # fmt: skip
        except IndexError:
            raise SealedDisputeError("a ruling has a status, a verdict or a class that there is not") from None


def sign(ruling: SealedRuling, signer: SigningKey) -> bytes:
    """Returns a ruling with its signature behind it: in the worker.

    Args:
        ruling: The ruling.
        signer: The worker's one-time key, which its attestation names.
    """
    data = ruling.to_bytes()
    return data + bytes(signer.sign(_SIGNED + data).signature)


def opened(data: bytes, order: Order, signer: bytes) -> SealedRuling:
    """Returns a signed ruling, if it is of this order and this worker.

    Args:
        data: Hostile.
        order: The order.
        signer: The worker's one-time key, out of an attestation that was verified.

    Raises:
        SealedDisputeError: It is malformed, altered, of another worker (`dispute.sealed`), or of another order: one
            that was played back, if the worker is another one too.
    """
    body, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
    ruling = SealedRuling.from_bytes(body)
    if ruling.order != order.digest:
        raise SealedDisputeError("the ruling is of another dispute or start than these terms and seats; refuse it")
    try:
        VerifyKey(signer).verify(_SIGNED + body, signature)
    except (CryptoError, ValueError):
        raise SealedDisputeError("the worker of this attestation did not sign this ruling; refuse it") from None
    return ruling


def bits(terms: DisputeTerms) -> int:
    """Returns how many bits about secrets a ruling under these terms discloses at most, whether or not it leaves."""
    return math.ceil(math.log2(_rulings(terms)))


def _rulings(terms: DisputeTerms) -> int:
    """Returns how many rulings there can be under these terms."""
    complete = len(VERDICTS) ** 2 - 1
    return complete * (len(CLASSES) if terms.shows_class else 1) + len(STATUSES) - 1


def ledger(terms: DisputeTerms) -> list[Disclosed]:
    """Returns the disclosure ledger: every byte of a signed ruling in one row, in order."""
    classes = math.log2(len(CLASSES)) if terms.shows_class else 0.0
    said = {
        "format": (0.0, "the format"),
        "order": (0.0, "a digest of what both parties signed before"),
        "status": (math.log2(len(STATUSES)), f"{len(STATUSES)} statuses"),
        "challenger": (math.log2(len(VERDICTS)), f"{len(VERDICTS)} verdicts"),
        "defender": (math.log2(len(VERDICTS)), f"{len(VERDICTS)} verdicts"),
        "class": (classes, f"{len(CLASSES)} classes" if terms.shows_class else "not shown, as agreed"),
        "signature": (0.0, "follows from key and ruling"),
    }
    rows, at = list[Disclosed](), 0
    for name, length in (*_FIELDS, ("signature", SIGNATURE_SIZE)):
        rows.append(Disclosed(at, length, name, *said[name]))
        at += length
    return rows


def start_of(terms: DisputeTerms) -> Start:
    """Returns what a party's book charges for a start of a dispute."""
    return Start(
        kind="dispute", name=f"dispute {terms.dispute}", attempt=terms.attempt, digest=terms.digest, cost=bits(terms),
        most=terms.dispute_bits, year=terms.year_bits,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedDispute:
    """A finished sealed dispute as one file, which any reader checks.

    Attributes:
        admission: The terms and both seats.
        attestation: The worker's.
        ruling: The signed ruling.
    """

    admission: Admission
    attestation: bytes
    ruling: bytes

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this file."""
        said = self.admission
        return cbor(
            {_KIND: FORMAT, "terms": said.terms, "challenger": said.challenger, "defender": said.defender,
             "attestation": self.attestation, "ruling": self.ruling}
        )  # fmt: skip

    @classmethod
    def from_cbor(cls, data: bytes) -> SealedDispute:
        """Reads a file; nothing in it is verified here.

        Law: `from_cbor(d.to_cbor()) == d`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            SealedDisputeError: The bytes are none.
        """
        try:
            raw = decode_cbor(data, max_depth=1, max_items=64) if len(data) <= FILE_LIMIT else None
        except FormatError:
            raw = None
        match raw:
            case {
                "sealed-dispute": 1, "terms": bytes(terms), "challenger": bytes(challenger),
                "defender": bytes(defender), "attestation": bytes(attestation), "ruling": bytes(ruling), **rest,
            } if not rest:  # fmt: skip
                admission = Admission(terms=terms, challenger=challenger, defender=defender)
                found = cls(admission=admission, attestation=attestation, ruling=ruling)
            case _:
                raise SealedDisputeError("this is no file of a sealed dispute")
        if found.to_cbor() != data:
            raise SealedDisputeError("the file of a sealed dispute is not in its one encoding")
        return found

    def verified(self, root: x509.Certificate) -> tuple[DisputeTerms, SealedRuling, Attested]:
        """Checks all that follows from the file.

        Args:
            root: Of the authority that vouches for launchers.

        Returns:
            The terms, the ruling, and what the attestation says.

        Raises:
            SealedDisputeError: A signature or the order does not fit, or the worker ran at another site than agreed.
            SealedWorkerError: The attestation is of no launcher of this authority, or of another image or order.
        """
        terms, order = DisputeTerms.from_cbor(self.admission.terms), self.admission.order()
        attested = attested_at(self.attestation, terms, order, root)
        ruling = opened(self.ruling, order, attested.signer)
        if ruling.operation != "none" and not terms.shows_class:
            raise SealedDisputeError("the ruling shows the class of an operation, which was not agreed on")
        return terms, ruling, attested


def attested_at(data: bytes, terms: DisputeTerms, order: Order, root: x509.Certificate) -> Attested:
    """Returns what a verified attestation says, if it is of the site that the terms name.

    Raises:
        SealedDisputeError: It is of another site.
        SealedWorkerError: It is of no launcher of this authority, or of another image or order.
    """
    attested = verify_attestation(data, order, root)
    if attested.launcher != terms.site:
        raise SealedDisputeError("the worker was started at another site than the terms name; send it nothing")
    return attested


def is_sealed(data: bytes) -> bool:
    """Whether a file of a dispute is that of a sealed one, by its first bytes: the others are arrays."""
    return data[:1] == b"\xa6"
