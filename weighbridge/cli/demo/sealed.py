"""The demo's sealed inspection: a chip is drawn and inspected once more, and the Verifier learns one record of it.

Verifier, Prover and site are processes, each with a directory of its own. Between these directories goes only what
`Sealed.give` copies. What a party does is a command, as its people would type it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weighbridge.cli.bench.processes import ProcessError
from weighbridge.cli.demo.cases import about
from weighbridge.cli.demo.party import Party
from weighbridge.cli.demo.station import Station

LEAVES_S = 120
"""At least so many seconds after its start the record leaves, however early it is ready."""
SAMPLES = 1
"""Chips that are drawn. A sealed worker replays one snapshot after the other, and for each of a job all ranks."""
_PARTIES = ("verifier", "prover", "site")
_TERMS = """inspection = "demo"
size = 1
leaves_after_s = {leaves}
flops_threshold = {flops}
chip_flops_per_day = {chip_flops}
period_days = {days}
snapshot_rate_per_day = {rate}
prover = "{prover}"
verifier = "{verifier}"
inspection_bits = 20000
year_bits = 1000000
samples = {samples}
population = "population"
"""


@dataclass(frozen=True, slots=True)
class Left:
    """What left a sealed inspection.

    Attributes:
        size: Bytes of the record.
        record: What it says, as `weighbridge report verify` prints it.
        snapshots: Statuses of all snapshots of the drawn chips in the report of the open inspection.
        violations: Identifiers of its violations about them.
        as_said: Whether the record says the same.
    """

    size: int
    record: Mapping[str, Any]
    snapshots: Mapping[str, int]
    violations: tuple[str, ...]
    as_said: bool


def judge(size: int, said: Mapping[str, Any], drawn: Collection[str], report: Mapping[str, Any]) -> Left:
    """Compares the record of a sealed inspection with what the open one said of the same chips; see `Left`.

    Args:
        size: Bytes of the record.
        said: What `weighbridge report verify --json` said of it.
        drawn: Chips of the sealed inspection, in hex.
        report: The open inspection's, of these chips and others.
    """
    record, statuses = said["record"], dict[str, int]()
    chips = [chip for chip in report["chips"] if chip["ueid"] in drawn]
    for chip in chips:
        for snapshot in chip["snapshots"]:
            statuses[snapshot["status"]] = statuses.get(snapshot["status"], 0) + 1
    found = [f for f in report["findings"] if f["severity"] == "violation" and any(about(f, chip) for chip in chips)]
    violations = tuple(sorted({f["id"] for f in found}))
    same = (
        said["verified"]
        and record["status"] == "complete"
        and (record["C"], record["s"]) == (report["counts"]["registered"], len(drawn))
        and {name: count for name, count in record["snapshots"].items() if count} == statuses
        and tuple(sorted(record["violations"])) == violations
    )
    return Left(size, record, statuses, violations, same)


@dataclass
class Sealed:
    """Three parties, each in a directory of its own.

    Attributes:
        root: The directory of all of them.
        parties: Their processes.
    """

    root: Path
    parties: Mapping[str, Party]

    def inspect(
        self, running: Station, runs: Path, report: Mapping[str, Any], terms: Mapping[str, float], took: float
    ) -> Left:
        """Makes a sealed inspection of some chips that the open one drew, and compares what leaves with its report.

        Args:
            running: The chips; the Verifier's service must have ended.
            runs: The Prover's transcripts.
            report: Of the open inspection.
            terms: Threshold (`flops`), `chip_flops`, `days` and `rate` that both agree on.
            took: Seconds that the open inspection took, of all chips. The sealed one has as many.
        """
        measurement = self._make_site()
        self._write_population(running)
        self._agree({"leaves": max(LEAVES_S, round(took)), "samples": SAMPLES, **terms})
        drawn = self._draw(running, runs)
        self._sign(measurement)
        said = self._run(len(running.chips))
        return judge((self.root / "verifier" / "outcome.bin").stat().st_size, said, drawn, report)

    def give(self, sender: str, receiver: str, *names: str) -> None:
        """One party sends files to another."""
        for name in names:
            shutil.copyfile(self.root / sender / name, self.root / receiver / Path(name).name)

    def _make_site(self) -> str:
        """An authority that both trust vouches for the site's machine; returns the measurement of its image."""
        site = self.parties["site"]
        site.run("identity", "create", "authority", "--name", "Weighbridge demo: both sides' authority")
        site.run("site", "identity", "authority", "--ueid", "01" * 17, "--out", "launcher")
        for name in ("verifier", "prover"):
            self.give("site", name, "authority/authority.pem")
        return site.run("site", "image", "image").split()[0]

    def _agree(self, terms: Mapping[str, float]) -> None:
        """Both agree on the terms of the outcome, and each gives its part of nonce and key."""
        public = {
            name: self.parties[name].call("rules", "key", "own.key")["public_key"] for name in ("prover", "verifier")
        }
        pairs = (("prover", "verifier"), ("verifier", "prover"))
        for name, other in pairs:
            (self.root / name / "terms.toml").write_text(_TERMS.format(**terms, **public))
            self.parties[name].run("outcome", "terms", "terms.toml", "--out", "terms")
            join = ("--terms", "terms", "--role", name, "--key", "own.key", "--book", "book")
            self.parties[name].run("outcome", "join", "side", *join, "--out", f"{name}.commitment")
            self.give(name, other, f"{name}.commitment")
        for name, other in pairs:
            self.parties[name].run("outcome", "open", "side", f"{other}.commitment", "--out", f"{name}.share")
            self.give(name, other, f"{name}.share")
        for name, other in pairs:
            outs = ("--out", "agreement", "--secret", "secret")
            self.parties[name].run("outcome", "agree", "side", f"{other}.share", *outs)

    def _write_population(self, running: Station) -> None:
        """The Verifier writes down which chips can be drawn, before either party knows the nonce."""
        at = running.bench.directory
        self.parties["verifier"].run(
            *("inspect", "population", "--db", at / "verifier" / "registry.sqlite", "--out", "population"),
            *("--credentials", at / "verifier" / "credentials"),
            *("--manufacturer", at / "manufacturer" / "authority.pem"),
        )
        self.give("verifier", "prover", "population")

    def _draw(self, running: Station, runs: Path) -> list[str]:
        """The Verifier draws chips and reads their logs; the Prover gathers what the worker asks for. Returns them."""
        at, home = running.bench.directory, running.bench.directory / "verifier"
        self.parties["verifier"].run(
            *("inspect", "case", "--agreement", "agreement", "--population", "population", "--out", "case"),
            *("--db", home / "registry.sqlite", "--cache", home / "cache", "--credentials", home / "credentials"),
            *("--manufacturer", at / "manufacturer" / "authority.pem"),
            *("--firmware", at / "manufacturer" / "firmware.img", "--allow-forced"),
            *("--max-clock-speed", running.bench.settings.clock_speed),
        )
        self.give("verifier", "prover", "case")
        sockets = [word for chip in running.chips for word in ("--chip", f"{chip.ueid.hex()}={chip.socket}")]
        self.parties["prover"].run("site", "gather", "inputs", "--case", "case", "--runs", runs, *sockets)
        return list(self.parties["prover"].call("site", "case", "case")["chips"])

    def _sign(self, measurement: str) -> None:
        """The Prover commits to its files in an order, and both sign it."""
        agreed = ("--agreement", "agreement", "--case", "case", "--measurement", measurement)
        keys = ("--key", "sealed.key", "--report-key", "report.key")
        self.parties["prover"].run("site", "order", "--out", "order", "--inputs", "inputs", *keys, *agreed)
        for name in ("verifier", "site"):
            self.give("prover", name, "order")
        for name in ("prover", "verifier"):
            self.parties[name].run("site", "assent", "order", *agreed, "--key", "own.key", "--out", f"{name}.assent")
        self.give("verifier", "prover", "verifier.assent")

    def _run(self, chips: int) -> Any:
        """The site runs the session, and each party gives its secret to what is attested; returns what left."""
        verifier, worker = self.parties["verifier"], self._worker()
        root = ("--root", "authority.pem")
        words = (
            *("site", "session", "order", "--agreement", "agreement", "--case", "case", "--inputs", "inputs"),
            *("--key", "sealed.key", "--report-key", "report.key", "--secret", "secret"),
            *("--prover-assent", "prover.assent", "--verifier-assent", "verifier.assent", *root, "--out", "session"),
        )
        with ThreadPoolExecutor(1) as pool:
            session = pool.submit(self.parties["prover"].run, *words, "--worker", worker)
            self._await("prover/session/attestation", session)
            self.give("prover", "verifier", "session/attestation")
            seen = ("order", "--attestation", "attestation", *root)
            agreed = ("--agreement", "agreement", "--case", "case")
            verifier.run("site", "admit", *seen, *agreed, "--secret", "secret", "--out", "verifier.part")
            self.give("verifier", "prover", "verifier.part")
            (self.root / "prover" / "verifier.part").rename(self.root / "prover" / "session" / "verifier.box")
            session.result()
        self.give("prover", "verifier", "session/outcome.bin", "session/statement")
        key = verifier.run("site", "key", *seen, "--statement", "statement").strip()
        return verifier.call(
            "report", "verify", "outcome.bin", "--key", key, "--agreement", "agreement", "--chips", chips
        )

    def _worker(self) -> str:
        site = self.root / "site"
        return (
            f"'{sys.executable}' -P -m weighbridge.cli site worker --order '{site}/order' --identity '{site}/launcher'"
            f" --image '{site}/image' --log '{site}/starts'"
        )

    def _await(self, name: str, session: Future[str]) -> None:
        while not (self.root / name).exists():
            if session.done():
                session.result()
                raise ProcessError(f"the session ended without {name}")
            time.sleep(0.1)


@contextmanager
def sealed(root: Path) -> Iterator[Sealed]:
    """Sets up the parties in a new directory; they end with the block."""
    with ExitStack() as stack:
        parties = {}
        for name in _PARTIES:
            (root / name).mkdir(parents=True)
            parties[name] = Party(name, root / name)
            stack.callback(parties[name].stop)
        yield Sealed(root, parties)
