"""What a role certificate says: the role and name of its holder, and the chips that it may speak for.

TLS has verified the certificate before anything here reads it.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import functools
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from weighbridge.attest.certificates import load_certificate
from weighbridge.core.errors import IdentityError

ROLES = ("chip", "prover", "verifier", "operator", "referee")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""Of those who play a role."""

MAX_UEIDS = 64
"""Chips that one role certificate may name; a host has fewer."""

_UEID_URN = "urn:dev:ueid:"
"""RFC 9711 registers `ueid` as a kind of device URN (RFC 9039); base64url of the UEID follows, without padding."""


def role_domain(role: str) -> str:
    """Returns the DNS name in every certificate of `role`: clients ask for it, so TLS itself checks a server's role."""
    return f"{role}.role.weighbridge.internal"


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
    match = re.fullmatch(rf"weighbridge://role/({'|'.join(ROLES)})/({NAME.pattern})", roles[0])
    if match is None:
        raise IdentityError("The certificate's role is none that this version knows; have another issued.")
    ueids = frozenset(ueid_of(uri) for uri in uris if uri.startswith(_UEID_URN))
    if len(ueids) > MAX_UEIDS:
        raise IdentityError(f"The certificate names more than {MAX_UEIDS} chips; have several issued.")
    return Peer(role=match[1], name=match[2], ueids=ueids if match[1] == "chip" else frozenset())


def peer_role(pem: bytes) -> tuple[str, str]:
    """Returns (role, name) of a role certificate that TLS has already verified; see `peer`."""
    found = peer(pem)
    return found.role, found.name


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
