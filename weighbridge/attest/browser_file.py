"""Credentials as one PKCS #12 file, the form in which browsers and operating systems import a client certificate."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from weighbridge.attest.certificates import load_certificate, load_key
from weighbridge.attest.identity import Credentials
from weighbridge.attest.peers import peer_role


def write(path: Path, directory: Path, password: str) -> None:
    """Writes the certificate, its key and the authority's certificate, readable by the owner only.

    Args:
        path: A new file.
        directory: Of the credentials.
        password: Encrypts the file.

    Raises:
        IdentityError: The credentials are unreadable or have expired.
        OSError: The file exists or cannot be written.
    """
    own = Credentials.load(directory)
    role, name = peer_role(own.certificate)
    content = pkcs12.serialize_key_and_certificates(
        f"Weighbridge {role} {name}".encode(),
        load_key(own.key),
        load_certificate(own.certificate),
        [load_certificate(own.authority)],
        BestAvailableEncryption(password.encode()),
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
