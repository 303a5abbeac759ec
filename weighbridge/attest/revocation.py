"""Lists of revoked role certificates: X.509 CRLs (RFC 5280, section 5) with a number and an end.

An authority signs a new list whenever it revokes a certificate, and before the last one ends. A service that relies on
a list asks three things: that it parses, which includes the signature; that it has not ended; and that its number is
not below that of a list that was there before.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from weighbridge.core.errors import IdentityError

MAX_LIST_BYTES = 1 << 20
"""Some 20,000 certificates; what is not revoked any more, because it has expired, leaves the list."""
LIST_LIFETIME = datetime.timedelta(days=30)
"""As long as a role certificate: one visit to the authority a month renews both."""

_SKEW = datetime.timedelta(hours=1)
"""How far the authority's clock may be ahead."""
_UNDERSTOOD = frozenset({x509.CRLNumber.oid, x509.AuthorityKeyIdentifier.oid})
_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


class RevocationListError(IdentityError):
    """There is no list of revoked certificates that can be relied on."""

    code = "identity.revocations"


@dataclass(frozen=True, kw_only=True, slots=True)
class RevocationList:
    """A list whose signature was checked.

    Attributes:
        number: Grows with every list of the authority.
        issued: When it was signed.
        expires: When it ends; a later one must be there by then.
        revoked: Serial numbers of certificates, with the time of their revocation.
    """

    number: int
    issued: datetime.datetime
    expires: datetime.datetime
    revoked: Mapping[int, datetime.datetime]

    @classmethod
    def parse(cls, pem: bytes, authority: x509.Certificate) -> RevocationList:
        """Reads a complete list of `authority`, as PEM.

        Raises:
            RevocationListError: It is none: too long, malformed, of another kind, or not signed by `authority`.
        """
        if len(pem) > MAX_LIST_BYTES:
            raise RevocationListError(f"A list of revoked certificates has {len(pem)} bytes, more than are accepted.")
        key = authority.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            crl = x509.load_pem_x509_crl(pem)
            if crl.issuer != authority.subject or not crl.is_signature_valid(key):
                raise RevocationListError("This list of revoked certificates is not signed by the authority.")
            if not isinstance(crl.signature_hash_algorithm, _HASHES):
                raise RevocationListError("This list of revoked certificates is signed over a weak hash; replace it.")
            number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            # A list of some certificates only, or of changes, says so in a critical extension, of itself or an entry.
            foreign = [each for each in crl.extensions if each.critical or each.oid not in _UNDERSTOOD]
            revoked = {}
            for entry in crl:
                foreign += list(entry.extensions)
                revoked[entry.serial_number] = entry.revocation_date_utc
            issued, expires = crl.last_update_utc, crl.next_update_utc
        except (ValueError, TypeError, OverflowError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
            raise RevocationListError(f"This is no list of revoked certificates: {error}.") from error
        except (x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType) as error:
            raise RevocationListError(f"This list of revoked certificates breaks its profile: {error}.") from error
        if foreign or expires is None:
            raise RevocationListError("This list of revoked certificates is not complete or has no end; replace it.")
        return cls(number=number, issued=issued, expires=expires, revoked=revoked)

    def require_current(self, now: datetime.datetime) -> None:
        """Checks that the list may be relied on at a time.

        Raises:
            RevocationListError: It has ended, or is of the future.
        """
        if now >= self.expires:
            raise RevocationListError(
                f"The list of revoked certificates ended at {self.expires:%Y-%m-%d %H:%M} UTC; "
                "replace it by the authority's newest (`weighbridge identity renew`, then `identity update`)."
            )
        if now + _SKEW < self.issued:
            raise RevocationListError(
                f"The list of revoked certificates was signed at {self.issued:%Y-%m-%d %H:%M} UTC, in the future; "
                "check this host's clock and the authority's."
            )

    def require_no_older_than(self, number: int) -> None:
        """Checks that the list does not go back behind another.

        Raises:
            RevocationListError: Its number is lower.
        """
        if self.number < number:
            raise RevocationListError(
                f"The list of revoked certificates has the number {self.number}, but one with {number} was there; "
                "replace it by the authority's newest."
            )


def signed(
    issuer: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    revoked: Mapping[int, datetime.datetime],
    *,
    above: int = 0,
    lifetime: datetime.timedelta = LIST_LIFETIME,
) -> bytes:
    """Signs a list and returns it as PEM.

    Args:
        issuer: The authority.
        key: Its private key.
        revoked: Serial numbers, with the time of their revocation.
        above: Number of the list before. The new number is the time in seconds, or one more if that is not higher: so
            an authority that lost its last list still goes on above it.
        lifetime: How long the list may be relied on.
    """
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now)
        .next_update(now + lifetime)
        .add_extension(x509.CRLNumber(max(above + 1, int(now.timestamp()))), critical=False)
    )
    for serial, since in sorted(revoked.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
