import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import roundlog_by_the_page

from weighbridge.core.errors import LogError, UsageError
from weighbridge.numerics.rounding import log_coding, range_coder, rounding_log
from weighbridge.numerics.rounding.rounding_log import (
    BLOCK,
    MAGIC,
    MAX_POSITION,
    LogReader,
    LogWriter,
    OpEntries,
    decode,
    encode,
)

PAGE = Path(__file__).parents[4] / "docs/formats/rounding-log.md"
GOLDEN = Path(__file__).parent / "golden/rounding-log-2.bin"


def section(op, output, entries):
    """Builds a section from (position, k, bits) triples."""
    positions, widths, bits = zip(*entries, strict=True)
    return OpEntries(
        op, output, np.array(positions, dtype=np.int64), np.array(widths, np.uint8), np.array(bits, np.uint64)
    )


def plain(log):
    return [(part.op, part.output, part.positions.tolist(), part.widths.tolist(), part.bits.tolist()) for part in log]


def rows(log):
    """Every entry as (op, output, position, k, bits)."""
    return [
        (part.op, part.output, *entry)
        for part in log
        for entry in zip(part.positions.tolist(), part.widths.tolist(), part.bits.tolist(), strict=True)
    ]


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
        bits = [draw(st.just(0) | st.integers(0, 2 ** (k or 64) - 1)) for k in ks]
        result.append(section(op, output, list(zip(places, ks, bits, strict=True))))
    return result


def random_log(seed, sizes, *, rate=0.04, odd=0.02):
    """Sections of many entries, as a training leaves them."""
    rng = np.random.default_rng(seed)
    log = []
    for number, size in enumerate(sizes):
        ks = rng.geometric(0.7, size).clip(1, 63).astype(np.uint8)
        ks[rng.random(size) < odd] = rng.choice(np.array([0, 8, 31, 63], np.uint8))
        bits = rng.integers(0, 2**64, size, dtype=np.uint64)
        bits = np.where(ks == 0, bits, bits & ((np.uint64(1) << (ks.astype(np.uint64) & np.uint64(63))) - np.uint64(1)))
        bits[(ks > 8) & (rng.random(size) < 0.5)] = 0
        log.append(OpEntries(3 * number, number % 2, np.cumsum(rng.geometric(rate, size)), ks, bits))
    return log


@given(logs())
def test_round_trip(log):
    """decode(encode(log)) is log, with the same dtypes."""
    found = decode(encode(log), max_entries=100)
    assert plain(found) == plain(log)
    for part in found:
        assert (part.positions.dtype, part.widths.dtype, part.bits.dtype) == (np.int64, np.uint8, np.uint64)


@settings(max_examples=60)
@given(logs())
def test_a_decoder_written_from_the_page_reads_the_same(log):
    """The page's decoder applied to encode(log) gives the entries of log."""
    assert roundlog_by_the_page.decode(encode(log)) == rows(log)


@pytest.mark.parametrize("rate", [0.9, 0.3, 0.04, 0.0001])
def test_a_decoder_written_from_the_page_reads_long_logs(rate):
    log = random_log(1, [3000, 1, 40, 900], rate=rate)
    assert roundlog_by_the_page.decode(encode(log)) == rows(log)


def test_sections_that_span_blocks_come_back_whole():
    log = random_log(2, [100, BLOCK - 100, 2 * BLOCK + 5, 7, BLOCK])
    data = encode(log)
    assert [block.entries for block in LogReader(data, max_entries=1 << 20).blocks] == [BLOCK] * 4 + [12]
    assert plain(decode(data, max_entries=1 << 20)) == plain(log)


# --- streaming and seeking ------------------------------------------------------------------------------------------


def test_a_log_written_bit_by_bit_is_the_same_bytes():
    log = random_log(3, [70_000, 20, BLOCK])
    writer = LogWriter()
    for part in log:
        writer.add(part)
    assert writer.entries == sum(len(part.positions) for part in log)
    assert writer.finish() == encode(log)


def test_outputs_are_followed_in_order_and_absent_ones_have_no_entries():
    log = random_log(4, [50, 140_000, 3])
    reader = LogReader(encode(log), max_entries=1 << 20)
    asked = [(0, 0), (1, 0), (3, 0), (3, 1), (5, 0), (6, 0)]
    found = [part for key in asked if (part := reader.take(*key, MAX_POSITION)) is not None]
    assert plain(found) == plain(log)
    assert not reader.left


def test_following_decodes_one_block_at_a_time(monkeypatch):
    log = random_log(5, [60_000] * 8)
    reader = LogReader(encode(log), max_entries=1 << 20)
    decoded = []
    original = LogReader._decode
    monkeypatch.setattr(LogReader, "_decode", lambda self, number: decoded.append(number) or original(self, number))
    assert reader.take(0, 0, MAX_POSITION) is not None
    assert decoded == [0]
    assert reader.take(3, 1, MAX_POSITION) is not None
    assert decoded == [0, 1]


def test_elements_of_an_operation_are_found_without_what_comes_before(monkeypatch):
    log = random_log(6, [90_000] * 6)
    reader = LogReader(encode(log), max_entries=1 << 20)
    decoded = []
    original = LogReader._decode
    monkeypatch.setattr(LogReader, "_decode", lambda self, number: decoded.append(number) or original(self, number))
    for part in log:
        first, last = part.positions[[40_000, 50_000]].tolist()
        decoded.clear()
        found = reader.read(part.op, part.output, first, last)
        assert plain([found]) == plain([part.part(40_000, 50_000)])
        assert len(decoded) <= 2
        assert plain([reader.read(part.op, part.output)]) == plain([part])
        assert reader.read(part.op + 1, 0) is None
        assert reader.read(part.op, part.output, last, last) is None


@settings(max_examples=60)
@given(logs(), st.integers(0, 5), positions, positions)
def test_reading_a_range_is_filtering_the_whole(log, number, first, last):
    """read(op, output, a, b) holds the entries of decode(...) with a <= position < b."""
    if not log:
        return
    part = log[number % len(log)]
    found = LogReader(encode(log), max_entries=100).read(part.op, part.output, first, last)
    wanted = [row for row in rows([part]) if first <= row[2] < last]
    assert (rows([found]) if found else []) == wanted


# --- hostile bytes --------------------------------------------------------------------------------------------------


def accepts(data, **limits):
    """Tells whether a log decodes; what it decodes to has an encoding that gives the same again."""
    try:
        log = decode(data, **{"max_entries": 1000, **limits})
    except LogError:
        return False
    assert plain(decode(encode(log), max_entries=1 << 20)) == plain(log)
    return True


@given(st.binary(max_size=60))
def test_hostile_bytes(data):
    """Any bytes are refused with a LogError, or decode to a log that keeps the rules of OpEntries."""
    accepts(data)
    accepts(MAGIC + data)


@settings(max_examples=200)
@given(st.integers(1, 200), st.binary(max_size=40), st.binary(max_size=200), st.integers(0, 5))
def test_hostile_blocks(entries, coded, bits, first):
    """Whatever a block holds under a good header, only a LogError comes of it, and in time."""
    header = rounding_log._varints((entries, 0, 0, first, len(coded), len(bits)))
    accepts(MAGIC + header + coded + bits + b"\x00")


# --- one encoding ---------------------------------------------------------------------------------------------------


def again(data):
    """Returns what was decoded, encoded; None if the bytes are refused."""
    try:
        return encode(decode(data, max_entries=1000))
    except LogError:
        return None


@given(logs(), st.data())
def test_what_is_accepted_is_encoded_again_as_the_same_bytes(log, data):
    """encode(decode(b)) == b for all bytes b that are accepted: a log with other bytes here and there."""
    changed = bytearray(encode(log))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(len(MAGIC), len(changed) - 1))] = data.draw(st.integers(0, 255))
    assert again(bytes(changed)) in (None, bytes(changed))


@settings(max_examples=300)
@given(st.integers(1, 4), st.binary(max_size=6), st.binary(max_size=10), st.integers(0, 5))
def test_blocks_that_are_accepted_are_encoded_again_as_the_same_bytes(entries, coded, bits, first):
    data = MAGIC + rounding_log._varints((entries, 0, 0, first, len(coded), len(bits))) + coded + bits + b"\x00"
    assert again(data) in (None, data)


def block(entries, coded, bits=b""):
    return MAGIC + rounding_log._varints((entries, 0, 0, 5, len(coded), len(bits))) + coded + bits + b"\x00"


def decodes(data):
    """Whether the bytes decode to entries, in whatever way these are coded."""
    (header,) = LogReader(data, max_entries=9).blocks
    n, array = header.entries, np.frombuffer(data, dtype=np.uint8)
    coded, bits = array[slice(*header.coded)], array[slice(*header.plain)]
    columns = np.empty((n, 3), np.int64), np.empty(n, np.int64), np.empty(n, np.uint8), np.empty(n, np.int64)
    return log_coding.decode_block(coded, bits, *header.key, rounding_log._contexts(), *columns)[0] == 0


def test_other_last_bytes_of_the_same_entries_are_refused():
    """One byte codes an entry in many ways, as far as the range coder is concerned; one of them is accepted."""
    candidates = [block(1, bytes([value])) for value in range(1, 256)] + [block(1, b"")]
    assert sum(map(decodes, candidates)) > 50
    accepted = [data for data in candidates if again(data) is not None]
    contents = [rows(decode(data, max_entries=1)) for data in accepted]
    assert len({tuple(each) for each in contents}) == len(accepted) < 20


OTHERWISE = {
    "scale": [("scale = _length(", "scale = 1 + _length(")],
    "same": [("int(bits != whole)", "1"), ("if bits != whole:", "if True:")],
    "zero": [("int(bits != 0)", "1"), ("if bits == 0:", "if False:")],
}
"""Changes to the source of an encoder by which it makes another choice."""


@pytest.mark.parametrize("choice", OTHERWISE)
def test_another_choice_of_the_encoder_is_refused(choice, monkeypatch):
    """An encoder that does not choose as the page says writes what decodes to the same entries, and is refused."""
    entries = {
        "scale": [(5, 1, 1), (900, 1, 0), (1000, 1, 0)],
        "same": [(5, 0, 77), (6, 0, 77)],
        "zero": [(5, 9, 0)],
    }[choice]
    good = encode([section(0, 0, entries)])
    scope = {**vars(range_coder), **vars(log_coding)}
    for function in [each.py_func for each in scope.values() if hasattr(each, "py_func")]:
        source = inspect.getsource(function).replace("@jit\n", "")
        for old, new in OTHERWISE[choice]:
            source = source.replace(old, new)
        exec(source, scope)
    monkeypatch.setattr(log_coding, "encode_block", scope["encode_block"])
    other = encode([section(0, 0, entries)])
    monkeypatch.undo()
    assert other != good
    assert decodes(other)
    with pytest.raises(LogError, match="one way"):
        decode(other, max_entries=9)


@given(logs(), st.data())
def test_damaged_logs(log, data):
    """Damage is refused with a LogError, or gives another log; a log cut short or continued is refused."""
    good = encode(log)
    place = data.draw(st.integers(0, len(good) - 1))
    value = data.draw(st.integers(0, 255))
    accepts(good[:place] + bytes([value]) + good[place + 1 :])
    accepts(good[:place] + good[place + 1 :])
    accepts(good[:place] + bytes([value]) + good[place:])
    assert not accepts(good[:place])
    assert not accepts(good + bytes([value]))


def test_a_few_bytes_that_declare_many_entries_take_no_more_memory_than_the_output():
    """Declared entries exist once they are decoded, and a section ends at the last element of its output."""
    everywhere = OpEntries(0, 0, np.arange(BLOCK), np.ones(BLOCK, np.uint8), np.zeros(BLOCK, np.uint64))
    one = encode([everywhere])
    assert len(one) < 120
    rest = one[len(MAGIC) + len(rounding_log._varints((BLOCK, 0, 0, 0))) : -1]
    blocks = b"".join(rounding_log._varints((BLOCK, 0, 0, number * BLOCK)) + rest for number in range(2000))
    bomb = MAGIC + blocks + b"\x00"
    assert len(bomb) < 300_000
    with pytest.raises(LogError, match="entries that may be there"):
        LogReader(bomb, max_entries=1_000_000)
    reader = LogReader(bomb, max_entries=BLOCK * 2000)
    with pytest.raises(LogError, match="points at element"):
        reader.take(0, 0, 100_000)


def test_more_blocks_than_a_log_may_have_are_refused_before_they_are_listed(monkeypatch):
    monkeypatch.setattr(rounding_log, "MAX_BLOCKS", 2)
    log = random_log(7, [BLOCK, BLOCK, 1])
    with pytest.raises(UsageError, match="split the step"):
        encode(log)
    monkeypatch.setattr(rounding_log, "MAX_BLOCKS", 3)
    data = encode(log)
    monkeypatch.setattr(rounding_log, "MAX_BLOCKS", 2)
    with pytest.raises(LogError, match="more than 2 blocks"):
        LogReader(data, max_entries=1 << 20)


def test_entries_before_the_output_that_is_asked_for_belong_to_nothing():
    reader = LogReader(encode(EXAMPLE), max_entries=5)
    assert reader.take(11, 0, 10) is None
    with pytest.raises(LogError, match="operation 12, which rounds nothing"):
        reader.take(13, 0, 10)


def test_the_limit_on_entries_holds():
    assert accepts(encode(EXAMPLE), max_entries=5)
    assert not accepts(encode(EXAMPLE), max_entries=4)


GOOD = "01 00 00 05 00 00 00"  # one entry, element 5 of the first output; its decisions are all 0


def test_the_block_that_the_faulty_ones_are_made_from_is_good():
    assert accepts(MAGIC + bytes.fromhex(GOOD))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "no count"),
        ("80", "header cut off"),
        ("8100 00 00 05 00 00 00", "number not shortest"),
        ("81808080808000 00 00 05 00 00 00", "number of seven bytes"),
        ("818004 00 00 05 00 00 00", "more entries than a block has"),
        ("01 808080808020 00 05 00 00 00", "operation out of range"),
        ("01 00 808080808020 05 00 00 00", "output out of range"),
        ("01 00 00 808080808020 00 00 00", "position out of range"),
        ("01 00 00 05 05 00 00", "block cut off"),
        ("01 00 00 05 00 00", "no end"),
        ("01 00 00 05 00 00 00 00", "bytes after the end"),
        ("01 00 00 05 00 00 01 00 00 06 00 00 00", "a block before the last that is not full"),
        ("01 00 00 05 01 00 00 00", "a coded zero byte at the end"),
        ("01 00 00 05 06 00 000000000001 00", "coded bytes left over"),
        ("01 00 00 05 00 01 00 00", "plain byte left over"),
        ("01 00 00 05 01 00 ff 00", "more entries after the section than the block has"),
        ("02 00 00 05 01 00 ff 00", "a number of too many bits"),
    ],
)
def test_rules_of_the_format(body, why):
    assert not accepts(MAGIC + bytes.fromhex(body)), why


def test_blocks_that_do_not_follow_each_other_are_refused():
    """Each block is good; the second begins before the first ends."""
    first = encode(random_log(8, [BLOCK]))
    last = int(decode(first, max_entries=BLOCK)[0].positions[-1])
    for position, good in ((last + 1, True), (last, False), (0, False)):
        second = bytes([1, 0, 0]) + rounding_log._varints((position, 0, 0)) + b"\x00"
        assert accepts(first[:-1] + second, max_entries=1 << 20) == good


def test_other_magic_is_refused():
    for data in (b"", b"WBRL", b"WBRL\x01\x00", b"XBRL\x02\x00"):
        assert not accepts(data)


# --- the page, and what cannot be written ---------------------------------------------------------------------------


def test_the_documented_example():
    block = re.search(r"Encoded \((\d+) bytes\):\n\n```\n(.*?)```", PAGE.read_text(), re.S)
    lines = [re.match(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:   |  |$)", line) for line in block[2].splitlines()]
    data = bytes.fromhex("".join(line[1] for line in lines))
    assert len(data) == int(block[1])
    assert encode(EXAMPLE) == data
    assert plain(decode(data, max_entries=5)) == plain(EXAMPLE)
    assert roundlog_by_the_page.decode(data) == rows(EXAMPLE)


def test_an_empty_log_is_six_bytes():
    assert encode([]) == bytes.fromhex("5742524c0200")
    assert decode(encode([]), max_entries=0) == []


def golden_log():
    """Three sections with every width, made by arithmetic that no library can change."""
    number = 1
    log = []
    for op, output, size in ((0, 1, 400), (0, 3, 1), (1000, 0, 60)):
        entries, position = [], -1
        for _ in range(size):
            number = number * 6364136223846793005 % 2**64
            position += 1 + (number >> 40) % (1 << (number >> 60))
            k = ((number >> 33) % 64 if number >> 61 == 0 else 1 + (number >> 59) % 2) * (number % 11 > 0)
            entries.append((position, k, (number >> 5) % 2 ** (k or 59)))
        log.append(section(op, output, entries))
    return log


def test_the_golden_file_is_written_and_read():
    """A change that needs another file makes another version of the format."""
    data = GOLDEN.read_bytes()
    assert encode(golden_log()) == data
    assert plain(decode(data, max_entries=1000)) == plain(golden_log())
    assert roundlog_by_the_page.decode(data) == rows(golden_log())


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


# --- size -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.97, 0.5, 0.1, 0.02, 0.0003])
def test_entries_take_little_more_than_their_entropy(rate):
    """Independent elements, contested with a known rate, and a fair bit each: within 1.5 % of what any code needs."""
    rng = np.random.default_rng(1)
    places = np.cumsum(rng.geometric(rate, 200_000)) - 1
    entries = OpEntries(3, 0, places, np.ones(200_000, np.uint8), rng.integers(0, 2, 200_000).astype(np.uint64))
    entropy = -(rate * np.log2(rate) + (1 - rate) * np.log2(1 - rate)) / rate + 1
    assert len(encode([entries])) * 8 / 200_000 < 1.015 * entropy


def test_what_is_certain_costs_next_to_nothing():
    """Exact zeros behind wide bounds, ties to even, and runs of the same whole value."""
    n = 50_000
    for width, bits in ((31, 0), (1, 0), (0, 0x7FC00000)):
        entries = OpEntries(0, 0, np.arange(n), np.full(n, width, np.uint8), np.full(n, bits, np.uint64))
        assert len(encode([entries])) * 8 / n < 0.2
