"""DICE TcbInfo: what is written is read back, and nothing else is accepted."""

from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat import asn1
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest.tcb import TcbInfo
from weighbridge.core.errors import IdentityError

GOOD = TcbInfo(vendor="Maker", model="M-1", version="1.0", svn=3, measurement=bytes(48), mode="production")


def texts(most: int) -> st.SearchStrategy[str]:
    return st.text(min_size=1, max_size=most).filter(str.isprintable)


tcbs = st.builds(
    TcbInfo,
    vendor=texts(64),
    model=texts(32),
    version=texts(32),
    svn=st.integers(0, (1 << 31) - 1),
    measurement=st.binary(min_size=48, max_size=48),
    mode=st.sampled_from(["production", "debug"]),
)


@given(tcbs)
def test_tcb_info_round_trip(tcb: TcbInfo) -> None:
    """TcbInfo.parse(t.extension().value) == t."""
    extension = tcb.extension()
    assert extension.oid.dotted_string == "2.23.133.5.4.1"
    assert TcbInfo.parse(extension.value) == tcb


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    with suppress(IdentityError):
        assert TcbInfo.parse(data).extension().value == data


@given(st.data())
def test_flipped_bits_never_read_as_the_same_firmware(data: st.DataObject) -> None:
    good = GOOD.extension().value
    place = data.draw(st.integers(0, 8 * len(good) - 1))
    flipped = bytearray(good)
    flipped[place // 8] ^= 1 << place % 8
    with suppress(IdentityError):
        assert TcbInfo.parse(bytes(flipped)) != GOOD


def test_the_bytes_are_those_of_the_standard() -> None:
    """Tags 0, 1, 2, 3, 6 and 7; SHA-384 is 2.16.840.1.101.3.4.2.2; debug is bit 3 and notSecure bit 1."""
    fwid = bytes.fromhex("303d 0609608648016503040202 0430") + bytes(48)
    fields = bytes.fromhex("8005 4d616b6572 8103 4d2d31 8203 312e30 830103 a63f") + fwid
    for tcb, flags in ((GOOD, "870100"), (TcbInfo(**{**fields_of(GOOD), "mode": "debug"}), "87020450")):
        body = fields + bytes.fromhex(flags)
        assert tcb.extension().value == b"\x30" + bytes([len(body)]) + body


def fields_of(tcb: TcbInfo) -> dict[str, object]:
    return {name: getattr(tcb, name) for name in TcbInfo.__slots__}


@pytest.mark.parametrize(
    "change",
    [
        *({name: text} for name in ("vendor", "model", "version") for text in ("", "x" * 65, "a\nb")),
        *({"svn": number} for number in (-1, 1 << 31)),
        *({"measurement": digest} for digest in (b"", bytes(47), bytes(49))),
    ],
)
def test_impossible_fields_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        TcbInfo(**{**fields_of(GOOD), **change})


def test_other_digests_and_flags_are_refused() -> None:
    good = GOOD.extension().value
    sha256, sha384 = (bytes.fromhex("060960864801650304020" + last) for last in "12")
    for altered in (
        good.replace(sha384, sha256),
        good[:-1] + b"\x01",
        good.replace(b"\x87\x01\x00", b"\x87\x02\x00\x80"),
    ):
        assert altered != good
        with pytest.raises(IdentityError):
            TcbInfo.parse(altered)
    with pytest.raises(IdentityError):
        TcbInfo.parse(asn1.encode_der(5))
    assert isinstance(GOOD.extension(), x509.UnrecognizedExtension)
