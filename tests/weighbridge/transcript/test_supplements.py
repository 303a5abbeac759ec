"""The codec of supplements: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.forging import resign
from support.untrained_transcripts import append, start

from weighbridge.attest.dsse import canonical, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import DEFAULT_LIMITS, Limits, compress, decode_cbor
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, TranscriptError, UsageError
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate
from weighbridge.transcript.log_kinds import draft_format, on_demand
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import KIND, Statement, Supplement, decode, encode, read_signed, read_statement

KEY = SigningKey.generate()
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
devices = st.text(st.characters(categories=["L", "N", "P"], include_characters=" "), min_size=1, max_size=200)
logs = st.binary(min_size=6, max_size=400)


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    step = draw(st.integers(0, 10**8 - 1))
    before = draw(digests) if step else ""
    own = [draw(digests) for _ in range(4)]
    return Statement(
        draft=own[0], step=step, before=before, state=own[1], outputs=own[2], rounding=own[3],
        logged=draw(st.integers(0, (1 << 62) - 1)), device=draw(devices), tree=draw(st.just("") | digests),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files are written."""
    return tmp_path_factory.mktemp("supplements")


def of(statement: Statement, log: bytes) -> Statement:
    return replace(statement, rounding=bytes_digest(log).hex())


@given(statements(), logs)
@settings(max_examples=60)
def test_decode_gives_what_encode_was_given(statement: Statement, log: bytes) -> None:
    """The law in the docstring of `encode`."""
    said = of(statement, log)
    data = encode(said, log, KEY)
    read = decode(data)
    assert (read.statement, read.signer, read.log(DEFAULT_LIMITS)) == (said, KEY.public, log)
    envelope = decode_cbor(data)["statement"]
    assert read_signed(envelope) == (said, KEY.public)
    payload = json.loads(open_envelope(envelope, KIND).payload)
    assert (payload["format"], "tree" in payload) == ((2, True) if said.tree else (1, False))


@pytest.mark.parametrize(
    "changes",
    [{"format": 1, "tree": "ab" * 32}, {"format": 2}, {"format": 2, "tree": ""}, {"format": 3, "tree": "ab" * 32},
     {"format": True}, {"format": "1"}, {"format": 2, "tree": "ab" * 32, "more": 1}],
    ids=str,
)  # fmt: skip
def test_each_format_has_exactly_its_fields(changes: dict[str, object]) -> None:
    said = {name: value for name, value in asdict(EXAMPLE).items() if name != "tree"}
    with pytest.raises(FormatError):
        read_signed(seal(canonical({**said, **changes}), KIND, [KEY]))
    read_signed(seal(canonical({**said, "format": 1}), KIND, [KEY]))
    read_signed(seal(canonical({**said, "format": 2, "tree": "ab" * 32}), KIND, [KEY]))


EXAMPLE = of(Statement(**dict.fromkeys(("draft", "before", "state", "outputs"), "ab" * 32), step=7, rounding="",
                       logged=2, device="cpu"), b"log")  # fmt: skip
WHOLE = encode(EXAMPLE, b"log", KEY)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(max_examples=150)
def test_no_other_byte_is_taken(at: int, change: int) -> None:
    """What was altered is refused as malformed, or by its signature, or its log is not the one that it names."""
    data = bytearray(WHOLE)
    data[at] ^= change
    assert taken(bytes(data)) in ("malformed", "signature", "another frame of the same log")


def taken(data: bytes) -> str:
    """What becomes of bytes: the end of a refusal's code, or that they say the same."""
    try:
        read = decode(data)
        same = read.statement == EXAMPLE and read.log(DEFAULT_LIMITS) == b"log"
    except FormatError as error:
        return error.reason.removeprefix("transcript.supplement.")
    return "another frame of the same log" if same else "another supplement"


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_bytes_of_anyone_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)


# -- the statement alone -----------------------------------------------------------------------------------------------


def agree(path: Path, data: bytes) -> bool:
    """Whether the statement is read alone exactly where all is read, and is the same; returns whether it is read."""
    path.write_bytes(data)
    try:
        whole: object = decode(data)
    except FormatError:
        with pytest.raises(FormatError):
            read_statement(path)
        return False
    said, signer, envelope = read_statement(path)
    assert isinstance(whole, Supplement)
    assert (said, signer, envelope) == (whole.statement, whole.signer, decode_cbor(data)["statement"])
    return True


@given(statements(), st.integers(0, 70_000))
@settings(max_examples=30)
def test_a_statement_is_read_without_its_log(folder: Path, statement: Statement, size: int) -> None:
    """The law in the docstring of `read_statement`, over all widths of a length."""
    data = encode(statement, b"", KEY)
    assert agree(folder / "one", cbor({**decode_cbor(data), "log": bytes(size)}))


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255), st.booleans())
@settings(max_examples=200)
def test_of_altered_bytes_no_more_is_read_alone(folder: Path, at: int, change: int, cut: bool) -> None:
    data = bytearray(WHOLE)
    data[at] ^= change
    agree(folder / "one", bytes(data[: at if cut else None]))


@given(st.binary(max_size=300))
@example(b"\x5b\x10" + bytes(6) + b"\x01")  # farther than file systems look
@settings(max_examples=50)
def test_of_bytes_of_anyone_no_more_is_read_alone(folder: Path, data: bytes) -> None:
    assert not agree(folder / "one", data)
    assert not agree(folder / "one", b"\xa2\x63log" + data)


def test_a_log_of_terabytes_is_passed_over(folder: Path) -> None:
    """Its length is stated and it is not there; nothing is allocated for it."""
    place = folder / "one"
    place.write_bytes(b"\xa2\x63log\x5b" + (1 << 42).to_bytes(8, "big") + b"x")
    with pytest.raises(FormatError):
        read_statement(place)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1}, {"step": 10**8}, {"step": True}, {"state": "AB" * 32}, {"state": "ab"}, {"draft": ""},
        {"before": ""}, {"step": 0}, {"logged": -1}, {"device": ""}, {"device": "a\nb"}, {"device": "x" * 501},
        {"tree": "AB" * 32}, {"tree": "ab"},
    ],
    ids=str,
)  # fmt: skip
def test_statements_that_cannot_be_written(wrong: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        encode(replace(EXAMPLE, **wrong), b"log", KEY)  # type: ignore[arg-type]


def test_a_frame_that_states_gigabytes_is_refused_before_it_is_expanded() -> None:
    parts = decode_cbor(WHOLE)
    bomb = decode(cbor({**parts, "log": compress(bytes(1 << 24))}))
    with pytest.raises(FormatError, match="16777216"):
        bomb.log(Limits(rounding=1 << 20))


def test_a_statement_of_megabytes_is_refused() -> None:
    with pytest.raises(FormatError, match="exactly a log and a statement"):
        decode(cbor({**decode_cbor(WHOLE), "statement": b" " * (1 << 20)}))


# -- kinds of logs -----------------------------------------------------------------------------------------------------


def test_a_draft_says_its_kind_by_its_format() -> None:
    assert (draft_format({}), draft_format({"logs": "on-demand"})) == (1, 2)
    assert [draft_format({"logs": other}) for other in ("full", "", 2, True, [], b"on-demand")] == [None] * 6
    assert not on_demand({})


def test_a_writer_holds_steps_to_the_kind_of_the_draft(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kind of rounding logs"):
        append(start(tmp_path / "full"), [], logged=0, outputs=bytes(32))
    bare = start(tmp_path / "bare", logs="on-demand")
    with pytest.raises(UsageError, match="kind of rounding logs"):
        append(bare, [])
    with pytest.raises(UsageError, match="unknown kind of rounding logs"):
        start(tmp_path / "other", logs="sometimes")


def test_a_rank_of_a_job_may_have_its_logs_on_demand(tmp_path: Path) -> None:
    coordinate = MeshCoordinate(JobRecord(bytes(16), (("data", 2),)), 0)
    writer = start(tmp_path / "run", logs="on-demand", job=coordinate.to_map())
    append(writer, [], logged=0, outputs=bytes(32))
    writer.close()
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.on_demand
    assert MeshCoordinate.of(transcript.draft) == coordinate


def test_a_reader_of_the_first_format_is_told_by_its_number(tmp_path: Path) -> None:
    writer = start(tmp_path / "run", logs="on-demand")
    append(writer, [], logged=0, outputs=bytes(32))
    writer.close()
    transcript = Transcript.open(tmp_path / "run")
    assert (transcript.draft["format"], transcript.on_demand, transcript.log(0)) == (2, True, None)
    text = (tmp_path / "run" / "draft.cbor").read_bytes()
    older = text.replace(cbor("format") + b"\x02", cbor("format") + b"\x01")
    assert older != text
    (tmp_path / "run" / "draft.cbor").write_bytes(older)
    resign(tmp_path / "run")
    with pytest.raises(TranscriptError, match="not a draft of format 1, 2 or 3"):
        Transcript.open(tmp_path / "run")
