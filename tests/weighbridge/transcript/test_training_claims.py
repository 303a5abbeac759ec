"""Claims about training are the Prover's word: strictly parsed, and nothing more than numbers and short names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.transcript.training_claims import (
    Backward,
    Claims,
    Gradient,
    Group,
    Parameter,
    Step,
    decode,
    encode,
)

NATURAL = st.integers(0, 1 << 30)
OPTIONAL = st.none() | NATURAL
NAMES = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def backwards(draw: st.DrawFn) -> Backward:
    begin = draw(NATURAL)
    losses = draw(st.lists(NATURAL, max_size=3))
    seeds = draw(st.lists(OPTIONAL, min_size=len(losses), max_size=len(losses)))
    gradients = draw(st.lists(st.builds(Gradient, NATURAL, OPTIONAL, NATURAL), max_size=4))
    end = begin + draw(st.integers(0, 9))
    return Backward(begin, end, tuple(losses), tuple(seeds), tuple(gradients), draw(st.booleans()))


PARAMETERS = st.builds(Parameter, NATURAL, OPTIONAL, st.dictionaries(NAMES, NATURAL, max_size=3), st.booleans())
NUMBERS = st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, max_size=3).map(tuple), max_size=5)
GROUPS = st.builds(Group, NUMBERS, st.lists(PARAMETERS, max_size=3).map(tuple))
STEPS = st.builds(
    lambda begin, length, name, groups: Step(begin, begin + length, name, tuple(groups)),
    NATURAL,
    st.integers(0, 9),
    NAMES,
    st.lists(GROUPS, max_size=2),
)
CLAIMS = st.builds(
    Claims,
    st.lists(backwards(), max_size=2).map(tuple),
    st.lists(STEPS, max_size=2).map(tuple),
    st.lists(st.tuples(NATURAL, st.just(-1) | NATURAL), max_size=5).map(tuple),
)


@given(st.dictionaries(st.binary(min_size=32, max_size=32), CLAIMS, max_size=3))
def test_claims_come_back(claims: dict[bytes, Claims]) -> None:
    """`decode(encode(claims)) == claims`."""
    assert decode(encode(claims)) == claims


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        decoded = decode(data)
    except FormatError:
        return
    assert encode(decoded) == data


DIGEST = bytes(32)


@pytest.mark.finding("format.malformed")
@pytest.mark.parametrize(
    "raw",
    [
        {"a": 1},
        [[DIGEST, [[], []]]],
        [[b"short", [[], [], []]]],
        [[DIGEST, [[[5, 3, [], [], [], False]], [], []]]],
        [[DIGEST, [[[0, 3, [1], [], [], False]], [], []]]],
        [[DIGEST, [[], [[0, 3, "Adam\x1b[2J", []]], []]]],
        [[DIGEST, [[], [[0, 3, "Adam", [[{"lr": "0.1"}, []]]]], []]]],
        [[DIGEST, [[], [], [[-1, 0]]]]],
        [[DIGEST, [[], [], []]]] * 2,
    ],
)
def test_what_is_no_claim_is_refused(raw: object) -> None:
    with pytest.raises(FormatError, match=r"claims\.cbor"):
        decode(cbor(raw))
