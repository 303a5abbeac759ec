"""Nonces for reports of chips: as many as callers ask for, and none of them is kept.

A nonce says itself when it was given and what was held of the log then; a code under a key of this process makes that
authentic and the nonce unpredictable. So asking for nonces costs a witness no memory and voids no other nonce. Only a
head that the chip has signed over a nonce uses it up, and with it those that were given earlier.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from weighbridge.core.errors import TokenError

EXPIRY_S = 600.0
"""How long a nonce may be used; a chip asks for one for each report."""

_CODE_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a nonce says.

    Attributes:
        time_us: When it was given, in microseconds since 1970; no two nonces of a process have the same.
        size: Entries of the chip's log that were held then.
    """

    time_us: int
    size: int

    @property
    def time_ms(self) -> int:
        """The time in milliseconds since 1970."""
        return self.time_us // 1000


class Nonces:
    """Gives nonces, of 32 bytes, and takes each once; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since 1970. Nonces of former processes are void."""
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._lock, self._last_us = threading.Lock(), 0
        self._used: dict[bytes, int] = {}  # by registered chip, the newest nonce that it signed

    def give(self, ueid: bytes, size: int) -> bytes:
        """Returns a fresh nonce for a chip of whose log `size` entries are held."""
        with self._lock:
            self._last_us = max(self._last_us + 1, int(self._clock() * 1e6))
            body = self._last_us.to_bytes(8, "big") + size.to_bytes(8, "big")
        return body + self._code(ueid, body)

    def read(self, ueid: bytes, nonce: bytes) -> Asked:
        """Returns what a nonce says, if it was given for this chip and may still be used.

        Raises:
            TokenError: It may not (`chip.nonce.mismatch`).
        """
        body, code = nonce[:-_CODE_BYTES], nonce[-_CODE_BYTES:]
        asked = Asked(time_us=int.from_bytes(body[:8], "big"), size=int.from_bytes(body[8:], "big"))
        if len(nonce) != 32 or not hmac.compare_digest(code, self._code(ueid, body)):
            raise _mismatch("is not signed over a nonce of this report")
        if abs(self._clock() - asked.time_us / 1e6) > EXPIRY_S:
            raise _mismatch(f"is signed over a nonce that was given more than {EXPIRY_S:g} s ago")
        with self._lock:
            if asked.time_us <= self._used.get(ueid, -1):
                raise _mismatch("is signed over a nonce that was used, or given before one that was")
        return asked

    def use(self, ueid: bytes, asked: Asked) -> None:
        """Uses a nonce up, once the chip's signature over it has verified.

        Raises:
            TokenError: Another call has used it, or a later one, meanwhile.
        """
        with self._lock:
            if asked.time_us <= self._used.get(ueid, -1):
                raise _mismatch("is signed over a nonce that was used, or given before one that was")
            self._used[ueid] = asked.time_us

    def _code(self, ueid: bytes, body: bytes) -> bytes:
        return hmac.digest(self._key, body + ueid, "sha256")[:_CODE_BYTES]


def _mismatch(why: str) -> TokenError:
    return TokenError(f"The head {why}; ask for a nonce, then report.", code="chip.nonce.mismatch")
