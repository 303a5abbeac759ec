"""Values that drand's networks published, and those that someone who brings them could have liked better."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from weighbridge.attest import drand_signatures
from weighbridge.attest.beacon import BeaconError, BeaconInfo, Round, parse_info, parse_round, verify_round

# Published by the League of Entropy.
DEFAULT = {
    "public_key": "868f005eb8e6e4ca0a47c8a77ceaa5309a47978a7c71bc5cce96366b5d7a569937c529eeda66c7293784a9402801af31",
    "period": 30, "genesis_time": 1595431050,
    "hash": "8990e7a9aaed2ffed73dbd7092123d6f289930540d7651336225dc172e51b2ce",
    "groupHash": "176f93498eac9ca337150b46d21dd58673ea4e3581185f869672e59fa4cb390a",
    "schemeID": "pedersen-bls-chained", "metadata": {"beaconID": "default"},
}  # fmt: skip
QUICKNET = {
    "public_key": "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d1064510d1f"
    "ec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
    "period": 3, "genesis_time": 1692803367,
    "hash": "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971",
    "groupHash": "f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e",
    "schemeID": "bls-unchained-g1-rfc9380", "metadata": {"beaconID": "quicknet"},
}  # fmt: skip
VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (QUICKNET, {
        "round": 123, "randomness": "fb8f7bc29bf24db51871ec8c79f3a1e4bd0557bc0dfcee9ed1d924e69d1c60dc",
        "signature": "b75c69d0b72a5d906e854e808ba7e2accb1542ac355ae486d591aa9d43765482e26cd02df835d3546d23c4b13e0dfc92",
    }),
    (QUICKNET, {
        "round": 1000, "randomness": "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd",
        "signature": "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39",
    }),
    (DEFAULT, {
        "round": 3311596, "randomness": "647c07b2abbf7ff2afb4d670214f565e5cd9f9c91bfdcecb59a21f3c78d73920",
        "signature": "a696b9409ababce45749c3a4ec369074453dd4a79967734e1390d969c8ad8d98897d217b9121e92c8ddebbddda8d92f9"
        "00e3bd6bf9deb166863b1a19390d743f82774001487594c5c09e581db7365f02b70a2c8cc41ce32446ef08e4890c4754",
        "previous_signature": "8ed588f2a7716fb1349e2d9803da5db0005e98a83783c353d4a08f183236a9ad91d70ddb01266f4b7c57698"
        "3db464b430e65680b9e0098552758afd6c1e6afcb77e3f62fe1b93d42d1cb63abbb2205512fe12fbf74ea9c5ac3b8f5c1e283a1d8",
    }),
]  # fmt: skip
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
