"""Did one key sign two histories? What a device secret that was copied into another chip leaves behind.

A chip's counter names each entry once. Two logs of one inspection in which the same device signed different entries
under the same counter cannot both be its history. Claims are compared, not bytes: one valid ECDSA signature can be
changed into another without the key. Whether a log continues what was witnessed of it before is a matter of `chip_log`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from verifier.model.facts import LogFacts
from weighbridge.attest.tokens import Token, Verified, shown
from weighbridge.core.errors import Finding, WeighbridgeError


@dataclass(frozen=True, slots=True)
class _Seen:
    log: int
    token: Token


def check(logs: Iterable[LogFacts]) -> list[Finding]:
    """Compares all logs of an inspection with each other; at most one finding of a kind for each device.

    Args:
        logs: In the order in which they were read.

    Returns:
        Findings whose evidence `chips` names the registered chips with the logs in question.
    """
    logs = list(logs)
    return [*_forks(logs), *_shared_keys(logs)]


def _forks(logs: list[LogFacts]) -> Iterator[Finding]:
    entries: dict[tuple[bytes, int], _Seen] = {}
    heads: dict[bytes, _Seen] = {}
    forked = set[bytes]()
    for number, verified in _verified(logs):
        token, ueid = verified.token, verified.identity.ueid
        if token.kind == "head":
            earlier = heads.get(ueid)
            differs = earlier is not None and _contradicts(logs, earlier, _Seen(number, token))
            heads[ueid] = _Seen(number, token)
        else:
            earlier = entries.setdefault((ueid, token.index), _Seen(number, token))
            differs = earlier.log != number and earlier.token != token
        if earlier is not None and differs and ueid not in forked:
            forked.add(ueid)
            yield _forked(logs, ueid, earlier, _Seen(number, token))


def _contradicts(logs: list[LogFacts], one: _Seen, other: _Seen) -> bool:
    """Whether two heads of a device cannot both be of one log, which only grows.

    Several chips are read at a time. Which of two heads is older is unknown if they were asked for at the same moment.
    """
    if one.token.index == other.token.index:
        return shown(one.token)["last"] != shown(other.token)["last"]
    shorter = one if one.token.index < other.token.index else other
    if logs[one.log].read_ms <= logs[other.log].asked_ms:
        return shorter is other
    return logs[other.log].read_ms <= logs[one.log].asked_ms and shorter is one


def _shared_keys(logs: list[LogFacts]) -> Iterator[Finding]:
    owners: dict[bytes, _Seen] = {}
    shared = set[bytes]()
    for number, verified in _verified(logs):
        key = verified.identity.public_key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        owner = owners.setdefault(key, _Seen(number, verified.token))
        if owner.token.ueid != verified.token.ueid and key not in shared:
            shared.add(key)
            yield _shared(logs, key, owner, _Seen(number, verified.token))


def _verified(logs: list[LogFacts]) -> Iterator[tuple[int, Verified]]:
    """Yields (place of the log, token) of everything that verified, entries before the head."""
    for number, log in enumerate(logs):
        for each in (*(entry.verified for entry in log.entries), log.head):
            if not isinstance(each, WeighbridgeError):
                yield number, each


def _chips(logs: list[LogFacts], *seen: _Seen) -> list[str]:
    return [logs[each.log].chip.ueid.hex() for each in seen]


def _forked(logs: list[LogFacts], ueid: bytes, one: _Seen, other: _Seen) -> Finding:
    return Finding(
        id="chip.log.fork",
        message="one device signed two different histories: its key is used in two chips, or it shows two logs",
        expected=f"{one.token.kind} of boot {one.token.boot_count} at {one.token.time_ms} ms",
        found=f"{other.token.kind} of boot {other.token.boot_count} at {other.token.time_ms} ms",
        subject=f"chip {ueid.hex()} counter {one.token.index}",
        evidence={"chips": _chips(logs, one, other)},
    )


def _shared(logs: list[LogFacts], key: bytes, one: _Seen, other: _Seen) -> Finding:
    return Finding(
        id="chip.identity.shared",
        message="one attestation key signs for two devices; inspect both on site: a secret was copied",
        expected=one.token.ueid.hex(),
        found=other.token.ueid.hex(),
        subject=f"chip {one.token.ueid.hex()}",
        evidence={"chips": _chips(logs, one, other), "key": key.hex()},
    )
