"""Asks a chip, on its own machine, for the opening of a snapshot; no workload is attached by it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from firmware_sim.frames import Connection
from firmware_sim.snapshot_report import unpack_leaves
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ChipError, FormatError
from weighbridge.core.socket_paths import short_path

_SECONDS = 120.0


def opened(path: Path, index: int) -> tuple[bytes, list[Leaf], list[Leaf]]:
    """Returns salt, leaves and those of the weights region of a logged snapshot.

    Args:
        path: The chip's socket.
        index: The snapshot's place in the log.

    Raises:
        ChipError: No chip answers there, or it has no such snapshot.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(_SECONDS)
        try:
            with short_path(path) as short:
                end.connect(os.fspath(short))
            connection = Connection(end)
            connection.send({"do": "open", "index": index})
            answer = connection.receive()
        except (OSError, FormatError) as error:
            raise ChipError(f"No chip answers at {path} ({error}); start it, then ask again.") from error
    match answer:
        case {"ok": True, "salt": bytes(salt), "leaves": bytes(leaves), "weights": bytes(weights)}:
            return salt, unpack_leaves(leaves), unpack_leaves(weights)
        case {"error": str(code), "message": str(message)}:
            raise ChipError(message, code=code)
    raise ChipError(f"What answers at {path} is no chip that opens snapshots.")
