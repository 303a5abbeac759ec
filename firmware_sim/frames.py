"""The local link between a chip and the shim: deterministic CBOR maps behind a length of 4 bytes, big endian.

Both ends read strictly: what is too long, not a map with text keys, or not in its one encoding is a `FormatError`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from weighbridge.attest.tokens import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError

MAX_FRAME_BYTES = 24 << 20
"""Room for two lists of 2^18 leaves of 40 bytes."""

_LENGTH = 4


def encode(message: dict[str, Any]) -> bytes:
    """Returns a message as a frame; `decode` reads its part after the length back."""
    body = cbor(message)
    return len(body).to_bytes(_LENGTH) + body


def decode(body: bytes) -> dict[str, Any]:
    """Reads a frame's body: encode(decode(b))[4:] == b for every b that is accepted.

    Raises:
        FormatError: It is no map with text keys in deterministic CBOR.
    """
    message = decode_cbor(body, max_bytes=MAX_FRAME_BYTES)
    if type(message) is not dict or not all(type(key) is str for key in message):
        raise FormatError("A frame does not hold a map with text keys.")
    return message


class Connection:
    """One end of the link. Several threads may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected stream socket."""
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message.

        Raises:
            OSError: The other end is gone.
        """
        frame = encode(message)
        with self._sending:
            self._socket.sendall(frame)

    def receive(self) -> dict[str, Any] | None:
        """Waits for a message; None means that the other end is gone.

        Raises:
            FormatError: What arrived is no frame, or the other end left in the middle of one.
        """
        header = self._read(_LENGTH)
        if not header:
            return None
        length = int.from_bytes(header)
        if len(header) < _LENGTH or length > MAX_FRAME_BYTES:
            raise FormatError(f"A frame announces {length} bytes; at most {MAX_FRAME_BYTES} are accepted.")
        body = self._read(length)
        if len(body) < length:
            raise FormatError("The other end left in the middle of a frame.")
        return decode(body)

    def close(self) -> None:
        """Ends the link; a `receive` that waits returns None."""
        with contextlib.suppress(OSError):  # The other end may have been faster.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes:
        """Reads `size` bytes, or fewer if the other end is gone."""
        parts: list[bytes] = []
        while size:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except OSError:
                part = b""
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
