"""One inspection of a whole fleet: the Verifier's time and memory, phase by phase.

`python -m benchmarks.bench_inspection [--fleet 100000] [--samples 1000] [--replays 20] [--chips-in DIR]`.

What is real: every chip of the fleet has its own identity, key and log, boots, and reports its log to the Verifier's
witness over mutual TLS; the draw is the Verifier's own, against a beacon. Each drawn chip then lives through a
monitoring period (a clock that runs fast, interrupts as its rate has them), answers the Verifier, and proves and signs
what it says; some of them carry a recorded training first, each with its own run, and the Verifier replays it to every
snapshot.

What is not: chips are simulated, all on this machine. Those that are not drawn are switched off after their report. To
know in time which ones are, the benchmark plays beacon and operator at once: it has the beacon's key and reads the
draw's secret in the Verifier's database, works the sample out, makes these chips ready, and only then brings the
beacon's value.

Results go to benchmarks/results/inspection.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.meter import Meter
from firmware_sim.device import builtin_image
from firmware_sim.fleet import chips_in
from firmware_sim.process import ChipProcess
from verifier.contact.clients import ChipClient
from verifier.contact.witness import Witness
from verifier.draw.derivation import DrawCommitment, open_draw
from verifier.draw.log_entries import Closing, Commitment, parse_as
from verifier.model.fact_codec import entry
from verifier.model.strata import parse_heads, parse_population
from verifier.registry import Registry, csvfile
from verifier.store.cache import Cache
from verifier.store.sealing import DRAW_KEY, WITNESS_KEY, Sealing
from verifier.units import Units
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.cli.inspect.operator import Operator, connect
from weighbridge.core.errors import WeighbridgeError

FLEET, SAMPLES, REPLAYS = 100_000, 1000, 20
PERIOD_DAYS, RATE = 30.0, 1.0
"""The monitoring period, and snapshots per chip and day: ten times the rate of the paper, so that logs are long."""
STEPS, SNAPSHOTS = 24, 2
"""Steps of a training, and how often its chip is asked to look, at random steps: a day of its own would take a day."""
DAY_S = 86_400.0
INTERRUPTS_A_SECOND = 200.0
"""Of all drawn chips together, while they live through their period."""
CHIP_FLOPS_PER_DAY, INVOLVED = 8.64e19, 230
"""Speed of a chip; and on how many chips the run that must not be missed would have to be, of 100,000."""
OWNERS, SITES = 8, 5
LIMITS = ("--calls-per-second", "100000", "--burst", "100000")
PHASES = {
    "log": "logs",
    "provenance": "transcripts",
    "fetch": "transcripts",
    "lineage": "transcripts",
    "cells": "transcripts",
    "open": "replays",
    "replay": "replays",
    "examine": "examination",
    "score": "examination",
    "judge": "report",
}
"""What the stages of an inspection are called here; those that nothing was planned for belong to the one before."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the inspection is.

    Attributes:
        fleet: Chips in the registry.
        samples: Chips drawn.
        replays: How many of these carry a training.
    """

    fleet: int
    samples: int
    replays: int


@dataclass(frozen=True)
class Site:
    """Where everything lies.

    Attributes:
        path: Keys, the Verifier's database and cache, runs.
        chips: Directories of the chips, one below another for each host.
        hosts: Processes that make chips and have them report.
    """

    path: Path
    chips: Path
    hosts: int

    @property
    def database(self) -> str:
        """The Verifier's SQLite file."""
        return str(self.path / "registry.sqlite")

    @property
    def witness_key(self) -> Path:
        """What chips need to trust the Verifier's witness."""
        return Path(self.database + WITNESS_KEY + ".pub")

    def host(self, number: int) -> Path:
        """Returns the directory of one host's chips."""
        return self.chips / f"host-{number}"

    def credentials(self, number: int) -> Path:
        """Returns the directory of the certificates that name the chips of one host."""
        return self.path / f"credentials-{number}"

    @property
    def drawn(self) -> Path:
        """Directory of the chips that were drawn."""
        return self.chips / "drawn"

    def prepare(self) -> None:
        """Makes authorities, credentials, firmware, and the beacon with its first value."""
        authority, manufacturer = CertificateAuthority.create("Site"), CertificateAuthority.create("Manufacturer")
        manufacturer.save(self.path / "manufacturer")
        authority.save(self.path / "authority")
        for role in ("chip", "prover", "verifier", "operator"):
            authority.issue_role(role, role).save(self.path / role)
        image = FirmwareSigner.issue(manufacturer).sign(builtin_image())
        (self.path / "firmware.img").write_bytes(image)
        (self.path / "runs").mkdir()
        for number in range(self.hosts):
            self.host(number).mkdir(parents=True)
            (self.host(number) / "firmware.img").write_bytes(image)
        self.drawn.mkdir()
        self.beacon().publish(self.path / "beacon", 1)

    def beacon(self) -> LocalBeacon:
        """Returns the beacon, whose values count for the draw once they are published."""
        return LocalBeacon.load(self.path / "beacon-key")


@contextmanager
def served(command: str, *arguments: str, address_file: Path) -> Iterator[tuple[str, int]]:
    """Runs the service `weighbridge COMMAND` until the block ends; yields its address and process id."""
    address_file.unlink(missing_ok=True)
    words = [*command.split(), *arguments, "--address-file", str(address_file)]
    process = subprocess.Popen(machine.command("weighbridge.cli", *words), env={**os.environ, **machine.HERE})
    try:
        while not address_file.exists():
            if process.poll() is not None:
                raise RuntimeError(f"weighbridge {command} did not start; its message is above")
            time.sleep(0.02)
        yield address_file.read_text(), process.pid
        process.terminate()
        process.wait(timeout=120)
    finally:
        process.kill()
        process.wait()


def make_fleet(site: Site, size: Size) -> dict[str, float]:
    """Makes the chips and their certificates, as many processes at a time as there are hosts; returns seconds."""
    begun = time.perf_counter()
    shares = [(size.fleet + number) // site.hosts for number in range(site.hosts)]
    issuers = str(site.path / "manufacturer"), str(site.path / "authority")
    done = [
        machine.start(
            "benchmarks.chip_host", "make", str(site.host(number)), str(share), *issuers,
            str(site.credentials(number)), environment=machine.HERE,
        )
        for number, share in enumerate(shares)
    ]  # fmt: skip
    cpu = sum(machine.answer(each)["cpu_s"] for each in done)
    return {"wall_s": round(time.perf_counter() - begun, 3), "cpu_s": round(cpu, 3)}


def register(site: Site, chip_address: str, prover_address: str) -> dict[str, float]:
    """Puts all chips into a new registry, from a table; returns seconds."""
    ueids = [ueid for number in range(site.hosts) for ueid in chips_in(site.host(number))]
    with (site.path / "chips.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("ueid", "owner", "site", "chip_type", "address", "prover_address"))
        for ueid in ueids:
            places = (f"owner {ueid[1] % OWNERS}", f"site {ueid[2] % SITES}", "WB-SIM-1")
            table.writerow((ueid.hex(), *places, chip_address, prover_address))
    wall, cpu = time.perf_counter(), time.process_time()
    registry = Registry(site.database)
    with (site.path / "chips.csv").open(newline="") as file:
        csvfile.import_(registry, file)
    registry.close()
    return {"wall_s": round(time.perf_counter() - wall, 3), "cpu_s": round(time.process_time() - cpu, 3)}


def report_all(site: Site, address: str) -> float:
    """Has all chips report their logs; returns the processor seconds of their hosts."""
    arguments = [address, str(site.witness_key), str(RATE)]
    done = [
        machine.start(
            "benchmarks.chip_host", "report", str(site.host(number)), str(site.credentials(number)), *arguments,
            environment=machine.HERE,
        )
        for number in range(site.hosts)
    ]  # fmt: skip
    return round(sum(float(machine.answer(each)["cpu_s"]) for each in done), 3)


def foreseen(site: Site, inspection: str) -> tuple[list[bytes], int]:
    """Waits until a draw is closed; returns the chips that it will draw, and the beacon's round.

    Only who has the beacon's key *and* the draw's secret can know this: here that is the benchmark.
    """
    registry, beacon = Registry(site.database), site.beacon()
    cache = Cache(site.path / "cache")
    try:
        while True:
            units = Units(registry.session, cache, inspection)
            closed = units.get("draw", "closing-0", dict)
            if closed is not None:
                break
            time.sleep(0.1)
        made = units.get("draw", "commitment-0", dict)
        assert made is not None
        commitment = parse_as(made["entry"], Commitment)
        secret = Sealing.load(Path(site.database + DRAW_KEY)).open(made["sealed"])
        while (value := beacon.value(commitment.round)) is None:
            time.sleep(0.1)
        drawn = open_draw(
            DrawCommitment(commitment=commitment, secret=secret), parse_as(closed["entry"], Closing),
            parse_population(made["population"]), parse_heads(closed["heads"]), beacon.info, value,
        )  # fmt: skip
        return drawn.chips, commitment.round
    finally:
        registry.close()


def train(site: Site, ueid: bytes, seed: int) -> dict[str, Any]:
    """Has a drawn chip carry a recorded training; returns what a step took."""
    chip = ChipProcess(
        site.drawn / ueid.hex(), site.path / "chip", rate_per_day=RATE, allow_forced=True,
        witness_key=site.witness_key,
    )  # fmt: skip
    with chip:
        job = {
            "model": "gpt2", "seed": seed, "steps": STEPS, "run": str(site.path / "runs" / f"run-{seed:04}"),
            "socket": str(chip.socket), "snapshots": SNAPSHOTS,
        }  # fmt: skip
        return dict(machine.ask("benchmarks.inspected_job", json.dumps(job), environment=machine.HERE))


def ready(site: Site, drawn: Sequence[bytes], size: Size) -> list[dict[str, Any]]:
    """Makes the drawn chips ready to answer: trainings on some, then a monitoring period on all."""
    for ueid in drawn:
        home = next(home for number in range(site.hosts) if (home := site.host(number) / ueid.hex()).exists())
        home.rename(site.drawn / ueid.hex())
    with ThreadPoolExecutor(max_workers=site.hosts) as pool:
        runs = list(pool.map(lambda seed: train(site, drawn[seed], seed), range(size.replays)))
    seconds = max(5.0, len(drawn) * RATE * PERIOD_DAYS / INTERRUPTS_A_SECOND)
    with fleet(site, "127.0.0.1:0", clock_speed=PERIOD_DAYS * DAY_S / seconds) as address:
        switch_on(site, address, drawn)
        time.sleep(seconds)
    return runs


@contextmanager
def fleet(site: Site, address: str, *, clock_speed: float) -> Iterator[str]:
    """Serves the drawn chips from one process; yields their address."""
    with served(
        "chip fleet", "--dir", str(site.drawn), "--rate", str(RATE), "--clock-speed", str(clock_speed),
        "--witness-key", str(site.witness_key), "--credentials", str(site.path / "chip"), "--address", address,
        address_file=site.path / "fleet.address",
    ) as (bound, _):  # fmt: skip
        yield bound


def switch_on(site: Site, address: str, chips: Sequence[bytes]) -> None:
    """Boots chips, as a first contact does."""
    credentials = Credentials.load(site.path / "verifier")
    maker = CertificateAuthority.load(site.path / "manufacturer").certificate

    def ask(ueid: bytes) -> None:
        with ChipClient(address, credentials, ueid) as client:
            client.identity(secrets.token_bytes(16), maker)

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(ask, chips))


def measure(path: Path, chips: Path, size: Size, hosts: int = 2) -> dict[str, Any]:
    """Makes a fleet, inspects it, and returns what that cost.

    Args:
        path: Empty directory for everything but the chips' own.
        chips: Empty directory for those, which are written to very often.
        size: How large.
        hosts: Processes that make chips, and trainings at a time.
    """
    site = Site(path, chips, hosts)
    site.prepare()
    result: dict[str, Any] = {
        "fleet": size.fleet, "samples": size.samples, "replays": size.replays, "period_days": PERIOD_DAYS,
        "snapshot_rate_per_day": RATE, "made": make_fleet(site, size), "load_before": os.getloadavg()[1],
    }  # fmt: skip
    chip_port, prover_port = free_ports(2)
    prover_address = f"127.0.0.1:{prover_port}"
    result["registered"] = register(site, f"127.0.0.1:{chip_port}", prover_address)
    verifier = served(
        "serve verifier", "--db", site.database, "--cache", str(path / "cache"), "--credentials",
        str(path / "verifier"), "--manufacturer", str(path / "manufacturer" / "authority.pem"), "--firmware",
        str(path / "firmware.img"), "--beacon", str(path / "beacon"), "--replay-devices", ",".join(["cpu"] * hosts),
        "--allow-forced", "--max-clock-speed", "1e9",
        *LIMITS, address_file=path / "verifier.address",
    )  # fmt: skip
    with verifier as (address, pid), Meter(pid) as meter, connect(address, path / "operator") as operator:
        result["started_bytes"] = meter.bytes()
        meter.begin("reports")
        result["hosts_cpu_s"] = report_all(site, address)
        meter.begin("closing")
        inspection = begin(operator, size)
        drawn, number = foreseen(site, inspection)
        meter.begin("waiting")
        result["runs"] = ready(site, drawn, size)
        serving = fleet(site, f"127.0.0.1:{chip_port}", clock_speed=1.0)
        prover = served(
            "serve prover", "--runs", str(path / "runs"), "--credentials", str(path / "prover"), "--address",
            prover_address, address_file=path / "prover.address",
        )  # fmt: skip
        with serving as chip_address, prover:
            switch_on(site, chip_address, drawn)
            meter.begin("drawing")
            site.beacon().publish(path / "beacon", number)
            for update in operator.watch(inspection):
                phase = PHASES.get(update.stage, "")
                if phase and phase != meter.name:
                    meter.begin(phase)
            meter.end()
        if update.stage != "done":
            raise RuntimeError(f"the inspection ended as {update.stage}: {update.message}")
        meter.begin("signed report")
        result["report_bytes"] = len(operator.signed_report(inspection))
        meter.end()
        report = operator.report(inspection)
    if {chip["ueid"] for chip in report["chips"]} != {ueid.hex() for ueid in drawn}:
        raise RuntimeError("the Verifier drew other chips than were made ready")
    return {**result, "phases": meter.phases, **found(report), **tokens(site, drawn)}


def begin(operator: Operator, size: Size) -> str:
    """Starts the inspection, with strata by owner and site, and a run as large a part of the fleet as of 100,000."""
    involved = max(1, round(INVOLVED * size.fleet / FLEET))
    return operator.start(
        samples=size.samples, seed=b"", flops_threshold=involved * CHIP_FLOPS_PER_DAY * PERIOD_DAYS,
        chip_flops_per_day=CHIP_FLOPS_PER_DAY, period_days=PERIOD_DAYS, snapshot_rate_per_day=RATE,
        replay_env={"OMP_NUM_THREADS": "1"}, strata_by=("owner", "site"),
        random_segments=0, largest_segments=0,  # what is measured is what chips and snapshots cost
    )  # fmt: skip


def found(report: dict[str, Any]) -> dict[str, Any]:
    """Returns what the inspection came to."""
    chips = report["chips"]
    statuses = Counter(snapshot["status"] for chip in chips for snapshot in chip["snapshots"])
    return {
        "verified": report["counts"]["verified"],
        "findings": dict(sorted(Counter(each["id"] for each in report["findings"]).items())),
        "accusing": sum(each["severity"] != "info" for each in report["findings"]),
        "snapshots": dict(sorted(statuses.items())),
        "replayed_chips": sum(any(each["replay"] for each in chip["snapshots"]) for chip in chips),
        "replay_seconds": sorted(
            each["replay"]["seconds"] for chip in chips for each in chip["snapshots"] if each["replay"]
        ),
        "entries": sum(chip["entries"] for chip in chips),
        "strata": len(report["draw"]["strata"]),
        "p": report["probability"]["strata"],
    }


def tokens(site: Site, drawn: Sequence[bytes]) -> dict[str, Any]:
    """Verifies the drawn chips' entries once more, by themselves; returns how many, and processor seconds."""
    registry, maker = Registry(site.database), CertificateAuthority.load(site.path / "manufacturer").certificate
    witness = Witness(registry, maker)
    entries = [data for ueid in drawn for data in witness.entries(ueid, 0, witness.held(ueid).size)]
    registry.close()
    begun = time.process_time()
    if any(isinstance(entry(data, maker).verified, WeighbridgeError) for data in entries):
        raise RuntimeError("an entry that was witnessed does not verify")
    return {
        "tokens": len(entries), "tokens_cpu_s": round(time.process_time() - begun, 3),
        "database_bytes": Path(site.database).stat().st_size,
    }  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Returns ports of this host that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", type=int, default=FLEET)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--replays", type=int, default=REPLAYS)
    parser.add_argument(
        "--chips-in", type=Path, help="where to make the chips' directories (40 kB each), e.g. /dev/shm"
    )
    parser.add_argument("--result", default="inspection", help="name of the result file, so as to keep several sizes")
    options = parser.parse_args()
    size = Size(fleet=options.fleet, samples=options.samples, replays=options.replays)
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as path,
        tempfile.TemporaryDirectory(prefix="weighbridge-chips-", dir=options.chips_in) as chips,
    ):
        result = {**machine.about(), **measure(Path(path), Path(chips), size, hosts=os.cpu_count() or 1)}
    machine.save(options.result, result)
    print(result)


if __name__ == "__main__":
    main()
