"""Parts of a sealed session on the command line: what an order says of them, and having sites make them."""

from __future__ import annotations

import shlex
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from weighbridge.cli._exits import one_line
from weighbridge.cli._inputs import read_file, write_file
from weighbridge.core.errors import UsageError, WeighbridgeError

if TYPE_CHECKING:
    from weighbridge.attest.sealed_channel import ProverKey
    from weighbridge.attest.sealed_list import SealedList
    from weighbridge.attest.sealed_order import Order, Parts
    from weighbridge.attest.sealed_part import PartBox

_FRAME_LIMIT = 64 << 20
_ENDING_SECONDS = 5.0
"""So long a part is waited for whose command was ended."""
_SHARE = 0.5
"""Of the time until the outcome leaves, so much parts may take; what is not there by then the session makes itself."""


def divided(count: int, root: Path | None) -> Parts | None:
    """Returns what an order says of parts; None without any.

    Raises:
        UsageError: There are parts and no authority.
        FormatError: There are too many.
    """
    from weighbridge.attest.sealed_order import Parts

    if not count:
        return None
    if root is None:
        raise UsageError("an order with parts names the authority for their launchers; give it with --root")
    return Parts(count=count, authority=_digest(root))


def require_authority(found: Order, root: Path | None) -> None:
    """Checks that the parts of an order are made by workers that a party trusts, if it has any.

    Raises:
        UsageError: They are of another authority, or none is given to compare with.
    """
    parts = None if found.session is None else found.session.parts
    if parts is None:
        return
    if root is None:
        raise UsageError("the order has parts; give the authority that you trust for their launchers with --root")
    if _digest(root) != parts.authority:
        raise UsageError("the order has its parts made by workers of another authority; do not sign it, nor run it")


def require_parts(found: Order, commands: Sequence[str]) -> None:
    """Checks that the order has so many parts; fewer may be made.

    Raises:
        UsageError: It has fewer.
    """
    parts = None if found.session is None else found.session.parts
    if len(commands) > (0 if parts is None else parts.count):
        raise UsageError("the order has fewer parts than --part names; order it with --parts")


class Making:
    """The parts of one session, each made by a site's command in a thread of its own."""

    def __init__(
        self, commands: Sequence[str], session: tuple[Order, bytes], case: bytes, root: Path, out: Path
    ) -> None:
        """Writes the parts' orders.

        Args:
            commands: Of each part, what runs its worker.
            session: The session's order, and the public key of its worker, which was attested.
            case: The Verifier's case, encoded.
            root: PEM file of the authority for launchers.
            out: Where orders go, as `part-1.order` and so on.
        """
        from weighbridge.attest.sealed_part import part_order

        self._session, self._case, self._root = session[0], case, root
        self._parts = [(part_order(*session, number), command) for number, command in enumerate(commands, 1)]
        for order, _ in self._parts:
            write_file(out / f"part-{_number(order)}.order", order.to_cbor())
        leaves = 0 if self._session.session is None else self._session.session.leaves_after_s
        self._deadline = time.monotonic() + _SHARE * leaves
        self._boxes: list[PartBox] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def start(self, own: ProverKey, files: SealedList, inputs: Path) -> None:
        """Has all be made; each worker is sent the Prover's files once it is attested."""

        def work(order: Order, command: str) -> None:
            try:
                self._boxes.append(self._made(order, command, own, files, inputs))
            except (WeighbridgeError, OSError, ValueError) as error:
                what = f"part {_number(order)} is not made, so the session makes its replays itself: {error}"
                print(one_line(what), flush=True)

        for each in self._parts:
            self._threads.append(threading.Thread(target=work, args=each, daemon=True))
            self._threads[-1].start()

    def send(self, sink: BinaryIO) -> None:
        """Waits for all and sends them to the session's worker, which waits for them if its order has parts."""
        from weighbridge.attest.sealed_part import SealedParts

        for thread in self._threads:  # what a command left running may hold its pipes after the command was ended
            thread.join(max(0.0, self._deadline + _ENDING_SECONDS - time.monotonic()))
        if self._session.session is not None and self._session.session.parts is not None:
            SealedParts.of(_der(self._root), list(self._boxes)).send(sink)

    def stop(self) -> None:
        """Ends what still runs: nothing more is wanted of it."""
        for each in list(self._running):
            each.kill()

    def _made(self, order: Order, command: str, own: ProverKey, files: SealedList, inputs: Path) -> PartBox:
        from weighbridge.attest.certificates import load_certificate
        from weighbridge.attest.sealed_attestation import LauncherVerifier
        from weighbridge.attest.sealed_part import BOX_LIMIT, PartBox, PartPreface

        with subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            self._running.append(running)
            timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), running.kill)
            timer.start()
            try:
                sink, source = cast("BinaryIO", running.stdin), cast("BinaryIO", running.stdout)
                attestation = frame(source)
                attested = LauncherVerifier(load_certificate(read_file(self._root))).verify(attestation, order)
                PartPreface(order=self._session.to_cbor(), case=self._case).send(sink)
                own.send(sink, order.terms(attested.worker), files, inputs)
                sink.close()
                return PartBox(_number(order), attestation, frame(source, BOX_LIMIT))
            finally:
                timer.cancel()
                running.kill()  # it has ended, or nothing more is wanted of it


def frame(source: BinaryIO, most: int = _FRAME_LIMIT) -> bytes:
    """Reads what a site says next.

    Args:
        source: Where it speaks.
        most: So many bytes that may have.

    Raises:
        UsageError: It ended, or says more.
    """
    header = source.read(4)
    length = struct.unpack(">I", header)[0] if len(header) == 4 else 0
    data = source.read(length) if 0 < length <= most else b""
    if not data or len(data) != length:
        raise UsageError("the site ended the session; what it said stands above")
    return data


def _number(order: Order) -> int:
    return 0 if order.part is None else order.part.number


def _digest(root: Path) -> bytes:
    from weighbridge.core.digests import bytes_digest

    return bytes_digest(_der(root))


def _der(root: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    from weighbridge.attest.certificates import load_certificate

    return load_certificate(read_file(root)).public_bytes(Encoding.DER)
