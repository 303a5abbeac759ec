"""Which machine is used and which are examined: drawn by a seed, from a list with one encoding, with odds that hold."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.model.site_machines import Odds, SiteMachines, SiteMachinesError, parse
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import UsageError

UEIDS = st.binary(min_size=17, max_size=33)
LISTS = st.dictionaries(UEIDS, st.binary(min_size=32, max_size=32), min_size=1, max_size=8).filter(
    lambda each: len(set(each.values())) == len(each)
)


def listed(count: int) -> SiteMachines:
    return SiteMachines.of([(bytes([each]) * 17, bytes([each]) * 32) for each in range(count)])


@given(machines=LISTS)
def test_a_list_comes_back(machines: dict[bytes, bytes]) -> None:
    """Law: parse(m.text) == m, whatever the order of the machines was."""
    made = SiteMachines.of(list(reversed(machines.items())))
    assert parse(made.text) == made
    assert made.digest == bytes_digest(made.text)


@given(machines=LISTS, at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
def test_bytes_are_a_list_or_refused(machines: dict[bytes, bytes], at: int, value: int, cut: int) -> None:
    """Law: parse(data).text == data, or data is refused."""
    whole = SiteMachines.of(list(machines.items())).text
    data = bytearray(whole)
    data[at % len(data)] = value
    for each in (bytes(data), whole[: cut % len(whole)], whole + b"\x00", whole + b"\n"):
        with suppress(SiteMachinesError):
            assert parse(each).text == each


@pytest.mark.finding("sealed.machine")
def test_a_worker_on_another_machine_is_refused() -> None:
    """Nor does a second device do that bears the UEID of the one that was drawn."""
    machines = listed(4)
    choice = machines.choose(bytes(32), 2)
    machines.require(choice, choice.used, machines.certificates[choice.used])
    other = choice.examined[0]
    for ueid, certificate in (
        (other, machines.certificates[other]), (choice.used, machines.certificates[other]), (choice.used, bytes(32)),
    ):  # fmt: skip
        with pytest.raises(SiteMachinesError) as caught:
            machines.require(choice, ueid, certificate)
        assert caught.value.reason == "sealed.machine"


def test_one_is_used_and_others_are_examined() -> None:
    machines = listed(5)
    for seed in range(50):
        choice = machines.choose(seed.to_bytes(32), 3)
        assert len({choice.used, *choice.examined}) == 4
        assert choice == machines.choose(seed.to_bytes(32), 3)
        assert choice.used == machines.choose(seed.to_bytes(32), 0).used
    with pytest.raises(UsageError):
        machines.choose(bytes(32), 5)


def test_the_odds_are_those_of_draws() -> None:
    """Over seeds, a tampered machine is used, and none is examined, as often as stated: within five deviations."""
    machines, draws = listed(6), 6000
    for tampered, examined in ((1, 2), (2, 2), (3, 1)):
        bad = set(list(machines.certificates)[:tampered])
        counts: Counter[str] = Counter()
        for seed in range(draws):
            choice = machines.choose(seed.to_bytes(32), examined)
            counts["used"] += choice.used in bad
            counts["missed"] += choice.used in bad and not bad & set(choice.examined)
        odds = machines.odds(examined, tampered)
        for name, chance in (("used", float(odds.used)), ("missed", float(odds.missed))):
            assert abs(counts[name] - draws * chance) <= 5 * (draws * chance * (1 - chance)) ** 0.5


def test_odds_are_exact() -> None:
    machines = listed(10)
    assert machines.odds(3, 0) == Odds(Fraction(0), Fraction(0))
    assert machines.odds(3, 1) == Odds(Fraction(1, 10), Fraction(1, 10))  # one alone is used, or it is not
    assert machines.odds(9, 2) == Odds(Fraction(1, 5), Fraction(0))
    assert machines.odds(3, 5) == Odds(Fraction(1, 2), Fraction(1, 2) * Fraction(5 * 4 * 3, 9 * 8 * 7))
    assert machines.odds(3, 10) == Odds(Fraction(1), Fraction(0))
    assert machines.odds(0, 10) == Odds(Fraction(1), Fraction(1))
    for examined, tampered in ((10, 1), (3, 11), (-1, 1), (3, -1)):
        with pytest.raises(UsageError):
            machines.odds(examined, tampered)


def test_what_is_no_list_is_refused() -> None:
    head, first, second = listed(2).text.split(b"\n")[:3]
    for wrong in (
        b"", head, head + b"\n", b"\n".join([head, first]), b"\n".join([head, second, first, b""]),
        b"\n".join([head, first, first, b""]), b"\n".join([head, first, second[:35] + first[35:], b""]),
        b"\n".join([b"weighbridge-site-machines/2", first, b""]), b"\n".join([head, first.replace(b"\t", b" "), b""]),
    ):  # fmt: skip
        with pytest.raises(SiteMachinesError):
            parse(wrong)
    for machines in ([], [(bytes(17), bytes(32))] * 2, [(bytes(17), bytes(32)), (b"\x01" * 17, bytes(32))]):
        with pytest.raises(UsageError):
            SiteMachines.of(machines)
