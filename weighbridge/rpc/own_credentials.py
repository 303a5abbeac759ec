"""A server's own credentials and its list of revoked certificates, read again whenever their files change.

Without a list that parses, has not ended and is no older than one before it, no caller is admitted: a service that
cannot tell who was revoked serves no caller. A renewed certificate is shown from the next handshake on. One that is
unreadable or has expired is not taken, and the last good one is shown for as long as it lasts.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from weighbridge.attest import certificates, credential_files, identity, role_certificate
from weighbridge.attest.revocation import RevocationList, RevocationListError
from weighbridge.core import secret_files
from weighbridge.core.errors import WeighbridgeError

SEEN = "revocations.seen"
"""Beside the list: the highest number that a service has seen there, so that it knows it after a restart too."""

_REMIND_S = 86400.0
_log = logging.getLogger(__name__)


class OwnCredentials:
    """What one server shows its callers, and what it holds against them."""

    def __init__(self, credentials: identity.Credentials) -> None:
        """Reads the list.

        Raises:
            IdentityError: The certificate has expired or the list cannot be relied on: then nothing can serve.
        """
        self._lock = threading.Lock()
        self._own = self._shown = credentials.current()
        self._authority = certificates.load_certificate(self._own.authority)
        self._stamp = self._own.stamp
        self._reminded = -_REMIND_S
        self._number = 0
        self._revocations, self._fault = self._read(self._own.revocations), ""
        self._revocations.require_current(_now())
        self._remind()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns TLS credentials that follow the files, and require a certificate of the authority of each caller."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(self._own), self._changed, require_client_authentication=True
        )

    def admit(self, pem: bytes) -> None:
        """Checks that a caller's certificate still stands.

        Args:
            pem: The certificate, which TLS has verified when the connection began.

        Raises:
            IdentityError: It has expired or is revoked, or there is no list to tell.
        """
        self._refresh()
        revocations, fault, now = self._revocations, self._fault, _now()
        if fault:
            raise RevocationListError(fault)
        revocations.require_current(now)
        role_certificate.read(pem).require_standing(revocations, now)

    def _configuration(self, own: identity.Credentials) -> Any:
        return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], root_certificates=own.authority)

    def _changed(self) -> Any:
        """Returns what a handshake is to use from now on, or None if that is as before; gRPC calls it."""
        self._refresh()
        with self._lock:
            if self._shown is self._own:
                return None
            self._shown = self._own
            return self._configuration(self._own)

    def _refresh(self) -> None:
        if time.monotonic() - self._reminded >= _REMIND_S:
            self._remind()
        directory = self._own.directory
        if directory is None or credential_files.file_stamp(directory) == self._stamp:
            return
        with self._lock:
            stamp = credential_files.file_stamp(directory)
            if stamp == self._stamp:  # while this call waited, another one read them
                return
            try:
                self._own = identity.Credentials.load(directory)
                self._authority = certificates.load_certificate(self._own.authority)
                self._reminded = -_REMIND_S
            except WeighbridgeError as error:
                _log.error("a changed certificate is not taken: %s", error.message)
            try:
                (pem,) = credential_files.read_files(directory, [credential_files.REVOCATIONS])
                self._revocations, self._fault = self._read(pem), ""
            except WeighbridgeError as error:
                self._fault = f"{error.message} (in {directory})"
                _log.error("callers are refused: %s", self._fault)
            self._stamp = stamp  # last: a call that sees it admits by what was read

    def _read(self, pem: bytes) -> RevocationList:
        """Reads a list; it must be no older than any before it."""
        directory = self._own.directory
        if not pem:
            raise RevocationListError(
                f"There is no list of revoked certificates{f' in {directory}' if directory else ''}, so no caller is "
                "served; put the authority's there with `weighbridge identity update`."
            )
        found = RevocationList.parse(pem, self._authority)
        found.require_no_older_than(max(self._number, seen(directory)))
        self._number = found.number
        if directory is not None:
            note_seen(directory, found.number)
        return found

    def _remind(self) -> None:
        """Says so, once a day, when the certificate or the list has but a third of its time left."""
        self._reminded = time.monotonic()
        own = role_certificate.read(self._own.certificate)
        listed = self._revocations
        for what, since, until in (
            (f"the certificate of {own.role} {own.name}", own.issued, own.expires),
            ("the list of revoked certificates", listed.issued, listed.expires),
        ):
            if _now() >= until - (until - since) / 3:
                _log.warning(
                    "%s ends at %s UTC; renew it before with `weighbridge identity renew`, which needs no restart",
                    what,
                    f"{until:%Y-%m-%d %H:%M}",
                )


def put_list(directory: Path, pem: bytes) -> int:
    """Puts a list of revoked certificates into a directory of credentials, and returns its number.

    Raises:
        IdentityError: It is none of the directory's authority, has ended, or is older than one before it.
    """
    (authority,) = credential_files.read_files(directory, ["authority.pem"])
    found = RevocationList.parse(pem, certificates.load_certificate(authority))
    found.require_current(_now())
    found.require_no_older_than(seen(directory))
    credential_files.write_files(directory, {credential_files.REVOCATIONS: pem})
    note_seen(directory, found.number)
    return found.number


def seen(directory: Path | None) -> int:
    """Returns the highest number of a list that was noted in a directory of credentials; 0 if there is none.

    Raises:
        RevocationListError: The note is unreadable.
    """
    if directory is None:
        return 0
    try:
        text = (directory / SEEN).read_text(encoding="ascii")
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise RevocationListError(f"{directory / SEEN} is unreadable; it holds the number of a list.") from error
    if not (text.isdecimal() and len(text) <= 60):
        raise RevocationListError(f"{directory / SEEN} holds no number; put the newest list there and delete it.")
    return int(text)


def note_seen(directory: Path, number: int) -> None:
    """Notes the number of a list, unless a higher one is noted; not where the directory cannot be written."""
    if number > seen(directory):
        with contextlib.suppress(OSError):  # Secrets are often mounted read-only: then a restart forgets the number.
            secret_files.publish(directory / SEEN, str(number))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
