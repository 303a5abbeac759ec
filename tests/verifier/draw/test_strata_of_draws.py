"""Population, heads and strata as lines of text, and how samples are allocated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import fleet, ueid

from analysis.stratified_sampling import best_samples
from verifier.model.strata import (
    Allocation,
    DrawFormatError,
    Population,
    allocate,
    encode_heads,
    parse_heads,
    parse_population,
)
from weighbridge.core.errors import UsageError, WeighbridgeError

TEXT = st.text(st.characters(categories=["L", "N", "P", "Zs"], include_characters=" "), max_size=12).filter(
    str.isprintable
)
UEID = st.binary(min_size=17, max_size=33)
CHIPS = st.lists(st.tuples(UEID, TEXT, TEXT, TEXT), max_size=12, unique_by=lambda chip: chip[0])
OPTIONS = {"flops_threshold": 40.0, "period_days": 1.0, "snapshot_rate_per_day": 3.0}


@given(CHIPS)
def test_a_population_comes_back_as_it_was(chips: list[tuple[bytes, str, str, str]]) -> None:
    """Round trip: parse_population(p.text) has the same chips and the same text, in whatever order they came."""
    population = Population.of(chips)
    again = parse_population(population.text)
    assert (list(again.ueids), list(again.places)) == (list(population.ueids), list(population.places))
    assert again.text == population.text
    assert Population.of(reversed(chips)).digest == population.digest


@given(st.dictionaries(UEID, st.tuples(st.integers(0, 2**40), st.binary(min_size=32, max_size=32)), max_size=10))
def test_heads_come_back_as_they_were(heads: dict[bytes, tuple[int, bytes]]) -> None:
    """Round trip: parse_heads(encode_heads(h)) == h, and encoding it again gives the same bytes."""
    assert parse_heads(encode_heads(heads)) == heads
    assert encode_heads(parse_heads(encode_heads(heads))) == encode_heads(heads)


@given(st.binary(max_size=200), st.integers(0, 400), st.binary(max_size=3), st.booleans())
def test_hostile_lines_raise_only_our_errors(data: bytes, place: int, change: bytes, whole: bool) -> None:
    good = [fleet(4).text, encode_heads({ueid(1): (1, bytes(32)), ueid(2): (0, bytes(32))})]
    for parse, text in zip((parse_population, parse_heads), good, strict=True):
        hostile = data if whole else text[:place] + change + text[place + len(change) :]
        try:
            read = parse(hostile)
        except WeighbridgeError:
            continue
        assert (read.text if isinstance(read, Population) else encode_heads(read)) == hostile


@pytest.mark.parametrize(
    "lines",
    [
        "weighbridge-population/2\n", "weighbridge-population/1", "",
        f"weighbridge-population/1\n{ueid(1).hex()}\ta\tb\n",
        f"weighbridge-population/1\n{ueid(1).hex().upper()[:-1]}A\ta\tb\tc\n",
        f"weighbridge-population/1\n{ueid(2).hex()}\ta\tb\tc\n{ueid(1).hex()}\ta\tb\tc\n",
        f"weighbridge-population/1\n{ueid(1).hex()}\ta\tb\tc\n{ueid(1).hex()}\ta\tb\tc\n",
        f"weighbridge-population/1\n{ueid(1).hex()}\ta\tb\t{'x' * 201}\n",
        f"weighbridge-population/1\n{ueid(1).hex()}\ta\tb\tc\r\n", "weighbridge-population/1\n\n",
    ],
)  # fmt: skip
def test_lines_that_are_no_population_are_refused(lines: str) -> None:
    with pytest.raises(DrawFormatError):
        parse_population(lines.encode())


def test_wrong_chips_are_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        Population.of([(ueid(1), "a", "b", "c"), (ueid(1), "a", "b", "d")])
    with pytest.raises(UsageError, match="17 to 33"):
        Population.of([(b"short", "a", "b", "c")])
    with pytest.raises(UsageError, match="printable"):
        Population.of([(ueid(1), "a\tb", "b", "c")])


def test_strata_divide_the_population() -> None:
    population = fleet(24)
    for by in ((), ("owner",), ("site",), ("type",), ("owner", "site"), ("owner", "site", "type")):
        strata = population.strata(by)  # type: ignore[arg-type]
        assert sorted(each for chips in strata.values() for each in chips) == list(population.ueids)
        assert list(strata) == sorted(strata)
        assert all(chips == sorted(chips) and chips for chips in strata.values())
    assert list(population.strata(("type",))) == [("fast",), ("slow",)]
    assert population.strata(()) == {(): list(population.ueids)}
    for wrong in (("colour",), ("site", "owner"), ("owner", "owner")):
        with pytest.raises(UsageError, match="strata are by"):
            population.strata(wrong)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data(), st.sampled_from(["proportional", "optimal"]))
def test_every_allocation_draws_as_many_as_were_asked_for(
    sizes: list[int], data: st.DataObject, how: Allocation
) -> None:
    samples = data.draw(st.integers(1, sum(sizes)))
    speeds = [float(1 + place % 3) for place in range(len(sizes))]
    run = 0.5 * sum(size * speed for size, speed in zip(sizes, speeds, strict=True))
    found = allocate(sizes, samples, how, speeds=speeds, **{**OPTIONS, "flops_threshold": run})
    assert sum(found) == samples
    assert all(0 <= count <= size for count, size in zip(found, sizes, strict=True))
    if how == "proportional":
        assert all(abs(count - samples * size / sum(sizes)) < 1 for count, size in zip(found, sizes, strict=True))


def test_an_optimal_allocation_is_that_of_the_analysis() -> None:
    sizes, speeds = [300, 100], [1.0, 5.0]
    wanted = best_samples(
        budget=40, sample_cost=[1.0, 1.0], flops_threshold=40.0, chip_flops_per_day=speeds, chips=sizes, run_days=1.0,
        shown=1 - 2.718281828459045**-3.0,
    )  # fmt: skip
    found = allocate(sizes, 40, "optimal", speeds=speeds, **OPTIONS)
    assert abs(found[0] - wanted[0]) < 1
    assert found[1] / sizes[1] > 3 * found[0] / sizes[0]  # a fast chip is worth more
    with pytest.raises(UsageError, match="no allocation"):
        allocate(sizes, 40, "optimal", speeds=speeds, **{**OPTIONS, "flops_threshold": 1e9})


@pytest.mark.parametrize("samples", [0, -1, 7])
def test_an_impossible_number_of_samples_is_refused(samples: int) -> None:
    with pytest.raises(UsageError, match="cannot sample"):
        allocate([2, 4], samples, "proportional", speeds=[1.0, 1.0], **OPTIONS)
