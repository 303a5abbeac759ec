"""Verifies the BLS signatures of drand's networks, with the extra `[drand]`.

Two schemes, both over BLS12-381 with hashing to the curve by RFC 9380: the chained one of drand's first network, whose
signatures are in G2 and cover the signature before, and the unchained one of `quicknet`, whose signatures are in G1.
There is exactly one valid signature for a round only among points of the subgroup in their one encoding. So both are
required: else the one who brings a value could choose among several, and with that the randomness, which is its hash.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from typing import Any

SCHEMES = ("pedersen-bls-chained", "bls-unchained-g1-rfc9380")
"""Those whose signatures are verified here."""
_MODULE = "py_arkworks_bls12381"
_DST = "BLS_SIG_BLS12381{}_XMD:SHA-256_SSWU_RO_NUL_"


@cache
def _curves() -> Any:
    """Returns the library; None if it is not installed."""
    try:
        return import_module(_MODULE)
    except ImportError:
        return None


def possible(scheme: str) -> bool:
    """Whether signatures of a scheme can be verified here."""
    return scheme in SCHEMES and _curves() is not None


def verifies(scheme: str, public_key: bytes, number: int, previous: bytes, signature: bytes) -> bool:
    """Whether a signature is the one of a round.

    Args:
        scheme: One for which `possible` holds.
        public_key: The network's key, compressed: 48 bytes of G1 in the chained scheme, 96 of G2 in the other.
        number: Of the round.
        previous: The signature of the round before, in the chained scheme.
        signature: The signature, compressed.
    """
    curves, chained = _curves(), scheme == SCHEMES[0]
    of_key, of_signature = (curves.G1Point, curves.G2Point) if chained else (curves.G2Point, curves.G1Point)
    key, signed = _point(of_key, public_key), _point(of_signature, signature)
    if key is None or signed is None:
        return False
    message = hashlib.sha256((previous if chained else b"") + number.to_bytes(8)).digest()
    hashed = of_signature.hash_to_curve(message, _DST.format("G2" if chained else "G1").encode())
    # e(key, hashed) is e(generator, signed); the one with G1 comes first.
    ones, others = [key, -of_key()], [hashed, signed]
    return bool(curves.GT.pairing_check(*((ones, others) if chained else (others, ones))))


def _point(kind: Any, data: bytes) -> Any:
    """Returns a point of the subgroup other than the identity from its one encoding, or None."""
    try:
        point = kind.from_compressed_bytes(data)
    except (ValueError, TypeError):
        return None
    return None if bytes(point.to_compressed_bytes()) != data or point == kind.identity() else point
