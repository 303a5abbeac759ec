"""Tokens: round trips, and every way of altering one is noticed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.token_strategies import BODIES, count, digest, large, text

from firmware_sim import device
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import Token
from weighbridge.attest.work import NAMES, Work
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, IdentityError, TokenError

HEAD: dict[str, Any] = {"size": 3, "last": bytes(32), "root": bytes(32), "log_key": bytes(32), "counter": 3}


@st.composite
def token(draw: st.DrawFn) -> Token:
    kind: Any = draw(st.sampled_from(sorted(BODIES)))
    return Token(
        kind=kind,
        ueid=draw(st.binary(min_size=17, max_size=33)),
        nonce=draw(st.binary(min_size=8, max_size=64)) if kind == "head" else None,
        index=draw(count),
        previous=draw(digest),
        boot_count=draw(count),
        boot_seed=draw(digest),
        uptime_ms=draw(count),
        time_ms=draw(count),
        hwmodel=draw(st.binary(min_size=1, max_size=32)),
        firmware_version=draw(text),
        debug=draw(st.booleans()),
        body=draw(BODIES[kind]),
        work=draw(st.none() | st.builds(Work, **dict.fromkeys(NAMES, large))),
    )


@pytest.fixture(scope="module")
def root() -> CertificateAuthority:
    return CertificateAuthority.create("Manufacturer")


@pytest.fixture(scope="module")
def chip(root: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> device.Device:
    directory = tmp_path_factory.mktemp("chip")
    device.provision(directory, root)
    return device.boot(directory)


def event(chip: device.Device, index: int = 0, previous: bytes = tokens.GENESIS) -> Token:
    return Token(
        kind="event",
        ueid=chip.ueid,
        nonce=None,
        index=index,
        previous=previous,
        boot_count=1,
        boot_seed=bytes(32),
        uptime_ms=1234,
        time_ms=1_700_000_000_123,
        hwmodel=chip.hwmodel,
        firmware_version=chip.tcb.version,
        debug=False,
        body={"name": "manifest-draft", "digest": bytes(range(32))},
    )


def log_of(chip: device.Device, size: int) -> list[bytes]:
    entries: list[bytes] = []
    for index in range(size):
        previous = tokens.entry_digest(entries[-1]) if entries else tokens.GENESIS
        entries.append(tokens.sign(event(chip, index, previous), chip.key, chip.chain))
    return entries


def test_sign_and_verify(chip: device.Device, root: CertificateAuthority) -> None:
    """verify(sign(t, key, chain), root).token == t."""
    data = tokens.sign(event(chip), chip.key, chip.chain)
    verified = tokens.verify(data, root.certificate)
    assert verified.token == event(chip)
    assert tokens.read_own(data) == event(chip)
    assert verified.identity.ueid == chip.ueid
    assert verified.identity.tcb == chip.tcb
    assert len(data) < 2048


def test_other_cose_readers_find_the_standard_labels(chip: device.Device) -> None:
    """Read with nothing but a CBOR decoder, as another implementation would."""
    cwt = cbor2.loads(tokens.sign(event(chip), chip.key, chip.chain))
    assert (cwt.tag, cwt.value.tag) == (61, 18)
    protected, unprotected, payload, signature = cwt.value.value
    assert cbor2.loads(protected) == {1: -35, 3: 263}
    assert {label: list(chain) for label, chain in unprotected.items()} == {33: list(chip.chain)}
    assert len(signature) == 96
    claims = cbor2.loads(payload)
    assert claims[256] == chip.ueid
    assert claims[259] == b"WB-SIM-1"
    assert claims[263] == 1
    assert (claims[6], claims[261], claims[267], claims[268]) == (1_700_000_000, 1, 1, bytes(32))
    assert claims[273] == [[60, cbor({"name": "manifest-draft", "digest": bytes(range(32))})]]
    assert 10 not in claims


@given(token())
def test_claims_round_trip(value: Token) -> None:
    """decode_claims(encode_claims(t)) == t, and encoding that again gives the same bytes."""
    payload = tokens.encode_claims(value)
    assert tokens.decode_claims(payload) == value
    assert tokens.encode_claims(tokens.decode_claims(payload)) == payload


def test_foreign_manufacturer_is_refused(chip: device.Device) -> None:
    data = tokens.sign(event(chip), chip.key, chip.chain)
    with pytest.raises(IdentityError):
        tokens.verify(data, CertificateAuthority.create("Manufacturer").certificate)


def test_another_devices_claims_are_refused(chip: device.Device, root: CertificateAuthority, tmp_path: Path) -> None:
    """A genuine chip that claims to be another, or another firmware, and one that shows another's certificates."""
    device.provision(tmp_path, root)
    other = device.boot(tmp_path)
    forgeries = [
        tokens.sign(event(other), chip.key, chip.chain),
        tokens.sign(replace(event(chip), firmware_version="9.9"), chip.key, chip.chain),
        tokens.sign(replace(event(chip), hwmodel=b"H-200"), chip.key, chip.chain),
        tokens.sign(replace(event(chip), debug=True), chip.key, chip.chain),
        tokens.sign(event(chip), other.key, other.chain),
        tokens.sign(event(chip), other.key, chip.chain),
        tokens.sign(event(other), chip.key, other.chain),
    ]
    for data in forgeries:
        with pytest.raises(TokenError):
            tokens.verify(data, root.certificate)


_ROOT = CertificateAuthority.create("Flips")


@pytest.fixture(scope="module")
def flippable(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("flips")
    device.provision(directory, _ROOT)
    chip = device.boot(directory)
    return tokens.sign(event(chip), chip.key, chip.chain)


@given(st.data())
def test_flipped_bits_and_cuts_are_refused(flippable: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(flippable) * 8 - 1))
    flipped = bytearray(flippable)
    flipped[place // 8] ^= 1 << place % 8
    for altered in (bytes(flipped), flippable[: place // 8], flippable + b"\x00"):
        with pytest.raises((TokenError, IdentityError)):
            tokens.verify(altered, _ROOT.certificate)


@given(st.binary(max_size=300))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    with suppress(TokenError, IdentityError):
        tokens.verify(data, _ROOT.certificate)
    with suppress(TokenError):
        tokens.decode_claims(data)
    with suppress(FormatError):
        tokens.decode_cbor(data, max_bytes=200)


_cbor_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.binary() | st.text() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(-100000, 300), inner, max_size=4)
        | st.builds(cbor2.CBORTag, st.sampled_from([18, 61]), inner)
    ),
)


@given(_cbor_values)
def test_hostile_structures_raise_only_our_errors(value: Any) -> None:
    data = cbor2.dumps(value, canonical=True)
    for wrapped in (data, cbor(cbor2.CBORTag(61, cbor2.CBORTag(18, value)))):
        with pytest.raises((TokenError, IdentityError)):
            tokens.verify(wrapped, _ROOT.certificate)
    with pytest.raises(TokenError):
        tokens.decode_claims(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xa2\x01\x01\x01\x02",  # a key twice
        b"\xa2\x02\x01\x01\x01",  # keys out of order
        b"\x18\x01",  # a longer form than needed
        b"\x9f\x01\xff",  # indefinite length
        b"\x01\x02",  # something behind the item
        b"\x81" * 100,  # too deep
        b"\xd8\x23\x61(",  # a tag that decodes to a regular expression, which is malformed
        b"",
        bytes(1001),
    ],
)
def test_strict_cbor(data: bytes) -> None:
    with pytest.raises(FormatError):
        tokens.decode_cbor(data, max_bytes=1000)


def _claims(change: Callable[[dict[int, Any]], object]) -> bytes:
    payload = tokens.encode_claims(_EXAMPLE)
    claims = cbor2.loads(payload)
    change(claims)
    return cbor(claims)


_EXAMPLE = Token(
    kind="head",
    ueid=bytes(17),
    nonce=bytes(8),
    index=3,
    previous=bytes(32),
    boot_count=1,
    boot_seed=bytes(32),
    uptime_ms=0,
    time_ms=0,
    hwmodel=b"m",
    firmware_version="1",
    debug=False,
    body=HEAD,
    work=Work(kernels=1, busy_ns=2, moved=3, flops=1 << 70, unknown_ns=5),
)
WORK = _EXAMPLE.work.to_json() if _EXAMPLE.work else {}


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update({999: 1}),
        lambda c: c.pop(256),
        lambda c: c.pop(273),
        lambda c: c.pop(10),
        lambda c: c.update({10: b""}),
        lambda c: c.update({10: bytes(65)}),
        lambda c: c.update({256: bytes(16)}),
        lambda c: c.update({258: bytes(16)}),
        lambda c: c.update({6: 5}),
        lambda c: c.update({265: "urn:other"}),
        lambda c: c.update({271: []}),
        lambda c: c.update({271: 5}),
        lambda c: c.update({273: [[61, cbor(HEAD)]]}),
        lambda c: c.update({273: [[60, cbor({**HEAD, "size": True})]]}),
        lambda c: c.update({273: [[60, cbor({"size": 3})]]}),
        lambda c: c.update({273: [[60, cbor([])]]}),
        lambda c: c.update({273: [[60, "text"]]}),
        lambda c: c.update({-70002: "king"}),
        lambda c: c.update({-70002: []}),
        lambda c: c.update({-70002: "event"}),
        lambda c: c.update({-70003: -1}),
        lambda c: c.update({-70003: 1 << 63}),
        lambda c: c.update({-70003: 1.0}),
        lambda c: c.update({-70004: bytes(31)}),
        lambda c: c.update({-70006: True}),
        lambda c: c.update({-70007: []}),
        lambda c: c.update({-70007: {**WORK, "more": 1}}),
        lambda c: c.update({-70007: {**WORK, "flops": 1 << 96}}),
        lambda c: c.update({-70007: {**WORK, "kernels": -1}}),
        lambda c: c.update({-70007: {**WORK, "moved": True}}),
    ],
)
def test_claims_outside_the_profile_are_refused(change: Callable[[dict[int, Any]], object]) -> None:
    assert tokens.decode_claims(_claims(lambda _: None)) == _EXAMPLE
    with pytest.raises(TokenError):
        tokens.decode_claims(_claims(change))


def test_claims_of_a_workload_are_unknown_off_a_safepoint() -> None:
    """Off a safepoint a position may be claimed or not, and on one everything must be."""
    base: dict[str, Any] = dict.fromkeys(
        ["leaves", "bytes", "weights_bytes", "held", "kernels", "flops", "stall_us", "unobserved"], 0
    ) | dict.fromkeys(["root", "weights_root", "salt_digest"], bytes(32))
    known = {"head": bytes(32), "running": bytes(32), "step": 0, "op": 0}
    unknown = {"head": b"", "running": b"", "step": -1, "op": -1}
    for safepoint, claims in ((True, known), (False, known | {"running": b""}), (False, unknown)):
        good = replace(_EXAMPLE, kind="snapshot", nonce=None, body={**base, **claims, "safepoint": safepoint})
        assert tokens.decode_claims(tokens.encode_claims(good)) == good
        for name in known:
            other = (known if claims[name] == unknown[name] else unknown)[name]
            with pytest.raises(TokenError):
                tokens.encode_claims(replace(good, body={**good.body, name: other}))
    with pytest.raises(TokenError):
        tokens.encode_claims(replace(good, body={**good.body, "safepoint": 1}))


def test_an_oversized_token_is_refused(chip: device.Device, root: CertificateAuthority) -> None:
    with pytest.raises(TokenError):
        tokens.sign(event(chip), chip.key, [bytes(70_000)])
    with pytest.raises(TokenError):
        tokens.verify(bytes(70_000), root.certificate)


def test_a_log_verifies_in_order(chip: device.Device, root: CertificateAuthority) -> None:
    entries = log_of(chip, 5)
    assert [v.token.index for v in tokens.verify_log(entries, root.certificate)] == [0, 1, 2, 3, 4]


def test_altered_logs_are_refused(chip: device.Device, root: CertificateAuthority, tmp_path: Path) -> None:
    entries = log_of(chip, 4)
    forked = tokens.sign(replace(event(chip, 2, bytes(32)), uptime_ms=9), chip.key, chip.chain)
    device.provision(tmp_path, root)
    other = device.boot(tmp_path)
    foreign = tokens.sign(event(other, 2, tokens.entry_digest(entries[1])), other.key, other.chain)
    head = replace(
        event(chip, 2, tokens.entry_digest(entries[1])),
        kind="head",
        nonce=bytes(8),
        body={**HEAD, "size": 2, "last": tokens.entry_digest(entries[1])},
    )
    cases = {
        "chip.log.counter": [
            [entries[0], entries[2]],
            [entries[0], entries[1], entries[1]],
            [entries[1], entries[0]],
            [*entries[:2], tokens.sign(head, chip.key, chip.chain)],
        ],
        "chip.log.chain": [[*entries[:2], forked], [*entries[:2], foreign]],
        "chip.token": [[entries[0], entries[1][:-1]]],
    }
    for code, logs in cases.items():
        for log in logs:
            with pytest.raises(TokenError) as caught:
                list(tokens.verify_log(log, root.certificate))
            assert caught.value.reason == code
