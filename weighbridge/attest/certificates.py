"""Certificates and keys: how ours are built, read and checked, whatever they are about.

All keys are ECDSA on P-384, but for those of sealed workers, which are Ed25519.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from weighbridge.attest.tcb import TCB_INFO_OID
from weighbridge.core.errors import IdentityError

NEVER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""The "no well-defined expiration" of RFC 5280, section 4.1.2.5."""

MAX_CERTIFICATE_BYTES = 8192


def check_issued(
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    *,
    authority: bool,
    key_type: type[ec.EllipticCurvePublicKey | Ed25519PublicKey] = ec.EllipticCurvePublicKey,
) -> None:
    """Checks one link of a manufacturer's chain: key, signature, constraints, usage, no unknown critical extension.

    Args:
        certificate: The certificate to check.
        issuer: The one that it must have been issued by.
        authority: Whether it must be an authority, and may then do nothing else.
        key_type: What its key must be: of P-384, or of Ed25519.

    Raises:
        IdentityError: It does not follow `issuer`, or is not of this kind.
    """
    key = certificate.public_key()
    if not isinstance(key, key_type) or not (isinstance(key, Ed25519PublicKey) or isinstance(key.curve, ec.SECP384R1)):
        raise IdentityError("A device certificate's key is not on P-384, or not the Ed25519 key of a sealed worker.")
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
    public_key: ec.EllipticCurvePublicKey | Ed25519PublicKey,
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


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a private key as PEM (PKCS #8, not encrypted); inverse of `load_key`."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
