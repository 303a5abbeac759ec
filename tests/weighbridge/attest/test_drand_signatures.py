"""Values that drand's networks published, and those that someone who brings them could have liked better."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar
from support.drand_values import QUICKNET, VALUES

from weighbridge.attest import drand_signatures
from weighbridge.attest.beacon import BeaconError, BeaconInfo, Round, parse_info, parse_round, verify_round

ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
"""Of the subgroup."""


def with_signature(value: Round, signature: bytes) -> Round:
    """A value with another signature, and the randomness that follows from it."""
    return replace(value, signature=signature, randomness=hashlib.sha256(signature).digest())


def refused(info: BeaconInfo, value: Round) -> bool:
    with pytest.raises(BeaconError) as caught:
        verify_round(info, value)
    return caught.value.reason == "draw.beacon.value"


@pytest.mark.parametrize(("network", "published"), VALUES)
def test_published_values_verify_and_no_others_do(network: dict[str, Any], published: dict[str, Any]) -> None:
    info, value = parse_info(network), parse_round(published)
    assert info.verifiable
    verify_round(info, value)
    length = len(value.signature)
    negated = bytes([value.signature[0] ^ 0x20]) + value.signature[1:]
    for wrong in (
        replace(value, number=value.number + 1), with_signature(value, negated), with_signature(value, bytes(length)),
        with_signature(value, b"\xc0" + bytes(length - 1)), with_signature(value, value.signature[:-1]),
        with_signature(value, value.signature + b"\x00"), with_signature(value, b""),
    ):  # fmt: skip
        assert refused(info, wrong)
    if value.previous_signature:
        assert refused(info, replace(value, previous_signature=b"a" + value.previous_signature[1:]))


def test_a_value_of_another_network_is_refused() -> None:
    (quicknet, one), _, (default, other) = [(parse_info(network), parse_round(value)) for network, value in VALUES]
    assert refused(default, one)
    assert refused(quicknet, other)
    assert refused(replace(quicknet, public_key=default.public_key), one)
    assert refused(replace(quicknet, public_key=b"\xc0" + bytes(95)), with_signature(one, b"\xc0" + bytes(47)))


def test_a_second_signature_of_a_round_is_refused_though_its_pairing_is_right() -> None:
    """Else the one who brings a value could add points of small order until it likes the hash."""
    info, value = parse_info(QUICKNET), parse_round(VALUES[0][1])
    outside = next(filter(None, map(_outside, range(1, 100))))
    added = outside * Scalar.from_be_bytes((ORDER - 1).to_bytes(32)) + outside
    second = G1Point.from_compressed_bytes(value.signature) + added
    message = hashlib.sha256(value.number.to_bytes(8)).digest()
    hashed = G1Point.hash_to_curve(message, b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_")
    key = G2Point.from_compressed_bytes(info.public_key)
    assert GT.pairing_check([hashed, second], [key, -G2Point()])
    assert bytes(second.to_compressed_bytes()) != value.signature
    assert refused(info, with_signature(value, bytes(second.to_compressed_bytes())))


def _outside(x: int) -> G1Point | None:
    """A point of the curve outside the subgroup, if there is one at x."""
    try:
        point = G1Point.from_compressed_bytes_unchecked(bytes([0x80]) + x.to_bytes(47))
    except ValueError:
        return None
    return None if point.is_in_subgroup() else point


def test_without_the_extra_the_hash_alone_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drand_signatures, "_MODULE", "no_such_module")
    drand_signatures._curves.cache_clear()
    try:
        info, value = parse_info(QUICKNET), parse_round(VALUES[0][1])
        assert not info.verifiable
        verify_round(info, with_signature(value, value.signature[::-1]))
        assert refused(info, replace(value, randomness=bytes(32)))
    finally:
        drand_signatures._curves.cache_clear()
