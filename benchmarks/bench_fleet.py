"""What a fleet of simulated chips costs, and how fast a Verifier reads it: time, memory and disk for each chip.

`python -m benchmarks.bench_fleet [--chips 2000] [--samples 50]` provisions a fleet, serves it from one process,
registers all chips, reads the heads of all of them over mutual TLS (which boots them), and inspects a draw of
`--samples`.

Results go to benchmarks/results/fleet.json.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.drawn_inspection import inspect_drawn

from benchmarks import machine
from firmware_sim.fleet import chips_in, provision_fleet
from verifier.contact.clients import ChipClient
from verifier.registry import Chip, Registry
from weighbridge.attest.identity import CertificateAuthority


@dataclass
class Watch:
    """Wall and processor seconds since it was made."""

    def __post_init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def each_ms(self, count: int) -> dict[str, float]:
        """Milliseconds for each of `count`."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"wall_ms": round(1e3 * wall / count, 3), "cpu_ms": round(1e3 * cpu / count, 3)}


@contextmanager
def serving(chips: Path, credentials: Path, address_file: Path) -> Iterator[tuple[str, int]]:
    """Serves a fleet in a process of its own; yields address and process id."""
    command = [sys.executable, "-m", "weighbridge.cli", "chip", "fleet", "--dir", str(chips), "--rate", "1"]
    process = subprocess.Popen([*command, "--credentials", str(credentials), "--address-file", str(address_file)])
    try:
        while not address_file.exists():
            if process.poll() is not None:
                raise RuntimeError("the fleet did not start; its message is above")
            time.sleep(0.02)
        yield address_file.read_text(), process.pid
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()


def resident_bytes(pid: int) -> int:
    """Memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def disk_bytes(directory: Path) -> int:
    """Blocks below a directory; a file with several names counts once."""
    found = {path.lstat().st_ino: path.lstat().st_blocks * 512 for path in directory.rglob("*")}
    return sum(found.values())


def measure_fleet(path: Path, count: int, samples: int) -> dict[str, Any]:
    """Measures a fleet from provisioning to inspection."""
    manufacturer, authority = CertificateAuthority.create("Manufacturer"), CertificateAuthority.create("Site")
    authority.issue_role("chip", "fleet").save(path / "credentials")
    verifier = authority.issue_role("verifier", "verifier")
    result: dict[str, Any] = {"chips": count, "samples": samples}
    watch = Watch()
    provision_fleet(path / "chips", count, manufacturer)
    result["provision"] = watch.each_ms(count)
    ueids = sorted(chips_in(path / "chips"))
    with serving(path / "chips", path / "credentials", path / "address") as (address, pid):
        before = resident_bytes(pid)
        watch = Watch()
        registry = Registry(path / "registry.db")
        for ueid in ueids:
            registry.register(Chip(ueid=ueid, address=address))
        result["register"] = watch.each_ms(count)
        for name in ("first_contact", "later_contact"):
            watch = Watch()
            for ueid in ueids:
                with ChipClient(address, verifier, ueid) as client:
                    client.identity(secrets.token_bytes(16), manufacturer.certificate)
            result[name] = watch.each_ms(count)
        result["server_bytes"] = before
        result["chip_bytes"] = round((resident_bytes(pid) - before) / count)
        result["chip_disk_bytes"] = round(disk_bytes(path / "chips") / count)
        watch = Watch()
        report = inspect_drawn(
            registry, samples, cache=path / "cache", image=path / "chips" / "firmware.img", verifier=verifier,
            manufacturer=manufacturer,
        )  # fmt: skip
        result["inspect"] = watch.each_ms(samples)
        result["verified"], result["findings"] = report["counts"]["verified"], len(report["findings"])
        registry.close()
    return result


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory)
        (path / "fleet").mkdir()
        result = {**machine.about(), **measure_fleet(path / "fleet", options.chips, options.samples)}
    machine.save("fleet", result)
    print(result)


if __name__ == "__main__":
    main()
