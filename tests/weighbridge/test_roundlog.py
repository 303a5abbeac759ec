import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.errors import LogError, UsageError
from weighbridge.numerics.roundlog import MAGIC, MAX_POSITION, OpEntries, decode, encode

PAGE = Path(__file__).parents[2] / "docs/formats/rounding-log.md"


def section(op, output, entries):
    """Builds a section from (position, k, bits) triples."""
    positions, widths, bits = zip(*entries, strict=True)
    return OpEntries(
        op, output, np.array(positions, dtype=np.int64), np.array(widths, np.uint8), np.array(bits, np.uint64)
    )


def plain(log):
    return [(part.op, part.output, part.positions.tolist(), part.widths.tolist(), part.bits.tolist()) for part in log]


EXAMPLE = [
    section(12, 0, [(5, 1, 1), (7, 1, 0), (300, 2, 2)]),
    section(12, 1, [(0, 0, 0x7FC00000)]),
    section(140, 0, [(131072, 1, 1)]),
]

positions = st.integers(0, 300) | st.integers(0, MAX_POSITION - 1)
widths = st.sampled_from([1, 1, 1, 2, 3]) | st.integers(0, 63)


@st.composite
def logs(draw):
    keys = draw(
        st.sets(st.tuples(st.integers(0, 200) | st.integers(0, MAX_POSITION - 1), st.integers(0, 3)), max_size=6)
    )
    result = []
    for op, output in sorted(keys):
        places = sorted(draw(st.sets(positions, min_size=1, max_size=12)))
        ks = [draw(widths) for _ in places]
        bits = [draw(st.integers(0, 2 ** (k or 64) - 1)) for k in ks]
        result.append(section(op, output, list(zip(places, ks, bits, strict=True))))
    return result


@given(logs())
def test_round_trip(log):
    """decode(encode(log)) is log, with the same dtypes."""
    found = decode(encode(log), max_entries=100)
    assert plain(found) == plain(log)
    for part in found:
        assert (part.positions.dtype, part.widths.dtype, part.bits.dtype) == (np.int64, np.uint8, np.uint64)


def accepts(data, **limits):
    """Tells whether a log decodes; if it does, its encoding must be the same bytes."""
    try:
        log = decode(data, **{"max_entries": 1000, **limits})
    except LogError:
        return False
    assert encode(log) == data
    return True


@given(st.binary(max_size=60))
def test_hostile_bytes(data):
    """Any bytes are refused with a LogError, or are the one encoding of what they decode to."""
    accepts(data)
    accepts(MAGIC + data)


@given(logs(), st.data())
def test_damaged_logs(log, data):
    """Damage is refused with a LogError, or gives the one encoding of another log."""
    good = encode(log)
    place = data.draw(st.integers(0, len(good) - 1))
    value = data.draw(st.integers(0, 255))
    accepts(good[:place] + bytes([value]) + good[place + 1 :])
    accepts(good[:place] + good[place + 1 :])
    accepts(good[:place] + bytes([value]) + good[place:])
    assert not accepts(good[:place])
    assert not accepts(good + bytes([value]))


def test_the_documented_example():
    block = re.search(r"Encoded \(42 bytes\):\n\n```\n(.*?)```", PAGE.read_text(), re.S)
    lines = [re.match(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:   |$)", line) for line in block[1].splitlines()]
    data = bytes.fromhex("".join(line[1] for line in lines))
    assert len(data) == 42
    assert encode(EXAMPLE) == data
    assert plain(decode(data, max_entries=5)) == plain(EXAMPLE)


def test_an_empty_log_is_six_bytes():
    assert encode([]) == bytes.fromhex("5742524c0100")
    assert decode(encode([]), max_entries=0) == []


def test_the_limit_on_entries_holds():
    assert accepts(encode(EXAMPLE), max_entries=5)
    assert not accepts(encode(EXAMPLE), max_entries=4)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "no count"),
        ("80", "number cut off"),
        ("8000", "number not shortest"),
        ("ffffffffffffffffff01", "number of ten bytes"),
        ("ffffffffffffffff7f", "more sections than allowed"),
        ("01 00 00 00", "empty section"),
        ("01 00 00 ffffffffffffffff7f", "more entries than bytes"),
        ("02 00 00 01 00 00 01 00 00 01 01 02 01", "sections equal"),
        ("02 00 01 01 00 00 01 00 00 01 01 02 03", "outputs descend"),
        ("01 808080808020 00 01 00 01 01 01 01", "operation out of range"),
        ("01 00 808080808020 01 00 01 01 01 01", "output out of range"),
        ("01 00 00 01 808080808020 01 01 01 01", "position out of range"),
        ("01 00 00 02 ffffffffff1f 00 01 01 02 03", "second position out of range"),
        ("01 00 00 02 00 00 01 01 03 03", "runs too long"),
        ("01 00 00 02 00 00 01 01 01 03", "runs too short"),
        ("01 00 00 02 00 00 02 01 01 01 01 03", "equal runs side by side"),
        ("01 00 00 02 00 00 02 01 02 02 00 03", "empty run"),
        ("01 00 00 02 00 00 03 01 02 01 01 01 00 03", "more runs than entries"),
        ("01 00 00 01 00 01 40 01 0000000000000000", "width above 63"),
        ("01 00 00 01 00 01 01 01", "no bits"),
        ("01 00 00 01 00 01 01 01 0100", "byte too many"),
        ("01 00 00 01 00 01 01 01 03", "padding not zero"),
        ("00 00", "bytes after an empty log"),
    ],
)
def test_rules_of_the_format(body, why):
    assert not accepts(MAGIC + bytes.fromhex(body)), why


def test_the_same_bytes_without_a_fault_are_accepted():
    assert accepts(MAGIC + bytes.fromhex("01 00 00 01 00 01 01 01 01"))
    assert accepts(MAGIC + bytes.fromhex("02 00 00 01 00 01 01 00 00 01 01 02 03"))
    assert accepts(MAGIC + bytes.fromhex("01 00 00 01 ffffffffff1f 01 01 01 01"))


def test_other_magic_is_refused():
    for data in (b"", b"WBRL", b"WBRL\x02\x00", b"XBRL\x01\x00"):
        assert not accepts(data)


@pytest.mark.parametrize(
    "log",
    [
        [EXAMPLE[1], EXAMPLE[0]],
        [EXAMPLE[0], EXAMPLE[0]],
        [section(0, 0, [(5, 1, 1), (5, 1, 1)])],
        [section(0, 0, [(-1, 1, 1)])],
        [section(0, 0, [(MAX_POSITION, 1, 1)])],
        [section(-1, 0, [(0, 1, 1)])],
        [section(0, MAX_POSITION, [(0, 1, 1)])],
        [section(0, 0, [(0, 1, 2)])],
        [section(0, 0, [(0, 64, 2)])],
        [OpEntries(0, 0, np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.uint64))],
        [OpEntries(0, 0, np.zeros(1, np.int64), np.zeros(2, np.uint8), np.zeros(1, np.uint64))],
        [OpEntries(0, 0, np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros(1, np.uint64))],
    ],
)
def test_logs_that_have_no_encoding(log):
    with pytest.raises(UsageError):
        encode(log)


def test_a_large_log_is_small():
    """A hundred thousand entries, one in a few thousand elements, take about three bytes each."""
    rng = np.random.default_rng(1)
    places = np.cumsum(rng.integers(1, 8000, 100_000))
    entries = OpEntries(3, 0, places, np.ones(100_000, np.uint8), rng.integers(0, 2, 100_000).astype(np.uint64))
    data = encode([entries])
    assert len(data) < 220_000
    assert plain(decode(data, max_entries=100_000)) == plain([entries])
