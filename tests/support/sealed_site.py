"""A site with a launcher, and the parties of a sealed job, for tests and benchmarks."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.sealed_orders import sealed_order

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_attestation import Attested, Launcher, verify_attestation
from weighbridge.attest.sealed_channel import ProverKey
from weighbridge.attest.sealed_list import SealedList, commitment, list_files
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_outcome import AggregatorKey
from weighbridge.execution.sealed import image as images


class Running:
    """A launcher that was started, with its worker."""

    def __init__(self, station: Station, order: Order, **options: Any) -> None:
        self.order, self._station = order, station
        path = station.root / f"{order.digest.hex()}.cbor"
        path.write_bytes(order.to_cbor())
        command = [sys.executable, "-P", "-m", "weighbridge.cli", "site", "worker", "--order", str(path)]
        command += ["--identity", str(station.root / "launcher"), "--image", str(options.get("image", station.image))]
        self.process = subprocess.Popen(
            [*command, "--log", str(station.log)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(station.temporary), "OMP_NUM_THREADS": "1"}, cwd=station.temporary,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def frame(self) -> bytes | None:
        """Returns what the launcher says next; None if it ended."""
        header = self.stdout.read(4)
        if len(header) < 4:
            return None
        (length,) = struct.unpack(">I", header)
        data = self.stdout.read(length)
        return data if len(data) == length else None

    def attested(self) -> Attested:
        """Returns the worker's verified attestation."""
        data = self.frame()
        assert data is not None, self.ended()
        return verify_attestation(data, self.order, self._station.maker.certificate)

    def send(self, data: bytes) -> None:
        """Sends what a stream may be, and ends it."""
        try:
            self.stdin.write(data)
            self.stdin.close()
        except BrokenPipeError:
            pass

    def ended(self) -> tuple[int, str]:
        """Returns the exit code and what was said of it."""
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        return self.process.wait(), said

    def below(self) -> list[int]:
        """Returns the processes that it started, and those that they did."""
        found: list[int] = []
        waiting = [self.process.pid]
        while waiting:
            each = waiting.pop()
            try:
                children = Path(f"/proc/{each}/task/{each}/children").read_text().split()
            except OSError:
                continue
            waiting += map(int, children)
            found += map(int, children)
        return found


@dataclass
class Station:
    """A site, its Prover, and the party that has the aggregator's key."""

    root: Path
    image: Path
    run: Path
    maker: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.create("Maker"))
    prover: ProverKey = field(default_factory=lambda: ProverKey(os.urandom(32)))
    aggregator: AggregatorKey = field(default_factory=lambda: AggregatorKey(os.urandom(32)))

    def __post_init__(self) -> None:
        self.log, self.temporary = self.root / "starts", self.root / "temporary"
        self.temporary.mkdir(parents=True)
        Launcher.issue(self.maker, b"\x01" * 17).save(self.root / "launcher")

    def files(self) -> SealedList:
        """Lists the run's files for one job."""
        return list_files(self.run, [str(p.relative_to(self.run)) for p in self.run.rglob("*") if p.is_file()])

    def order(self, files: SealedList, **changed: Any) -> Order:
        """Orders a replay of the whole run."""
        agreed = {
            "commitment": commitment(files.to_cbor()), "prover": self.prover.public,
            "aggregator": self.aggregator.public, "measurement": images.load(self.image).measurement, "steps": None,
        }  # fmt: skip
        return sealed_order(**{**agreed, **changed})

    def start(self, order: Order, **options: Any) -> Running:
        """Has a launcher start a worker."""
        return Running(self, order, **options)
