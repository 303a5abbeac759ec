"""Signed documents: one changed bit is refused, and only the parties' signatures count."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.attest.dsse import DocumentError, Trust, canonical, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import WeighbridgeError

KIND = "application/vnd.weighbridge.test"
KEYS = [SigningKey.generate() for _ in range(3)]


@settings(max_examples=50, deadline=None)
@given(payload=st.binary(max_size=200), count=st.integers(1, 3))
def test_round_trip(payload: bytes, count: int) -> None:
    """Law: opening what was sealed gives the payload and the signers, in order."""
    opened = open_envelope(seal(payload, KIND, KEYS[:count]), KIND)
    assert opened.payload == payload
    assert opened.signers == tuple(key.public for key in KEYS[:count])


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    with pytest.raises(WeighbridgeError):
        open_envelope(data, KIND)


ENVELOPE = seal(b'{"verdict":"clean"}', KIND, KEYS[:1])


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, len(ENVELOPE) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused(place: int, flip: int) -> None:
    changed = bytearray(ENVELOPE)
    changed[place] ^= flip
    with pytest.raises(DocumentError):
        open_envelope(bytes(changed), KIND)


def test_what_is_signed_names_its_kind() -> None:
    with pytest.raises(DocumentError, match="another kind"):
        open_envelope(ENVELOPE, "application/other")
    renamed = json.loads(ENVELOPE) | {"payloadType": "application/other"}
    with pytest.raises(DocumentError) as caught:
        open_envelope(canonical(renamed), "application/other")
    assert caught.value.reason == "document.signature"


def test_signatures_are_added_one_after_another_and_never_twice() -> None:
    first = seal(b"text", KIND, KEYS[:1])
    both = seal(b"text", KIND, KEYS[1:2], first)
    assert open_envelope(both, KIND).signers == (KEYS[0].public, KEYS[1].public)
    assert seal(b"text", KIND, KEYS[:1], both) == both
    with pytest.raises(DocumentError, match="another document"):
        seal(b"other", KIND, KEYS[:1], both)
    doubled = json.loads(first)
    doubled["signatures"] *= 2
    with pytest.raises(DocumentError, match="twice"):
        open_envelope(canonical(doubled), KIND)


def test_only_the_parties_count_towards_the_quorum() -> None:
    trust = Trust({KEYS[0].public: "a", KEYS[1].public: "b"}, 2)
    assert trust.require(open_envelope(seal(b"x", KIND, KEYS), KIND), "it") == ("a", "b")
    with pytest.raises(DocumentError, match="signed by 1 of the parties") as caught:
        trust.require(open_envelope(seal(b"x", KIND, [KEYS[0], KEYS[2]]), KIND), "it")
    assert caught.value.reason == "document.signers"


def test_a_keyid_that_is_not_its_keys_is_refused() -> None:
    envelope = json.loads(ENVELOPE)
    envelope["signatures"][0]["publicKey"] = base64.b64encode(KEYS[2].public).decode()
    with pytest.raises(DocumentError, match="keyid"):
        open_envelope(canonical(envelope), KIND)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quorum = 1",
        'quorum = 1\n[parties]\na = "xy"',
        'quorum = 3\n[parties]\na = "' + "0" * 64 + '"',
        'quorum = true\n[parties]\na = "' + "0" * 64 + '"',
        'quorum = 1\n[parties]\na = "' + "0" * 64 + '"\nb = "' + "0" * 64 + '"',
        'quorum = 1\nmore = 2\n[parties]\na = "' + "0" * 64 + '"',
        "\x00",
    ],
)
def test_a_file_of_parties_that_makes_no_sense_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "parties.toml").write_text(text)
    with pytest.raises(DocumentError) as caught:
        Trust.load(tmp_path / "parties.toml")
    assert caught.value.reason == "document.trust"
    with pytest.raises(DocumentError, match="cannot read"):
        Trust.load(tmp_path / "nothing.toml")
