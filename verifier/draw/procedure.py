"""Makes the draw of an inspection: logs, asks, waits, and begins again where a killed process left it.

Every step is a unit of work (`verifier.units`): the commitment with its secret, the closing, the opening. Until it is
opened, the secret is stored sealed. Log entries are the same bytes however often a step is repeated, and the Verifier's
log takes each once. What came too late (the process was killed, the machine slept) is *abandoned*: the log says so,
with the secret, and a new draw is committed to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.x509 import Certificate

from verifier.contact import heads
from verifier.contact.witness import Witness
from verifier.draw.derivation import Draw, DrawCommitment, close_draw, commit_draw, open_draw, sample
from verifier.draw.log_entries import Abandonment, Aim, Closing, Commitment, Opening, entry_digest, parse_as
from verifier.draw.own_log import OwnLog
from verifier.draw.record import DrawRecord, Logged
from verifier.model.facts import Plan
from verifier.model.strata import Heads, Population, encode_heads, parse_heads, parse_population
from verifier.registry import Registry
from verifier.store.sealing import Sealing
from verifier.units import Units
from weighbridge.attest.beacon import Beacon, Round, parse_info, parse_round
from weighbridge.attest.identity import Credentials
from weighbridge.attest.tlog import NoteKey
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import UsageError

Say = Callable[[str, int, int, str], None]
KIND = "draw"
MAX_ATTEMPTS = 100
_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A draw, and what others need to recompute it.

    Attributes:
        draw: The draw.
        record: The record to hand out.
    """

    draw: Draw
    record: DrawRecord


class Drawing:
    """Makes draws; one thread at a time uses it."""

    def __init__(
        self,
        *,
        registry: Registry,
        witness: Witness,
        log: OwnLog,
        witnesses: tuple[NoteKey, ...],
        beacon: Beacon,
        credentials: Credentials,
        manufacturer: Certificate,
        sealing: Sealing,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes what a Verifier has.

        Args:
            registry: Where the chips are.
            witness: What is held of their logs; its clock is the Verifier's.
            log: The Verifier's own log.
            witnesses: Keys of those who cosign it.
            beacon: Whose values count.
            credentials: The Verifier's own, to ask chips for their heads.
            manufacturer: Root certificate of device identities.
            sealing: Seals secrets that are not opened yet.
            sleep: Waits for seconds of the witness's clock.
        """
        self.sealing = sealing
        self.registry, self.witness, self.log, self.witnesses = registry, witness, log, witnesses
        self.beacon, self.credentials, self.manufacturer = beacon, credentials, manufacturer
        self.sleep = sleep

    def run(self, inspection: str, plan: Plan, units: Units, say: Say, transient: Say | None = None) -> Drawn:
        """Makes the draw of an inspection, or returns the one that was made.

        Args:
            inspection: Its identifier.
            plan: How many chips to draw, and how.
            units: Its units of work.
            say: Told what is done; what it raises ends the drawing, which goes on when it is run again.
            transient: Told how far that is, which is not worth keeping; by default `say` is.

        Raises:
            UsageError: There are fewer chips than samples, the plan makes no sense, or draws came too late every time.
            WeighbridgeError: The beacon gave a value that is not its own.
        """
        for attempt in range(MAX_ATTEMPTS):
            found = _Attempt(self, inspection, plan, units, say, transient or say, str(attempt)).run()
            if found is not None:
                return found
        raise UsageError("draws came too late each time; give them more time between cut-off and beacon")

    def now_ms(self) -> int:
        """Milliseconds since 1970 on the Verifier's clock."""
        return self.witness.now_ms()

    def recent(self, plan: Plan, population: Population) -> Heads:
        """Returns the heads of a population's logs that were witnessed within the last monitoring period."""
        held = self.witness.heads(self.now_ms() - int(plan.period_days * _DAY_MS))
        return {ueid: held[ueid] for ueid in population.ueids if ueid in held}

    def plan_for(
        self,
        inspection: str,
        plan: Plan,
        population: Population,
        registry_root: bytes = bytes(DIGEST_SIZE),
        registry_size: int = 0,
    ) -> DrawCommitment:
        """Returns the commitment to a draw that would begin now.

        Raises:
            UsageError: There are too few chips, too many strata, or no optimal allocation.
        """
        policy, now = plan.draw, self.now_ms()
        silent = len(population) - len(self.recent(plan, population))
        cutoff_s = policy.cutoff_s if policy.cutoff_s is not None else 1 + silent * heads.SECONDS_A_CHIP
        margin_s = policy.margin_s if policy.margin_s is not None else 2 + len(population) / 50_000
        return commit_draw(
            inspection=inspection,
            population=population,
            registry_root=registry_root,
            registry_size=registry_size,
            samples=plan.samples,
            aim=Aim(
                flops_threshold=plan.flops_threshold,
                chip_flops_per_day=plan.chip_flops_per_day,
                period_days=plan.period_days,
                snapshot_rate_per_day=plan.snapshot_rate_per_day,
                speeds=policy.speeds,
            ),
            beacon=self.beacon.info,
            now_ms=now,
            # Witnesses cosign with whole seconds, so that the commitment's may be a second after `now`.
            cutoff_ms=now + int(cutoff_s * 1000) + 1000,
            margin_ms=int(margin_s * 1000),
            by=policy.by,
            allocation=policy.allocation,
        )

    def made(self, inspection: str, plan: Plan, units: Units) -> Drawn | None:
        """Returns the draw of an inspection if there is one already; does nothing about it."""

        def silent(stage: str, done: int, total: int, message: str) -> None:
            raise UsageError("the draw is not finished; watch the inspection")

        for attempt in range(MAX_ATTEMPTS):
            if (KIND, f"opening-{attempt}") in units:
                return _Attempt(self, inspection, plan, units, silent, silent, str(attempt)).run()
            if (KIND, f"abandoned-{attempt}") not in units:
                break
        return None


@dataclass(frozen=True, slots=True)
class _Made:
    """What the first unit of a draw keeps; `sealed` is the secret."""

    entry: bytes
    sealed: bytes
    population: bytes
    beacon: dict[str, Any]


class _Attempt:
    """One attempt at a draw."""

    def __init__(
        self, of: Drawing, inspection: str, plan: Plan, units: Units, say: Say, transient: Say, attempt: str
    ) -> None:
        self._of, self._inspection, self._plan, self._units = of, inspection, plan, units
        self._say, self._transient, self._attempt = say, transient, attempt
        self._log, self._now = of.log, of.witness.now_ms

    def run(self) -> Drawn | None:
        """Returns the draw, or None if it was abandoned."""
        units, key = self._units, self._attempt
        fresh = (KIND, f"commitment-{key}") not in units
        made = units.once(KIND, f"commitment-{key}", self._commit, to=_made_to, of=self._made_of)
        commitment = parse_as(made.entry, Commitment)
        population, info = parse_population(made.population), parse_info(made.beacon)
        first = self._log.append(made.entry)
        ended = units.get(KIND, f"abandoned-{key}", bytes)
        if ended is not None:
            self._log.append(ended)
            return None
        if self._logged_s(first) > commitment.cutoff_ms // 1000:
            self._abandon(made, "the commitment was logged after its cut-off")
            return None
        closed = units.get(KIND, f"closing-{key}", _closed_of)
        if closed is None:
            if not fresh:
                self._abandon(made, "the Verifier was interrupted before it had closed the draw")
                return None
            found = self._heads(commitment, population)
            if self._now() >= info.time_ms(commitment.round) - 1000:
                self._abandon(made, "the heads were not collected before the beacon's value was out")
                return None
            closed = close_draw(commitment, population, found, self._now())
            units.put(KIND, f"closing-{key}", _closed_to(closed))
        closing, kept = closed
        second = self._log.append(closing.encode())
        if self._logged_s(second) >= info.time_ms(commitment.round) // 1000:
            self._abandon(made, "the heads were logged after the beacon's value was out")
            return None
        value = units.once(KIND, f"value-{key}", lambda: self._value(commitment), to=Round.to_json, of=parse_round)
        opening = units.once(
            KIND,
            f"opening-{key}",
            lambda: open_draw(self._unsealed(made), closing, population, kept, info, value).opening,
            to=Opening.encode,
            of=lambda data: parse_as(data, Opening),
        )
        third = self._log.append(opening.encode())
        drawn = Draw(commitment=commitment, opening=opening, strata=sample(commitment, population, kept, opening.seed))
        record = DrawRecord(
            log=self._log.key,
            witnesses=self._of.witnesses,
            commitment=self._entry(first),
            closing=self._entry(second),
            opening=self._entry(third),
            beacon=info,
            value=value,
            population=made.population,
            heads=encode_heads(kept),
            certain=tuple(drawn.certain),
            drawn=tuple(drawn.random),
        )
        return Drawn(draw=drawn, record=record)

    def _entry(self, index: int) -> Logged:
        return Logged(data=self._log.entry(index), proof=self._log.prove(index))

    def _logged_s(self, index: int) -> int:
        """Returns when the last witness cosigned an entry, in seconds since 1970, as a reader will see it."""
        note = self._log.prove(index).checkpoint
        return max((min(note.verify(key)) for key in self._of.witnesses), default=0)

    def _unsealed(self, made: _Made) -> DrawCommitment:
        secret = self._of.sealing.open(made.sealed)
        return DrawCommitment(commitment=parse_as(made.entry, Commitment), secret=secret)

    def _made_of(self, value: dict[str, Any]) -> _Made:
        # Draws that a former version opened were not sealed, and are in the log.
        sealed = value["sealed"] if "sealed" in value else self._of.sealing.seal(value["secret"])
        return _Made(value["entry"], sealed, value["population"], value["beacon"])

    def _abandon(self, made: _Made, reason: str) -> None:
        committed = self._unsealed(made)
        entry = Abandonment(commitment=entry_digest(committed.commitment), secret=committed.secret, reason=reason)
        self._units.put(KIND, f"abandoned-{self._attempt}", entry.encode())
        self._log.append(entry.encode())
        self._say("draw", 0, 0, f"draw abandoned: {reason}")

    def _commit(self) -> _Made:
        """Fixes everything but the sample."""
        self._say("draw", 0, 0, "fixing the population")
        plan, registry, beacon = self._plan, self._of.registry, self._of.beacon.info
        while True:  # population and root must be of the same moment
            size = registry.tree_size
            population = Population.of(registry.population())
            if registry.tree_size == size:
                break
        committed = self._of.plan_for(self._inspection, plan, population, registry.root(size), size)
        sealed = self._of.sealing.seal(committed.secret)
        return _Made(committed.commitment.encode(), sealed, population.text, beacon.to_json())

    def _heads(self, commitment: Commitment, population: Population) -> Heads:
        """Asks chips without a recent head for one, and waits for the cut-off."""
        known = self._of.recent(self._plan, population)
        silent = [ueid for ueid in population.ueids if ueid not in known]
        self._say("draw", 0, len(silent), f"asking {len(silent)} chips for the heads of their logs")
        asked = heads.ask(
            [self._of.registry.chip(ueid) for ueid in silent],
            credentials=self._of.credentials,
            manufacturer=self._of.manufacturer,
            witness=self._of.witness,
            until_ms=commitment.cutoff_ms,
            progress=lambda done: self._transient(
                "draw", done, len(silent), "asking chips for the heads of their logs"
            ),
        )
        self._wait(commitment.cutoff_ms, "waiting for the cut-off")
        return {**asked, **self._of.recent(self._plan, population)}

    def _value(self, commitment: Commitment) -> Round:
        """Waits for the beacon's value."""
        beacon = self._of.beacon
        self._wait(beacon.info.time_ms(commitment.round), f"waiting for round {commitment.round} of the beacon")
        while (value := beacon.value(commitment.round)) is None:
            self._transient("draw", 0, 0, f"waiting for round {commitment.round} of the beacon to be provided")
            self._of.sleep(0.5)
        return value

    def _wait(self, until_ms: int, message: str) -> None:
        while (left := until_ms - self._now()) > 0:
            self._transient("draw", 0, 0, f"{message}: {left / 1000:.0f} seconds")
            self._of.sleep(min(left / 1000, 0.5))


def _made_to(made: _Made) -> dict[str, Any]:
    return {"entry": made.entry, "sealed": made.sealed, "population": made.population, "beacon": made.beacon}


def _closed_to(closed: tuple[Closing, Heads]) -> dict[str, bytes]:
    return {"entry": closed[0].encode(), "heads": encode_heads(closed[1])}


def _closed_of(value: dict[str, bytes]) -> tuple[Closing, Heads]:
    return parse_as(value["entry"], Closing), parse_heads(value["heads"])
