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

import base64
import binascii
import datetime
import functools
import ipaddress
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weighbridge.attest import revocation
from weighbridge.attest.tcb import TCB_INFO_OID, TcbInfo
from weighbridge.core import secret_files
from weighbridge.core.errors import IdentityError, UsageError

ROLES = ("chip", "prover", "verifier", "operator")
NEVER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""The "no well-defined expiration" of RFC 5280, section 4.1.2.5."""

MAX_CERTIFICATE_BYTES = 8192

MAX_UEIDS = 64
"""Chips that one role certificate may name; a host has fewer."""

_UEID_URN = "urn:dev:ueid:"
"""RFC 9711 registers `ueid` as a kind of device URN (RFC 9039); base64url of the UEID follows, without padding."""
ROLE_LIFETIME = datetime.timedelta(days=30)
"""Of role certificates. Authorities keep their keys off the network, so operators renew by hand. Once a month can be
borne, and bounds how long a stolen key works where no service hears of its revocation."""
REVOCATIONS = "revocations.pem"
"""The authority's list of revoked certificates, beside its certificate and in every directory of credentials."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FILES = ("certificate.pem", "key.pem", "authority.pem", REVOCATIONS)


def role_domain(role: str) -> str:
    """Returns the DNS name in every certificate of `role`: clients ask for it, so TLS itself checks a server's role."""
    return f"{role}.role.weighbridge.internal"


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
        write_files(directory, dict(zip(_FILES, files, strict=True)))

    @classmethod
    def load(cls, directory: Path) -> Credentials:
        """Reads what `save` wrote.

        Raises:
            IdentityError: A file is missing or unreadable, the key is another's, or the certificate has expired.
        """
        stamp = file_stamp(directory)
        certificate, key, authority = read_files(directory, _FILES[:3])
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
        if not _NAME.fullmatch(name):
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


def require_unexpired(certificate: x509.Certificate, where: str) -> None:
    """Checks that a role certificate has not expired.

    Args:
        certificate: The certificate.
        where: Ends the phrase "the certificate of ROLE NAME expired at TIME", for the message.

    Raises:
        IdentityError: It has expired, or is no role certificate.
    """
    end = certificate.not_valid_after_utc
    if datetime.datetime.now(datetime.UTC) >= end:
        role, name = peer_role(certificate.public_bytes(serialization.Encoding.PEM))
        raise IdentityError(
            f"The certificate of {role} {name} expired at {end:%Y-%m-%d %H:%M} UTC, {where}; "
            f"issue new credentials with `weighbridge identity issue --role {role} --name {name}`.",
            code="identity.expired",
            role=role,
            name=name,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """What a role certificate says about its holder.

    Attributes:
        role: One of `ROLES`.
        name: Who plays it.
        ueids: Chips that it may speak for.
    """

    role: str
    name: str
    ueids: frozenset[bytes] = frozenset()

    def check_speaks_for(self, ueid: bytes) -> None:
        """Checks that the holder may act for a chip: a Verifier or operator may for any, a chip for itself.

        Raises:
            IdentityError: It may not (`identity.ueid`).
        """
        if self.role in ("verifier", "operator") or ueid in self.ueids:
            return
        raise IdentityError(
            f"The certificate of {self.role} {self.name} does not name chip {ueid.hex()}; "
            "have one issued with `weighbridge identity issue --ueid`.",
            code="identity.ueid",
            role=self.role,
            name=self.name,
            ueid=ueid.hex(),
        )


def ueid_urn(ueid: bytes) -> str:
    """Returns the URN of a chip, as certificates carry it."""
    return _UEID_URN + base64.urlsafe_b64encode(ueid).rstrip(b"=").decode()


def ueid_of(urn: str) -> bytes:
    """Reads what `ueid_urn` made; other spellings of the same bytes are refused.

    Raises:
        IdentityError: It is no such URN.
    """
    text = urn.removeprefix(_UEID_URN)
    try:
        ueid = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        ueid = b""
    if not 17 <= len(ueid) <= 33 or ueid_urn(ueid) != urn:
        raise IdentityError("The certificate names a chip in a form that is not a UEID's; have another issued.")
    return ueid


def peer_role(pem: bytes) -> tuple[str, str]:
    """Returns (role, name) of a role certificate that TLS has already verified; see `peer`."""
    found = peer(pem)
    return found.role, found.name


@functools.lru_cache(maxsize=4096)
def peer(pem: bytes) -> Peer:
    """Returns what a role certificate says that TLS has already verified.

    Raises:
        IdentityError: It is no certificate, carries no or more than one well-formed role, or names chips wrongly.
    """
    certificate = load_certificate(pem)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise IdentityError("The certificate has no alternative names and so no role; have one issued.") from error
    roles = [uri for uri in uris if uri.startswith("weighbridge:")]
    if len(roles) != 1:
        raise IdentityError(f"The certificate carries {len(roles)} roles instead of one; have another issued.")
    match = re.fullmatch(rf"weighbridge://role/({'|'.join(ROLES)})/({_NAME.pattern})", roles[0])
    if match is None:
        raise IdentityError("The certificate's role is none that this version knows; have another issued.")
    ueids = frozenset(ueid_of(uri) for uri in uris if uri.startswith(_UEID_URN))
    if len(ueids) > MAX_UEIDS:
        raise IdentityError(f"The certificate names more than {MAX_UEIDS} chips; have several issued.")
    return Peer(role=match[1], name=match[2], ueids=ueids if match[1] == "chip" else frozenset())


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceIdentity:
    """What a verified device chain says.

    Attributes:
        ueid: EAT UEID of the chip (RFC 9711, section 4.2.1), 17 to 33 bytes.
        public_key: Attestation key, P-384.
        tcb: The firmware that the key belongs to, and how it was started.
    """

    ueid: bytes
    public_key: ec.EllipticCurvePublicKey
    tcb: TcbInfo


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
    )


def check_issued(certificate: x509.Certificate, issuer: x509.Certificate, *, authority: bool) -> None:
    """Checks one link of a manufacturer's chain: key, signature, constraints, usage, no unknown critical extension.

    Args:
        certificate: The certificate to check.
        issuer: The one that it must have been issued by.
        authority: Whether it must be an authority, and may then do nothing else.

    Raises:
        IdentityError: It does not follow `issuer`, or is not of this kind.
    """
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise IdentityError("A device certificate's key is not on P-384.")
    try:
        certificate.verify_directly_issued_by(issuer)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        critical = {extension.oid for extension in certificate.extensions if extension.critical}
    except InvalidSignature as error:
        raise IdentityError(
            "A device certificate's signature is not its issuer's: a foreign or altered chain."
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise IdentityError(f"A device certificate does not follow its issuer or its profile: {error}.") from error
    if constraints.ca != authority or usage.key_cert_sign != authority or usage.digital_signature == authority:
        raise IdentityError("A device certificate may do more or less than its place in the chain allows.")
    if critical - {x509.BasicConstraints.oid, x509.KeyUsage.oid, TCB_INFO_OID}:
        raise IdentityError("A device certificate has a critical extension that is not understood here.")


def certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    *,
    authority: bool,
    path_length: int | None = None,
    lifetime: datetime.timedelta | None = None,
    lists: bool = False,
) -> x509.CertificateBuilder:
    """Returns a certificate that only needs its special extensions and a signature.

    Args:
        subject: Whose it is.
        issuer: Subject of the certificate whose key will sign.
        public_key: The key that it is about.
        authority: Whether that key may sign certificates (and then nothing else).
        path_length: How many authorities may follow below it.
        lifetime: How long it is valid from now; None means that it never expires.
        lists: Whether that key may sign lists of revoked certificates.
    """
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # Clocks of other hosts may be behind.
        .not_valid_after(now + lifetime if lifetime else NEVER)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=path_length), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not authority,
                key_cert_sign=authority,
                crl_sign=lists,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )


def load_certificate(pem: bytes) -> x509.Certificate:
    """Reads one PEM certificate.

    Raises:
        IdentityError: It is none.
    """
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise IdentityError("This is no PEM certificate; check the file.") from error


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Reads a private key on P-384 from PEM.

    Raises:
        IdentityError: It is none.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError("This is no readable PEM private key; check the file.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise IdentityError("This private key is not on P-384; have another issued.")
    return key


def load_der(der: bytes) -> x509.Certificate:
    """Reads one DER certificate with everything in it, and accepts only one encoding of its signature.

    Raises:
        IdentityError: It is none, or larger than `MAX_CERTIFICATE_BYTES`.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise IdentityError(f"A device certificate has {len(der)} bytes; at most {MAX_CERTIFICATE_BYTES} are accepted.")
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.public_key()  # Keys and extensions are parsed late; look at them now.
        list(certificate.extensions)
        list(certificate.subject)
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise IdentityError("A device certificate is malformed; ask the chip for its chain again.") from error
    except x509.InvalidVersion as error:
        raise IdentityError("A device certificate has an unknown version.") from error
    if not der.endswith(b"\x00" + certificate.signature):
        # The one byte that nothing signs: how many bits of the signature's last byte are unused. DER says none.
        raise IdentityError("A device certificate is malformed; ask the chip for its chain again.")
    return certificate


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a private key as PEM (PKCS #8, not encrypted); inverse of `load_key`."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Writes files into a directory, replacing former ones; names with `key` in them are readable by the owner only.

    A reader sees each file as it was or as it is now, never a part.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        # The mode is set as the file is created, so that a key is never readable by others, however briefly.
        mode, partial = 0o600 if "key" in name else 0o644, directory / f".{name}.partial"
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(directory / name)


def file_stamp(directory: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Returns what changes when a file of credentials in a directory is written or replaced; None for a missing one."""
    found: list[tuple[int, ...] | None] = []
    for name in _FILES:
        try:
            status = os.stat(directory / name)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def read_files(directory: Path, names: Iterable[str]) -> list[bytes]:
    """Reads files of a directory.

    Raises:
        IdentityError: One is missing or unreadable.
        UsageError: Others may read one with `key` in its name.
    """
    paths = [directory / name for name in names]
    try:
        secret_files.require_private(*(path for path in paths if "key" in path.name))
        return [path.read_bytes() for path in paths]
    except OSError as error:
        raise IdentityError(f"Cannot read {error.filename}; give the directory that holds the certificate.") from error
