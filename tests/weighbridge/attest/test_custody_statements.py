"""Custody statements: one encoding, and no signature but the signer's.

Round trip: read(sign(s, k)).statement == s, and sign's bytes are the only ones that read as s under that signature.
"""

from __future__ import annotations

import hashlib
import string
from typing import Any, get_args

import cbor2
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weighbridge.attest.custody_statements import (
    FIELDS,
    HAND_OVERS,
    CustodyError,
    Kind,
    PrivateKey,
    Statement,
    countersign,
    decode_key,
    encode_key,
    key_id,
    read,
    sign,
    verify,
)
from weighbridge.core.errors import WeighbridgeError

EDWARDS = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
P384 = ec.derive_private_key(1234567, ec.SECP384R1())
OTHER = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
CHIPS = (b"\x01" * 17, b"\x02" * 33)

names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=63)
texts = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=200)
keys: st.SearchStrategy[PrivateKey] = st.sampled_from([EDWARDS, P384])


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    kind: Kind = draw(st.sampled_from(get_args(Kind)))
    by = draw(names)
    given_fields: dict[str, str] = {}
    for field in FIELDS[kind]:
        given_fields[field] = draw(names.filter(lambda name: name != by)) if field == "to" else draw(texts)
    chips = draw(st.sets(st.binary(min_size=17, max_size=33), min_size=1, max_size=20))
    return Statement(
        kind=kind,
        registry=draw(texts),
        by=by,
        time_s=draw(st.integers(1, (1 << 40) - 1)),
        chips=tuple(sorted(chips)),
        **given_fields,
    )


def statement(kind: Kind = "installed", **changes: Any) -> Statement:
    fields: dict[str, Any] = {"to": "bolt", "site": "kiel-2", "chip_type": "WB-1"}
    chosen = {name: fields[name] for name in FIELDS.get(kind, ())}
    return Statement(
        **{"kind": kind, "registry": "weighbridge/registry/00", "by": "acme", "time_s": 5, "chips": CHIPS, **chosen}
        | changes
    )


@settings(max_examples=60, deadline=None)
@given(statements(), keys, keys)
def test_what_was_signed_is_read_and_verifies(said: Statement, by: PrivateKey, to: PrivateKey) -> None:
    data = sign(said, by)
    signed = read(data)
    assert (signed.statement, signed.key, signed.counter_key) == (said, key_id(by.public_key()), None)
    if said.to:
        data = countersign(data, to)
        assert read(data).counter_key == key_id(to.public_key())
        assert len(countersign(data, to)) == len(data)  # replaced, not added
    verify(read(data), by.public_key(), to.public_key() if said.to else None)
    assert read(data).digest == signed.digest


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
@example(b"\xd2\x80")
@example(b"\xd2" + cbor2.dumps([b"", {}, b"", b""]))
@example(b"\xd2" + cbor2.dumps([cbor2.dumps({1: [], 3: 60, 4: bytes(16)}), {}, b"", b""]))
@example(b"\xd2" + cbor2.dumps([cbor2.dumps({1: -8, 3: 60, 4: bytes(16)}), {11: 5}, b"", bytes(64)]))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    for use in (read, lambda data: countersign(data, EDWARDS), decode_key):
        with pytest.raises(WeighbridgeError):
            use(data)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_byte_is_never_accepted_as_signed(data: st.DataObject) -> None:
    good = countersign(sign(statement("sold"), P384), EDWARDS)
    place = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CustodyError):
        verify(read(bytes(changed)), P384.public_key(), EDWARDS.public_key())


def test_signatures_of_others_are_refused() -> None:
    alone = sign(statement(), P384)
    with pytest.raises(CustodyError, match="not by the key") as caught:
        verify(read(alone), EDWARDS.public_key(), None)
    assert caught.value.reason == "registry.signature"
    handed = countersign(sign(statement("resold"), P384), OTHER)
    with pytest.raises(CustodyError, match="bolt") as caught:
        verify(read(handed), P384.public_key(), EDWARDS.public_key())
    assert caught.value.reason == "registry.signature"


@pytest.mark.parametrize("kind", [*HAND_OVERS, "scrapped"])
def test_one_side_alone_hands_over_nothing(kind: Kind) -> None:
    with pytest.raises(CustodyError, match="countersign") as caught:
        verify(read(sign(statement(kind), P384)), P384.public_key(), EDWARDS.public_key())
    assert caught.value.reason == "registry.handover.onesided"


def test_a_countersignature_belongs_to_one_signature() -> None:
    """A countersignature of one statement holds for no other, nor for the same one signed by another."""
    first = cbor2.loads(countersign(sign(statement("sold"), P384), EDWARDS)).value
    second = cbor2.loads(sign(statement("sold", by="evil"), OTHER)).value
    moved = b"\xd2" + cbor2.dumps([second[0], first[1], second[2], second[3]], canonical=True)
    with pytest.raises(CustodyError, match="not by the key"):
        verify(read(moved), OTHER.public_key(), EDWARDS.public_key())


def test_who_answers_alone_needs_no_countersignature() -> None:
    with pytest.raises(CustodyError, match="one party alone"):
        countersign(sign(statement("lost"), P384), EDWARDS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chips": ()}, "at least one chip"),
        ({"chips": (b"short",)}, "17 to 33"),
        ({"chips": (CHIPS[1], CHIPS[0])}, "sorted"),
        ({"chips": (CHIPS[0], CHIPS[0])}, "sorted"),
        ({"time_s": 0}, "seconds since 1970"),
        ({"by": "Acme Ltd"}, "name a party"),
        ({"site": ""}, "has a site"),
        ({"chip_type": "WB-1"}, "no chip_type"),
        ({"to": "bolt"}, "no to"),
        ({"site": "two\nlines"}, "one line"),
        ({"registry": ""}, "does not name the registry"),
        ({"kind": "stolen"}, "no event"),
        ({"kind": "sold", "site": "", "to": "acme"}, "itself"),
        ({"chips": tuple(number.to_bytes(17) for number in range(4000))}, "make one statement for each"),
    ],
)
def test_what_cannot_be_said_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CustodyError, match=says):
        sign(statement(**changes), EDWARDS)


def test_other_encodings_of_the_same_statement_are_refused() -> None:
    protected, unprotected, payload, signature = cbor2.loads(sign(statement(), EDWARDS)).value
    content = cbor2.loads(payload)
    for changed in (
        cbor2.dumps(dict(reversed(list(content.items())))),
        cbor2.dumps(content | {"more": 1}, canonical=True),
        cbor2.dumps(content | {"profile": "urn:other"}, canonical=True),
    ):
        with pytest.raises(CustodyError):
            read(b"\xd2" + cbor2.dumps([protected, unprotected, changed, signature], canonical=True))
    with pytest.raises(CustodyError):
        read(b"\xd2" + cbor2.dumps([protected, {4: b"x"}, payload, signature], canonical=True))


def test_keys_have_one_encoding_and_two_kinds() -> None:
    for key in (EDWARDS, P384):
        assert encode_key(decode_key(encode_key(key.public_key()))) == encode_key(key.public_key())
    foreign = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    der = foreign.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(CustodyError, match="P-384 or an Ed25519"):
        decode_key(der)


def test_a_statement_is_verified_by_the_page_alone() -> None:
    """docs/formats/custody-events.md, with a CBOR decoder and a library for signatures."""
    data = countersign(sign(statement("sold"), P384), EDWARDS)
    tag = cbor2.loads(data)
    protected, unprotected, payload, signature = tag.value
    counter_protected, empty, counter_signature = unprotected[11]
    assert (tag.tag, dict(empty)) == (18, {})
    header, counter_header = cbor2.loads(protected), cbor2.loads(counter_protected)
    for found, algorithm, key in ((header, -35, P384), (counter_header, -8, EDWARDS)):
        der = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        assert dict(found) == {1: algorithm, 3: 60, 4: hashlib.sha256(der).digest()[:16]}
    r, s = int.from_bytes(signature[:48]), int.from_bytes(signature[48:])
    signed = cbor2.dumps(["Signature1", protected, b"", payload])
    P384.public_key().verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA384()))
    both = cbor2.dumps(["CounterSignatureV2", protected, counter_protected, b"", payload, [signature]])
    EDWARDS.public_key().verify(counter_signature, both)
    content = cbor2.loads(payload)
    assert set(content) == {"profile", "registry", "kind", "time", "by", "to", "site", "type", "chips"}
    assert (content["by"], content["to"], content["kind"]) == ("acme", "bolt", "sold")
