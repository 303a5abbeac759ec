"""Frames of the local link: round trips and hostile bytes over a real socket."""

import socket
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_sim import frames
from weighbridge.core.errors import FormatError

values = st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary() | st.text()
messages = st.dictionaries(st.text(), values, max_size=5)


@given(messages)
def test_frame_round_trip(message: dict[str, Any]) -> None:
    """decode(encode(m)[4:]) == m."""
    assert frames.decode(frames.encode(message)[4:]) == message


def deliver(data: bytes) -> frames.Connection:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
    return frames.Connection(ours)


@given(st.lists(messages, max_size=4))
def test_messages_arrive_in_order(sent: list[dict[str, Any]]) -> None:
    connection = deliver(b"".join(frames.encode(message) for message in sent))
    assert [connection.receive() for _ in sent] == sent
    assert connection.receive() is None
    connection.close()


@given(st.binary(max_size=100))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    connection = deliver(data)
    with suppress(FormatError):
        while connection.receive() is not None:
            pass
    connection.close()


@pytest.mark.parametrize(
    "data",
    [
        frames.encode({"do": "hello"})[:-1],
        b"\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\x01",  # a number, no map
        b"\x00\x00\x00\x03\xa1\x01\x01",  # a key that is no text
        b"\x00\x00\x00\x07\xa2\x61a\x01\x61a\x02",  # a key twice
        b"\x00\x00\x00\x00",
    ],
)
def test_malformed_frames(data: bytes) -> None:
    connection = deliver(data)
    with pytest.raises(FormatError):
        connection.receive()
    connection.close()
