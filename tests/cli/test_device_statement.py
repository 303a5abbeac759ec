"""The signed statement about a device, as a codec, and the places that it is about."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest.dsse import DocumentError, canonical, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.cli.gpu_evidence.places import CPU, PLAIN, pairs, require
from weighbridge.cli.gpu_evidence.statement import MEDIA_TYPE, Recording, Statement, open_statement
from weighbridge.core.errors import UsageError


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(sorted(Statement.__slots__)) | st.text(max_size=3), inner, max_size=10)
        ),
        max_leaves=30,
    )
)
def test_any_signed_text_is_a_statement_or_is_refused(value: Any) -> None:
    try:
        open_statement(seal(canonical(value), MEDIA_TYPE, [SigningKey.generate()]))
    except DocumentError:
        return
    raise AssertionError(value)


def test_a_statement_reads_as_it_was_written() -> None:
    """decode(encode(x)) == x."""
    recording = Recording(
        subject="a", place="cpu", folder="runs/a-0", transcript="ab" * 32, state="cd" * 32, steps=3, parameters=7,
        rounded=5, logged=1, recorded_ms={"median": 1.5, "least": 1.0},
    )  # fmt: skip
    statement = Statement(
        made_at="2026-01-01T00:00:00Z", size="tiny", places={"cpu": {"kind": "cpu", "cores": 2}},
        recordings=(recording,),
        replays=(), times={"a on cpu": {"plain_ms": {"median": 1.5, "least": 1.0}}}, units={},
        errors={"cpu": {"mm": {"ratio": 0.1, "elements": 3}}}, software={"torch": "2.13.0"},
    )  # fmt: skip
    key = SigningKey.generate()
    assert open_statement(statement.sign(key)) == (statement, (key.public,))


def test_places_are_compared_both_ways() -> None:
    assert pairs([CPU, PLAIN]) == [(CPU, PLAIN), (PLAIN, CPU)]
    assert pairs([CPU]) == [(CPU, CPU)]


def test_a_device_is_named_once() -> None:
    with pytest.raises(UsageError, match="named twice"):
        require(["cpu", "cpu"])


@pytest.mark.parametrize("folders", [[], ["runs/a", "runs/a"], ["runs/a", "runs/a/b"]])
def test_every_recording_has_a_folder_of_its_own(folders: list[str]) -> None:
    """One transcript must not stand for the trainings of several devices, nor nothing for all."""
    recordings = tuple(
        Recording(
            subject="a", place="cpu", folder=folder, transcript="ab" * 32, state="cd" * 32, steps=3, parameters=7,
            rounded=5, logged=1, recorded_ms={"median": 1.5, "least": 1.0},
        )
        for folder in folders
    )  # fmt: skip
    statement = Statement(
        made_at="", size="tiny", places={"cpu": {}}, recordings=recordings, replays=(), times={}, units={}, errors={},
        software={},
    )  # fmt: skip
    with pytest.raises(DocumentError):
        open_statement(statement.sign(SigningKey.generate()))
