"""Floods a Verifier with two hostile certificates: `python -m benchmarks.soak_flood [--minutes 10]`.

A Verifier, a chip that waits for its witness, and two attackers run as processes, over mutual TLS. One attacker has the
certificate of another chip, which is registered, and one that of a Prover; `benchmarks.flood_attacks` has what they do,
all of it at once. Meanwhile an operator calls, the honest chip reports a snapshot after another, and health is checked,
each with a certificate of its own, and every call is timed. The attackers' processes get what time the others leave of
the processors (SCHED_IDLE): in the field they are on other machines, and what is measured is the Verifier, not whether
hundreds of threads beside it get its processors. Results go to benchmarks/results/soak_flood.json. The command fails
if a call of the operator's takes a second or longer, if one fails, or if the chip's do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.station import ROOT, wait_for

from benchmarks import machine
from benchmarks.soak_chip import COUNTERS, NOTHING, ask, connect
from firmware_sim import ChipProcess, provision
from firmware_sim.device import builtin_image
from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc, witness_pb2, witness_pb2_grpc
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.core.errors import WeighbridgeError
from weighbridge.rpc import endpoints

MOST_S = 1.0
"""No call of the operator's may take so long."""

PAUSE_S = 0.25
DEADLINE_S = 30.0


class Timed:
    """Makes calls again and again in a thread, and keeps what each took.

    Attributes:
        seconds: What the calls took that were answered.
        failed: Reasons of the others.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        """Times `call`."""
        self._call, self._stop = call, threading.Event()
        self.seconds: list[float] = []
        self.failed: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the call in progress."""
        self._stop.set()
        self._thread.join(2 * DEADLINE_S)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            begun = time.monotonic()
            try:
                self._call()
            except WeighbridgeError as error:
                self.failed[str(error)[:200]] += 1
            else:
                self.seconds.append(time.monotonic() - begun)

    def result(self) -> dict[str, Any]:
        """Returns count, median, maximum (milliseconds) and failures."""
        took = sorted(self.seconds) or [float("nan")]
        return {
            "calls": len(self.seconds),
            "failed": dict(self.failed),
            "median_ms": round(statistics.median(took) * 1e3, 1),
            "p99_ms": round(took[int(0.99 * (len(took) - 1))] * 1e3, 1),
            "max_ms": round(took[-1] * 1e3, 1),
        }


class Site:
    """A Verifier's process with two registered chips, one of them honest and running."""

    def __init__(self, path: Path, stack: ExitStack, *options: str) -> None:
        """Starts everything but the attackers; `options` are the Verifier's."""
        self.path, self._stack, self._options = path, stack, options
        self.authority, maker = CertificateAuthority.create("Station"), CertificateAuthority.create("Maker")
        self.operator = self.authority.issue_role("operator", "operator")
        self.authority.issue_role("verifier", "verifier").save(path / "verifier")
        image = FirmwareSigner.issue(maker).sign(builtin_image())
        (path / "maker.pem").write_bytes(maker.pem)
        (path / "firmware.img").write_bytes(image)
        self.victim = provision(path / "chip", maker, image=image)
        self.own = provision(path / "rival", maker, image=image)
        self.honest = self.authority.issue_role("chip", "honest", ueids=[self.victim])
        self.honest.save(path / "honest")
        self.authority.issue_role("chip", "rival", ueids=[self.own]).save(path / "hostile-chip")
        self.authority.issue_role("prover", "rival").save(path / "hostile-prover")
        self.process = self._verifier()
        self.register(self.victim)
        self.register(self.own)
        self.chip = stack.enter_context(
            ChipProcess(
                path / "chip", path / "honest", allow_forced=True, report="wait", witness=self.address,
                witness_key=path / "registry.sqlite.witness-key.pub",
            )
        )  # fmt: skip
        self.link = stack.enter_context(closing(connect(self.chip)))

    def _verifier(self) -> subprocess.Popen[bytes]:
        path = self.path
        arguments = [
            *("--db", path / "registry.sqlite", "--cache", path / "cache", "--credentials", path / "verifier"),
            *("--manufacturer", path / "maker.pem", "--firmware", path / "firmware.img", "--allow-forced"),
            *("--address-file", path / "address"),
            *self._options,
        ]
        command = [sys.executable, "-m", "weighbridge.cli", "serve", "verifier", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        wait_for((path / "address").exists, process)
        self.address = (path / "address").read_text()
        return process

    def resident_mib(self) -> float:
        """Returns what the Verifier's process has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(each for each in status.splitlines() if each.startswith("VmRSS:"))
        return round(int(line.split()[1]) / 1024, 1)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Returns what is timed: three calls of the operator's, two of the chip's, and a check of health."""

        def stub(make: Callable[[Any], Any], credentials: Credentials) -> Any:
            return make(self._stack.enter_context(endpoints.channel(self.address, credentials, "verifier")))

        registry = stub(verifier_pb2_grpc.VerifierServiceStub, self.operator)
        witness = stub(witness_pb2_grpc.WitnessServiceStub, self.honest)
        health = stub(health_pb2_grpc.HealthStub, self.authority.issue_role("operator", "monitor"))
        chip = verifier_pb2.RegisterChipRequest(ueid=self.victim, chip_address="localhost:1", site="a")
        known = witness_pb2.GetWitnessedRequest(ueid=self.victim)

        def timed(method: Any, request: Any) -> Callable[[], object]:
            return lambda: endpoints.call(method, request, deadline_s=DEADLINE_S)

        return {
            "operator: list chips": timed(registry.ListChips, verifier_pb2.ListChipsRequest()),
            "operator: register a chip": timed(registry.RegisterChip, chip),
            "operator: health": timed(health.Check, health_pb2.HealthCheckRequest()),
            "chip: ask for a nonce": timed(witness.GetWitnessed, known),
            "chip: snapshot, until the witness holds it": self.snapshot,
        }

    def register(self, ueid: bytes) -> None:
        """Registers a chip, as the operator."""
        with endpoints.channel(self.address, self.operator, "verifier") as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            endpoints.call(stub.RegisterChip, verifier_pb2.RegisterChipRequest(ueid=ueid, chip_address="localhost:1"))

    def snapshot(self) -> None:
        """Has the chip take a snapshot; it answers when the witness holds it.

        Raises:
            WeighbridgeError: It does not.
        """
        ask(self.link, {"do": "force"})
        answer = ask(self.link, {"do": "snapshot", **NOTHING, **COUNTERS})
        if not answer or not answer["ok"]:
            raise WeighbridgeError(f"the chip was not served: {answer}")

    def attacker(self, role: str, seconds: float, only: Collection[str] = ()) -> subprocess.Popen[str]:
        """Starts an attacker's process, with all attacks of its role or only some; it prints what it tried."""
        arguments = [
            *("--address", self.address, "--credentials", str(self.path / f"hostile-{role}"), "--role", role),
            *("--seconds", str(seconds), "--victim", self.victim.hex(), "--own", self.own.hex()),
            *(["--only", *only] if only else []),
        ]
        return subprocess.Popen(
            machine.command("benchmarks.flood_attacks", *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
        )  # fmt: skip


EVERYTHING: Mapping[str, Collection[str]] = {"chip": (), "prover": ()}
"""Attackers by role, with all that they can do."""


def soak(path: Path, seconds: float, attacks: Mapping[str, Collection[str]] = EVERYTHING) -> dict[str, Any]:
    """Runs calm for a while, then under the flood.

    Args:
        path: A directory for all that runs.
        seconds: How long the flood lasts.
        attacks: Functions of `benchmarks.flood_attacks` by the attacker's role; none means all of that role.

    Returns:
        What was measured.
    """
    with ExitStack() as stack:
        site = Site(path, stack)
        result: dict[str, Any] = {"resident_mib": {"before": site.resident_mib()}, "calls": {}}
        for state, length in (("calm", min(10.0, seconds)), ("flood", seconds)):
            timed = {name: Timed(call) for name, call in site.calls().items()}
            chosen = attacks if state == "flood" else {}
            attackers = [site.attacker(role, length, only) for role, only in chosen.items()]
            for each in timed.values():
                each.start()
            end, most = time.monotonic() + length, 0.0
            while time.monotonic() < end or any(each.poll() is None for each in attackers):
                most = max(most, site.resident_mib())
                time.sleep(0.5)
            for each in timed.values():
                each.stop()
            result["calls"][state] = {name: each.result() for name, each in timed.items()}
            result["resident_mib"][state] = most
        result["resident_mib"]["after"] = site.resident_mib()
        said = [each.communicate()[0] for each in attackers]
        result["tried"] = {role: json.loads(text) for role, text in zip(attacks, said, strict=True)}
    return result


def failures(result: dict[str, Any]) -> list[str]:
    """Returns what did not go as it should."""
    found = []
    for name, each in result["calls"]["flood"].items():
        if each["failed"] or not each["calls"]:
            found.append(f"{name}: {each['failed'] or 'no call was answered'}")
        if name.startswith("operator") and not each["max_ms"] < MOST_S * 1e3:
            found.append(f"{name}: {each['max_ms']} ms")
    return found


def main() -> None:
    """Floods for as long as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured = soak(Path(name), 60 * options.minutes)
    machine.save("soak_flood", {**machine.about(), "minutes": options.minutes, "certificates": 2, **measured})
    print(json.dumps(measured, indent=1))
    if found := failures(measured):
        sys.exit("under the flood: " + "; ".join(found))


if __name__ == "__main__":
    main()
