"""Whether a server's certificate still stands: asked by callers before each connection.

gRPC for Python lets a client say which authority a server's certificate must lead to, and neither takes a list of
revoked ones nor tells what a server showed. So a caller whose list names anyone makes a handshake of its own first. It
looks at the certificate that comes, and then has gRPC accept this certificate and no other: whatever answers gRPC's own
handshake has the key of a certificate that stands.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from functools import lru_cache

from weighbridge.attest import certificates, peers, role_certificate
from weighbridge.attest.identity import Credentials
from weighbridge.attest.revocation import RevocationList, RevocationListError
from weighbridge.core.errors import IdentityError, OwnCredentialsError, WeighbridgeError
from weighbridge.rpc.own_credentials import note_seen, seen

HANDSHAKE_S = 10.0
"""Seconds for the handshake in which a server shows its certificate."""


def trusted(address: str, credentials: Credentials, server_role: str, unreachable: type[WeighbridgeError]) -> bytes:
    """Returns the certificate, as PEM, that the certificate of a server must be or lead to.

    Args:
        address: The server's host and port, at which one certificate is shown.
        credentials: The caller's own, with its list of revoked certificates.
        server_role: What the server must be.
        unreachable: What to raise if there is no such server.

    Returns:
        The authority's, if it has revoked nothing; else that which the server shows now. A server that renews its
        certificate is taken for another from its next handshake on, until a caller asks here again.

    Raises:
        OwnCredentialsError: The caller has no list that it can rely on.
        WeighbridgeError: As `unreachable`: nothing answers, with no certificate of the authority's for the role, or
            with one that is revoked.
    """
    try:
        revocations = _list_of(credentials)
    except RevocationListError as error:
        raise OwnCredentialsError(error.message) from error
    if not revocations.revoked:
        return credentials.authority
    try:
        shown = _shown(address, credentials, server_role)
        role_certificate.read(shown).require_standing(revocations, _now())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; a name that cannot be looked up a ValueError
        raise unreachable(
            f"No service with the right certificate answers there ({error}); check address and power."
        ) from None
    except IdentityError as error:
        raise unreachable(f"What answers there is not to be trusted. {error.message}") from None
    return shown


def _list_of(credentials: Credentials) -> RevocationList:
    """Reads a caller's list; it must last, and be no older than one that was in its directory before."""
    directory = credentials.directory
    if not credentials.revocations:
        raise RevocationListError(
            f"There is no list of revoked certificates{f' in {directory}' if directory else ''}, so no server is "
            "trusted; put the authority's there with `weighbridge identity update`."
        )
    found = _parsed(credentials.revocations, credentials.authority)
    found.require_current(_now())
    found.require_no_older_than(seen(directory))
    if directory is not None:
        note_seen(directory, found.number)
    return found


@lru_cache(maxsize=16)
def _parsed(pem: bytes, authority: bytes) -> RevocationList:
    return RevocationList.parse(pem, certificates.load_certificate(authority))


def _shown(address: str, credentials: Credentials, server_role: str) -> bytes:
    """Returns the certificate, as PEM, of which a server proves that it has the key."""
    host, _, port = address.rpartition(":")
    name = peers.role_domain(server_role)
    context = _context(credentials.authority, credentials.certificate, credentials.key)
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout=HANDSHAKE_S) as raw,
        context.wrap_socket(raw, server_hostname=name) as secure,
    ):
        der = secure.getpeercert(binary_form=True)
        assert der is not None, "a client's context requires one"
        return ssl.DER_cert_to_PEM_cert(der).encode()


@lru_cache(maxsize=16)
def _context(authority: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    descriptor = os.memfd_create("credentials")  # Python takes a key from a file only; this one is in memory.
    try:
        os.write(descriptor, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
