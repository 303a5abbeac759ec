"""What a service asks of a caller's role certificate at every call, whenever TLS looked at it: does it still stand?"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from functools import lru_cache

from cryptography.hazmat.primitives import serialization

from weighbridge.attest import certificates, peers
from weighbridge.attest.revocation import RevocationList
from weighbridge.core.errors import IdentityError


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleCertificate:
    """A role certificate that TLS has verified.

    Attributes:
        pem: The certificate itself.
        role: One of `peers.ROLES`.
        name: Who plays it.
        serial: Its serial number.
        issued: Since when it is valid.
        expires: Until when it is valid.
        key: SHA-256 of its public key (DER of SubjectPublicKeyInfo) in hex: the same after a renewal.
    """

    pem: bytes
    role: str
    name: str
    serial: int
    issued: datetime.datetime
    expires: datetime.datetime
    key: str

    def require_standing(self, revocations: RevocationList, now: datetime.datetime) -> None:
        """Checks that the certificate has neither expired nor been revoked.

        Raises:
            IdentityError: It has.
        """
        if now >= self.expires:
            raise IdentityError(
                f"The certificate of {self.role} {self.name} expired at {self.expires:%Y-%m-%d %H:%M} UTC; "
                "connect again with a renewed one (`weighbridge identity renew`).",
                code="identity.expired",
                role=self.role,
                name=self.name,
            )
        if self.serial in revocations.revoked:
            raise IdentityError(
                f"The certificate of {self.role} {self.name} is revoked; ask the authority for another.",
                code="identity.revoked",
                role=self.role,
                name=self.name,
            )


@lru_cache(maxsize=4096)
def read(pem: bytes) -> RoleCertificate:
    """Reads a role certificate that TLS has verified; remembers it, as callers call often.

    Raises:
        IdentityError: It is no certificate, or carries no role.
    """
    role, name = peers.peer_role(pem)
    certificate = certificates.load_certificate(pem)
    spki = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return RoleCertificate(
        pem=pem,
        role=role,
        name=name,
        serial=certificate.serial_number,
        issued=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
        key=hashlib.sha256(spki).hexdigest(),
    )
