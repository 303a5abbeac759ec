"""A real Verifier that is stopped in the middle of a draw: its secret is chosen and not opened."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
import zstandard
from support.command_line import weighbridge
from support.station import ROOT

from firmware_sim.device import builtin_image
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority

PLAN = ("--samples", "1", "--threshold", "1e21", "--chip-flops", "1e15", "--period", "30", "--rate", "0.1")
CUTOFF_S = 600
"""Seconds that the draw waits for chips: longer than anybody looks."""


def make_site(path: Path) -> Path:
    """Makes what a Verifier needs: credentials, a manufacturer's root and a firmware image; `home` is for its files."""
    authority, maker = CertificateAuthority.create("Station"), CertificateAuthority.create("Chips")
    for role in ("verifier", "operator"):
        authority.issue_role(role, "one").save(path / role)
    maker.save(path / "maker")
    (path / "firmware.img").write_bytes(FirmwareSigner.of(path / "maker").sign(builtin_image()))
    (path / "home").mkdir()
    return path


def start(site: Path) -> subprocess.Popen[str]:
    """Starts a Verifier in a process whose umask lets others read what it makes."""
    home = site / "home"
    options = [
        *("--db", home / "db", "--cache", home / "cache", "--credentials", site / "verifier"),
        *("--manufacturer", site / "maker" / "authority.pem", "--firmware", site / "firmware.img"),
        *("--address-file", home / "address"),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "weighbridge.cli", "serve", "verifier", *map(str, options)],
        umask=0o022, cwd=ROOT, env=os.environ, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def interrupted(site: Path) -> Iterator[Path]:
    """Has a Verifier commit to a draw, and yields the directory with its files; it is killed at the end."""
    process, home = start(site), site / "home"
    try:
        while not (home / "address").exists():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.05)
        common = ("--verifier", (home / "address").read_text(), "--credentials", str(site / "operator"))
        chip = ("--ueid", "01" + "ee" * 16, "--chip", "127.0.0.1:1", "--owner", "acme")
        for command in (("register", *common, *chip), ("start", *common, *PLAN, "--cutoff", str(CUTOFF_S))):
            code, _, said = weighbridge("inspect", *command)
            assert code == 0, said
        while not committed(home / "db"):
            assert process.poll() is None
            time.sleep(0.05)
        yield home
    finally:
        process.send_signal(signal.SIGKILL)  # the log that is written ahead stays as it is
        process.communicate()


def units(db: Path) -> dict[str, bytes]:
    """What inspections have stored in a database, by its key."""
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        rows = list(connection.execute("SELECT key, value FROM inspection_units"))
    connection.close()
    return {key: zstandard.ZstdDecompressor().decompress(value) for key, value in rows if value}


def committed(db: Path) -> dict[str, Any]:
    """The first unit of the draw; empty if there is none yet."""
    found = units(db).get("commitment-0")
    return {} if found is None else dict(cbor2.loads(found))
