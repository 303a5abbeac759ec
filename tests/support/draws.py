"""Draws over a small fleet, made step by step, so that a test can cheat at each of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from verifier.draw.derivation import Draw, DrawCommitment, close_draw, commit_draw, open_draw
from verifier.draw.log_entries import Aim, Closing
from verifier.draw.own_log import PREFIX, OwnLog
from verifier.draw.record import DrawRecord, Logged
from verifier.model.strata import Heads, Population, encode_heads
from verifier.store import revision
from verifier.store.database import Database
from weighbridge.attest import tlog
from weighbridge.attest.beacon import LocalBeacon, Round
from weighbridge.attest.tlog import NoteSigner

START = 1_800_000_000
AIM = Aim(flops_threshold=3.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=2.0)


@cache
def beacon_key(number: int = 0) -> rsa.RSAPrivateKey:
    """Returns a key, the same for the same number; small, because making one takes time."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def ueid(number: int) -> bytes:
    """Returns the UEID of a chip."""
    return b"\x01" + number.to_bytes(16, "big")


def fleet(chips: int = 40) -> Population:
    """Returns chips of two owners at three sites and of two types."""
    return Population.of(
        (ueid(n), f"owner {n % 2}", f"site {n % 3}", "fast" if n % 4 == 0 else "slow") for n in range(chips)
    )


def heads_of(population: Population, without: Collection[int] = ()) -> dict[bytes, tuple[int, bytes]]:
    """Returns a head of each chip, but for those at some places."""
    return {
        each: (place + 1, bytes([place % 256]) * 32)
        for place, each in enumerate(population.ueids)
        if place not in without
    }


@dataclass
class House:
    """A Verifier with its log, a beacon, and a clock that tests turn.

    Attributes:
        path: Directory for its database.
        time: Seconds since 1970.
    """

    path: Path
    time: float = START + 1000
    logs: list[Database] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Makes keys and log."""
        self.beacon = LocalBeacon(beacon_key(), period_s=3, genesis_s=START, clock=lambda: self.time)
        self.witness = NoteSigner("example/witness", tlog.WITNESS, bytes(31) + b"\x02")
        self.log = self.new_log()

    def new_log(self) -> OwnLog:
        """Returns an empty log with the house's keys."""
        database = Database(self.path / f"{len(self.logs)}.sqlite")
        revision.prepare(database)
        self.logs.append(database)
        signer = NoteSigner(PREFIX + "example", tlog.LOG, bytes(31) + b"\x01")
        return OwnLog(database.session, signer, [self.witness], lambda: self.time)

    def close(self) -> None:
        """Closes all databases."""
        for database in self.logs:
            database.close()

    def commit(self, population: Population, samples: int = 8, **options: Any) -> tuple[DrawCommitment, int]:
        """Commits to a draw; returns it and its place in the log."""
        now = int(self.time * 1000)
        values: dict[str, Any] = {
            "inspection": "one", "registry_root": bytes(32), "registry_size": 5,
            "aim": AIM, "beacon": self.beacon.info, "now_ms": now,
            "cutoff_ms": now + 10_000, "margin_ms": 5_000,
        }  # fmt: skip
        committed = commit_draw(population=population, samples=samples, **{**values, **options})
        return committed, self.log.append(committed.commitment.encode())

    def shut(self, committed: DrawCommitment, population: Population, heads: Heads) -> tuple[Closing, int]:
        """Closes a draw a second after its cut-off; returns the closing and its place in the log."""
        self.time = committed.commitment.cutoff_ms / 1000 + 1
        closing, _ = close_draw(committed.commitment, population, heads, int(self.time * 1000))
        return closing, self.log.append(closing.encode())

    def value(self, number: int) -> Round:
        """Waits for a round and returns its value."""
        self.time = max(self.time, self.beacon.info.time_ms(number) / 1000)
        found = self.beacon.value(number)
        assert found is not None
        return found

    def logged(self, place: int) -> Logged:
        """Returns an entry with its proof."""
        return Logged(data=self.log.entry(place), proof=self.log.prove(place))

    def record(self, population: Population, heads: Heads, **options: Any) -> DrawRecord:
        """Makes an honest draw and returns its record."""
        committed, first = self.commit(population, **options)
        closing, second = self.shut(committed, population, heads)
        value = self.value(committed.commitment.round)
        drawn = open_draw(committed, closing, population, heads, self.beacon.info, value)
        third = self.log.append(drawn.opening.encode())
        return self.recorded(drawn, (first, second, third), population, heads, value)

    def recorded(
        self, drawn: Draw, places: tuple[int, int, int], population: Population, heads: Heads, value: Round
    ) -> DrawRecord:
        """Returns the record of a draw."""
        return DrawRecord(
            log=self.log.key,
            witnesses=(self.witness.key,),
            commitment=self.logged(places[0]),
            closing=self.logged(places[1]),
            opening=self.logged(places[2]),
            beacon=self.beacon.info,
            value=value,
            population=population.text,
            heads=encode_heads(heads),
            certain=tuple(drawn.certain),
            drawn=tuple(drawn.random),
        )

    def whole_log(self) -> tuple[bytes, list[bytes]]:
        """Returns checkpoint and entries of the log, as `read_log` does."""
        return dict(self.log.files())["checkpoint"], self.log.entries()
