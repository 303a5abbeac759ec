"""Firmware images: what a manufacturer signs is read back, and whatever differs is refused."""

import hashlib
import stat
from contextlib import suppress
from pathlib import Path

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest.certificates import certificate_builder
from weighbridge.attest.firmware_image import FirmwareImage, FirmwareSigner, read_image
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, IdentityError, UsageError

MAKER = CertificateAuthority.create("Maker")
SIGNER = FirmwareSigner.issue(MAKER)
GOOD = FirmwareImage(name="firmware", version="1.0", svn=4, hwmodel="M-1", payload=b"code")

texts = st.text(min_size=1, max_size=32).filter(str.isprintable)
images = st.builds(
    FirmwareImage,
    name=texts,
    version=texts,
    svn=st.integers(0, (1 << 31) - 1),
    hwmodel=texts,
    payload=st.binary(max_size=300),
)


def reason(data: bytes) -> str:
    with pytest.raises(ChipError) as caught:
        read_image(data, MAKER.certificate)
    return caught.value.reason


@given(images)
def test_images_round_trip(image: FirmwareImage) -> None:
    """read_image(signer.sign(i), root) == i, and the measurement does not depend on who signed."""
    data = SIGNER.sign(image)
    assert read_image(data, MAKER.certificate) == image
    assert len(image.measurement) == 48


@given(st.binary(max_size=300))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    assert reason(data) == "chip.image.malformed"


@given(st.recursive(st.none() | st.integers() | st.binary() | st.text(), lambda each: st.lists(each, max_size=4)))
def test_hostile_cbor_raises_only_our_errors(value: object) -> None:
    for inner in (value, [cbor2.CBORTag(18, value), b""], [cbor2.CBORTag(18, [b"", {33: value}, b"", b""]), b""]):
        with suppress(ChipError):
            read_image(cbor(inner), MAKER.certificate)


@given(st.data())
def test_flipped_bits_and_cuts_are_refused(data: st.DataObject) -> None:
    good = SIGNED
    place = data.draw(st.integers(0, 8 * len(good) - 1))
    flipped = bytearray(good)
    flipped[place // 8] ^= 1 << place % 8
    assert reason(bytes(flipped)).startswith("chip.image.")
    assert reason(good[: place // 8]) == "chip.image.malformed"


SIGNED = SIGNER.sign(GOOD)


def test_another_reader_finds_the_standard_labels() -> None:
    """Read with nothing but a CBOR decoder."""
    sign1, payload = cbor2.loads(SIGNED)
    protected, unprotected, claims, signature = sign1.value
    assert (sign1.tag, payload, len(signature)) == (18, b"code", 96)
    assert cbor2.loads(protected) == {1: -35, 3: "application/vnd.weighbridge.firmware+cbor"}
    assert x509.load_der_x509_certificate(unprotected[33]) == SIGNER.certificate
    assert cbor2.loads(claims) == {
        "name": "firmware",
        "version": "1.0",
        "svn": 4,
        "hwmodel": "M-1",
        "size": 4,
        "sha384": hashlib.sha384(b"code").digest(),
    }
    assert GOOD.measurement == hashlib.sha384(claims).digest()


def test_the_example_of_the_format_page() -> None:
    image = FirmwareImage(name="weighbridge firmware", version="0.1.0", svn=1, hwmodel="WB-SIM-1", payload=b"example")
    assert len(image.claims) == 126
    assert image.claims.hex().startswith("a66373766e01646e616d6574")
    assert image.claims.hex().endswith("65302e312e30")
    page = (Path(__file__).parents[3] / "docs" / "formats" / "firmware-image.md").read_text()
    assert f"`{image.measurement.hex()}`" in page


def test_an_altered_payload_is_told_from_an_altered_signature() -> None:
    sign1, _ = cbor2.loads(SIGNED)
    assert reason(cbor([sign1, b"c0de"])) == "chip.image.altered"
    protected, unprotected, claims, signature = sign1.value
    unsigned = cbor([cbor2.CBORTag(18, [protected, unprotected, claims, bytes(96)]), b"code"])
    assert reason(unsigned) == "chip.image.signature"
    newer = cbor2.loads(claims) | {"svn": 9}
    raised = cbor([cbor2.CBORTag(18, [protected, unprotected, cbor(newer), signature]), b"code"])
    assert reason(raised) == "chip.image.signature"


def test_claims_that_are_not_known_are_refused_though_signed() -> None:
    class Careless(FirmwareImage):
        @property
        def claims(self) -> bytes:
            return cbor(cbor2.loads(super().claims) | {"extra": 1})

    fields = {name: getattr(GOOD, name) for name in FirmwareImage.__slots__}
    assert reason(SIGNER.sign(Careless(**fields))) == "chip.image.malformed"


def test_only_firmware_keys_of_the_manufacturer_sign() -> None:
    foreign = FirmwareSigner.issue(CertificateAuthority.create("Maker"))  # The same name, another key.
    assert reason(foreign.sign(GOOD)) == "chip.image.signature"
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a device")])
    device = certificate_builder(subject, MAKER.certificate.subject, key.public_key(), authority=True, path_length=0)
    other = certificate_builder(subject, MAKER.certificate.subject, key.public_key(), authority=False)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    for builder in (device, other, other.add_extension(usage, critical=False)):
        signer = FirmwareSigner(builder.sign(MAKER.key, hashes.SHA384()), key)
        assert reason(signer.sign(GOOD)) == "chip.image.signature"


def test_a_signer_lies_beside_its_authority(tmp_path: Path) -> None:
    with pytest.raises(IdentityError):
        FirmwareSigner.of(tmp_path)
    MAKER.save(tmp_path)
    first, again = FirmwareSigner.of(tmp_path), FirmwareSigner.of(tmp_path)
    assert first.certificate == again.certificate
    assert read_image(again.sign(GOOD), MAKER.certificate) == GOOD
    assert stat.S_IMODE((tmp_path / "firmware-key.pem").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "change",
    [*({name: text} for name in ("name", "version", "hwmodel") for text in ("", "x" * 33, "a\nb")), {"svn": -1}],
)
def test_impossible_claims_cannot_be_signed(change: dict[str, object]) -> None:
    fields = {name: getattr(GOOD, name) for name in FirmwareImage.__slots__}
    with pytest.raises(UsageError):
        FirmwareImage(**{**fields, **change})
