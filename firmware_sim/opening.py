"""Asks a chip, on its own machine, for what opens a snapshot or a token; no workload is attached by it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    (answer,) = _answers(path, [{"do": "open", "index": index}])
    match answer:
        case {"ok": True, "salt": bytes(salt), "leaves": bytes(leaves), "weights": bytes(weights)}:
            return salt, unpack_leaves(leaves), unpack_leaves(weights)
    raise _refused(path, answer)


def hidden(path: Path, indices: Sequence[int]) -> dict[int, bytes]:
    """Returns what opens the hidden fields of tokens, by index; of those that the chip has.

    Args:
        path: The chip's socket.
        indices: Places in its log.

    Raises:
        ChipError: No chip answers there.
    """
    found = {}
    answers = _answers(path, [{"do": "open", "token": index} for index in indices])
    for index, answer in zip(indices, answers, strict=True):
        match answer:
            case {"ok": True, "opening": bytes(opening)}:
                found[index] = opening
            case _:
                raise _refused(path, answer)
    return {index: opening for index, opening in found.items() if opening}


def _answers(path: Path, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any] | None]:
    answers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(_SECONDS)
        try:
            with short_path(path) as short:
                end.connect(os.fspath(short))
            connection = Connection(end)
            for each in questions:
                connection.send(each)
                answers.append(connection.receive())
        except (OSError, FormatError) as error:
            raise ChipError(f"No chip answers at {path} ({error}); start it, then ask again.") from error
    return answers


def _refused(path: Path, answer: dict[str, Any] | None) -> ChipError:
    match answer:
        case {"error": str(code), "message": str(message)}:
            return ChipError(message, code=code)
    return ChipError(f"What answers at {path} is no chip that opens snapshots.")
