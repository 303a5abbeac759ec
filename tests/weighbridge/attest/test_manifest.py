import base64
import json
import os
import stat
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest.manifest import (
    PAYLOAD_TYPE,
    ROOT_NAME,
    Predicate,
    SigningKey,
    load_or_create_key,
    open_manifest,
    sign_manifest,
    timestamp,
)
from weighbridge.core import merkle
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError

KEY = SigningKey.generate()
PREDICATE = Predicate(
    name="gpt2 ä",
    created="2026-11-01T12:00:00Z",
    draft="0" * 64,
    head="ab" * 32,
    steps=4,
    checkpoints=(1, 4),
    files=(("a/b.bin", 0, "11" * 32), ("draft.cbor", 7, "22" * 32)),
    rounded=5,
    logged=0,
    complete=True,
)

numbers = st.integers(0, 2**62 - 1)
hexes = st.binary(min_size=32, max_size=32).map(bytes.hex)
paths = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}){0,3}", fullmatch=True)
predicates = st.builds(
    Predicate,
    name=st.text(min_size=1, max_size=20).filter(str.isprintable),
    created=st.just("2026-02-28T23:59:59Z"),
    draft=hexes,
    head=hexes,
    steps=st.just(50),
    checkpoints=st.sets(st.integers(0, 50)).map(lambda steps: tuple(sorted(steps))),
    files=st.dictionaries(paths, st.tuples(numbers, hexes), max_size=9).map(
        lambda files: tuple((path, *files[path]) for path in sorted(files))
    ),
    rounded=numbers,
    logged=numbers,
    complete=st.booleans(),
)


def envelope(statement, key=KEY):
    """Signs any statement whatever, as a dishonest Prover could."""
    payload = statement if isinstance(statement, bytes) else canonical(statement)
    kind = PAYLOAD_TYPE.encode()
    signature = key.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    entry = {"keyid": key.keyid, "publicKey": b64(key.public), "sig": b64(signature)}
    return {"payload": b64(payload), "payloadType": PAYLOAD_TYPE, "signatures": [entry]}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def b64(data):
    return base64.b64encode(data).decode()


def statement():
    return json.loads(base64.b64decode(json.loads(sign_manifest(PREDICATE, KEY))["payload"]))


@given(predicates)
def test_round_trip(predicate):
    """open_manifest(sign_manifest(p, key)) states p and names key."""
    manifest = open_manifest(sign_manifest(predicate, KEY))
    assert Predicate(**{field.name: getattr(manifest, field.name) for field in fields(Predicate)}) == predicate
    assert (manifest.public, manifest.keyid) == (KEY.public, KEY.keyid)


def test_anybody_can_verify_it_without_this_code():
    data = sign_manifest(PREDICATE, KEY)
    outer = json.loads(data)
    payload = base64.b64decode(outer["payload"])
    signature = outer["signatures"][0]
    public = base64.b64decode(signature["publicKey"])
    signed = b"DSSEv1 28 application/vnd.in-toto+json %d " % len(payload) + payload
    Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(signature["sig"]), signed)
    inner = json.loads(payload)
    assert inner["_type"] == "https://in-toto.io/Statement/v1"
    leaves = [
        merkle.leaf_hash(cbor([path, size, bytes.fromhex(digest)]))
        for path, size, digest in inner["predicate"]["files"]
    ]
    root = merkle.root(leaves).hex()
    assert inner["subject"] == [{"name": "gpt2 ä", "digest": {ROOT_NAME: root}}]
    assert inner["predicate"]["root"] == root
    assert open_manifest(data).digest == bytes_digest(data).hex()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("format", True),
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("created", "2026-02-30T00:00:00Z"),
        ("created", "2026-1-01T00:00:00Z"),
        ("draft", "AB" * 32),
        ("head", "ab" * 31),
        ("steps", -1),
        ("steps", 4.0),
        ("steps", 2**62),
        ("checkpoints", [4, 1]),
        ("checkpoints", [1, 1]),
        ("checkpoints", [5]),
        ("checkpoints", ["1"]),
        ("files", [["b", 0, "11" * 32], ["a", 0, "11" * 32]]),
        ("files", [["a", 0, "11" * 32], ["a", 0, "11" * 32]]),
        ("files", [["../a", 0, "11" * 32]]),
        ("files", [["/a", 0, "11" * 32]]),
        ("files", [["a//b", 0, "11" * 32]]),
        ("files", [["a/.b", 0, "11" * 32]]),
        ("files", [["a\\b", 0, "11" * 32]]),
        ("files", [["a\n", 0, "11" * 32]]),
        ("files", [["a", -1, "11" * 32]]),
        ("files", [["a", True, "11" * 32]]),
        ("files", [["a", 0, "11"]]),
        ("files", [["a", 0]]),
        ("files", ["a"]),
        ("root", "00" * 32),
        ("complete", 1),
        ("more", 1),
    ],
)
def test_fields_are_checked_though_signed(field, value):
    changed = statement()
    changed["predicate"][field] = value
    with pytest.raises(TranscriptError) as error:
        open_manifest(canonical(envelope(changed)))
    assert error.value.reason == "transcript.manifest.malformed"


def test_statements_of_other_kinds_are_refused():
    for key in ("_type", "predicateType"):
        with pytest.raises(TranscriptError):
            open_manifest(canonical(envelope({**statement(), key: "other"})))
    for subject in ([], [{"name": "other", "digest": statement()["subject"][0]["digest"]}]):
        with pytest.raises(TranscriptError):
            open_manifest(canonical(envelope({**statement(), "subject": subject})))
    open_manifest(canonical(envelope(statement())))


def test_only_the_canonical_form_is_accepted():
    data = sign_manifest(PREDICATE, KEY)
    value = json.loads(data)
    loose = value["payload"][:-1] + chr(ord(value["payload"][-1]) + 1)
    for other in (
        data + b"\n",
        json.dumps(value).encode(),
        b"\xef\xbb\xbf" + data,
        data.decode().encode("utf-16"),
        data.replace(b'"payload":', b'"payload":1,"payload":'),
        canonical({**value, "extra": 1}),
        canonical({**value, "signatures": value["signatures"] * 2}),
        canonical({**value, "signatures": []}),
        canonical({**value, "payload": value["payload"] + "="}),
        canonical({**value, "payload": loose}),
        canonical(envelope(json.dumps(statement()).encode())),
        canonical(envelope(b'{"a":' * 100_000)),
        b"[" * 100_000,
        b"1" * 100_000,
        b'"\\ud800"',
        b"NaN",
    ):
        with pytest.raises(TranscriptError) as error:
            open_manifest(other)
        assert error.value.reason in ("transcript.manifest.malformed", "transcript.manifest.signature")


def test_the_signature_must_be_by_the_named_key():
    value = envelope(statement())
    other = SigningKey.generate()
    swapped = {**value["signatures"][0], "keyid": other.keyid, "publicKey": b64(other.public)}
    with pytest.raises(TranscriptError) as error:
        open_manifest(canonical({**value, "signatures": [swapped]}))
    assert error.value.reason == "transcript.manifest.signature"
    for public in (b"", bytes(31), bytes(32)):
        entry = {**value["signatures"][0], "keyid": bytes_digest(public).hex(), "publicKey": b64(public)}
        with pytest.raises(TranscriptError) as error:
            open_manifest(canonical({**value, "signatures": [entry]}))
        assert error.value.reason == "transcript.manifest.signature"


@given(st.binary(max_size=200))
def test_hostile_bytes(data):
    with pytest.raises(WeighbridgeError):
        open_manifest(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_hostile_statements(value):
    with pytest.raises(WeighbridgeError):
        open_manifest(canonical(envelope(value)))


def test_a_predicate_that_breaks_the_format_is_not_signed():
    with pytest.raises(TranscriptError):
        sign_manifest(replace(PREDICATE, checkpoints=(9,)), KEY)
    sign_manifest(replace(PREDICATE, created=timestamp()), KEY)


def test_key_is_created_once_and_kept_private(tmp_path):
    path = tmp_path / "keys" / "prover.pem"
    key = load_or_create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_key(path).public == key.public
    assert key.keyid == bytes_digest(key.public).hex()
    os.chmod(path, 0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        load_or_create_key(path)


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\n\n-----END PRIVATE KEY-----\n"])
def test_key_files_of_other_kinds(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError):
        load_or_create_key(path)
    with pytest.raises(UsageError):
        load_or_create_key(path / "below")
