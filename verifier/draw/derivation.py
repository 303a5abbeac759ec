"""A draw of chips that neither side can steer: commit, close, open.

1. `commit_draw`: the Verifier draws a secret v and logs H(v) together with the registry's root, the population, its
   strata, how many chips of each will be drawn, a cut-off and a beacon's round that has not come.
2. `close_draw`: after the cut-off and before that round, it logs which heads of the chips' logs it had witnessed.
3. `open_draw`: once the round's value is out, the seed is H(v, registry root, heads, value), and the sample follows.

The Verifier cannot choose v, chips or heads after it knows the value; the Prover cannot know the seed before v is
opened; the beacon does not know v. Everything here is a pure function: logging, waiting and asking is
`verifier.draw.procedure`'s part, and `verifier.draw.recomputation` is what every other party does.

A chip without a head at the cut-off is drawn *with certainty*: staying silent is no way out of an inspection. It is no
part of the random sample. In each stratum the random sample is drawn from the chips that have heads.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.silence import GroupedDraw, least_probability_despite
from verifier.draw.log_entries import (
    Aim,
    Closing,
    Commitment,
    Opening,
    StratumPlan,
    entry_digest,
    secret_digest,
    seed_of,
)
from verifier.model.seeded_draw import draw
from verifier.model.strata import Allocation, Attribute, Heads, Key, Population, allocate, encode_heads
from weighbridge.attest.beacon import BeaconInfo, Round, verify_round
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest, record_digest
from weighbridge.core.errors import UsageError

OPENING_MS = 24 * 3600 * 1000
"""An opening is overdue so long after its round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawCommitment:
    """A commitment with its secret, which stays secret until it is opened.

    Attributes:
        commitment: What is logged.
        secret: v, 32 bytes.
    """

    commitment: Commitment
    secret: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class StratumSample:
    """What was drawn of a stratum.

    Attributes:
        key: Its value of each attribute that divides the population.
        witnessed: Chips with a head, from which the random sample was drawn.
        certain: Chips without, drawn with certainty, in ascending order.
        drawn: The random sample, in the order drawn.
    """

    key: Key
    witnessed: int
    certain: tuple[bytes, ...]
    drawn: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """An opened draw.

    Attributes:
        commitment: What was committed to.
        opening: What is logged.
        strata: What was drawn of each stratum, in the order of the commitment's.
    """

    commitment: Commitment
    opening: Opening
    strata: tuple[StratumSample, ...]

    @property
    def certain(self) -> list[bytes]:
        """The chips drawn with certainty, stratum by stratum."""
        return [ueid for each in self.strata for ueid in each.certain]

    @property
    def random(self) -> list[bytes]:
        """The random sample, stratum by stratum."""
        return [ueid for each in self.strata for ueid in each.drawn]

    @property
    def chips(self) -> list[bytes]:
        """All chips to inspect: the random sample, then those drawn with certainty."""
        return self.random + self.certain


def commit_draw(
    *,
    inspection: str,
    population: Population,
    registry_root: bytes,
    registry_size: int,
    samples: int,
    aim: Aim,
    beacon: BeaconInfo,
    now_ms: int,
    cutoff_ms: int,
    margin_ms: int,
    by: Sequence[Attribute] = (),
    allocation: Allocation = "proportional",
    opening_ms: int = OPENING_MS,
    secret: bytes | None = None,
) -> DrawCommitment:
    """Fixes everything but the sample.

    Args:
        inspection: Identifier of the inspection.
        population: The registered chips.
        registry_root: Root of the registry's log, 32 bytes.
        registry_size: Entries of that log.
        samples: Chips to draw at random.
        aim: What the draw is to catch.
        beacon: Whose value will count.
        now_ms: The Verifier's time, in milliseconds since 1970.
        cutoff_ms: Heads count that were witnessed until then; later ones may. Not before `now_ms`.
        margin_ms: Time between the cut-off and the round for logging the closing.
        by: Attributes that divide the population into strata.
        allocation: How `samples` are allocated to them.
        opening_ms: Time after the round until an opening is overdue.
        secret: v, 32 bytes; by default from the operating system's randomness.

    Raises:
        UsageError: There are too few chips, too many strata, no optimal allocation, or times make no sense.
    """
    if cutoff_ms < now_ms or margin_ms < 0 or opening_ms < 0:
        raise UsageError("the cut-off cannot be before the commitment, nor the round before the cut-off")
    secret = secrets.token_bytes(DIGEST_SIZE) if secret is None else secret
    if len(secret) != DIGEST_SIZE or len(registry_root) != DIGEST_SIZE:
        raise UsageError(f"the secret and the registry's root have {DIGEST_SIZE} bytes each")
    groups = population.strata(by)
    types = _types(by, groups, aim)
    counts = allocate(
        [len(chips) for chips in groups.values()],
        samples,
        allocation,
        speeds=[aim.speed(each) for each in types],
        flops_threshold=aim.flops_threshold,
        period_days=aim.period_days,
        snapshot_rate_per_day=aim.snapshot_rate_per_day,
    )
    number = beacon.round_after(cutoff_ms + margin_ms)
    commitment = Commitment(
        inspection=inspection,
        secret=secret_digest(secret),
        registry=registry_root,
        registry_size=registry_size,
        population=population.digest,
        chips=len(population),
        by=tuple(by),
        strata=tuple(
            StratumPlan(key=key, chips=len(chips), samples=count)
            for (key, chips), count in zip(groups.items(), counts, strict=True)
        ),
        allocation=allocation,
        aim=aim,
        beacon=beacon.chain,
        round=number,
        committed_ms=now_ms,
        cutoff_ms=cutoff_ms,
        open_by_ms=beacon.time_ms(number) + opening_ms,
    )
    commitment.encode()  # it must fit into a log entry before anything is done about it
    return DrawCommitment(commitment=commitment, secret=secret)


def _types(by: Sequence[Attribute], keys: Collection[Key], aim: Aim) -> list[str]:
    """Returns the chip type of each stratum; any, where all types are alike."""
    if "type" in by:
        return [key[list(by).index("type")] for key in keys]
    if aim.speeds:
        raise UsageError("chip types have speeds of their own, so strata must be by type; add it")
    return [""] * len(keys)


def close_draw(commitment: Commitment, population: Population, heads: Heads, now_ms: int) -> tuple[Closing, Heads]:
    """Fixes the heads.

    Args:
        commitment: What was committed to.
        population: The chips that it covers.
        heads: Entries and root of each chip's log as witnessed by the cut-off; those of other chips are left out.
        now_ms: The Verifier's time; not before the cut-off.

    Returns:
        What is to be logged, and the heads that it covers.

    Raises:
        UsageError: It is too early.
    """
    if now_ms < commitment.cutoff_ms:
        raise UsageError("the cut-off has not come; heads may still be witnessed")
    known = set(population.ueids)
    kept = {ueid: head for ueid, head in heads.items() if ueid in known}
    closing = Closing(
        commitment=entry_digest(commitment),
        heads=bytes_digest(encode_heads(kept)),
        witnessed=len(kept),
        closed_ms=now_ms,
    )
    return closing, kept


def open_draw(
    committed: DrawCommitment, closing: Closing, population: Population, heads: Heads, beacon: BeaconInfo, value: Round
) -> Draw:
    """Draws the sample.

    Args:
        committed: What was committed to, and the secret.
        closing: What was logged after the cut-off.
        population: The chips that the commitment covers.
        heads: The heads that the closing covers.
        beacon: Whose value it is.
        value: The value of the round that was committed to.

    Raises:
        BeaconError: The value is not the beacon's.
        UsageError: It is of another round or beacon, or population or heads are not those that were fixed.
    """
    commitment = committed.commitment
    if beacon.chain != commitment.beacon or value.number != commitment.round:
        raise UsageError(
            f"round {commitment.round} of beacon {commitment.beacon.hex()} was committed to, and this is another value"
        )
    verify_round(beacon, value)
    if population.digest != commitment.population or bytes_digest(encode_heads(heads)) != closing.heads:
        raise UsageError("population or heads are not those that were committed to; take the stored ones")
    seed = seed_of(committed.secret, commitment.registry, closing.heads, value.randomness)
    strata = sample(commitment, population, heads, seed)
    opening = Opening(
        commitment=entry_digest(commitment),
        closing=entry_digest(closing),
        secret=committed.secret,
        randomness=value.randomness,
        seed=seed,
        sample=sample_digest(strata),
    )
    return Draw(commitment=commitment, opening=opening, strata=strata)


def sample(commitment: Commitment, population: Population, heads: Heads, seed: bytes) -> tuple[StratumSample, ...]:
    """Returns what a seed draws: of each stratum by `verifier.model.seeded_draw.draw`, with a seed of its own.

    Args:
        commitment: Attributes and sample sizes.
        population: The chips.
        heads: Which of them are drawn from at random: those with a head.
        seed: As `seed_of` gives it.
    """
    counts = {each.key: each.samples for each in commitment.strata}
    strata = []
    for key, chips in population.strata(commitment.by).items():
        witnessed = [ueid for ueid in chips if ueid in heads]
        certain = tuple(ueid for ueid in chips if ueid not in heads) if len(witnessed) < len(chips) else ()
        count = min(counts.get(key, 0), len(witnessed))
        stratum_seed = record_digest("draw-stratum/1", [seed, list(key)])
        drawn = tuple(draw(witnessed, count, stratum_seed)) if count else ()
        strata.append(StratumSample(key=key, witnessed=len(witnessed), certain=certain, drawn=drawn))
    return tuple(strata)


def sample_digest(strata: Sequence[StratumSample]) -> bytes:
    """Returns the digest of a sample, 32 bytes: over key, certain chips and drawn chips of each stratum."""
    return record_digest("draw-sample/1", [[list(s.key), list(s.certain), list(s.drawn)] for s in strata])


def grouped_draw(
    groups: Sequence[Mapping[str, Any]],
    *,
    flops_threshold: float,
    run_days: float,
    snapshot_rate_per_day: float,
    logged_days: float,
) -> GroupedDraw:
    """Returns a draw as `analysis.silence` takes it.

    Args:
        groups: Of each group at least `chips`, `drawn` and `chip_flops_per_day`.
        flops_threshold: Size of the violation in FLOPs (H).
        run_days: Length of the run.
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        logged_days: Days of the run from which an involved chip may hold a snapshot.
    """
    return GroupedDraw(
        chips=[group["chips"] for group in groups],
        drawn=[group["drawn"] for group in groups],
        shown=float(-np.expm1(-snapshot_rate_per_day * logged_days)),
        chip_flops_per_day=[group["chip_flops_per_day"] for group in groups],
        flops_threshold=flops_threshold,
        run_days=run_days,
    )


def detection(drawn: Draw, verified: Collection[bytes], found: Collection[bytes] = ()) -> dict[str, Any]:
    """Returns what a draw is worth once it is known which of its chips could be verified.

    p is over the random sample, for whole chips without replacement, against the Prover who spreads the run of H FLOPs
    over groups of chips so as to be missed most often. A chip drawn at random that was not verified was silent *after*
    the draw was known, so the Prover chose it: with w of them, p is the chance that more than w drawn chips show the
    run (`analysis.silence`). One drawn with certainty was silent *before* the draw, and is a group of its own: seen for
    sure if it was verified, and never if not.

    Args:
        drawn: The draw.
        verified: UEIDs of the chips about which everything could be verified.
        found: UEIDs of the chips on which a violation was seen; they hid nothing.

    Returns:
        `p`; the `groups` it rests on (stratum, kind, chips, drawn chips, those of them that did not verify, chips that
        the worst run uses); and, of the random sample alone, `chips` it was drawn from, `drawn`, `verified` and
        `unverified`; `certain` and `certain_verified` beside them.

    Raises:
        DetectionDomainError: A run of H FLOPs does not fit on the population.
    """
    seen, aim = set(verified), drawn.commitment.aim
    settled = seen | set(found)
    types = _types(drawn.commitment.by, [each.key for each in drawn.strata], aim)
    groups: list[dict[str, Any]] = []
    for each, chip_type in zip(drawn.strata, types, strict=True):
        inspected = sum(ueid in settled for ueid in each.certain)
        missing = sum(ueid not in settled for ueid in each.drawn)
        for kind, chips, counted, unverified in (
            ("random", each.witnessed, len(each.drawn), missing),
            ("certain", inspected, inspected, 0),
            ("silent", len(each.certain) - inspected, 0, 0),
        ):
            if chips:
                groups.append(
                    {
                        "stratum": list(each.key), "kind": kind, "chips": chips, "drawn": counted,
                        "unverified": unverified, "chip_flops_per_day": aim.speed(chip_type),
                    }
                )  # fmt: skip
    p, (spread,) = least_probability_despite(
        [
            grouped_draw(
                groups,
                flops_threshold=aim.flops_threshold,
                run_days=aim.period_days,
                snapshot_rate_per_day=aim.snapshot_rate_per_day,
                logged_days=aim.period_days,
            )
        ],
        withheld=sum(group["unverified"] for group in groups),
    )
    for group, involved in zip(groups, spread, strict=True):
        group["involved"] = involved
    return {
        "p": p,
        "chips": sum(each.witnessed for each in drawn.strata),
        "drawn": len(drawn.random),
        "verified": sum(ueid in seen for ueid in drawn.random),
        "unverified": sum(ueid not in settled for ueid in drawn.random),
        "certain": len(drawn.certain),
        "certain_verified": sum(ueid in seen for ueid in drawn.certain),
        "groups": groups,
    }
