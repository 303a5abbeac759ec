"""The one-time key by which a sealed worker signs what it says: it lies in memory of its own (`secret_memory`)."""

from __future__ import annotations

from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # its bindings take keys as bytes, which are copies

from weighbridge.core.secret_memory import SecretMemory

_PUBLIC, _SIGNATURE = 32, 64


class WorkerSigner:
    """An Ed25519 key, made when a worker starts.

    Attributes:
        public: Its public half (32 bytes).
    """

    def __init__(self, memory: SecretMemory | None = None) -> None:
        """Makes the key.

        Args:
            memory: Where the secret half lies; in ordinary memory by default.
        """
        self._memory = memory or SecretMemory(plain=True)
        public = ffi.new("unsigned char[]", _PUBLIC)
        if lib.crypto_sign_keypair(public, self._secret):
            raise RuntimeError("no key could be made")
        self.public = bytes(ffi.buffer(public))

    @property
    def _secret(self) -> object:
        return ffi.cast("unsigned char *", self._memory.address)

    def sign(self, message: bytes) -> bytes:
        """Returns the signature over a message (64 bytes)."""
        signed, length = ffi.new("unsigned char[]", _SIGNATURE + len(message)), ffi.new("unsigned long long *")
        if lib.crypto_sign(signed, length, message, len(message), self._secret):
            raise RuntimeError("no signature could be made")
        return bytes(ffi.buffer(signed, _SIGNATURE))
