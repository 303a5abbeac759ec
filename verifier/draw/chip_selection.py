"""The part of an inspection that decides which chips it looks at, and says what that is worth.

A plan with a seed draws as `verifier.model.seeded_draw` says: at once, reproducibly, and only as random as the choice
of the seed. A plan without one is drawn as `verifier.draw.derivation` says, which neither side can steer; its record
is kept for good and given to every party that asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cbor2
import zstandard

from analysis.domain import DetectionDomainError
from verifier.draw.derivation import detection
from verifier.draw.log_entries import Abandonment, Closing, Commitment, Opening, entry_digest, parse_entry
from verifier.draw.own_log import OwnLog
from verifier.draw.procedure import Drawing, Drawn, Say
from verifier.draw.recomputation import audit
from verifier.draw.record import LOG
from verifier.draw.rolling_periods import Draws, accumulated, rolling
from verifier.model.facts import Plan
from verifier.model.strata import Population
from verifier.registry import Registry
from verifier.store.cache import Cache
from verifier.units import Units
from weighbridge.attest.beacon import Beacon, BeaconInfo
from weighbridge.core.bounded import compress
from weighbridge.core.digests import cbor
from weighbridge.core.errors import Finding, WeighbridgeError

GIVEN = (
    "The seed of the draw was given by the Verifier's operator, so it rests on the operator's word that it was not "
    "chosen for the sample that it draws.",
)
COMMITTED = (
    "The Verifier's log and its clock are honest as far as no witness that others trust cosigned them; "
    "`weighbridge inspect verify-draw` checks them against such witnesses.",
    "The registry's log has all chips; the draw was committed to over its root.",
    "A chip that was drawn with certainty, because no head of its log was witnessed at the cut-off, is no part of the "
    "random sample. Where it could not be verified, p allows for the run being there.",
    "A chip drawn at random that did not verify fell silent when the draw was known. p takes all of these, of all "
    "strata together, for the chips that would have shown the run.",
)
LOCAL_BEACON = "The beacon is a local one: the holder of its key could know its values in advance."
DRAND_BEACON = (
    "The beacon's value was brought by file. That its randomness is the hash of its signature was verified; the "
    "network's BLS signature itself was not. Compare the value with drand nodes."
)
SIGNED_BEACON = (
    "The beacon's value was brought by file, and the network's signature on it was verified. Only as many of the "
    "network's members together as its threshold says could have known it in advance."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What an inspection drew without a given seed.

    Attributes:
        drawn: The draw and its record.
        sampler: Where it is kept.
    """

    drawn: Drawn
    sampler: Sampler

    @property
    def certain(self) -> list[bytes]:
        """The chips drawn with certainty."""
        return self.drawn.draw.certain

    def findings(self) -> list[Finding]:
        """Returns what the Verifier's own log has against the Verifier: draws that were not opened, or given up."""
        return self.sampler.findings(self.drawn.draw.commitment.inspection)

    def section(self, verified: Collection[bytes], found: Collection[bytes] = ()) -> dict[str, Any]:
        """Returns the report's section about the draw.

        Args:
            verified: UEIDs of the chips that count as verified.
            found: UEIDs of those on which a violation was seen.
        """
        return self.sampler.section(self.drawn, verified, found)


class Sampler:
    """Draws the chips of inspections; one thread at a time uses it."""

    def __init__(self, *, drawing: Drawing, draws: Draws, log: OwnLog, registry: Registry, cache: Cache) -> None:
        """Takes what it needs.

        Args:
            drawing: Makes draws.
            draws: Keeps them.
            log: The Verifier's own log.
            registry: Where inspections and chips are.
            cache: Where records are kept.
        """
        self._drawing, self._draws, self._log = drawing, draws, log
        self._registry, self._cache = registry, cache

    @property
    def beacon(self) -> Beacon:
        """The beacon whose values count, in draws and for segments that are due while runs go on."""
        return self._drawing.beacon

    def check(self, plan: Plan) -> None:
        """Refuses a plan that cannot be drawn, before anything is logged about it.

        Raises:
            UsageError: There are too few chips, too many strata, or no optimal allocation.
        """
        self._drawing.plan_for("check", plan, Population.of(self._registry.population()))

    def draw(self, inspection: str, plan: Plan, say: Say, transient: Say | None = None) -> tuple[Plan, Sampled]:
        """Makes the draw of an inspection, or takes up the one that was made.

        Args:
            inspection: Its identifier.
            plan: How many chips to draw, and how.
            say: Told what is done.
            transient: Told how far that is; by default `say` is.

        Returns:
            The plan with the draw's seed, and the draw.

        Raises:
            WeighbridgeError: As `Drawing.run`.
        """
        units = Units(self._registry.session, self._cache, inspection)
        drawn = self._drawing.run(inspection, plan, units, say, transient)
        opening, commitment = drawn.draw.opening, drawn.draw.commitment
        self._registry.set_sample(inspection, seed=opening.seed, chips=drawn.draw.chips)
        record = self._cache.keep(compress(cbor([[name, data] for name, data in drawn.record.files()])))
        self._draws.keep(
            inspection, drawn_ms=drawn.record.beacon.time_ms(commitment.round), aim=commitment.aim, record=record
        )
        say("draw", len(drawn.draw.chips), len(drawn.draw.chips), _summary(drawn))
        return replace(plan, seed=opening.seed), Sampled(drawn=drawn, sampler=self)

    def files(self, inspection: str) -> Iterator[tuple[str, bytes]]:
        """Yields (path, content) of the record of a draw and of the Verifier's whole log.

        Raises:
            UsageError: The inspection has no record of a draw.
        """
        stored = self._cache.kept(self._draws.record(inspection))
        for name, data in cbor2.loads(zstandard.ZstdDecompressor().decompress(stored)):
            yield name, data
        for name, data in self._log.files():
            yield f"{LOG}/{name}", data

    def findings(self, inspection: str) -> list[Finding]:
        """Returns what the Verifier's own log has against the Verifier, and had not yet at the draw before.

        Args:
            inspection: Whose draw is the newest.
        """
        entries: list[Commitment | Closing | Opening | Abandonment] = []
        for data in self._log.entries():
            try:
                entries.append(parse_entry(data))
            except WeighbridgeError:  # the log may hold other things
                continue
        found = list(audit(entries, self._drawing.now_ms()))
        before = [each for each in self._draws.past() if each.inspection != inspection]
        if not before:
            return found
        names = {entry_digest(each): each.inspection for each in entries if isinstance(each, Commitment)}
        places = [
            place
            for place, each in enumerate(entries)
            if isinstance(each, Opening) and names.get(each.commitment) == before[-1].inspection
        ]
        known = audit(entries[: max(places, default=-1) + 1], before[-1].drawn_ms)
        said = {(finding.id, finding.subject) for finding in known}
        return [finding for finding in found if (finding.id, finding.subject) not in said]

    def section(self, drawn: Drawn, verified: Collection[bytes], found: Collection[bytes] = ()) -> dict[str, Any]:
        """Returns the report's section about a draw, and keeps what it came to."""
        draw, record = drawn.draw, drawn.record
        commitment = draw.commitment
        worth: dict[str, Any] | None
        try:
            worth = detection(draw, verified, found)
            self._draws.finish(commitment.inspection, worth["groups"])
        except DetectionDomainError:
            worth = None
        past = rolling(self._draws.past(commitment.aim, self._drawing.now_ms()), commitment.aim.period_days)
        return {
            "kind": "committed",
            "seed": draw.opening.seed.hex(),
            "commitment": record.commitment.proof.index,
            "log": str(record.log),
            "registry": {"root": commitment.registry.hex(), "size": commitment.registry_size},
            "beacon": {"scheme": record.beacon.scheme, "chain": commitment.beacon.hex(), "round": commitment.round},
            "cutoff_ms": commitment.cutoff_ms,
            "by": list(commitment.by),
            "allocation": commitment.allocation,
            "strata": [
                {
                    "key": list(plan.key), "chips": plan.chips, "samples": plan.samples, "witnessed": each.witnessed,
                    "drawn": len(each.drawn), "certain": len(each.certain),
                }
                for plan, each in zip(commitment.strata, draw.strata, strict=True)
            ],
            "certain": [ueid.hex() for ueid in draw.certain],
            "detection": worth,
            "periods": [each.to_json() for each in accumulated(past, commitment.aim)],
            "assumptions": [*COMMITTED, _of_beacon(record.beacon)],
        }  # fmt: skip


def _of_beacon(info: BeaconInfo) -> str:
    if info.local:
        return LOCAL_BEACON
    return SIGNED_BEACON if info.verifiable else DRAND_BEACON


def given(seed: bytes) -> dict[str, Any]:
    """Returns the report's section about a draw with a given seed."""
    return {"kind": "given", "seed": seed.hex(), "assumptions": list(GIVEN)}


def _summary(drawn: Drawn) -> str:
    text = f"drew {len(drawn.draw.random)} chips with seed {drawn.draw.opening.seed.hex()}"
    silent = len(drawn.draw.certain)
    return text + (f", and {silent} more because no head of their logs was witnessed" if silent else "")
