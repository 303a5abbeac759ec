"""Secrets in the database, sealed under a key that is not in it.

Who reads the database, a copy of it or its write-ahead log does not learn what the Verifier has not opened yet, such as
the secret of a draw. The key lies in a file of its own. Sealing is NaCl's secretbox (XSalsa20-Poly1305).
"""

from __future__ import annotations

from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.secret import SecretBox
from nacl.utils import random

from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError

WITNESS_KEY = ".witness-key"
"""What the file with the witness's key is called behind the registry's name; `.pub` beside it is what chips need."""

DRAW_KEY = ".draw-key"
"""What the file with the key of draws is called; it lies beside the witness's."""


class Sealing:
    """A key, and what it seals."""

    def __init__(self, key: bytes, name: str = "the key") -> None:
        """Takes a key.

        Args:
            key: 32 bytes.
            name: What to call it in messages.
        """
        self._box, self._name = SecretBox(key), name

    @classmethod
    def load(cls, path: Path) -> Sealing:
        """Reads a key file, or makes one (mode 0600).

        Raises:
            UsageError: It cannot be made, is none, or others may read it.
        """
        try:
            key = secret_files.read_or_make(path, lambda: random(SecretBox.KEY_SIZE))
        except OSError as error:
            raise UsageError(f"cannot use {path} for the key of draws ({error.strerror}); name another file") from None
        if len(key) != SecretBox.KEY_SIZE:
            raise UsageError(f"{path} holds no key of draws; name the right file")
        return cls(key, str(path))

    def seal(self, secret: bytes) -> bytes:
        """Returns a secret, sealed: other bytes each time."""
        return bytes(self._box.encrypt(secret))

    def open(self, sealed: bytes) -> bytes:
        """Returns what was sealed.

        Raises:
            UsageError: It was sealed under another key, or altered.
        """
        try:
            return self._box.decrypt(sealed)
        except (CryptoError, ValueError):
            raise UsageError(
                f"what the database has was not sealed under {self._name}; put back the key file that belongs to it"
            ) from None
