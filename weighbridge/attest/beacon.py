"""Public random values that neither side could know when a draw was committed to, or when a segment was recorded.

A beacon gives a value every few seconds, in *rounds* numbered from 1, whose times follow from their numbers.
Values have the public form of drand: `randomness` is the SHA-256 of `signature`, and there is one valid signature for
each round, so that not even the beacon can choose. Two kinds are known, by their `scheme`:

- `weighbridge-rsa-unchained/1`: a beacon of our own, made here (`LocalBeacon`). The signature is RSASSA-PKCS1-v1_5 with
  SHA-256 over `weighbridge/beacon/1`, a zero byte and the round as 8 bytes, big endian. It is verified. Who has the key
  knows all values in advance, so such a beacon is worth what its keeper is worth.
- those of drand, read from files: `parse_info` and `parse_round` take what a drand node answers. The network's BLS
  signature is verified with the extra `[drand]` (`weighbridge.attest.drand_signatures`). Without, or in other schemes,
  only its hash is; compare the value with one or more drand nodes then.

docs/formats/draw.md has the bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from weighbridge.attest import drand_signatures
from weighbridge.core import secret_files
from weighbridge.core.errors import FormatError, UsageError

LOCAL = "weighbridge-rsa-unchained/1"
DRAND = ("pedersen-bls-chained", "pedersen-bls-unchained", "bls-unchained-on-g1", "bls-unchained-g1-rfc9380",
         "bls-bn254-unchained-on-g1")  # fmt: skip
DEFAULT_PERIOD_S = 1
KEY_BITS = 2048
"""Enough where a key must only resist until each round's time, and values are public afterwards."""
MAX_BYTES = 1 << 16
_DOMAIN = b"weighbridge/beacon/1\x00"
_LARGEST = 1 << 53
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


class BeaconError(FormatError):
    """A beacon's description or value is malformed, or a value is not one of the beacon's."""

    code = "draw.beacon"


@dataclass(frozen=True, kw_only=True)
class BeaconInfo:
    """Which beacon: everything that its chain hash covers.

    Attributes:
        scheme: How values are signed.
        public_key: The beacon's key: DER SubjectPublicKeyInfo of a local one, the group's point of a drand network.
        period_s: Seconds from one round to the next.
        genesis_s: Time of round 1, seconds since 1970.
        group_hash: Digest of the network's first group (drand); empty for a local one.
        beacon_id: Name of the network (drand); empty for a local one.
    """

    scheme: str
    public_key: bytes
    period_s: int
    genesis_s: int
    group_hash: bytes = b""
    beacon_id: str = ""

    @property
    def local(self) -> bool:
        """Whether it is a beacon of one's own."""
        return self.scheme == LOCAL

    @property
    def verifiable(self) -> bool:
        """Whether signatures can be verified here."""
        return self.local or drand_signatures.possible(self.scheme)

    @cached_property
    def chain(self) -> bytes:
        """The chain hash, 32 bytes: SHA-256 over period (4 bytes), genesis (8 bytes), key, group hash, beacon id.

        This is drand's own, numbers big endian; the id counts only if it is neither empty nor `default`. For a local
        beacon the scheme stands in front.
        """
        digest = hashlib.sha256(_DOMAIN + self.scheme.encode() + b"\x00" if self.local else b"")
        digest.update(self.period_s.to_bytes(4) + self.genesis_s.to_bytes(8) + self.public_key + self.group_hash)
        if self.beacon_id not in ("", "default"):
            digest.update(self.beacon_id.encode())
        return digest.digest()

    def time_ms(self, number: int) -> int:
        """Returns when a round's value is due, in milliseconds since 1970."""
        return (self.genesis_s + (number - 1) * self.period_s) * 1000

    def round_after(self, time_ms: int) -> int:
        """Returns the first round whose time is after `time_ms`."""
        return max(0, (time_ms // 1000 - self.genesis_s) // self.period_s + 1) + 1

    def to_json(self) -> dict[str, Any]:
        """Returns the description as a drand node gives it; inverse of `parse_info`."""
        return {
            "public_key": self.public_key.hex(),
            "period": self.period_s,
            "genesis_time": self.genesis_s,
            "hash": self.chain.hex(),
            "groupHash": self.group_hash.hex(),
            "schemeID": self.scheme,
            "metadata": {"beaconID": self.beacon_id},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One value, not verified.

    Attributes:
        number: Of the round, from 1.
        randomness: The value, 32 bytes.
        signature: What it is the SHA-256 of.
        previous_signature: Of the round before, in chained schemes of drand; else empty.
    """

    number: int
    randomness: bytes
    signature: bytes
    previous_signature: bytes = b""

    def to_json(self) -> dict[str, Any]:
        """Returns the value as a drand node gives it; inverse of `parse_round`."""
        value: dict[str, Any] = {
            "round": self.number,
            "randomness": self.randomness.hex(),
            "signature": self.signature.hex(),
        }
        if self.previous_signature:
            value["previous_signature"] = self.previous_signature.hex()
        return value


def parse_info(value: Any) -> BeaconInfo:
    """Reads a beacon's description, as a drand node answers to `/info`; inverse of `BeaconInfo.to_json`.

    Args:
        value: Decoded JSON; fields that are not known are ignored.

    Raises:
        BeaconError: It is none, or its chain hash is not that of its fields.
    """
    fields = _object(value)
    metadata = _object(fields.get("metadata", {}))
    beacon_id = metadata.get("beaconID", "")
    scheme = fields.get("schemeID", DRAND[0])
    if not isinstance(scheme, str) or scheme not in (LOCAL, *DRAND):
        raise BeaconError(f"The beacon's scheme {str(scheme)[:100]!r} is not known; take one of {', '.join(DRAND)}.")
    if not isinstance(beacon_id, str) or len(beacon_id) > 100 or not beacon_id.isprintable():
        raise BeaconError("The beacon's beaconID must be at most 100 printable characters.")
    info = BeaconInfo(
        scheme=scheme,
        public_key=_hex(fields, "public_key"),
        period_s=_whole(fields, "period", 1, 1 << 31),
        genesis_s=_whole(fields, "genesis_time", 0, 1 << 40),
        group_hash=_hex(fields, "groupHash", optional=True),
        beacon_id=beacon_id,
    )
    if _hex(fields, "hash") != info.chain:
        raise BeaconError(
            "The beacon's chain hash is not that of its fields; fetch its description again.",
            code="draw.beacon.info",
            expected=info.chain.hex(),
            found=str(fields["hash"]),
        )
    return info


def parse_round(value: Any) -> Round:
    """Reads a value, as a drand node answers to `/public/<round>`; inverse of `Round.to_json`.

    Args:
        value: Decoded JSON; fields that are not known are ignored.

    Raises:
        BeaconError: It is none.
    """
    fields = _object(value)
    found = Round(
        number=_whole(fields, "round", 1, _LARGEST),
        randomness=_hex(fields, "randomness"),
        signature=_hex(fields, "signature"),
        previous_signature=_hex(fields, "previous_signature", optional=True),
    )
    if len(found.randomness) != hashlib.sha256().digest_size:
        raise BeaconError("A beacon's randomness has 32 bytes; take the value of a round as the node gave it.")
    return found


def verify_round(info: BeaconInfo, value: Round) -> None:
    """Checks that a value is the beacon's, as far as that can be done here (see the module).

    Raises:
        BeaconError: The randomness is not the hash of the signature, or the signature does not verify.
    """
    if hashlib.sha256(value.signature).digest() != value.randomness:
        raise BeaconError(
            f"The randomness of round {value.number} is not the SHA-256 of its signature; fetch the round again.",
            code="draw.beacon.value",
        )
    if info.verifiable and not _signed(info, value):
        raise BeaconError(
            f"The signature of round {value.number} is not the beacon's; fetch the round again.",
            code="draw.beacon.value",
        )


def _signed(info: BeaconInfo, value: Round) -> bool:
    if not info.local:
        return drand_signatures.verifies(
            info.scheme, info.public_key, value.number, value.previous_signature, value.signature
        )
    try:
        key = serialization.load_der_public_key(info.public_key)
        if not isinstance(key, rsa.RSAPublicKey):
            return False
        key.verify(value.signature, _message(value.number), padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


class LocalBeacon:
    """A beacon of one's own; its operator keeps the key file where a Verifier cannot read it."""

    def __init__(self, key: rsa.RSAPrivateKey, *, period_s: int, genesis_s: int, clock: Callable[[], float]) -> None:
        """Takes a key; use `load` for one in a file.

        Args:
            key: RSA private key.
            period_s: Seconds between rounds, at least 1.
            genesis_s: Time of round 1, seconds since 1970.
            clock: Seconds since 1970.
        """
        self._key, self._clock = key, clock
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.info = BeaconInfo(scheme=LOCAL, public_key=public, period_s=period_s, genesis_s=genesis_s)

    @classmethod
    def load(
        cls, path: Path, *, period_s: int = DEFAULT_PERIOD_S, clock: Callable[[], float] | None = None
    ) -> LocalBeacon:
        """Opens the beacon in a key file (mode 0600), which is made if there is none; round 1 is then.

        Args:
            path: The key file: PEM, and its first line `period <seconds> genesis <seconds since 1970>`.
            period_s: Seconds between the rounds of a new beacon; of an old one, the file says so.
            clock: Seconds since 1970; by default the machine's.

        Raises:
            UsageError: The file cannot be made, is none, or others may read it.
        """
        clock = clock or time.time
        try:
            if not path.exists():
                if period_s < 1:
                    raise UsageError("a beacon's period is at least one second")
                _write_key(path, period_s, int(clock()))
            secret_files.require_private(path)
            head, _, pem = path.read_text(encoding="ascii").partition("\n")
            match = re.fullmatch(r"period ([1-9][0-9]{0,8}) genesis ([1-9][0-9]{0,11})", head)
            key = serialization.load_pem_private_key(pem.encode(), password=None)
            if match is None or not isinstance(key, rsa.RSAPrivateKey):
                raise ValueError("no beacon's key")
        except OSError as error:
            raise UsageError(f"Cannot use {path} for the beacon's key ({error.strerror}); name another file.") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise UsageError(f"{path} holds no beacon's key; name the right file.") from None
        return cls(key, period_s=int(match[1]), genesis_s=int(match[2]), clock=clock)

    def value(self, number: int) -> Round | None:
        """Returns the value of a round, or None before its time."""
        if number < 1 or self._clock() * 1000 < self.info.time_ms(number):
            return None
        signature = self._key.sign(_message(number), padding.PKCS1v15(), hashes.SHA256())
        return Round(number=number, randomness=hashlib.sha256(signature).digest(), signature=signature)

    def publish(self, directory: Path, number: int) -> None:
        """Writes `info` and `public/<round>` of a round whose time has come, as a drand node would answer them.

        Raises:
            UsageError: It is too early, or the files cannot be written.
        """
        value = self.value(number)
        if value is None:
            raise UsageError(f"round {number} has not come yet; wait for its time")
        try:
            (directory / "public").mkdir(parents=True, exist_ok=True)
            for name, content in (("info", self.info.to_json()), (f"public/{number}", value.to_json())):
                partial = directory / f"{name}.partial"
                partial.write_text(json.dumps(content, sort_keys=True) + "\n", encoding="ascii")
                os.replace(partial, directory / name)
        except OSError as error:
            raise UsageError(f"{directory} cannot be written ({error.strerror}); name another directory") from None


class FileBeacon:
    """A beacon whose values are put into a directory: `info`, and `public/<round>` for each round needed."""

    def __init__(self, directory: Path) -> None:
        """Opens the directory.

        Args:
            directory: With the file `info`, as a drand node answers to `/info`.

        Raises:
            UsageError: There is none.
            BeaconError: It is no beacon's.
        """
        self._directory = directory
        if not (directory / "info").exists():
            raise UsageError(
                f"{directory} has no beacon's info; name the directory with a beacon's answers, or run a beacon of "
                "your own with `weighbridge inspect beacon`"
            )
        self.info = parse_info(read_json(directory / "info"))

    def value(self, number: int) -> Round | None:
        """Returns the value of a round, or None as long as its file is not there; it is not verified.

        Raises:
            UsageError: The file cannot be read.
            BeaconError: It is none of a beacon's values.
        """
        path = self._directory / "public" / str(number)
        return parse_round(read_json(path)) if path.exists() else None


Beacon = LocalBeacon | FileBeacon


def in_utc(time_ms: int) -> str:
    """Writes a time, in milliseconds since 1970, as people read it."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms // 1000} seconds since 1970"


def read_json(path: Path) -> Any:
    """Reads a small JSON file, such as a description or a value.

    Raises:
        UsageError: It cannot be read.
        BeaconError: It is no JSON, or too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); name the right file") from None
    try:
        if len(data) > MAX_BYTES:
            raise ValueError
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BeaconError(f"{path.name} is no JSON of at most {MAX_BYTES} bytes; fetch it again.") from None


def _write_key(path: Path, period_s: int, genesis_s: int) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    partial = path.with_name(path.name + ".partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(f"period {period_s} genesis {genesis_s}\n".encode() + pem)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _message(number: int) -> bytes:
    return _DOMAIN + number.to_bytes(8)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BeaconError("What a beacon gives is a JSON object; fetch it again.")
    return value


def _hex(fields: Mapping[str, Any], name: str, *, optional: bool = False) -> bytes:
    text = fields.get(name, "")
    if optional and text == "":
        return b""
    if not isinstance(text, str) or len(text) > 8192 or not _HEX.fullmatch(text):
        raise BeaconError(f"The beacon's {name} must be lower-case hexadecimal; fetch it again.")
    return bytes.fromhex(text)


def _whole(fields: Mapping[str, Any], name: str, least: int, below: int) -> int:
    number = fields.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < below:
        raise BeaconError(f"The beacon's {name} must be a whole number from {least}; fetch it again.")
    return number
