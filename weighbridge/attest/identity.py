"""Identities: role certificates for the wire, and device certificate chains for chips.

The two have different roots and never mix. A *role certificate* says that a process may speak as chip, prover, verifier
or operator; it is checked by TLS. A *device chain* says that a signing key lives in one chip with one firmware; it is
checked wherever a token is. Its form:

    manufacturer root  ->  IDevID (IEEE 802.1AR; subject serialNumber = UEID in hex; never expires)
                       ->  attestation key (DICE TcbInfo: firmware version, SVN, SHA-384 and mode; see `tcb`)

A chip's role certificate also names the chips (UEIDs) that its holder may speak for.

All keys are ECDSA on P-384. Certificates of devices are not checked against a clock: 802.1AR devices do not expire, and
neither the chip's clock nor the time at which a log is read says when a token was signed.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weighbridge.attest import revocation
from weighbridge.attest.certificates import (
    certificate_builder,
    check_issued,
    key_pem,
    load_certificate,
    load_der,
    load_key,
)
from weighbridge.attest.credential_files import CREDENTIALS, REVOCATIONS, file_stamp, read_files, write_files
from weighbridge.attest.peers import MAX_UEIDS, NAME, ROLES, peer_role, require_unexpired, role_domain, ueid_urn
from weighbridge.attest.tcb import TCB_INFO_OID, TcbInfo
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import IdentityError, UsageError

ROLE_LIFETIME = datetime.timedelta(days=30)
"""Of role certificates. Authorities keep their keys off the network, so operators renew by hand. Once a month can be
borne, and bounds how long a stolen key works where no service hears of its revocation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What a process needs to speak mutual TLS, as PEM.

    Attributes:
        certificate: Its role certificate.
        key: The private key, PKCS #8, not encrypted.
        authority: The certificate of the authority that its peers must have been issued by.
        revocations: The authority's list of revoked certificates; empty if there is none, and then nothing can serve.
        directory: Where they were read from, if from files: `current` looks there again.
    """

    certificate: bytes
    key: bytes
    authority: bytes
    revocations: bytes = b""
    directory: Path | None = field(default=None, compare=False)
    stamp: tuple[tuple[int, ...] | None, ...] = field(default=(), compare=False, repr=False)

    def save(self, directory: Path) -> None:
        """Writes `certificate.pem`, `key.pem` (mode 0600), `authority.pem` and `revocations.pem`."""
        files = (self.certificate, self.key, self.authority, self.revocations)
        write_files(directory, dict(zip(CREDENTIALS, files, strict=True)))

    @classmethod
    def load(cls, directory: Path) -> Credentials:
        """Reads what `save` wrote.

        Raises:
            IdentityError: A file is missing or unreadable, the key is another's, or the certificate has expired.
        """
        stamp = file_stamp(directory)
        certificate, key, authority = read_files(directory, CREDENTIALS[:3])
        own = load_certificate(certificate)
        if load_key(key).public_key() != own.public_key():
            raise IdentityError(f"{directory / 'key.pem'} is not the key of the certificate beside it; issue both.")
        load_certificate(authority)
        require_unexpired(own, f"in {directory}")
        listed = directory / REVOCATIONS
        revocations = read_files(directory, (REVOCATIONS,))[0] if listed.exists() else b""
        return cls(
            certificate=certificate, key=key, authority=authority, revocations=revocations, directory=directory,
            stamp=stamp,
        )  # fmt: skip

    def current(self) -> Credentials:
        """Returns these credentials, or what has replaced them since in the directory that they were read from.

        Raises:
            IdentityError: As `load`.
        """
        if self.directory is None:
            return self
        if file_stamp(self.directory) != self.stamp:
            return self.load(self.directory)
        require_unexpired(load_certificate(self.certificate), f"in {self.directory}")
        return self


class CertificateAuthority:
    """A root key that issues role certificates, or, as a manufacturer's root, the IDevIDs of devices."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, revocations: bytes | None = None
    ) -> None:
        """Takes a root; use `create` or `load` to get one.

        Args:
            certificate: Self-signed.
            key: Its private key.
            revocations: Its list of revoked certificates, as PEM; by default it begins an empty one.
        """
        self.certificate = certificate
        self.key = key
        self._revocations = revocations

    @classmethod
    def create(cls, name: str) -> CertificateAuthority:
        """Makes a new root with `name` as its common name."""
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = certificate_builder(subject, subject, key.public_key(), authority=True, path_length=1, lists=True)
        return cls(builder.sign(key, hashes.SHA384()), key)

    @property
    def pem(self) -> bytes:
        """The root certificate as PEM: what a party that trusts this root needs."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def revocations(self) -> bytes:
        """The newest list of revoked role certificates, as PEM."""
        if self._revocations is None:
            self._revocations = revocation.signed(self.certificate, self.key, {})
        return self._revocations

    def save(self, directory: Path) -> None:
        """Writes `authority.pem` and `authority-key.pem` (mode 0600)."""
        write_files(directory, {"authority.pem": self.pem, "authority-key.pem": key_pem(self.key)})

    @classmethod
    def load(cls, directory: Path) -> CertificateAuthority:
        """Reads what `save` wrote.

        Raises:
            IdentityError: A file is missing or is not what its name says.
        """
        certificate, key = read_files(directory, ("authority.pem", "authority-key.pem"))
        return cls(load_certificate(certificate), load_key(key))

    def issue_role(
        self,
        role: str,
        name: str,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        *,
        ueids: Collection[bytes] = (),
        lifetime: datetime.timedelta = ROLE_LIFETIME,
    ) -> Credentials:
        """Issues a new key and certificate for one process.

        Args:
            role: One of `ROLES`.
            name: Who plays it: lower-case letters, digits and hyphens.
            hosts: DNS names and IP addresses under which other TLS clients may reach it.
            ueids: Chips that it may speak for; role chip only.
            lifetime: How long the certificate is valid.

        Raises:
            UsageError: The role, the name or a UEID is not one that a certificate can carry.
        """
        if role not in ROLES:
            raise UsageError(f"{role!r} is no role; choose one of {', '.join(ROLES)}.")
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be a name; use up to 63 lower-case letters, digits and hyphens.")
        if ueids and role != "chip":
            raise UsageError(f"A {role} speaks for no chip; name UEIDs only in certificates of the role chip.")
        if len(ueids) > MAX_UEIDS or not all(17 <= len(ueid) <= 33 for ueid in ueids):
            raise UsageError(f"A certificate names at most {MAX_UEIDS} UEIDs, each of 17 to 33 bytes; issue several.")
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"weighbridge://role/{role}/{name}"),
            x509.DNSName(role_domain(role)),
            *(x509.UniformResourceIdentifier(ueid_urn(ueid)) for ueid in sorted(set(ueids))),
            *map(_host_name, hosts),
        ]
        certificate = self._role_certificate(subject, key.public_key(), x509.SubjectAlternativeName(names), lifetime)
        return Credentials(certificate=certificate, key=key_pem(key), authority=self.pem, revocations=self.revocations)

    def renew_role(self, certificate: bytes, lifetime: datetime.timedelta = ROLE_LIFETIME) -> bytes:
        """Issues a new certificate for the same role, name, hosts and key, from now on.

        The key stays where it is: so no secret travels, one file is replaced, and what a service keeps for a caller
        (quotas, uploads) stays with its key. Another key comes with credentials that are issued anew.

        Args:
            certificate: The role certificate to renew, as PEM.
            lifetime: How long the new one is valid.

        Returns:
            The new certificate as PEM.

        Raises:
            IdentityError: The certificate has expired, is revoked, or is no role certificate of this authority.
        """
        role, name = peer_role(certificate)
        old = load_certificate(certificate)
        require_unexpired(old, "and cannot be renewed any more")
        try:
            old.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise IdentityError(
                f"The certificate of {role} {name} is not of this authority; renew it where it was issued."
            ) from error
        if old.serial_number in revocation.RevocationList.parse(self.revocations, self.certificate).revoked:
            raise IdentityError(
                f"The certificate of {role} {name} is revoked; issue new credentials (`weighbridge identity issue`).",
                code="identity.revoked",
            )
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = old.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)  # This authority issues no others.
        return self._role_certificate(old.subject, key, names, lifetime)

    def _role_certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: x509.SubjectAlternativeName,
        lifetime: datetime.timedelta,
    ) -> bytes:
        builder = certificate_builder(subject, self.certificate.subject, key, authority=False, lifetime=lifetime)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        signed = builder.add_extension(names, critical=False).add_extension(usage, critical=False)
        return signed.sign(self.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)

    def revoke(self, serials: Iterable[int], *, forget: Iterable[int] = ()) -> None:
        """Signs a new list of revoked certificates.

        Args:
            serials: Serial numbers to add; with none the list is the same, and lasts longer.
            forget: Serial numbers of certificates that have expired.
        """
        old = revocation.RevocationList.parse(self.revocations, self.certificate)
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        revoked = dict.fromkeys(serials, now) | dict(old.revoked)
        for serial in forget:
            revoked.pop(serial, None)
        self._revocations = revocation.signed(self.certificate, self.key, revoked, above=old.number)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceIdentity:
    """What a verified device chain says.

    Attributes:
        ueid: EAT UEID of the chip (RFC 9711, section 4.2.1), 17 to 33 bytes.
        public_key: Attestation key, P-384.
        tcb: The firmware that the key belongs to, and how it was started.
        device: BLAKE3 of the IDevID certificate (32 bytes), which stays with the chip over all firmware.
    """

    ueid: bytes
    public_key: ec.EllipticCurvePublicKey
    tcb: TcbInfo
    device: bytes


def verify_device_chain(chain_der: Sequence[bytes], root: x509.Certificate) -> DeviceIdentity:
    """Checks a device chain and returns what it says.

    Args:
        chain_der: DER of the attestation key's certificate and of the IDevID, in this order, without the root.
        root: The manufacturer's root.

    Raises:
        IdentityError: The chain has another form, or does not lead to `root`.
    """
    if len(chain_der) != 2:
        raise IdentityError(f"A device chain has two certificates, not {len(chain_der)}; ask the chip for its chain.")
    leaf, device = (load_der(der) for der in chain_der)
    check_issued(device, root, authority=True)
    check_issued(leaf, device, authority=False)
    serials = [str(attribute.value) for attribute in device.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)]
    if len(serials) != 1 or not re.fullmatch(r"(?:[0-9a-f]{2}){17,33}", serials[0]):
        raise IdentityError("The IDevID's serialNumber is not one UEID in hex; this is no device of ours.")
    try:
        extension = leaf.extensions.get_extension_for_oid(TCB_INFO_OID).value
    except x509.ExtensionNotFound as error:
        raise IdentityError("The attestation certificate does not say which firmware its key belongs to.") from error
    assert isinstance(extension, x509.UnrecognizedExtension)
    public_key = leaf.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey)  # check_issued looked.
    return DeviceIdentity(
        ueid=bytes.fromhex(serials[0]),
        public_key=public_key,
        tcb=TcbInfo.parse(extension.value),
        device=bytes_digest(bytes(chain_der[1])),
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
