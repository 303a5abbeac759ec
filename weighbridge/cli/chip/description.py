"""What `weighbridge chip show` says: about a chip in a directory, and about one that answers at an address."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weighbridge.cli._inputs import read_file
from weighbridge.core.errors import ChipError, Finding, TokenError, UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from weighbridge.attest.identity import Credentials


def of_directory(directory: Path) -> tuple[dict[str, Any], list[Finding]]:
    """Returns what lies in a chip's directory, and why it would not start, without reading its secret.

    Raises:
        WeighbridgeError: The directory holds no intact device.
    """
    from firmware_sim.boot import FLASH, Nameplate, accept
    from firmware_sim.counter import MonotonicCounter
    from firmware_sim.fuses import Fuses

    plate, fuses = Nameplate.read(directory), Fuses.read(directory)
    findings, firmware = [], None
    try:
        data = (directory / FLASH).read_bytes()
        image = accept(data, fuses, plate.model)
        firmware = _firmware(image.version, image.svn, image.measurement) | {"name": image.name}
    except OSError:
        findings.append(ChipError("The chip has no firmware to start.", code="chip.image.missing").finding())
    except ChipError as error:
        findings.append(error.finding(subject=str(directory / FLASH)))
    return {
        "ueid": plate.ueid.hex(),
        "manufacturer": plate.vendor,
        "model": plate.model,
        "mode": fuses.mode,
        "minimal_svn": fuses.minimal_svn,
        "firmware": firmware,
        "entries": MonotonicCounter(directory).value,
    }, findings


def of_service(address: str, credentials: Credentials, manufacturer: Certificate, ueid: bytes = b"") -> dict[str, Any]:
    """Asks a running chip who it is, over a fresh nonce, and returns what it proves.

    Args:
        address: Its host:port.
        credentials: Of a verifier or operator.
        manufacturer: The root that its certificates must lead to.
        ueid: Which chip, if many answer there.

    Raises:
        TokenError: Its answer does not verify.
        WeighbridgeError: It cannot be asked, or its certificates do not lead to the manufacturer.
    """
    from verifier.contact.clients import ChipClient
    from weighbridge.attest.tokens import shown

    with ChipClient(address, credentials, ueid) as client:
        verified = client.identity(secrets.token_bytes(32), manufacturer)
    token, tcb = verified.token, verified.identity.tcb
    check_answered(token.ueid, ueid)
    return {
        "ueid": token.ueid.hex(),
        "manufacturer": tcb.vendor,
        "model": tcb.model,
        "mode": tcb.mode,
        "firmware": _firmware(tcb.version, tcb.svn, tcb.measurement),
        "entries": shown(token)["size"],
        "boots": token.boot_count,
        "uptime_ms": token.uptime_ms,
        "time_ms": token.time_ms,
    }


def ueid_of(text: str) -> bytes:
    """Reads a UEID in hex; nothing for no text.

    Raises:
        UsageError: It is none.
    """
    try:
        ueid = bytes.fromhex(text)
    except ValueError:
        ueid = b"?"
    if text and not 17 <= len(ueid) <= 33:
        raise UsageError(f"{text!r} is no UEID; give the chip's own, in hex")
    return ueid


def check_answered(found: bytes, wanted: bytes) -> None:
    """Checks that the chip that was asked for has answered, if one was named.

    Raises:
        TokenError: Another one has.
    """
    if wanted and found != wanted:
        raise TokenError(f"the chip {found.hex()} answered in place of the one that was asked for; ask its host why")


def read_root(path: Path) -> Certificate:
    """Reads the manufacturer's root certificate from a PEM file.

    Raises:
        WeighbridgeError: It is unreadable or none.
    """
    from weighbridge.attest.certificates import load_certificate

    return load_certificate(read_file(path, "give the manufacturer's root"))


def lines(said: dict[str, Any]) -> list[str]:
    """Returns nested values as one line each, for people."""
    flat: dict[str, Any] = {}
    for name, value in said.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        flat |= {f"{name} {key}".strip().replace("_", " "): each for key, each in inner}
    width = max(map(len, flat))
    return [f"{name:{width}}  {'none' if value is None else value}" for name, value in flat.items()]


def _firmware(version: str, svn: int, measurement: bytes) -> dict[str, Any]:
    return {"version": version, "svn": svn, "measurement": measurement.hex()}
