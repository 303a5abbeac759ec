"""Logs of several chips are read at a time: those that do not answer delay no other, and change nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.fleet import Fleet, FleetServicer, provision_fleet
from firmware_sim.service import ALLOW
from protos.weighbridge.v1 import chip_pb2_grpc
from verifier.contact import clients
from verifier.inspection import Inspection, InspectionStoppedError
from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Chip, Registry
from verifier.store.cache import Cache
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.rpc import endpoints

HONEST, DEAD, WAIT_S = 6, 8, 2.0


@dataclass
class Site:
    """A registry with chips of which some never answer, in turn with the others."""

    path: Path
    registry: Registry
    drawn: list[bytes]
    dead: list[bytes]
    authority: CertificateAuthority
    manufacturer: CertificateAuthority
    said: list[tuple[str, int]] = field(default_factory=list)

    def inspect(self, *, stop_at: int | None = None) -> dict[str, Any]:
        """Inspects all chips; `stop_at` ends the process, as it were, when so many logs are done."""
        plan = Plan(
            samples=len(self.drawn), seed=bytes(32), flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
            snapshot_rate_per_day=1.0,
        )  # fmt: skip
        if not self.said:
            self.registry.start_inspection("all", seed=bytes(32), plan=plan.to_json(), chips=self.drawn)

        def say(stage: str, done: int, total: int, message: str) -> None:
            self.said.append((stage, done))
            if stage == "log" and done == stop_at:
                raise InspectionStoppedError

        return Inspection(
            identifier="all", plan=plan, registry=self.registry, cache=Cache(self.path / "cache"),
            credentials=self.authority.issue_role("verifier", "verifier"), manufacturer=self.manufacturer.certificate,
            firmware=FirmwarePolicy.of([self.path / "chips" / "firmware.img"], self.manufacturer.certificate),
            progress=say,
        ).run()  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(clients, "CALL_SECONDS", WAIT_S)
    manufacturer, authority = CertificateAuthority.create("Manufacturer"), CertificateAuthority.create("Site")
    provision_fleet(tmp_path / "chips", HONEST, manufacturer)
    registry = Registry(tmp_path / "registry.db")
    with socket.create_server(("127.0.0.1", 0)) as silent, Fleet(tmp_path / "chips", rate_per_day=1.0) as fleet:
        server, address = endpoints.server(authority.issue_role("chip", "fleet"), allow=ALLOW)
        chip_pb2_grpc.add_ChipServiceServicer_to_server(FleetServicer(fleet), server)  # type: ignore[no-untyped-call]
        server.start()
        dead = [b"\x01" + bytes([number]) * 16 for number in range(DEAD)]
        for ueid in dead:
            registry.register(Chip(ueid=ueid, address=f"127.0.0.1:{silent.getsockname()[1]}"))
        for ueid in fleet.ueids:
            registry.register(Chip(ueid=ueid, address=address))
        drawn = [each for pair in zip(dead, fleet.ueids, strict=False) for each in pair] + dead[HONEST:]
        yield Site(tmp_path, registry, drawn, dead, authority, manufacturer)
        server.stop(grace=1).wait()
    registry.close()


def test_silent_chips_keep_nobody_waiting(site: Site) -> None:
    begun = time.monotonic()
    report = site.inspect()
    assert time.monotonic() - begun < 0.8 * DEAD * WAIT_S, "one after the other they take as long as all of them"
    assert [chip["ueid"] for chip in report["chips"]] == [ueid.hex() for ueid in site.drawn]
    assert {chip["ueid"] for chip in report["chips"] if not chip["reachable"]} == {ueid.hex() for ueid in site.dead}
    assert report["counts"]["verified"] == HONEST
    blamed = {(finding["id"], finding["subject"]) for finding in report["findings"]}
    assert blamed == {("chip.unreachable", f"chip {ueid.hex()}") for ueid in site.dead}


def test_an_inspection_that_was_stopped_while_it_read_ahead_comes_to_the_same(site: Site) -> None:
    with pytest.raises(InspectionStoppedError):
        site.inspect(stop_at=5)
    report = site.inspect()
    assert [chip["ueid"] for chip in report["chips"]] == [ueid.hex() for ueid in site.drawn]
    assert report["counts"]["verified"] == HONEST
    assert {finding["id"] for finding in report["findings"]} == {"chip.unreachable"}
