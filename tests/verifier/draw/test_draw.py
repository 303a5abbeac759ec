"""The draw itself: uniform in every stratum, reproducible, and worth exactly what the analysis says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, comb, exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom
from support.draws import AIM, START, beacon_key, fleet, heads_of, ueid

from analysis.detection import detection_probability_hypergeometric
from analysis.domain import InfeasibleError
from verifier.draw.derivation import (
    Draw,
    DrawCommitment,
    close_draw,
    commit_draw,
    detection,
    open_draw,
    sample,
    sample_digest,
)
from verifier.draw.log_entries import (
    Abandonment,
    Aim,
    Closing,
    Commitment,
    Opening,
    StratumPlan,
    entry_digest,
    parse_as,
    parse_entry,
)
from verifier.model.seeded_draw import draw as draw_stream
from verifier.model.strata import ATTRIBUTES, DrawFormatError, Heads, Population
from weighbridge.attest.beacon import BeaconError, LocalBeacon, Round
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UsageError

FLEET = fleet(60)
BEACON = LocalBeacon(beacon_key(), period_s=3, genesis_s=START, clock=lambda: START + 10**6)
NOW = (START + 500) * 1000


def committed(population: Population = FLEET, samples: int = 12, **options: object) -> DrawCommitment:
    values = {
        "inspection": "one", "registry_root": bytes(32), "registry_size": 5,
        "aim": AIM, "beacon": BEACON.info, "now_ms": NOW,
        "cutoff_ms": NOW + 2000, "margin_ms": 1000, "secret": b"v" * 32,
    }  # fmt: skip
    return commit_draw(population=population, samples=samples, **{**values, **options})  # type: ignore[arg-type]


def opened(made: DrawCommitment, population: Population = FLEET, heads: Heads | None = None) -> Draw:
    heads = heads_of(population) if heads is None else heads
    closing, kept = close_draw(made.commitment, population, heads, made.commitment.cutoff_ms)
    value = BEACON.value(made.commitment.round)
    assert value is not None
    return open_draw(made, closing, population, kept, BEACON.info, value)


def test_the_documented_recipe_recomputes_the_sample() -> None:
    made = committed(by=("owner",))
    heads = heads_of(FLEET, {4, 5})
    drawn = opened(made, FLEET, heads)
    closing, _ = close_draw(made.commitment, FLEET, heads, made.commitment.cutoff_ms)
    value = BEACON.value(made.commitment.round)
    assert value is not None
    seed = record_digest("draw-seed/1", [b"v" * 32, bytes(32), closing.heads, value.randomness])
    assert drawn.opening.seed == seed
    for place, (owner, first) in enumerate((("owner 0", 0), ("owner 1", 1))):
        chips = [ueid(n) for n in range(first, 60, 2) if n not in (4, 5)]
        expected = draw_stream(chips, 6, record_digest("draw-stratum/1", [seed, [owner]]))
        assert list(drawn.strata[place].drawn) == expected
        assert drawn.strata[place].certain == (ueid(4 + place),)
    assert drawn.chips == drawn.random + drawn.certain
    assert drawn.opening.secret == b"v" * 32
    assert made.commitment.secret == record_digest("draw-secret/1", b"v" * 32)


def test_every_chip_of_a_stratum_is_drawn_equally_often_and_silent_ones_always() -> None:
    """Inclusion probabilities over 3,000 fixed seeds, against s_i/N_i in each stratum."""
    rounds = 3000
    made = committed(samples=15, by=("type",)).commitment
    counts = {each.key: each.samples for each in made.strata}
    heads = heads_of(FLEET, {0, 1, 2})
    seen: Counter[bytes] = Counter()
    pairs: Counter[tuple[bytes, bytes]] = Counter()
    for number in range(rounds):
        strata = sample(made, FLEET, heads, number.to_bytes(32, "big"))
        for each in strata:
            assert len(set(each.drawn)) == len(each.drawn) == counts[each.key]
            seen.update(each.drawn)
            seen.update(each.certain)
            pairs[each.drawn[0], each.drawn[1]] += 1
    assert all(seen[ueid(n)] == rounds for n in (0, 1, 2))
    for key, chips in FLEET.strata(("type",)).items():
        witnessed = [each for each in chips if each in heads]
        expected = rounds * counts[key] / len(witnessed)
        spread = expected * (1 - counts[key] / len(witnessed))
        statistic = sum((seen[each] - expected) ** 2 / spread for each in witnessed)
        # About chi-square with N_i - 1 degrees of freedom: six standard deviations; the seeds are fixed.
        free = len(witnessed) - 1
        assert abs(statistic - free) < 6 * (2 * free) ** 0.5
        ordered = [pairs[a, b] for a in witnessed for b in witnessed if a != b]
        assert abs(sum(ordered) - rounds) == 0
        assert max(ordered) < 6 + rounds / len(ordered) + 6 * (rounds / len(ordered)) ** 0.5


def test_draws_of_different_strata_do_not_depend_on_each_other() -> None:
    made = committed(samples=20, by=("type",)).commitment
    fast = [sample(made, FLEET, heads_of(FLEET), bytes([n]) * 32)[0].drawn for n in range(50)]
    slow = [sample(made, FLEET, heads_of(FLEET), bytes([n]) * 32)[1].drawn for n in range(50)]
    places = [[FLEET.strata(("type",))[key].index(each[0]) for each in drawn] for key, drawn in
              ((("fast",), fast), (("slow",), slow))]  # fmt: skip
    assert abs(np.corrcoef(places[0], places[1])[0, 1]) < 0.5


@pytest.mark.parametrize(("chips", "samples", "threshold"), [(60, 12, 3.0), (60, 60, 1.0), (1000, 100, 25.0)])
def test_p_of_one_stratum_is_the_exact_hypergeometric_one(chips: int, samples: int, threshold: float) -> None:
    population = fleet(chips)
    aim = replace(AIM, flops_threshold=threshold)
    drawn = opened(committed(population, samples, aim=aim), population)
    verified = drawn.random[: samples // 2 * 2]
    found = detection(drawn, verified)
    exact = detection_probability_hypergeometric(
        samples=samples, flops_threshold=threshold, chip_flops_per_day=1.0, chips=chips, run_days=1.0,
        snapshot_rate_per_day=2.0, withheld=samples - len(verified),
    )  # fmt: skip
    assert found["p"] == pytest.approx(float(exact), rel=1e-12)
    assert (found["chips"], found["drawn"], found["verified"]) == (chips, samples, len(verified))
    assert found["unverified"] == samples - len(verified)
    assert detection(drawn, drawn.random[1:], drawn.random[:1])["p"] == detection(drawn, drawn.random)["p"]
    values = [detection(drawn, drawn.random[count:])["p"] for count in range(samples + 1)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0.0


def test_p_without_firmware_gaps_is_a_ratio_of_binomials() -> None:
    aim = Aim(flops_threshold=4.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=1e9)
    drawn = opened(committed(aim=aim, samples=10))
    assert detection(drawn, drawn.chips)["p"] == pytest.approx(1 - comb(56, 10) / comb(60, 10), rel=1e-12)


def test_silent_chips_count_only_for_themselves() -> None:
    """Chips drawn with certainty are no random sample: p is over the others, and those not verified hide a run."""
    heads = heads_of(FLEET, {0, 1, 2, 3})
    drawn = opened(committed(samples=12), FLEET, heads)
    shown = 1 - exp(-2.0)
    exact = detection_probability_hypergeometric(
        samples=12, flops_threshold=3.0, chip_flops_per_day=1.0, chips=56, run_days=1.0, snapshot_rate_per_day=2.0
    )
    inspected = detection(drawn, drawn.chips)
    assert inspected["p"] == pytest.approx(float(exact), rel=1e-12)
    assert (inspected["certain"], inspected["certain_verified"]) == (4, 4)
    wrong = detection_probability_hypergeometric(  # as if they had been drawn at random
        samples=16, flops_threshold=3.0, chip_flops_per_day=1.0, chips=60, run_days=1.0, snapshot_rate_per_day=2.0
    )
    assert inspected["p"] < float(wrong)
    one = detection(drawn, [*drawn.random, *drawn.certain[:3]])
    assert one["groups"][-1] == {
        "stratum": [], "kind": "silent", "chips": 1, "drawn": 0, "unverified": 0, "chip_flops_per_day": 1.0,
        "involved": 1.0,
    }  # fmt: skip
    assert one["p"] < inspected["p"]
    assert detection(drawn, drawn.random)["p"] == 0.0  # four silent chips have room for the whole run
    nobody = detection(drawn, drawn.certain)
    assert nobody["p"] == 0.0
    everybody = opened(committed(samples=12), FLEET, {})
    assert (everybody.random, len(everybody.certain)) == ([], 60)
    assert detection(everybody, everybody.certain)["p"] == pytest.approx(1 - (1 - shown) ** 3, rel=1e-12)


def test_silence_after_the_draw_is_reckoned_over_all_strata_together() -> None:
    aim = replace(AIM, flops_threshold=10.0, snapshot_rate_per_day=1e9)
    drawn = opened(committed(samples=30, by=("type",), aim=aim))
    for silent in ([0, 1], [0, 29], [28, 29]):  # of one stratum, of each, of the other: it does not matter which
        found = detection(drawn, [ueid for place, ueid in enumerate(drawn.random) if place not in silent])
        assert sum(group["unverified"] for group in found["groups"]) == found["unverified"] == 2
        least = min(
            1 - sum(
                hypergeom.pmf(i, group["chips"], some, group["drawn"])
                * hypergeom.cdf(2 - i, other["chips"], 10 - some, other["drawn"])
                for i in range(3)
            )
            for group, other in [found["groups"]]
            for some in range(11)
        )  # fmt: skip
        assert found["p"] == pytest.approx(least, rel=1e-9)


def test_p_of_strata_is_that_of_the_worst_spread() -> None:
    aim = Aim(
        flops_threshold=10.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=2.0, speeds={"fast": 4.0}
    )
    drawn = opened(committed(samples=30, by=("type",), aim=aim))
    found = detection(drawn, drawn.random)
    assert sum(group["involved"] * group["chip_flops_per_day"] for group in found["groups"]) == pytest.approx(10.0)
    for fast in range(0, 4):
        slow = ceil(10 - 4 * fast)
        if slow < 0:
            continue
        seen = [
            float(
                detection_probability_hypergeometric(
                    samples=group["drawn"], flops_threshold=count, chip_flops_per_day=1.0, chips=group["chips"],
                    run_days=1.0, snapshot_rate_per_day=2.0,
                )
            )
            if count
            else 0.0
            for group, count in zip(found["groups"], (fast, slow), strict=True)
        ]  # fmt: skip
        assert found["p"] <= 1 - (1 - seen[0]) * (1 - seen[1]) + 1e-12
    with pytest.raises(InfeasibleError):
        detection(opened(committed(aim=replace(AIM, flops_threshold=1e6))), [])


def test_what_does_not_fit_the_commitment_is_not_opened() -> None:
    made = committed()
    heads = heads_of(FLEET)
    closing, _ = close_draw(made.commitment, FLEET, heads, made.commitment.cutoff_ms)
    value = BEACON.value(made.commitment.round)
    late = BEACON.value(made.commitment.round + 1)
    assert value is not None
    assert late is not None
    other = LocalBeacon(beacon_key(1), period_s=3, genesis_s=START, clock=lambda: START + 10**6)
    with pytest.raises(UsageError, match="another value"):
        open_draw(made, closing, FLEET, heads, BEACON.info, late)
    with pytest.raises(UsageError, match="another value"):
        open_draw(made, closing, FLEET, heads, other.info, value)
    with pytest.raises(BeaconError):
        open_draw(
            made, closing, FLEET, heads, BEACON.info, Round(number=value.number, randomness=bytes(32), signature=b"x")
        )
    with pytest.raises(UsageError, match="stored ones"):
        open_draw(made, closing, FLEET, heads_of(FLEET, {1}), BEACON.info, value)
    with pytest.raises(UsageError, match="stored ones"):
        open_draw(made, closing, fleet(59), heads, BEACON.info, value)
    with pytest.raises(UsageError, match="cut-off has not come"):
        close_draw(made.commitment, FLEET, heads, made.commitment.cutoff_ms - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 0}, {"samples": 61}, {"cutoff_ms": NOW - 1}, {"margin_ms": -1}, {"secret": b"short"},
        {"registry_root": b""}, {"by": ("colour",)}, {"aim": replace(AIM, speeds={"fast": 2.0})},
        {"allocation": "optimal", "aim": replace(AIM, flops_threshold=1e9)},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_not_committed_to(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        committed(**wrong)  # type: ignore[arg-type]


def test_too_many_strata_do_not_fit_into_an_entry() -> None:
    population = Population.of((ueid(n), f"owner {n} " + "x" * 150, "", "") for n in range(600))
    with pytest.raises(UsageError, match="fewer attributes"):
        committed(population, 12, by=("owner",))


def test_heads_of_unknown_chips_are_left_out() -> None:
    made = committed()
    closing, kept = close_draw(
        made.commitment, FLEET, {**heads_of(FLEET), ueid(1000): (1, bytes(32))}, made.commitment.cutoff_ms
    )
    assert len(kept) == closing.witnessed == 60


DIGEST = st.binary(min_size=32, max_size=32)
TEXT = st.text(st.characters(categories=["L", "N"]), max_size=20)
NUMBER = st.integers(0, 2**53 - 1)
POSITIVE = st.floats(1e-300, 1e300)


@st.composite
def commitments(generator: st.DrawFn) -> Commitment:
    by = tuple(each for each in ATTRIBUTES if generator(st.booleans()))
    keys = sorted(generator(st.sets(st.tuples(*(TEXT for _ in by)), min_size=1, max_size=5)))
    strata = []
    for key in keys:
        chips = generator(st.integers(1, 10**6))
        strata.append(StratumPlan(key=key, chips=chips, samples=generator(st.integers(0, chips))))
    return Commitment(
        inspection=generator(TEXT), secret=generator(DIGEST), registry=generator(DIGEST),
        registry_size=generator(NUMBER), population=generator(DIGEST),
        chips=sum(each.chips for each in strata), by=by, strata=tuple(strata),
        allocation=generator(st.sampled_from(["proportional", "optimal"])),
        aim=Aim(
            flops_threshold=generator(POSITIVE), chip_flops_per_day=generator(POSITIVE),
            period_days=generator(POSITIVE), snapshot_rate_per_day=generator(POSITIVE),
            speeds=generator(st.dictionaries(TEXT, POSITIVE, max_size=3)),
        ),
        beacon=generator(DIGEST), round=generator(st.integers(1, 2**53 - 1)), committed_ms=generator(NUMBER),
        cutoff_ms=generator(NUMBER), open_by_ms=generator(NUMBER),
    )  # fmt: skip


ENTRIES = st.one_of(
    commitments(),
    st.builds(Closing, commitment=DIGEST, heads=DIGEST, witnessed=NUMBER, closed_ms=NUMBER),
    st.builds(Opening, commitment=DIGEST, closing=DIGEST, secret=DIGEST, randomness=DIGEST, seed=DIGEST, sample=DIGEST),
    st.builds(Abandonment, commitment=DIGEST, secret=DIGEST, reason=TEXT),
)


@given(ENTRIES)
def test_entries_come_back_as_they_were(entry: Commitment | Closing | Opening | Abandonment) -> None:
    """Round trip: parse_entry(entry.encode()) == entry."""
    again = parse_entry(entry.encode())
    assert again == entry
    assert entry_digest(again) == entry_digest(entry)
    assert parse_as(entry.encode(), type(entry)) == entry


@given(ENTRIES, st.integers(0, 2000), st.binary(max_size=3))
@settings(max_examples=300)
def test_hostile_bytes_raise_only_our_errors(
    entry: Commitment | Closing | Opening | Abandonment, place: int, change: bytes
) -> None:
    data = entry.encode()
    hostile = data[:place] + change + data[place + len(change) :]
    try:
        read = parse_entry(hostile)
    except DrawFormatError:
        return
    assert read.encode() == hostile


def test_wrong_kinds_and_sizes_are_refused() -> None:
    closing = Closing(commitment=bytes(32), heads=bytes(32), witnessed=0, closed_ms=0)
    with pytest.raises(DrawFormatError, match="no commitment"):
        parse_as(closing.encode(), Commitment)
    for data in (b"", b"\xa0", bytes(70_000), b"\xa1dtypedsome"):
        with pytest.raises(DrawFormatError):
            parse_entry(data)


def test_samples_that_differ_have_different_digests() -> None:
    made = committed(by=("owner",)).commitment
    one = sample(made, FLEET, heads_of(FLEET), bytes(32))
    other = (replace(one[0], drawn=one[0].drawn[::-1]), one[1])
    assert sample_digest(one) != sample_digest(other)
    assert sample_digest(one) == sample_digest(sample(made, FLEET, heads_of(FLEET), bytes(32)))
