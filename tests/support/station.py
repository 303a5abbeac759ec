"""Everything an inspection needs, as real processes: chips, training jobs, a Prover; and the Verifier's credentials."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.shared_work import SharedWork

from firmware_sim import ChipProcess, provision
from firmware_sim.device import builtin_image
from verifier.inspection import Inspection
from verifier.model.facts import Plan
from verifier.model.policies import NO_SEGMENTS
from verifier.model.reference_values import ChipLimits, FirmwarePolicy
from verifier.model.seeded_draw import draw
from verifier.registry import Chip, Registry
from verifier.store.cache import Cache
from verifier.units import Units
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.execution.worker_process import Limits

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("train_job.py")
LIMITS = ChipLimits(forced=True, clock_speed=1e6)
"""The chips of a station take requests for interrupts, and some have a fast clock."""
LIMIT_OPTIONS = ("--allow-forced", "--max-clock-speed", f"{LIMITS.clock_speed:g}")
"""The same for `weighbridge serve verifier`."""


class Station:
    """A directory with two authorities, and what was started in it; use as a context manager."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs = root, root / "runs"
        self.runs.mkdir()
        self.authority = CertificateAuthority.create("Station")
        self.manufacturer = CertificateAuthority.create("Manufacturer")
        for role in ("chip", "prover", "verifier", "operator"):
            self.authority.issue_role(role, role).save(root / role)
        (root / "manufacturer.pem").write_bytes(self.manufacturer.pem)
        self.image = FirmwareSigner.issue(self.manufacturer).sign(builtin_image())
        (root / "firmware.img").write_bytes(self.image)
        self.verifier = self.authority.issue_role("verifier", "v")
        self.operator = self.authority.issue_role("operator", "o")
        self.registry = Registry(root / "registry.db")
        self.ueids: dict[str, bytes] = {}
        self.chips: dict[str, ChipProcess] = {}
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Station:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.registry.close()

    def chip(self, name: str, prover: str = "", **options: Any) -> ChipProcess:
        """Provisions, starts and registers a chip; `options` are those of `ChipProcess`."""
        self.ueids[name] = provision(self.root / "chips" / name, self.manufacturer, image=self.image)
        options = {"rate_per_day": 1.0, "hold": 64, "allow_forced": True, **options}
        process = ChipProcess(self.root / "chips" / name, self.root / "chip", **options)
        self.chips[name] = self._stack.enter_context(process)
        self.register(name, prover)
        return process

    def register(self, name: str, prover: str = "") -> None:
        """Registers a chip at its present address, for a Prover."""
        chip = Chip(ueid=self.ueids[name], address=self.chips[name].address, prover_address=prover, site=name)
        self.registry.register(chip)

    def train(self, mode: str, name: str) -> subprocess.Popen[bytes]:
        """Starts a training job on the chip `name`; a declared one writes its transcript under that name."""
        command = [sys.executable, str(JOB), mode, str(self.chips[name].socket), str(self.runs / name)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=environment)

    def prover(self) -> str:
        """Starts the Prover's service over all runs; returns its address."""
        arguments = ["--runs", str(self.runs), "--credentials", str(self.root / "prover")]
        return self._stack.enter_context(service("serve prover", arguments, self.root / "prover.address"))

    def inspect(
        self,
        *names: str,
        cache: Cache | None = None,
        progress: Any = None,
        regime: Any = None,
        limits: Limits | None = None,
        given: Mapping[str, Any] | None = None,
        shared: SharedWork | None = None,
        seed: bytes | None = None,
        **also: Any,
    ) -> dict[str, Any]:
        """Inspects exactly these chips (the seed is searched for, unless it is known) and returns the report.

        `given` replaces what the `Inspection` is given, its firmware policy for example; `shared`: replays that need
        not be done again; `also`: more of the plan.
        """
        self._count += 1
        wanted = sorted(self.ueids[name] for name in names)
        everybody = [chip.ueid for chip in self.registry.chips()]
        seeds = (number.to_bytes(16, "big") for number in range(100_000)) if seed is None else iter([seed])
        seed = next(seed for seed in seeds if sorted(draw(everybody, len(names), seed)) == wanted)
        usual: dict[str, Any] = {
            "flops_threshold": 2.0,
            "chip_flops_per_day": 1.0,
            "period_days": 2.0,
            "snapshot_rate_per_day": 1.0,
            "replay_env": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
            "segments": NO_SEGMENTS,  # most tests are about something else, and pay for no more replays than that takes
        }
        plan = Plan(samples=len(names), seed=seed, **{**usual, **also})
        identifier = f"inspection {self._count}"
        self.registry.start_inspection(
            identifier, seed=seed, plan=plan.to_json(), chips=draw(everybody, len(names), seed)
        )
        cache = cache or Cache(self.root / f"cache{self._count}")
        if shared is not None:
            shared.give(Units(self.registry.session, cache, identifier))
        arguments: dict[str, Any] = {
            "identifier": identifier,
            "plan": plan,
            "registry": self.registry,
            "cache": cache,
            "credentials": self.verifier,
            "manufacturer": self.manufacturer.certificate,
            "firmware": FirmwarePolicy.of([self.root / "firmware.img"], self.manufacturer.certificate, limits=LIMITS),
            "progress": progress or (lambda *_: None),
            "regime": regime,
            "limits": limits,
        }
        report = Inspection(**{**arguments, **(given or {})}).run()
        if shared is not None:
            shared.take(Units(self.registry.session, cache, identifier))
        return report


@contextmanager
def service(command: str, arguments: list[str], address_file: Path) -> Iterator[str]:
    """Runs `weighbridge COMMAND`, waits for its address, and checks that SIGTERM ends it in order."""
    words = [*command.split(), *arguments, "--address-file", str(address_file)]
    process = subprocess.Popen([sys.executable, "-m", "weighbridge.cli", *words], cwd=ROOT)
    try:
        wait_for(address_file.exists, process)
        yield address_file.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Waits until something is so, or the process has ended."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def ids(report: dict[str, Any], severity: str | None = None) -> list[str]:
    """Identifiers of a report's findings, in order."""
    return [each["id"] for each in report["findings"] if severity in (None, each["severity"])]
