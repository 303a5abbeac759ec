"""A sealed dispute as its parties and its site run it: by commands, each in a directory and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.disputed import STEP
from support.sealed_session import command
from support.station import ROOT, wait_for

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.execution.sealed import image as images

PARTIES = ("challenger", "defender")
UEID = b"\x01" * 17
LEAVES, CLOCK, RUN = 150, 50, 35


@dataclass
class Court:
    """The directories of two parties, and a site with an image and a launcher."""

    root: Path
    image: Path
    maker: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.create("Both sides' authority"))

    def __post_init__(self) -> None:
        for name in (*PARTIES, "site", "temporary"):
            (self.root / name).mkdir(parents=True)
        Launcher.issue(self.maker, UEID).save(self.root / "site" / "launcher")
        for name in PARTIES:
            (self.root / name / "root.pem").write_bytes(self.maker.pem)
            self.run(name, "rules key own.key")
        self.measurement = images.load(self.image).measurement.hex()
        self.disputes = 0

    def run(self, party: str, words: str, *more: object, code: int = 0) -> str:
        """Runs a command in a party's directory."""
        return command(*words.split(), *more, cwd=self.root / party, code=code)

    def give(self, sender: str, receiver: str, *names: str) -> None:
        """One party sends files to another; they stay its own."""
        for name in names:
            target = self.root / receiver / name
            target.write_bytes((self.root / sender / name).read_bytes())
            target.chmod(0o600)

    def public(self, party: str) -> str:
        return load_or_create_key(self.root / party / "own.key").public.hex()

    def seated(
        self, runs: tuple[Path, Path], *, theirs: bool = True, options: str = ""
    ) -> Seated:  # fmt: skip
        """Has both parties agree on terms, gather their files, and take their seats."""
        self.disputes += 1
        s = Seated(self, f"d{self.disputes}")
        n = s.name
        named = [
            self.run(party, "dispute sealed transcript", run).strip() for party, run in zip(PARTIES, runs, strict=True)
        ]
        mine = "" if theirs else f" --challenger-transcript {named[0]}"
        self.run(
            "challenger", f"dispute sealed terms --step {STEP} --name {n} --challenger {self.public('challenger')}"
            f" --defender {self.public('defender')} --measurement {self.measurement} --site {UEID.hex()}"
            f" --subject {n}.subject --out {n}.terms --clock {CLOCK} --leaves-after {LEAVES}"
            f" --run-seconds {RUN} --inputs 0.1 --defender-transcript {named[1]}{mine} {options}",
        )  # fmt: skip
        self.give("challenger", "defender", f"{n}.terms", f"{n}.subject")
        self.give("challenger", "site", f"{n}.terms")
        for party, run in zip(PARTIES, runs, strict=True):
            copy = " --theirs" if party == "challenger" and theirs else ""
            self.run(
                party, f"dispute sealed gather --terms {n}.terms --subject {n}.subject --out {n}.inputs{copy}", run
            )
            self.run(
                party, f"dispute sealed seat {n}.inputs --terms {n}.terms --key own.key --sealed-key sealed.key"
                f" --book book --out {n}.{party}.seat",
            )  # fmt: skip
        for party, other in (PARTIES, PARTIES[::-1]):
            self.give(party, other, f"{n}.{party}.seat")
            self.give(party, "site", f"{n}.{party}.seat")
        return s


@dataclass
class Seated:
    """A dispute in which both parties took their seats."""

    court: Court
    name: str

    @property
    def seats(self) -> str:
        return f"--terms {self.name}.terms --seat {self.name}.challenger.seat --seat {self.name}.defender.seat"

    def worker(self, image: Path | None = None) -> str:
        """The site's command that runs a worker."""
        at = self.court.root
        return (
            f"env TMPDIR={at}/temporary OMP_NUM_THREADS=1 PYTHONPATH={ROOT} {sys.executable} -P -m weighbridge.cli site"
            f" worker --identity {at}/site/launcher --image {image or self.court.image}"
            f" --log {at}/site/starts --memory 2"
        )

    def lane(self, party: str) -> Path:
        """Has a party encrypt its files to the worker; returns where that lies, which is not where the site looks."""
        n, at = self.name, self.court.root
        (at / party / f"{n}.attestation").write_bytes((at / "site" / f"{n}.out" / "attestation").read_bytes())
        self.court.run(
            party, f"dispute sealed send {n}.inputs {self.seats} --own {n}.{party}.seat --sealed-key sealed.key"
            f" --attestation {n}.attestation --root root.pem --out {n}.lane",
        )  # fmt: skip
        return at / party / f"{n}.lane"

    def judged(
        self, lanes: Callable[[Seated], dict[str, bytes]] | None = None, image: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Has the site run it; each party gives its files once the worker is attested, or what `lanes` says."""
        at, n = self.court.root, self.name
        process = subprocess.Popen(
            [sys.executable, "-m", "weighbridge.cli", "site", "referee", *self.seats.split(), "--worker",
             self.worker(image), "--out", f"{n}.out"],
            cwd=at / "site", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        out = at / "site" / f"{n}.out"
        try:
            wait_for((out / "attestation").exists, process, 300)
            given = {p: self.lane(p).read_bytes() for p in PARTIES} if lanes is None else lanes(self)
            for party, data in given.items():
                (out / f"{party}.part").write_bytes(data)
                (out / f"{party}.part").rename(out / f"{party}.lane")
        except AssertionError:
            pass
        said = process.communicate()[0]
        return subprocess.CompletedProcess([], process.returncode, said)

    def verified(self, *, code: int) -> dict[str, Any]:
        """What a reader has of the finished dispute, who has no more than that file and the authority."""
        at, n = self.court.root, self.name
        for party in PARTIES:
            (at / party / f"{n}.dispute").write_bytes((at / "site" / f"{n}.out" / "dispute").read_bytes())
        said = self.court.run("challenger", f"dispute verify {n}.dispute --root root.pem --json", code=code)
        found: dict[str, Any] = json.loads(said)
        return found
