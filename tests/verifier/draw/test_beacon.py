"""Beacons: values of one's own, values of drand as it publishes them, and bytes that are neither."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drand_values import DEFAULT, QUICKNET, VALUES
from support.draws import START, beacon_key

from weighbridge.attest.beacon import (
    DRAND,
    LOCAL,
    BeaconError,
    BeaconInfo,
    LocalBeacon,
    Round,
    parse_info,
    parse_round,
    read_json,
    verify_round,
)
from weighbridge.core.errors import UsageError, WeighbridgeError

((_, ROUND),) = [each for each in VALUES if each[1]["round"] == 1000]


def local(now: float = START + 100.0, number: int = 0) -> LocalBeacon:
    return LocalBeacon(beacon_key(number), period_s=3, genesis_s=START, clock=lambda: now)


@pytest.mark.parametrize("published", [DEFAULT, QUICKNET])
def test_published_descriptions_of_drand_have_their_chain_hash(published: dict[str, Any]) -> None:
    info = parse_info(published)
    assert info.chain.hex() == published["hash"]
    assert not info.local
    assert info.to_json() == published
    assert info.time_ms(1) == published["genesis_time"] * 1000


def test_a_published_value_of_drand_is_the_hash_of_its_signature() -> None:
    value = parse_round(ROUND)
    verify_round(parse_info(QUICKNET), value)
    assert value.to_json() == ROUND
    with pytest.raises(BeaconError, match="SHA-256"):
        verify_round(parse_info(QUICKNET), replace(value, randomness=bytes(32)))


def test_a_value_can_be_had_from_its_time_on_and_is_the_only_one() -> None:
    beacon = local(START + 5.999)
    assert [beacon.value(number) is None for number in (0, 1, 2, 3)] == [True, False, False, True]
    value = beacon.value(2)
    assert value == local(START + 99).value(2)
    assert value is not None
    verify_round(beacon.info, value)
    assert hashlib.sha256(value.signature).digest() == value.randomness


@given(st.integers(0, 10**6), st.integers(0, 10**9))
def test_the_next_round_is_the_first_whose_time_is_later(period: int, offset_ms: int) -> None:
    info = BeaconInfo(scheme=LOCAL, public_key=b"k", period_s=period + 1, genesis_s=START)
    now = START * 1000 - 10**8 + offset_ms
    number = info.round_after(now)
    assert info.time_ms(number) > now
    assert number == 1 or info.time_ms(number - 1) <= now


def test_other_values_are_refused() -> None:
    beacon, value = local(), local().value(7)
    assert value is not None
    forged = hashlib.sha256(value.signature[::-1]).digest()
    for wrong in (
        replace(value, number=8),
        replace(value, signature=value.signature[::-1], randomness=forged),
        replace(value, signature=b"", randomness=hashlib.sha256(b"").digest()),
        local(number=1).value(7),
    ):
        assert wrong is not None
        with pytest.raises(BeaconError) as caught:
            verify_round(beacon.info, wrong)
        assert caught.value.reason == "draw.beacon.value"
    with pytest.raises(BeaconError):
        verify_round(replace(beacon.info, public_key=b"no key"), value)


def test_the_key_file_is_made_once_and_keeps_times(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = LocalBeacon.load(path, period_s=5, clock=lambda: START + 0.5)
    assert path.stat().st_mode & 0o777 == 0o600
    again = LocalBeacon.load(path, period_s=7)
    assert again.info == first.info
    assert (again.info.period_s, again.info.genesis_s) == (5, START)
    assert parse_info(again.info.to_json()) == again.info
    path.write_text("nonsense")
    with pytest.raises(UsageError, match="no beacon's key"):
        LocalBeacon.load(path)
    with pytest.raises(UsageError, match="name another file"):
        LocalBeacon.load(tmp_path / "missing" / "key")


def test_published_files_are_read_back(tmp_path: Path) -> None:
    beacon = local()
    beacon.publish(tmp_path, 9)
    info = parse_info(read_json(tmp_path / "info"))
    value = parse_round(read_json(tmp_path / "public" / "9"))
    assert (info, value) == (beacon.info, beacon.value(9))
    verify_round(info, value)
    with pytest.raises(UsageError, match="not come"):
        beacon.publish(tmp_path, 10**6)


@pytest.mark.parametrize(
    "change",
    [
        {"period": 0}, {"period": True}, {"period": 1.5}, {"genesis_time": -1}, {"public_key": ""},
        {"public_key": "0G"},
        {"schemeID": "rot13"}, {"schemeID": 7}, {"metadata": []}, {"metadata": {"beaconID": "\n"}}, {"hash": "00"},
        {"hash": "00" * 32}, {"period": 31},
    ],
)  # fmt: skip
def test_wrong_descriptions_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BeaconError):
        parse_info({**DEFAULT, **change})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted({**QUICKNET, **ROUND})), inner),
    max_leaves=8,
)


@given(JSON)
def test_hostile_json_raises_only_our_errors(value: Any) -> None:
    for parse in (parse_info, parse_round):
        try:
            parse(value)
        except WeighbridgeError:
            continue


@given(
    st.sampled_from([LOCAL, *DRAND]), st.binary(min_size=1, max_size=100), st.integers(1, 2**31 - 1),
    st.integers(0, 2**40 - 1), st.binary(max_size=32), st.text("abc-", max_size=20),
)  # fmt: skip
def test_descriptions_come_back_as_they_were(
    scheme: str, key: bytes, period: int, genesis: int, group: bytes, name: str
) -> None:
    """Round trip: parse_info(info.to_json()) == info."""
    info = BeaconInfo(
        scheme=scheme, public_key=key, period_s=period, genesis_s=genesis, group_hash=group, beacon_id=name
    )
    assert parse_info(json.loads(json.dumps(info.to_json()))) == info


@given(st.integers(1, 2**53 - 1), st.binary(min_size=1, max_size=96), st.binary(max_size=96))
def test_values_come_back_as_they_were(number: int, signature: bytes, previous: bytes) -> None:
    """Round trip: parse_round(value.to_json()) == value."""
    value = Round(
        number=number, randomness=hashlib.sha256(signature).digest(), signature=signature, previous_signature=previous
    )
    assert parse_round(json.loads(json.dumps(value.to_json()))) == value


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_json(tmp_path / "missing")
    for number, content in enumerate([b"", b"{", b"\xff", b" " * 70_000, b"[" * 60_000]):
        path = tmp_path / str(number)
        path.write_bytes(content)
        with pytest.raises(BeaconError):
            read_json(path)
