"""An authority for roles in its directory: it issues, renews and revokes, and remembers what it issued.

Beside its certificate and key lie `issued.pem`, every role certificate that has not expired, and `revocations.pem`, the
newest list. A certificate is in the first before it is handed out, so all certificates of a lost key, or of a name, can
be revoked without having one at hand.
"""

from __future__ import annotations

import datetime
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from weighbridge.attest import role_certificate
from weighbridge.attest.credential_files import REVOCATIONS, read_files, write_files
from weighbridge.attest.identity import ROLE_LIFETIME, CertificateAuthority, Credentials
from weighbridge.attest.revocation import RevocationList
from weighbridge.attest.role_certificate import RoleCertificate
from weighbridge.core.errors import IdentityError, UsageError

ISSUED = "issued.pem"


class RoleAuthority:
    """An authority whose directory this process has to itself; see `opened`."""

    def __init__(self, directory: Path, authority: CertificateAuthority, issued: list[RoleCertificate]) -> None:
        """Takes what `opened` read."""
        self._directory, self._authority, self._issued = directory, authority, issued

    @classmethod
    @contextmanager
    def opened(cls, directory: Path) -> Iterator[RoleAuthority]:
        """Opens the authority of a directory until the block ends; others wait.

        Raises:
            IdentityError: A file is missing or is not what its name says.
        """
        descriptor = None
        try:
            try:
                descriptor = os.open(directory / "authority-key.pem", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                make = f"weighbridge identity create {directory} --name NAME"
                raise IdentityError(f"{directory} holds no authority; make one with `{make}`.") from error
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            root = CertificateAuthority.load(directory)
            if not any((directory / name).exists() for name in (ISSUED, REVOCATIONS)):  # It has not issued anything.
                yield cls(directory, root, [])
                return
            text, revocations = read_files(directory, (ISSUED, REVOCATIONS))
            RevocationList.parse(revocations, root.certificate)
            issued = _certificates(text, directory / ISSUED)
            yield cls(directory, CertificateAuthority(root.certificate, root.key, revocations), issued)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @property
    def revocations(self) -> bytes:
        """The newest list of revoked certificates, as PEM."""
        return self._authority.revocations

    def issue(
        self,
        role: str,
        name: str,
        hosts: Sequence[str] | None = None,
        *,
        ueids: Collection[bytes] = (),
        lifetime: datetime.timedelta = ROLE_LIFETIME,
    ) -> Credentials:
        """Issues credentials, as `CertificateAuthority.issue_role`."""
        hosts = hosts or ("localhost", "127.0.0.1")
        issued = self._authority.issue_role(role, name, hosts, ueids=ueids, lifetime=lifetime)
        self._remember(issued.certificate)
        return issued

    def renew(self, certificate: bytes, lifetime: datetime.timedelta = ROLE_LIFETIME) -> bytes:
        """Returns a certificate for the same key until later, as `CertificateAuthority.renew_role`."""
        renewed = self._authority.renew_role(certificate, lifetime)
        self._remember(renewed)
        return renewed

    def revoke_name(self, role: str, name: str) -> list[RoleCertificate]:
        """Revokes every certificate of a role and name; returns those that were not revoked before.

        Raises:
            UsageError: None is known.
        """
        return self._revoke(lambda each: (each.role, each.name) == (role, name), f"of {role} {name}")

    def revoke_key(self, certificate: bytes) -> list[RoleCertificate]:
        """Revokes every certificate of the key that one is for; returns those that were not revoked before.

        Raises:
            UsageError: None is known.
        """
        key = role_certificate.read(certificate).key
        return self._revoke(lambda each: each.key == key, "of the key in that certificate")

    def sign_list(self) -> None:
        """Signs the list of revoked certificates anew, so that it lasts longer."""
        self._sign([])

    def _revoke(self, meant: Callable[[RoleCertificate], bool], whose: str) -> list[RoleCertificate]:
        found = [each for each in self._issued if meant(each)]
        if not found:
            raise UsageError(f"No certificate {whose} that has not expired was issued by {self._directory}.")
        revoked = RevocationList.parse(self.revocations, self._authority.certificate).revoked
        fresh = [each for each in found if each.serial not in revoked]
        self._sign(fresh)
        return fresh

    def _sign(self, revoked: Sequence[RoleCertificate]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)  # Clocks differ: an expired certificate stays on the list a little longer.
        expired = [each.serial for each in self._issued if each.expires + day < now]
        self._authority.revoke([each.serial for each in revoked], forget=expired)
        write_files(self._directory, {REVOCATIONS: self.revocations})

    def _remember(self, certificate: bytes) -> None:
        """Adds a certificate to those that were issued, and forgets those that have long expired."""
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=2)  # After the list has forgotten them.
        self._issued = [each for each in self._issued if each.expires + day >= now]
        self._issued.append(role_certificate.read(certificate))
        write_files(
            self._directory,
            {ISSUED: b"".join(each.pem for each in self._issued), REVOCATIONS: self.revocations},
        )


def _certificates(text: bytes, path: Path) -> list[RoleCertificate]:
    try:
        found = x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise IdentityError(f"{path} is no list of certificates; restore it from a backup.") from error
    return [role_certificate.read(each.public_bytes(serialization.Encoding.PEM)) for each in found]
