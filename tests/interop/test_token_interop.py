"""What a chip signs is verified by libraries that are not ours: python-cwt, OpenSSL and sigstore.

They run in an environment of their own, made from `requirements.txt` at the first use and kept in pytest's cache.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from firmware_sim import device
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.snapshot_report import Report
from weighbridge.attest import tlog, tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.digests import region_digest

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
NONCE = b"the verifier's own nonce"

Ask = Callable[..., list[dict[str, Any]]]
"""Passes cases to the other libraries and returns their answers."""


@dataclass(frozen=True)
class Signed:
    """A chip's log of three entries, and what it signed over a nonce."""

    root: CertificateAuthority
    ueid: bytes
    chain: tuple[bytes, ...]
    entries: list[bytes]
    head: bytes
    checkpoint: str
    proofs: list[list[bytes]]

    def token(self, data: bytes, root: CertificateAuthority | None = None) -> dict[str, str]:
        """The case of a token."""
        return {"token": data.hex(), "root": (root or self.root).pem.decode()}

    def inclusion(self, index: int) -> dict[str, Any]:
        """The case of a checkpoint and an entry in it."""
        body = tokens.verify(self.head, self.root.certificate).token.body
        key = tlog.NoteKey(tlog.origin(self.ueid), tlog.LOG, bytes(body["log_key"]))  # type: ignore[arg-type]
        return {
            "checkpoint": self.checkpoint,
            "key": key.public.hex(),
            "key_id": key.id.hex(),
            "index": index,
            "entry": self.entries[index].hex(),
            "hashes": [each.hex() for each in self.proofs[index]],
        }


@pytest.fixture(scope="module")
def ask(pytestconfig: pytest.Config) -> Ask:
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    directory = Path(pytestconfig.cache.mkdir("interop")) / digest  # type: ignore[union-attr]
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
        subprocess.run([str(directory / "bin" / "python"), *install], check=True)
        (directory / "complete").touch()

    def ask(*cases: dict[str, Any]) -> list[dict[str, Any]]:
        # -I: neither this directory nor the user's packages, so that nothing of ours can be imported.
        command = [str(directory / "bin" / "python"), "-I", str(HERE / "other_verifier.py")]
        done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    return ask


def chip(path: Path, manufacturer: CertificateAuthority) -> Iterator[Firmware]:
    ueid = device.provision(path, manufacturer)
    with NonVolatileLog(path) as log:
        firmware = Firmware(path, device.boot(path), log, rate_per_day=0.1, clock_speed=1.0, hold=64)
        assert firmware.device.ueid == ueid
        yield firmware


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    root = CertificateAuthority.create("Manufacturer")
    for firmware in chip(tmp_path_factory.mktemp("chip"), root):
        firmware.event("manifest-draft", b"d" * 32)
        leaves = [(len(each), region_digest(each, firmware.salt)) for each in (b"weights", b"rest")]
        firmware.snapshot(
            Report(
                leaves=leaves,
                weights=leaves[:1],
                safepoint=True,
                head=b"h" * 32,
                running=b"r" * 32,
                step=3,
                op=14,
                held=2,
                stall_us=7,
                unobserved=8,
            )
        )
        note, head, size = firmware.checkpoint(NONCE)
        return Signed(
            root=root,
            ueid=firmware.device.ueid,
            chain=firmware.device.chain,
            entries=[data for _, data in firmware.entries(0, size)],
            head=head,
            checkpoint=note.decode(),
            proofs=[firmware.inclusion_proof(index, size) for index in range(size)],
        )
    raise AssertionError


def test_every_kind_of_token_verifies(ask: Ask, signed: Signed) -> None:
    """COSE_Sign1 under ES384, x5chain up to the manufacturer's root, and the claims by their registered labels."""
    everything = [*signed.entries, signed.head]
    answers = ask(*map(signed.token, everything))
    for data, answer in zip(everything, answers, strict=True):
        assert "refused" not in answer
        token = tokens.verify(data, signed.root.certificate).token
        claims = answer["claims"]
        assert (answer["algorithm"], answer["content_type"]) == (-35, 263)
        assert answer["serial_number"] == signed.ueid.hex()
        assert claims["256"] == signed.ueid.hex() == token.ueid.hex()
        assert claims.get("10") == (NONCE.hex() if token.kind == "head" else None)
        assert claims["6"] == token.time_ms // 1000
        assert claims["258"] == tokens.OEMID.hex()
        assert bytes.fromhex(claims["259"]) == token.hwmodel
        assert claims["261"] == token.uptime_ms // 1000
        assert claims["263"] == 1  # debugging is disabled
        assert claims["265"] == tokens.PROFILE
        assert (claims["267"], claims["268"]) == (1, token.boot_seed.hex())
        assert claims["271"] == [token.firmware_version]
        ((form, _),) = claims["273"]
        assert form == 60
        assert (claims["-70002"], claims["-70003"], claims["-70004"]) == (token.kind, token.index, token.previous.hex())
    assert [answer["claims"]["-70002"] for answer in answers] == ["boot", "event", "snapshot", "head"]


def test_a_token_with_any_byte_changed_is_refused(ask: Ask, signed: Signed) -> None:
    data = signed.entries[2]
    changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    genuine, *answers = ask(*map(signed.token, [data, *changed]))
    assert "refused" not in genuine
    assert [at for at, answer in enumerate(answers) if "refused" not in answer] == []


def test_a_chip_of_another_manufacturer_is_refused(ask: Ask, signed: Signed) -> None:
    other = CertificateAuthority.create("Manufacturer")
    genuine, foreign = ask(signed.token(signed.head), signed.token(signed.head, other))
    assert "refused" not in genuine
    assert "certificate" in foreign["refused"]


def test_a_token_under_another_chips_chain_is_refused(ask: Ask, signed: Signed, tmp_path: Path) -> None:
    """A chip of the same manufacturer cannot pass off its signature as another's."""
    for other in chip(tmp_path, signed.root):
        claims = tokens.verify(signed.entries[2], signed.root.certificate).token
        first = next(data for _, data in other.entries(0, 1))
        own = tokens.verify(first, signed.root.certificate)
        (genuine, forged) = ask(
            signed.token(tokens.sign(own.token, other.device.key, other.device.chain)),
            signed.token(tokens.sign(claims, other.device.key, signed.chain)),
        )
    assert "refused" not in genuine
    assert "refused" in forged


def test_checkpoint_and_inclusion_proofs_verify(ask: Ask, signed: Signed) -> None:
    """The log key's signature over the note, and each entry's RFC 6962 proof against the root in it."""
    answers = ask(*map(signed.inclusion, range(3)))
    expected = {"origin": tlog.origin(signed.ueid), "size": 3}
    for answer in answers:
        assert {name: answer.get(name) for name in expected} == expected


def test_what_is_not_in_the_log_is_refused(ask: Ask, signed: Signed) -> None:
    good = signed.inclusion(1)
    text, _, signature = signed.checkpoint.partition("\n\n")
    origin, size, root = text.split("\n")
    cases = [
        {**good, "entry": signed.entries[0].hex()},
        {**good, "index": 0},
        {**good, "hashes": good["hashes"][::-1]},
        {**good, "key": bytes(32).hex()},
        {**good, "checkpoint": f"{origin}\n{int(size) + 1}\n{root}\n\n{signature}"},
    ]
    answers = ask(good, *cases)
    assert ["refused" in answer for answer in answers] == [False, True, True, True, True, True]
