"""What endorsers sign has one encoding; a signature is over one image by one key, and counts once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.endorsed_images import ENDORSERS, entry, release

from weighbridge.attest.image_release import Endorsed, Release, endorse, joined
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
SIZES = st.integers(1, 1 << 44)
RELEASES = st.builds(
    Release, measurement=st.binary(min_size=48, max_size=48), version=TEXTS, processor=TEXTS, files=SIZES, size=SIZES
)
SIGNED = st.dictionaries(
    st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64), min_size=1, max_size=4
)


@given(of=RELEASES, signed=SIGNED)
def test_an_entry_comes_back(of: Release, signed: dict[bytes, bytes]) -> None:
    """Law: from_cbor(e.to_cbor()) == e."""
    made = Endorsed(of, tuple(sorted(signed.items())))
    assert Endorsed.from_cbor(made.to_cbor()) == made


@given(at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
def test_bytes_are_an_entry_or_refused(at: int, value: int, cut: int) -> None:
    """Law: from_cbor(data).to_cbor() == data, or data is refused."""
    whole = entry().to_cbor()
    data = bytearray(whole)
    data[at % len(data)] = value
    for each in (bytes(data), whole[: cut % len(whole)], whole + b"\x00"):
        with suppress(FormatError):
            assert Endorsed.from_cbor(each).to_cbor() == each


def test_endorsements_of_one_image_are_joined() -> None:
    made = joined(endorse(release(), each) for each in ENDORSERS)
    assert made.signers() == sorted(each.public for each in ENDORSERS)
    assert joined([made, endorse(release(), ENDORSERS[0])]) == made
    for wrong in ([], [endorse(release(0), ENDORSERS[0]), endorse(release(1), ENDORSERS[1])]):
        with pytest.raises(UsageError):
            joined(wrong)


@pytest.mark.parametrize(
    "changed", [{"measurement": bytes(47) + b"\x01"}, {"version": "0.2"}, {"processor": "generic"}, {"files": 1}]
)
@pytest.mark.finding("sealed.image.endorsement")
def test_a_signature_is_over_every_field(changed: dict[str, object]) -> None:
    made = entry()
    moved = replace(made, release=replace(made.release, **changed))
    with pytest.raises(SealedWorkerError) as caught:
        moved.signers()
    assert caught.value.reason == "sealed.image.endorsement"
    with pytest.raises(SealedWorkerError):
        joined([moved])


def test_a_key_of_low_order_signs_nothing() -> None:
    """Under such a key one signature holds for every message, so it would endorse each image."""
    low = (1).to_bytes(32, "little")
    forged = Endorsed(release(), ((low, low + bytes(32)),))
    with pytest.raises(SealedWorkerError):
        forged.signers()


def test_a_key_signs_once() -> None:
    ((key, signature),) = endorse(release(), ENDORSERS[0]).signatures
    fields = release().fields
    for pairs in ([[key, signature]] * 2, [], [[key]], [[key, signature, b""]], [[signature, key]], [7], [[key, 7]]):
        with pytest.raises(FormatError):
            Endorsed.from_cbor(cbor([*fields, pairs]))
    two = sorted(entry().signatures, reverse=True)
    with pytest.raises(FormatError):
        Endorsed.from_cbor(cbor([*fields, [list(each) for each in two]]))


@pytest.mark.parametrize(
    "changed",
    [
        {"measurement": bytes(47)}, {"version": ""}, {"version": "a\n"}, {"version": "ü"}, {"processor": "x" * 65},
        {"files": 0}, {"files": True}, {"size": -1}, {"size": 1 << 45}, {"measurement": "a" * 48},
    ],
)  # fmt: skip
def test_what_is_no_release_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        replace(release(), **changed)
