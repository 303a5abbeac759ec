"""A console over a database with every kind of inspection, served over TLS in this process, and its callers."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import shutil
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.large_report import many_chips
from support.reported import build, collect

from verifier.console import pages
from verifier.console.evidence_files import EvidenceFiles
from verifier.console.reading import Reading
from verifier.console.serving import served
from verifier.console.sign_in import Door
from verifier.evidence.export import Source
from verifier.registry import Chip, Registry
from verifier.report import signing, summary
from verifier.store.cache import Cache
from verifier.units import Journal
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.identity import CertificateAuthority

HOSTILE = "<script>pwned=1</script>\"'><img src=x onerror=pwned=1>{{7*7}}"
"""What a Prover, an owner or a chip might call things."""
CLEAN, HOSTILE_ID, MANY, RUNNING = "c1ea0000000000aa", "bad0000000000000", "3a11000000000000", "0d0e000000000000"


@dataclass(frozen=True)
class Answer:
    """What the console answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class ConsoleStation:
    """A running console.

    Attributes:
        root: Directory with `credentials/NAME` of all callers and of the console itself (`own`).
        address: host:port.
        authority: Issued all of them.
        registry: Opened for writing, as a Verifier's service has it.
        reports: By inspection.
    """

    root: Path
    authority: CertificateAuthority
    registry: Registry
    reports: dict[str, dict[str, Any]]
    address: str = ""
    said: dict[str, Journal] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return f"https://{self.address}"

    def issue(self, name: str, role: str, **more: Any) -> Path:
        """Issues credentials to a caller; returns their directory."""
        self.authority.issue_role(role, name, **more).save(self.root / "credentials" / name)
        return self.root / "credentials" / name

    def connect(self, caller: str | None) -> http.client.HTTPSConnection:
        """Returns a connection that shows the certificate of a caller, or none."""
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if caller is not None:
            own = self.root / "credentials" / caller
            context.load_cert_chain(own / "certificate.pem", own / "key.pem")
        host, _, port = self.address.rpartition(":")
        return http.client.HTTPSConnection(host, int(port), context=context, timeout=30)

    def ask(self, path: str, caller: str | None = "inspector", method: str = "GET") -> Answer:
        """Asks once, over a connection of its own."""
        with contextlib.closing(self.connect(caller)) as connection:
            return ask(connection, path, method)


def ask(connection: http.client.HTTPSConnection, path: str, method: str = "GET") -> Answer:
    """Asks over a connection, which stays open."""
    connection.request(method, path)
    answer = connection.getresponse()
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def _finished(registry: Registry, identifier: str, report: dict[str, Any]) -> dict[str, Any]:
    report = report | {"inspection": identifier}
    drawn = [bytes.fromhex(chip["ueid"]) for chip in report["chips"]]
    for chip, ueid in zip(report["chips"], drawn, strict=True):
        name = chip["name"] if chip["name"].isidentifier() or "-" in chip["name"][:8] else ""
        registry.register(
            Chip(ueid=ueid, address="127.0.0.1:1", owner=chip["owner"], site=chip["site"][:60].strip(), name=name)
        )
    registry.start_inspection(identifier, seed=b"", plan={"samples": len(drawn)}, chips=drawn)
    registry.set_stage(identifier, "done", report, summary.of(report))
    return report


@contextlib.contextmanager
def console_station(root: Path) -> Iterator[ConsoleStation]:
    """Serves a console over four inspections until the block ends.

    They are one without findings, one in which whatever another party chooses is `HOSTILE`, one of a dozen chips, and
    one that is at work. The chips of the third are called `rack-NN`.

    Args:
        root: A fresh directory.
    """
    authority = CertificateAuthority.create("Authority")
    maker = CertificateAuthority.create("Maker")
    registry = Registry(root / "registry.sqlite")
    clean, hostile = build(collect(root / "clean", honest=True)), build(collect(root / "hostile", text=HOSTILE))
    reports = {
        CLEAN: _finished(registry, CLEAN, clean),
        HOSTILE_ID: _finished(registry, HOSTILE_ID, hostile),
        MANY: _finished(registry, MANY, many_chips(build(collect(root / "many", text="x" * 90)), 12, 6)),
    }
    station = ConsoleStation(root, authority, registry, reports)
    drawn = bytes.fromhex(clean["chips"][0]["ueid"])
    registry.start_inspection(RUNNING, seed=b"", plan={"samples": 1}, chips=[drawn])
    registry.set_stage(RUNNING, "fetch")
    station.said[RUNNING] = Journal(registry.session, RUNNING)
    station.said[RUNNING].say("fetch", 1, 3, f"fetching {HOSTILE}")
    station.issue("own", "verifier")
    station.issue("inspector", "operator")
    station.issue("prover", "prover")
    station.issue("chip", "chip", ueids=[drawn])
    station.issue("expired", "operator", lifetime=datetime.timedelta(seconds=-5))
    CertificateAuthority.create("Authority").issue_role("operator", "stranger").save(root / "credentials" / "stranger")
    (root / "cache").mkdir()
    reading = Registry(root / "registry.sqlite", read_only=True)
    source = Source(
        registry=reading,
        cache=Cache(root / "cache", read_only=True),
        report_key=signing.load_key(root / "registry.sqlite.report-key"),
        manufacturer=load_certificate(maker.pem),
    )
    app = pages.create(Reading(reading), EvidenceFiles(source))
    try:
        with served(app, Door(root / "credentials" / "own"), "127.0.0.1:0") as address:
            station.address = address
            yield station
    finally:
        reading.close()
        registry.close()
        shutil.rmtree(root / "cache", ignore_errors=True)
