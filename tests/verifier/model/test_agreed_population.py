"""Populations that both parties agree on have one encoding, and nothing else is read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.model import agreed_population
from verifier.model.agreed_population import AgreedPopulation, AgreedPopulationError, parse
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import UsageError

UEIDS = st.binary(min_size=17, max_size=33)
CHIPS = st.dictionaries(UEIDS, st.just(b"") | st.binary(min_size=32, max_size=32), min_size=1, max_size=8)
ONE, TWO = bytes(17), b"\x01" * 17


@given(chips=CHIPS)
def test_a_population_comes_back(chips: dict[bytes, bytes]) -> None:
    """Law: parse(p.text) == p, whatever the order of the chips was."""
    made = AgreedPopulation.of(reversed(list(chips.items())))
    assert parse(made.text) == made
    assert made.digest == bytes_digest(made.text)
    assert list(made.chips) == sorted(chips)
    assert sorted(made.draw(len(chips), bytes(32))) == sorted(chips)


@given(chips=CHIPS, at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
def test_bytes_are_a_population_or_refused(chips: dict[bytes, bytes], at: int, value: int, cut: int) -> None:
    """Law: parse(data).text == data, or data is refused."""
    whole = AgreedPopulation.of(chips.items()).text
    data = bytearray(whole)
    data[at % len(data)] = value
    for each in (bytes(data), whole[: cut % len(whole)], whole + b"\x00", whole + b"\n"):
        with suppress(AgreedPopulationError):
            assert parse(each).text == each


@pytest.mark.finding("sealed.population")
def test_what_is_no_population_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [AgreedPopulation.of([(each, b"")]).text for each in (ONE, TWO)]
    head, first = lines[0].split(b"\n")[:2]
    second = lines[1].split(b"\n")[1]
    for wrong in (
        b"", head, head + b"\n", lines[0][:-1], b"\n".join([head, second, first, b""]),
        b"\n".join([head, first, first, b""]), b"\n".join([b"weighbridge-population/1", first, b""]),
        lines[0].replace(b"-\n", b"\n"), lines[0].replace(b"00\t", b"0\xff\t"),
        lines[0].replace(b"-\n", b"AB" * 32 + b"\n"),
    ):  # fmt: skip
        with pytest.raises(AgreedPopulationError) as caught:
            parse(wrong)
        assert caught.value.reason == "sealed.population"
    for chips in ([], [(ONE, b""), (ONE, bytes(32))], [(b"short", b"")], [(ONE, b"x")]):
        with pytest.raises(UsageError):
            AgreedPopulation.of(chips)
    monkeypatch.setattr(agreed_population, "LIMIT", len(lines[0]) - 1)
    with pytest.raises(UsageError):
        AgreedPopulation.of([(ONE, b"")])
    with pytest.raises(AgreedPopulationError):
        parse(lines[0])
