"""A small trade in chips: parties with keys, declared in a registry of their own, and what they say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from verifier.registry import Party, Registry, load_key
from weighbridge.attest.custody_statements import Kind, PrivateKey, Statement, countersign, encode_key, sign

START = 1_700_000_000
DAY = 86_400


def ueid(number: int) -> bytes:
    """Returns the UEID of a chip, 17 bytes."""
    return b"\x01" + number.to_bytes(16)


class Trade:
    """A registry, its clock, and the keys of everybody in it.

    Attributes:
        now: The registry's time, seconds since 1970.
        registry: The registry.
        keys: Private keys by the names of parties.
    """

    def __init__(self, path: Path, url: str = "") -> None:
        self.now = START
        key = load_key(path / "registry.db.registry-key")
        self.registry = Registry(url or path / "registry.db", key, clock=lambda: self.now)
        self.keys: dict[str, PrivateKey] = {}
        self.join("fab", "manufacturer")
        self.join("inspectorate", "inspector")
        for name in ("acme", "bolt"):
            self.join(name, "owner")

    def join(self, name: str, *roles: str) -> None:
        """Declares a party under a new key; Ed25519 for owners, P-384 for others."""
        key: PrivateKey = (
            ed25519.Ed25519PrivateKey.generate() if "owner" in roles else ec.generate_private_key(ec.SECP384R1())
        )
        self.registry.statements.declare(Party(name=name, roles=roles, key=encode_key(key.public_key())))
        self.keys[name] = key

    def write(
        self, kind: Kind, by: str, chips: Iterable[int], *, to: str = "", site: str = "", at: int | None = None
    ) -> bytes:
        """Returns a statement under all signatures that it needs; by default of a day after the last."""
        if at is None:
            self.now += DAY
            at = self.now
        statement = Statement(
            kind=kind,
            registry=self.registry.name,
            by=by,
            to=to,
            time_s=at,
            site=site,
            chip_type="WB-1" if kind == "made" else "",
            chips=tuple(ueid(number) for number in sorted(chips)),
        )
        data = sign(statement, self.keys[by])
        return countersign(data, self.keys[to]) if to else data

    def say(
        self, kind: Kind, by: str, chips: Iterable[int], *, to: str = "", site: str = "", at: int | None = None
    ) -> int:
        """Writes a statement, submits it and returns its place."""
        return self.registry.submit(self.write(kind, by, chips, to=to, site=site, at=at))

    def supply(self, chips: Iterable[int], owner: str = "acme") -> None:
        """Makes chips, tests, sells and installs them, as honest parties do."""
        numbers = list(chips)
        self.say("made", "fab", numbers)
        self.say("tested", "fab", numbers)
        self.say("sold", "fab", numbers, to=owner)
        self.say("installed", owner, numbers, site=f"{owner}-1")
