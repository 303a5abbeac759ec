"""What a chip registry costs: statements, tables, look-ups, draws and audits of a million chips.

`python -m benchmarks.bench_registry [--chips 1000000] [--lot 2000]` makes an SQLite registry by signed statements: lots
of chips are made, tested, sold (signed by both sides) and installed. Then it looks up chips, draws some, audits,
verifies the whole log again as another party would, and exports and imports all chips as a table. Each part runs in a
process of its own, so that its peak memory is its own.

Results go to benchmarks/results/registry.json.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from benchmarks import machine
from verifier.model.seeded_draw import draw
from verifier.registry import Party, Registry, csvfile, load_key, published
from verifier.registry.audit import audit
from verifier.registry.reconstruction import compare, replay_log
from weighbridge.attest.custody_statements import Kind, PrivateKey, Statement, countersign, encode_key, sign

OWNERS = 40
START, DAY = 1_700_000_000, 86_400
LOOK_UPS, DRAWN = 2000, 1000


def ueid(number: int) -> bytes:
    """Returns a chip's UEID: 0x01 (RAND) and 16 bytes that look random, so that the tables' keys are in no order."""
    return b"\x01" + random.Random(number).randbytes(16)


class Watch:
    """Wall and processor seconds since it was made, or as they were added up."""

    def __init__(self, *, running: bool = True) -> None:
        self._wall, self._cpu = (time.perf_counter(), time.process_time()) if running else (0.0, 0.0)
        self._running = running

    def add(self, other: Watch) -> None:
        """Adds what another watch shows to one that does not run."""
        wall, cpu = other._now()
        self._wall, self._cpu = self._wall + wall, self._cpu + cpu

    def seconds(self) -> dict[str, float]:
        """What it shows."""
        wall, cpu = self._now()
        return {"wall_s": round(wall, 3), "cpu_s": round(cpu, 3)}

    def _now(self) -> tuple[float, float]:
        if not self._running:
            return self._wall, self._cpu
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


class Trade:
    """Parties that make statements about lots of chips."""

    def __init__(self, path: Path) -> None:
        self.now = START
        self.registry = Registry(path / "registry.db", load_key(path / "key"), clock=lambda: self.now)
        self.keys: dict[str, PrivateKey] = {"fab": ec.generate_private_key(ec.SECP384R1())}
        self.keys |= {f"owner-{number}": ed25519.Ed25519PrivateKey.generate() for number in range(OWNERS)}
        for name, key in self.keys.items():
            role = "manufacturer" if name == "fab" else "owner"
            self.registry.statements.declare(Party(name=name, roles=(role,), key=encode_key(key.public_key())))
        self.sign, self.submit = Watch(running=False), Watch(running=False)
        self.statements = 0

    def say(self, kind: Kind, by: str, chips: tuple[bytes, ...], *, to: str = "", site: str = "") -> None:
        """Signs and submits one statement."""
        watch = Watch()
        statement = Statement(
            kind=kind, registry=self.registry.name, by=by, to=to, time_s=self.now, site=site,
            chip_type="WB-1" if kind == "made" else "", chips=chips,
        )  # fmt: skip
        data = sign(statement, self.keys[by])
        if to:
            data = countersign(data, self.keys[to])
        self.sign.add(watch)
        watch = Watch()
        self.registry.submit(data)
        self.submit.add(watch)
        self.statements += 1


def events(path: Path, count: int, lot: int) -> dict[str, Any]:
    """Lots of chips from the fab to a site, in four statements each."""
    trade = Trade(path)
    for number, first in enumerate(range(0, count, lot)):
        chips = tuple(sorted(ueid(each) for each in range(first, min(first + lot, count))))
        owner = f"owner-{number % OWNERS}"
        trade.now += 4 * 60
        trade.say("made", "fab", chips)
        trade.say("tested", "fab", chips)
        trade.say("sold", "fab", chips, to=owner)
        trade.say("installed", owner, chips, site=f"site-{number % OWNERS}")
    return {
        "statements": trade.statements,
        "sign": trade.sign.seconds(),
        "submit": trade.submit.seconds(),
        "database_bytes": sum(each.stat().st_size for each in path.iterdir() if each.name.startswith("registry.db")),
    }


def queries(path: Path, count: int, lot: int) -> dict[str, Any]:
    """Look-ups, root, draw and audit of a registry that was just opened."""
    registry = Registry(path / "registry.db", load_key(path / "key"))
    out: dict[str, Any] = {}
    timed(out, "root", registry.root)
    chosen = [ueid(each) for each in random.Random(1).sample(range(count), min(LOOK_UPS, count))]

    def look_up() -> None:
        for each in chosen:
            assert registry.chip(each).state == "installed"
            assert len(registry.history(each)) == 4

    timed(out, "look_ups", look_up)
    out["looked_up"] = len(chosen)

    def drawn() -> None:
        population = [member.ueid for member in registry.population()]
        assert len(population) == count
        assert len(draw(population, min(DRAWN, count), bytes(32))) == min(DRAWN, count)

    timed(out, "draw", drawn)
    timed(out, "audit", lambda: audit(registry))
    timed(out, "proof", lambda: published.prove(registry, registry.tree_size - 1))
    return out


def anew(path: Path, count: int, lot: int) -> dict[str, Any]:
    """The whole log verified and worked out again, and compared with the tables."""
    registry = Registry(path / "registry.db")
    out: dict[str, Any] = {}

    def verify() -> None:
        replayed = replay_log(registry.log.entries())
        assert replayed.findings == []
        assert compare(registry, replayed) == []

    timed(out, "deep_audit", verify)
    return out


def tables(path: Path, count: int, lot: int) -> dict[str, Any]:
    """All chips out as CSV, and into another registry."""
    registry, out = Registry(path / "registry.db"), dict[str, Any]()
    table = path / "chips.csv"
    with table.open("w", newline="") as file:
        timed(out, "export", lambda: csvfile.export(registry, file))
    other = Registry(path / "other.db")
    with table.open(newline="") as file:
        timed(out, "import", lambda: csvfile.import_(other, file))
    out["table_bytes"] = table.stat().st_size
    timed(out, "imported_root", other.root)
    assert other.population_size() == count
    return out


PARTS: dict[str, Callable[[Path, int, int], dict[str, Any]]] = {
    "events": events,
    "queries": queries,
    "anew": anew,
    "tables": tables,
}


def timed(out: dict[str, Any], name: str, work: Callable[[], object]) -> None:
    """Does something and notes how long it took."""
    watch = Watch()
    work()
    out[name] = watch.seconds()


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", type=int, default=1_000_000)
    parser.add_argument("--lot", type=int, default=2000)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    if options.part:
        before = peak_bytes()
        found = PARTS[options.part](options.path, options.chips, options.lot)
        print(json.dumps(found | {"imports_bytes": before, "peak_bytes": peak_bytes()}))
        return
    sizes = ("--chips", str(options.chips), "--lot", str(options.lot))
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        parts = {
            part: machine.ask(
                "benchmarks.bench_registry", "--part", part, "--path", directory, *sizes, environment=machine.HERE
            )
            for part in PARTS
        }
    result = {**machine.about(), "chips": options.chips, "lot": options.lot, "drawn": DRAWN, **parts}
    machine.save("registry", result)
    print(result)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
