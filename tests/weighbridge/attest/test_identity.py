"""Role certificates and device chains: honest ones verify, every altered one is an IdentityError."""

import datetime
import stat
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.attest import certificates, identity, peers
from weighbridge.attest.tcb import TCB_INFO_OID, TcbInfo
from weighbridge.core.errors import IdentityError, UsageError

UEID = b"\x01" + bytes(range(16))
AUTHORITY = identity.CertificateAuthority.create("Station")
TCB = TcbInfo(vendor="Maker", model="M-1", version="1.0", svn=3, measurement=bytes(range(48)), mode="production")


def name(serial: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, serial)])


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


class Device:
    """A device chain made by hand, with every part open to alteration."""

    def __init__(
        self,
        root: identity.CertificateAuthority,
        *,
        serial: str = UEID.hex(),
        leaf_authority: bool = False,
        device_authority: bool = True,
        tcb: x509.UnrecognizedExtension | None = TCB.extension(),  # noqa: B008
        critical: x509.UnrecognizedExtension | None = None,
        curve: ec.EllipticCurve = ec.SECP384R1(),  # noqa: B008
    ) -> None:
        device_key = ec.generate_private_key(ec.SECP384R1())
        self.key = ec.generate_private_key(curve)
        device = certificates.certificate_builder(
            name(serial), root.certificate.subject, device_key.public_key(), authority=device_authority
        ).sign(root.key, hashes.SHA384())
        leaf = certificates.certificate_builder(
            name("leaf"), device.subject, self.key.public_key(), authority=leaf_authority
        )
        if tcb is not None:
            leaf = leaf.add_extension(tcb, critical=False)
        if critical is not None:
            leaf = leaf.add_extension(critical, critical=True)
        self.chain = [der(leaf.sign(device_key, hashes.SHA384())), der(device)]


@pytest.fixture(scope="module")
def root() -> identity.CertificateAuthority:
    return identity.CertificateAuthority.create("Test manufacturer")


@pytest.fixture(scope="module")
def device(root: identity.CertificateAuthority) -> Device:
    return Device(root)


def test_honest_chain_says_who_the_device_is(root: identity.CertificateAuthority, device: Device) -> None:
    found = identity.verify_device_chain(device.chain, root.certificate)
    assert (found.ueid, found.tcb) == (UEID, TCB)
    assert found.public_key.public_numbers() == device.key.public_key().public_numbers()


def test_idevid_never_expires(device: Device) -> None:
    assert x509.load_der_x509_certificate(device.chain[1]).not_valid_after_utc == datetime.datetime(
        9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC
    )


def test_foreign_manufacturer_is_refused(device: Device) -> None:
    foreign = identity.CertificateAuthority.create("Test manufacturer")  # The same name, another key.
    with pytest.raises(IdentityError, match="signature"):
        identity.verify_device_chain(device.chain, foreign.certificate)


def test_wrong_shape_is_refused(root: identity.CertificateAuthority, device: Device) -> None:
    leaf, idevid = device.chain
    other = Device(root).chain
    for chain in ([], [leaf], [idevid, leaf], [leaf, idevid, idevid], [leaf, leaf], [leaf, other[1]], [b"", b""]):
        with pytest.raises(IdentityError):
            identity.verify_device_chain(chain, root.certificate)
    with pytest.raises(IdentityError, match="bytes"):
        identity.verify_device_chain([bytes(10_000), idevid], root.certificate)


@pytest.mark.parametrize(
    "altered",
    [
        {"serial": "not hex"},
        {"serial": "01"},
        {"leaf_authority": True},
        {"device_authority": False},
        {"tcb": None},
        {"tcb": x509.UnrecognizedExtension(TCB_INFO_OID, b"\x30\x00")},
        {"critical": x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")},
        {"curve": ec.SECP256R1()},
    ],
)
def test_wrong_profile_is_refused(root: identity.CertificateAuthority, altered: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        identity.verify_device_chain(Device(root, **altered).chain, root.certificate)  # type: ignore[arg-type]


@given(st.data())
def test_flipped_bits_are_refused(data: st.DataObject) -> None:
    device, root = FLIPPED
    chain = list(device.chain)
    which = data.draw(st.integers(0, 1))
    place = data.draw(st.integers(0, len(chain[which]) * 8 - 1))
    changed = bytearray(chain[which])
    changed[place // 8] ^= 1 << place % 8
    chain[which] = bytes(changed)
    with pytest.raises(IdentityError):
        identity.verify_device_chain(chain, root.certificate)


_ROOT = identity.CertificateAuthority.create("Flips")
FLIPPED = (Device(_ROOT), _ROOT)


@given(st.lists(st.binary(max_size=200), max_size=3), st.binary(max_size=200))
def test_hostile_bytes_raise_only_our_errors(chain: list[bytes], pem: bytes) -> None:
    for attempt in (
        lambda: identity.verify_device_chain(chain, _ROOT.certificate),
        lambda: peers.peer_role(pem),
        lambda: certificates.load_key(pem),
    ):
        with suppress(IdentityError):
            attempt()


def test_role_certificate_says_its_role(tmp_path: Path) -> None:
    authority = identity.CertificateAuthority.create("Station")
    credentials = authority.issue_role("prover", "lab-7")
    assert peers.peer_role(credentials.certificate) == ("prover", "lab-7")
    credentials.save(tmp_path / "credentials")
    assert identity.Credentials.load(tmp_path / "credentials") == credentials
    assert stat.S_IMODE((tmp_path / "credentials" / "key.pem").stat().st_mode) == 0o600


@given(st.sets(st.binary(min_size=17, max_size=33), max_size=5))
@settings(max_examples=10, deadline=None)
def test_chip_certificate_names_its_chips(ueids: set[bytes]) -> None:
    peer = peers.peer(AUTHORITY.issue_role("chip", "host", ueids=sorted(ueids)).certificate)
    assert (peer.role, peer.name, peer.ueids) == ("chip", "host", ueids)
    for ueid in ueids:
        peer.check_speaks_for(ueid)
    with pytest.raises(IdentityError) as caught:
        peer.check_speaks_for(b"another chip, not ours")
    assert caught.value.reason == "identity.ueid"


def test_verifiers_and_operators_ask_about_any_chip_and_provers_speak_for_none() -> None:
    for role, may in (("verifier", True), ("operator", True), ("prover", False)):
        peer = peers.Peer(role=role, name="x", ueids=frozenset())
        with nullcontext() if may else pytest.raises(IdentityError):
            peer.check_speaks_for(bytes(17))


@given(st.one_of(st.text(max_size=60), st.binary(max_size=40).map(peers.ueid_urn)))
def test_a_chip_has_one_spelling(text: str) -> None:
    with suppress(IdentityError):
        ueid = peers.ueid_of(text)
        assert peers.ueid_urn(ueid) == text
        assert 17 <= len(ueid) <= 33


@pytest.mark.parametrize("spelled", ["", "AQ", "AQ==", "A" * 23 + "=", "A" * 22 + "B", "a+" * 12, "A" * 48])
def test_other_spellings_name_no_chip(spelled: str) -> None:
    with pytest.raises(IdentityError):
        peers.ueid_of("urn:dev:ueid:" + spelled)


def test_ueids_that_no_certificate_carries() -> None:
    for role, ueids in (("prover", [bytes(17)]), ("chip", [bytes(16)]), ("chip", [bytes(34)]),
                        ("chip", [bytes([n]) * 17 for n in range(peers.MAX_UEIDS + 1)])):  # fmt: skip
        with pytest.raises(UsageError):
            AUTHORITY.issue_role(role, "x", ueids=ueids)


def test_authority_round_trip(tmp_path: Path) -> None:
    authority = identity.CertificateAuthority.create("Station")
    authority.save(tmp_path)
    again = identity.CertificateAuthority.load(tmp_path)
    assert again.certificate == authority.certificate
    assert stat.S_IMODE((tmp_path / "authority-key.pem").stat().st_mode) == 0o600
    issued = x509.load_pem_x509_certificate(again.issue_role("chip", "c").certificate)
    issued.verify_directly_issued_by(authority.certificate)


def test_impossible_roles_are_refused() -> None:
    authority = identity.CertificateAuthority.create("Station")
    for role, who in (("king", "arthur"), ("chip", ""), ("chip", "a/b"), ("chip", "A"), ("chip", "x" * 64)):
        with pytest.raises(UsageError):
            authority.issue_role(role, who)
    with pytest.raises(IdentityError):
        peers.peer_role(authority.pem)


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    authority = identity.CertificateAuthority.create("Authority")
    authority.save(tmp_path)
    authority.issue_role("operator", "alice").save(tmp_path / "alice")
    assert identity.CertificateAuthority.load(tmp_path).pem == authority.pem
    assert identity.Credentials.load(tmp_path / "alice").authority == authority.pem
    for key, load in (
        (tmp_path / "authority-key.pem", lambda: identity.CertificateAuthority.load(tmp_path)),
        (tmp_path / "alice" / "key.pem", lambda: identity.Credentials.load(tmp_path / "alice")),
    ):
        key.chmod(0o640)
        with pytest.raises(UsageError, match=f"type `chmod 600 {key}`"):
            load()


def test_missing_and_foreign_files_are_identity_errors(tmp_path: Path) -> None:
    with pytest.raises(IdentityError):
        identity.Credentials.load(tmp_path)
    (tmp_path / "authority.pem").write_bytes(b"hello")
    (tmp_path / "authority-key.pem").write_bytes(b"hello")
    (tmp_path / "authority-key.pem").chmod(0o600)
    with pytest.raises(IdentityError):
        identity.CertificateAuthority.load(tmp_path)
    with pytest.raises(IdentityError):
        certificates.load_key(
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
