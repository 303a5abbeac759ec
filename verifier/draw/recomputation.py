"""Recomputing a draw from its record: what a reader can do who does not trust the Verifier that made it.

The findings here are about the Verifier, not about any Prover. Each check stands alone, so that one thing that is wrong
hides no other. docs/formats/draw.md has the steps with numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from verifier.draw.derivation import StratumSample, sample, sample_digest
from verifier.draw.log_entries import (
    Abandonment,
    Closing,
    Commitment,
    Opening,
    entry_digest,
    parse_entry,
    secret_digest,
    seed_of,
)
from verifier.draw.record import DrawRecord, Logged
from verifier.model.strata import Heads, Population, parse_heads, parse_population
from verifier.registry.reconstruction import replay_log
from verifier.registry.transitions import DRAWN
from weighbridge.attest import tlog
from weighbridge.attest.beacon import verify_round
from weighbridge.attest.tlog import NoteKey
from weighbridge.core import merkle
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import Finding, WeighbridgeError

_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Trusted:
    """What the reader of a draw's record knows from other sources.

    Attributes:
        now_ms: The time, in milliseconds since 1970.
        log: Key of the Verifier's log; None to take the record's.
        witnesses: Keys of which each must have cosigned in time; if there are none, the record's count.
        registry: Root of the registry; None to take what was committed to.
        beacon: Chain hash of the beacon; None to take what was committed to.
        whole_log: The Verifier's log as `drawrecord.read_log` returns it; None if it was not fetched.
        registry_log: Entries of the registry's log, at least as many as the draw was committed to over; None if it was
            not fetched.
        cosigned: Checkpoints of chips' logs that the Verifier cosigned, as chips hold them.
    """

    now_ms: int
    log: NoteKey | None = None
    witnesses: Sequence[NoteKey] = field(default=())
    registry: bytes | None = None
    beacon: bytes | None = None
    whole_log: tuple[bytes, list[bytes]] | None = None
    registry_log: Sequence[bytes] | None = None
    cosigned: Sequence[bytes] = field(default=())


def verify_draw(record: DrawRecord, trusted: Trusted) -> list[Finding]:
    """Recomputes a draw and returns what is wrong with it; nothing, if it was made as it must be.

    Args:
        record: As `drawrecord.read_record` returns it.
        trusted: What is known by other ways.
    """
    return list(_findings(record, trusted))


def _findings(record: DrawRecord, trusted: Trusted) -> Iterator[Finding]:
    commitment, closing, opening = record.committed(), record.closed(), record.opened()
    about = partial(Finding, subject=f"draw {commitment.inspection}")
    yield from _logged(record, trusted, about)
    for identifier, name, expected, found in (
        ("draw.registry.differs", "registry", trusted.registry, commitment.registry),
        ("draw.beacon.differs", "beacon", trusted.beacon, commitment.beacon),
    ):
        if expected is not None and expected != found:
            yield about(
                id=identifier,
                message=f"the draw was committed to over another {name} than the one that is known",
                expected=expected.hex(),
                found=found.hex(),
            )
    population = yield from _population(record, commitment, about)
    if trusted.registry_log is not None:
        yield from _registered(commitment, trusted.registry_log, about)
    if closing is None or opening is None:
        if trusted.now_ms > commitment.open_by_ms:
            yield _unopened(commitment)
        return
    heads = yield from _heads(record, closing, trusted, about)
    for entry in (closing, opening):
        if entry.commitment != entry_digest(commitment):
            yield about(
                id="draw.entry.differs",
                message=f"the {type(entry).__name__.lower()} in the record belongs to another commitment",
                expected=entry_digest(commitment).hex(),
                found=entry.commitment.hex(),
            )
    if secret_digest(opening.secret) != commitment.secret:
        yield about(
            id="draw.secret.differs",
            message="the secret that was opened is not the one that was committed to: it was chosen afterwards",
            expected=commitment.secret.hex(),
            found=secret_digest(opening.secret).hex(),
        )
    if isinstance(opening, Abandonment):
        yield _abandoned(commitment, opening)
        return
    yield from _value(record, commitment, opening, about)
    if record.value is None or population is None or heads is None:
        return
    seed = seed_of(opening.secret, commitment.registry, bytes_digest(record.heads), record.value.randomness)
    if seed != opening.seed or opening.closing != entry_digest(closing):
        yield about(
            id="draw.seed.differs",
            message="the seed that was logged does not follow from secret, registry, heads and beacon",
            expected=seed.hex(),
            found=opening.seed.hex(),
        )
    yield from _sample(record, opening, sample(commitment, population, heads, seed), about)


def _logged(record: DrawRecord, trusted: Trusted, about: partial[Finding]) -> Iterator[Finding]:
    """Checks that the entries are in the log, in order, and when."""
    key = record.log
    if trusted.log not in (None, key):  # said once: what follows is about the log that the record is of
        yield about(
            id="draw.log.differs",
            message="the record is of another log",
            expected=str(trusted.log),
            found=str(key),
        )
    commitment = record.committed()
    entries = {"commitment": record.commitment, "closing": record.closing, "opening": record.opening}
    logged = {name: each for name, each in entries.items() if each is not None}
    for name, each in logged.items():
        try:
            tlog.verify_proof(each.proof, each.data, key)
        except WeighbridgeError as error:
            yield about(id="draw.entry.unlogged", message=f"the {name} is not shown to be in the log: {error.message}")
    indices = [each.proof.index for each in logged.values()]
    if indices != sorted(set(indices)):
        yield about(id="draw.entry.order", message="commitment, closing and opening are logged in another order")
    due = record.beacon.time_ms(commitment.round) // 1000
    for name, late, latest in (
        ("commitment", "draw.commitment.late", commitment.cutoff_ms // 1000),
        ("closing", "draw.closing.late", due - 1),
    ):
        if name not in logged:
            continue
        times = yield from _times(logged[name], name, trusted.witnesses or record.witnesses, about)
        if times and max(times) > latest:
            yield about(
                id=late,
                message=f"the {name} was logged after the "
                + ("cut-off" if name == "commitment" else "beacon's value was out")
                + ", so it may have been chosen",
                expected=f"at most {latest} seconds since 1970",
                found=f"{max(times)}",
            )
        if name == "closing" and times and min(times) < commitment.cutoff_ms // 1000:
            yield about(
                id="draw.closing.early",
                message="the heads were closed before the cut-off, so chips had less time to report than was said",
                expected=f"at least {commitment.cutoff_ms // 1000} seconds since 1970",
                found=f"{min(times)}",
            )
    if trusted.whole_log is not None:
        yield from _whole_log(logged.values(), key, trusted, about)


def _times(
    logged: Logged, name: str, witnesses: Sequence[NoteKey], about: partial[Finding]
) -> Generator[Finding, None, list[int]]:
    """Returns when each witness first cosigned the checkpoint over an entry; seconds since 1970."""
    times = []
    for key in witnesses:
        try:
            times.append(min(logged.proof.checkpoint.verify(key)))
        except WeighbridgeError:
            yield about(
                id="draw.entry.unwitnessed",
                message=f"the witness {key.name} did not cosign the log with the {name}, so its time is unattested",
            )
    if not witnesses:
        yield about(
            id="draw.entry.unwitnessed", message=f"no witness cosigned the log with the {name}: its time is unattested"
        )
    return times


def _whole_log(logged: Iterable[Logged], key: NoteKey, trusted: Trusted, about: partial[Finding]) -> Iterator[Finding]:
    """Checks the entries against the whole log, and the log for commitments that were not kept."""
    assert trusted.whole_log is not None
    note, entries = trusted.whole_log
    tree = merkle.Tree(map(merkle.leaf_hash, entries))
    try:
        checkpoint, _ = tlog.open_checkpoint(note, key)
        whole = checkpoint.size == len(entries) and checkpoint.root == tree.root()
    except WeighbridgeError:
        whole = False
    for each in logged:
        shown = tlog.parse_checkpoint(each.proof.checkpoint.text)
        whole = whole and shown.size <= len(tree) and tree.root(shown.size) == shown.root
    if not whole:
        yield about(
            id="draw.log.differs",
            message="the Verifier's log is not the one under the checkpoints in the record: it shows different logs",
        )
    parsed: list[Commitment | Closing | Opening | Abandonment] = []
    for data in entries:
        try:
            parsed.append(parse_entry(data))
        except WeighbridgeError:  # the log may hold other things
            continue
    yield from audit(parsed, trusted.now_ms)


def audit(entries: Sequence[Commitment | Closing | Opening | Abandonment], now_ms: int) -> Iterator[Finding]:
    """Searches a Verifier's log for commitments that were not kept.

    Args:
        entries: All entries about draws, in order.
        now_ms: The time, in milliseconds since 1970.
    """
    ends: dict[bytes, list[Opening | Abandonment]] = {}
    closings: dict[bytes, int] = {}
    for entry in entries:
        if isinstance(entry, Closing):
            closings[entry.commitment] = closings.get(entry.commitment, 0) + 1
        elif not isinstance(entry, Commitment):
            ends.setdefault(entry.commitment, []).append(entry)
    for entry in entries:
        if not isinstance(entry, Commitment):
            continue
        digest = entry_digest(entry)
        found = ends.get(digest, [])
        if not found and now_ms > entry.open_by_ms:
            yield _unopened(entry)
        for end in found:
            if isinstance(end, Abandonment):
                yield _abandoned(entry, end)
        for what, count in (("closing", closings.get(digest, 0)), ("opening", len(found))):
            if count > 1:
                yield Finding(
                    id="draw.entry.repeated",
                    message=f"a draw has more than one {what}, so the Verifier could choose among them",
                    expected="1",
                    found=str(count),
                    subject=f"draw {entry.inspection}",
                )


def _unopened(commitment: Commitment) -> Finding:
    return Finding(
        id="draw.commitment.unopened",
        message="a draw was committed to and never opened: its sample may not have pleased the Verifier",
        expected=f"an opening by {commitment.open_by_ms} ms since 1970",
        found="none",
        subject=f"draw {commitment.inspection}",
        evidence={"commitment": entry_digest(commitment).hex()},
    )


def _abandoned(commitment: Commitment, end: Abandonment) -> Finding:
    return Finding(
        id="draw.abandoned",
        message=f"a draw was given up: {end.reason}",
        subject=f"draw {commitment.inspection}",
        severity="info",
        evidence={"commitment": entry_digest(commitment).hex(), "secret": end.secret.hex()},
    )


def _population(
    record: DrawRecord, commitment: Commitment, about: partial[Finding]
) -> Generator[Finding, None, Population | None]:
    """Returns the population, if it is readable."""
    if bytes_digest(record.population) != commitment.population:
        yield about(
            id="draw.population.differs",
            message="the population is not the one that was committed to: chips were added, left out or changed",
            expected=commitment.population.hex(),
            found=bytes_digest(record.population).hex(),
        )
    try:
        population = parse_population(record.population)
    except WeighbridgeError as error:
        yield about(id=error.reason, message=error.message)
        return None
    strata = [(key, len(chips)) for key, chips in population.strata(commitment.by).items()]
    committed = [(each.key, each.chips) for each in commitment.strata]
    if strata != committed or len(population) != commitment.chips:
        yield about(
            id="draw.strata.differs",
            message="the strata that were committed to are not those of the population",
            expected=str(strata)[:500],
            found=str(committed)[:500],
        )
    return population


def _registered(commitment: Commitment, entries: Sequence[bytes], about: partial[Finding]) -> Iterator[Finding]:
    """Works out from the registry's log which chips could be drawn."""
    first = entries[: commitment.registry_size]
    root = merkle.root([merkle.leaf_hash(each) for each in first])
    if len(first) != commitment.registry_size or root != commitment.registry:
        yield about(
            id="draw.registry.differs",
            message="the registry's log is not the one that the draw was committed to over, or has fewer entries",
            expected=f"{commitment.registry_size} entries, {commitment.registry.hex()}",
            found=f"{len(first)} entries, {root.hex()}",
        )
        return
    chips = replay_log(first).chips()
    due = Population.of((ueid, each.owner, each.site, each.chip_type) for ueid, each, _ in chips if each.state in DRAWN)
    if due.digest != commitment.population:
        yield about(
            id="draw.population.unregistered",
            message="the population is not that of the registry's log: the Verifier drew from other chips",
            expected=f"{len(due)} chips, {due.digest.hex()}",
            found=f"{commitment.chips} chips, {commitment.population.hex()}",
        )


def _heads(
    record: DrawRecord, closing: Closing, trusted: Trusted, about: partial[Finding]
) -> Generator[Finding, None, Heads | None]:
    """Returns the heads, if they are readable."""
    if bytes_digest(record.heads) != closing.heads:
        yield about(
            id="draw.heads.differs",
            message="the heads are not those that were logged after the cut-off",
            expected=closing.heads.hex(),
            found=bytes_digest(record.heads).hex(),
        )
    try:
        heads = parse_heads(record.heads)
    except WeighbridgeError as error:
        yield about(id=error.reason, message=error.message)
        return None
    if len(heads) != closing.witnessed:
        yield about(
            id="draw.heads.differs",
            message="another number of heads was logged",
            expected=str(len(heads)),
            found=str(closing.witnessed),
        )
    yield from _omitted(record, heads, trusted, about)
    return heads


def _omitted(record: DrawRecord, heads: Heads, trusted: Trusted, about: partial[Finding]) -> Iterator[Finding]:
    """Compares the heads with checkpoints that chips have from the Verifier."""
    cutoff = record.committed().cutoff_ms // 1000
    for data in trusted.cosigned:
        note = tlog.parse_note(data)
        checkpoint = tlog.parse_checkpoint(note.text)
        times = [time for key in trusted.witnesses or record.witnesses for time in _cosigned(note, key)]
        if not times or min(times) >= cutoff:
            continue
        ueid = next((each for each in heads if tlog.origin(each) == checkpoint.origin), None)
        if ueid is None or heads[ueid][0] < checkpoint.size:
            yield about(
                id="draw.head.omitted",
                message=f"the Verifier had cosigned {checkpoint.size} entries of {checkpoint.origin} before the "
                "cut-off and left that head out",
                expected=f"at least {checkpoint.size} entries",
                found="none" if ueid is None else str(heads[ueid][0]),
            )


def _cosigned(note: tlog.Note, key: NoteKey) -> list[int]:
    try:
        return note.verify(key)
    except WeighbridgeError:
        return []


def _value(record: DrawRecord, commitment: Commitment, opening: Opening, about: partial[Finding]) -> Iterator[Finding]:
    value = record.value
    if value is None or value.number != commitment.round or record.beacon.chain != commitment.beacon:
        yield about(
            id="draw.beacon.differs",
            message="the beacon's value is of another round or another beacon than was committed to",
            expected=f"round {commitment.round} of {commitment.beacon.hex()}",
            found="none" if value is None else f"round {value.number} of {record.beacon.chain.hex()}",
        )
    if value is None:
        return
    try:
        verify_round(record.beacon, value)
    except WeighbridgeError as error:
        yield about(id="draw.beacon.value", message=error.message)
    if value.randomness != opening.randomness:
        yield about(
            id="draw.beacon.value",
            message="another value was logged than the record has",
            expected=value.randomness.hex(),
            found=opening.randomness.hex(),
        )


def _sample(
    record: DrawRecord, opening: Opening, strata: Sequence[StratumSample], about: partial[Finding]
) -> Iterator[Finding]:
    drawn = [ueid for each in strata for ueid in each.drawn]
    certain = [ueid for each in strata for ueid in each.certain]
    for what, expected, found in (("drawn", drawn, list(record.drawn)), ("certain", certain, list(record.certain))):
        if expected == found:
            continue
        missing, foreign = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        yield about(
            id="draw.sample.differs",
            message=f"the sample is not the one that the seed draws: {len(missing)} chips were left out and "
            f"{len(foreign)} put in" + (" among those without a head" if what == "certain" else ""),
            expected=", ".join(ueid.hex() for ueid in missing[:_NAMED]),
            found=", ".join(ueid.hex() for ueid in foreign[:_NAMED]),
        )
    if sample_digest(strata) != opening.sample:
        yield about(
            id="draw.sample.differs",
            message="another sample was logged than the seed draws",
            expected=sample_digest(strata).hex(),
            found=opening.sample.hex(),
        )
