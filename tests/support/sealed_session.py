"""A sealed inspection as its parties run it: by commands, each in a directory and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.station import LIMIT_OPTIONS, ROOT, Station, wait_for

from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.attest.sealed_attestation import Launcher

TERMS = """
inspection = "{name}"
size = 1
leaves_after_s = {leaves}
flops_threshold = 2.0
chip_flops_per_day = 1.0
period_days = 2.0
snapshot_rate_per_day = 1.0
prover = "{prover}"
verifier = "{verifier}"
inspection_bits = 20000
year_bits = 1000000
samples = {samples}
population = "{population}"
"""
VETTED = """images = "images.toml"
machines = "machines.tsv"
examined = 1
"""
MACHINES = ("--machines", "machines.tsv")
BEACON = """beacon = "beacon"
round = {number}
"""


def command(*words: object, cwd: Path, code: int = 0) -> str:
    """Runs `weighbridge` with these words, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge.cli", *map(str, words)], cwd=cwd, text=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


@dataclass
class Parties:
    """The directories of a Prover and a Verifier, a site's image and launcher, and the station that they inspect."""

    root: Path
    station: Station
    image: Path
    measurement: str
    maker: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.create("Both sides' authority"))

    def __post_init__(self) -> None:
        for name in ("prover", "verifier", "site"):
            (self.root / name).mkdir()
            (self.root / f"{name}-temporary").mkdir()
        Launcher.issue(self.maker, b"\x01" * 17).save(self.root / "site" / "launcher")
        for name in ("prover", "verifier"):
            (self.root / name / "root.pem").write_bytes(self.maker.pem)
            self.run(name, "rules key own.key")
        self.starts = 0
        self._vetted = False

    def run(self, party: str, words: str, *more: object, code: int = 0) -> str:
        """Runs a command in a party's directory."""
        return command(*words.split(), *more, cwd=self.root / party, code=code)

    def give(self, sender: str, receiver: str, *names: str) -> None:
        """One party sends files to the other."""
        for name in names:
            (self.root / receiver / name).write_bytes((self.root / sender / name).read_bytes())

    def public(self, party: str) -> str:
        return load_or_create_key(self.root / party / "own.key").public.hex()

    def vet(self) -> None:
        """Has the image endorsed and entered in a log, and lists three machines, as both parties agree on them."""
        if self._vetted:
            return
        self._vetted = True
        for name in ("a", "b", "c"):
            self.run("site", f"rules key {name}.key")
            self.run("site", "site endorse", self.image, "--key", f"{name}.key", "--out", f"{name}.endorsement")
            (self.root / "site" / name).mkdir()
            Launcher.issue(self.maker, name.encode() * 17).save(self.root / "site" / name)
        origin = ("--key", "log.key", "--origin", "images.example.org/log")
        said = self.run("site", "site publish log a.endorsement b.endorsement", *origin)
        log = said.split('log = "')[1].split('"')[0]
        keys = [load_or_create_key(self.root / "site" / f"{name}.key").public.hex() for name in ("a", "b", "c")]
        policy = f'log = "{log}"\nkeys = {keys}\nthreshold = 2\n'
        (self.root / "site" / "images.toml").write_text(policy)
        prove = ("--measurement", self.measurement, "--out", "image.proof")
        self.run("site", "site prove log --policy images.toml", *prove)
        launchers = [f"{name}/launcher.der" for name in ("a", "b", "c")]
        (self.root / "site" / "root.pem").write_bytes(self.maker.pem)
        self.run("site", "site machines --root root.pem --out machines.tsv", *launchers)
        for party in ("prover", "verifier"):
            self.give("site", party, "images.toml", "image.proof", "machines.tsv")

    def start(
        self,
        samples: int,
        *,
        leaves: int = 150,
        vetted: bool = False,
        skip: Callable[[str], bool] = lambda _: False,
        beacon: LocalBeacon | None = None,
        later: Callable[[], None] = lambda: None,
        parts: int = 0,
    ) -> Start:
        """Agrees on an outcome, makes a case and an order, and has both sign it.

        Args:
            samples: Chips to draw.
            leaves: Seconds after which the outcome leaves.
            vetted: Whether the terms name a policy of images, and machines of which one is drawn.
            skip: Of which chips the Prover gives nothing.
            beacon: The beacon that the draw depends on besides the shares; its value is waited for.
            later: Called when both parties have agreed, and before the draw.
            parts: So many parts the order has.
        """
        self.starts += 1
        s = Start(self, f"s{self.starts}")
        images: tuple[str, ...] = ()
        trusting = ("--root", "root.pem") if parts else ()
        if vetted:
            self.vet()
            images, s.machines = ("--image-policy", "images.toml", "--image-proof", "image.proof"), MACHINES
        station, known = self.station, f"{s.name}.population"
        keys = ("--credentials", self.station.root / "verifier", "--manufacturer", station.root / "manufacturer.pem")
        begun = time.monotonic()
        self.run("verifier", "inspect population --db", station.root / "registry.db", "--out", known, *keys)
        took = time.monotonic() - begun
        self.give("verifier", "prover", known)
        terms = TERMS.format(
            name=f"sealed-{self.starts}", leaves=leaves, prover=self.public("prover"), verifier=self.public("verifier"),
            samples=samples, population=known,
        )  # fmt: skip
        terms += VETTED if vetted else ""
        number = 0
        if beacon is not None:
            number = beacon.info.round_after(int((time.time() + 10 + 12 * took) * 1000))  # both open before it
            terms += BEACON.format(number=number)
            for party in ("prover", "verifier"):
                (self.root / party / "beacon").mkdir(exist_ok=True)
                (self.root / party / "beacon" / "info").write_text(json.dumps(beacon.info.to_json()))
        for party, other in (("prover", "verifier"), ("verifier", "prover")):
            (self.root / party / f"{s.name}.toml").write_text(terms)
            self.run(party, f"outcome terms {s.name}.toml --out {s.name}.terms")
            self.run(
                party, f"outcome join {s.name}.side --terms {s.name}.terms --role {party} --key own.key --book book"
                f" --out {s.name}.{party}.commitment",
            )  # fmt: skip
            self.give(party, other, f"{s.name}.{party}.commitment")
        for party, other in (("prover", "verifier"), ("verifier", "prover")):
            self.run(party, f"outcome open {s.name}.side {s.name}.{other}.commitment --out {s.name}.{party}.share")
            self.give(party, other, f"{s.name}.{party}.share")
        for party, other in (("prover", "verifier"), ("verifier", "prover")):
            self.run(
                party, f"outcome agree {s.name}.side {s.name}.{other}.share --out {s.name}.agreement"
                f" --secret {s.name}.secret",
            )  # fmt: skip
        later()
        if beacon is not None:
            time.sleep(max(0.0, beacon.info.time_ms(number) / 1000 - time.time()))
            beacon.publish(self.root / "verifier" / "beacon", number)
        self.run(
            "verifier", f"inspect case --agreement {s.name}.agreement --population {known} --out {s.name}.case --db",
            station.root / "registry.db", "--cache", "cache", *keys, "--firmware", station.root / "firmware.img",
            "--allow-forced", *LIMIT_OPTIONS[1:], *(() if beacon is None else ("--beacon", "beacon")),
        )  # fmt: skip
        self.give("verifier", "prover", f"{s.name}.case")
        there = [(n, chip) for n, chip in station.chips.items() if chip.socket.exists() and not skip(n)]
        sockets = [each for n, chip in there for each in ("--chip", f"{station.ueids[n].hex()}={chip.socket}")]
        self.run("prover", f"site gather {s.name}.inputs --case {s.name}.case --runs", station.runs, *sockets)
        self.run(
            "prover", f"site order --out {s.name}.order --agreement {s.name}.agreement --case {s.name}.case"
            f" --inputs {s.name}.inputs --key sealed.key --report-key report.key --measurement {self.measurement}",
            *images, "--parts", parts, *trusting,
        )  # fmt: skip
        self.give("prover", "verifier", f"{s.name}.order")
        for party in ("prover", "verifier"):
            self.run(
                party, f"site assent {s.name}.order --agreement {s.name}.agreement --case {s.name}.case"
                f" --measurement {self.measurement} --key own.key --out {s.name}.{party}.assent", *images, *trusting,
            )  # fmt: skip
        self.give("verifier", "prover", f"{s.name}.verifier.assent")
        return s


@dataclass
class Start:
    """One start of a sealed inspection."""

    parties: Parties
    name: str
    machines: tuple[str, ...] = ()

    def identity(self) -> Path:
        """Where the identity of the machine that runs the worker is: of the one that was drawn."""
        site = self.parties.root / "site"
        if not self.machines:
            return site / "launcher"
        words = f"site choose --agreement {self.name}.agreement --case {self.name}.case --json"
        drawn: dict[str, Any] = json.loads(self.parties.run("prover", words, *self.machines))
        return site / bytes.fromhex(drawn["used"])[:1].decode()

    def worker(self, order: Path, identity: Path) -> str:
        """The site's command that runs a worker."""
        root, image = self.parties.root, self.parties.image
        return (
            f"env TMPDIR={root}/site-temporary OMP_NUM_THREADS=1 PYTHONPATH={ROOT} {sys.executable} -P -m"
            f" weighbridge.cli site worker --order {order} --identity {identity} --image {image}"
            f" --log {root}/site/starts --memory 2"
        )

    def run(
        self, *, before: Callable[[Start], None] = lambda _: None, more: Sequence[object] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Has the site run it, with `more` words; the Verifier gives its secret once it has seen the attestation."""
        at, n = self.parties.root, self.name
        site = at / "site"
        worker = self.worker(at / "prover" / f"{n}.order", self.identity())
        if self.machines:
            worker += f" --image-policy {site}/images.toml --image-proof {site}/image.proof"
        words = (
            f"site session {n}.order --agreement {n}.agreement --case {n}.case --inputs {n}.inputs --key sealed.key"
            f" --report-key report.key --secret {n}.secret --prover-assent {n}.prover.assent"
            f" --verifier-assent {n}.verifier.assent --root root.pem --out {n}.session --worker"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "weighbridge.cli", *words.split(), worker, *self.machines, *map(str, more)],
            cwd=at / "prover", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        session = at / "prover" / f"{n}.session"
        try:
            wait_for((session / "attestation").exists, process, 200)
            (at / "verifier" / f"{n}.attestation").write_bytes((session / "attestation").read_bytes())
            self.parties.run(
                "verifier", f"site admit {n}.order --agreement {n}.agreement --case {n}.case --attestation"
                f" {n}.attestation --root root.pem --secret {n}.secret --out {n}.box",
                *self.machines,
            )  # fmt: skip
            before(self)
            (session / "verifier.part").write_bytes((at / "verifier" / f"{n}.box").read_bytes())
            (session / "verifier.part").rename(session / "verifier.box")
        except AssertionError:
            pass
        said = process.communicate()[0]
        return subprocess.CompletedProcess(words, process.returncode, said)

    def outcome(self, *, chips: int, code: int = 0) -> dict[str, Any]:
        """What the Verifier reads from what left; with the findings about the record itself."""
        at, n = self.parties.root, self.name
        for name in ("outcome.bin", "statement"):
            (at / "verifier" / f"{n}.{name}").write_bytes((at / "prover" / f"{n}.session" / name).read_bytes())
        key = self.parties.run(
            "verifier", f"site key {n}.order --attestation {n}.attestation --root root.pem --statement {n}.statement"
        ).strip()
        words = f"report verify {n}.outcome.bin --key {key} --agreement {n}.agreement --chips {chips} --json"
        out = self.parties.run("verifier", words, code=code)
        found: dict[str, Any] = json.loads(out)
        return found
