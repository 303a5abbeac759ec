"""How much was replayed: counted from the replays that a report names, and said in words that claim no more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.report import extent

A, B = "aa" * 32, "bb" * 32


def snapshot(name: str | None, step: int, replay: tuple[int, int] | None) -> dict[str, Any]:
    return {"transcript": name, "step": step, "replay": None if replay is None else {"steps": list(replay)}}


def transcript(name: str, steps: int, segments: int | None) -> dict[str, Any]:
    return {"id": name, "readable": True, "steps": steps, "segments": segments}


def segments(name: str, *each: tuple[int, int, str, str]) -> dict[str, Any]:
    """Segments that were chosen: first step, the one after the last, the reason, and what the replay came to."""
    return {
        "selection": {
            "transcript": name,
            "chosen": [{"begin": begin, "end": end, "reasons": [reason]} for begin, end, reason, _ in each],
        },
        "verdicts": [
            {"begin": begin, "verdict": verdict, "steps": [begin, end] if verdict == "match" else None}
            for begin, end, _, verdict in each
        ],
    }


def report(chips: list[Any], transcripts: list[Any], chosen: list[Any]) -> dict[str, Any]:
    rows = extent.replayed(chips, transcripts, chosen)
    return {"replayed": rows, "replayed_in_all": extent.replayed_in_all(rows)}


CHIPS = [
    {"snapshots": [snapshot(A, 13, (11, 14)), snapshot(A, 3, (1, 4)), snapshot(None, 0, None)]},
    {"snapshots": [snapshot(B, 8, None)]},
]
TRANSCRIPTS = [transcript(A, 21, 5), transcript(B, 10, 2), {"id": "cc" * 32, "readable": False}]


def test_steps_are_counted_once_and_only_if_executed_to_their_end() -> None:
    """Of the step in which a snapshot was taken the rest was not executed."""
    chosen = [segments(A, (1, 6, "random", "match"), (11, 16, "change", "match"))]
    one, other = extent.replayed(CHIPS, TRANSCRIPTS, chosen)
    assert one == {
        "transcript": A, "steps": 21, "replayed": 10, "share": 10 / 21, "segments": 5, "whole": 2, "random": 1,
        "chance": 1 / 5,
    }  # fmt: skip
    assert (other["replayed"], other["whole"], other["chance"]) == (0, 0, 0.0)
    assert extent.replayed(CHIPS, TRANSCRIPTS, [])[0]["replayed"] == 2 + 2
    total = extent.replayed_in_all([one, other])
    assert total == {
        "transcripts": 2, "steps": 31, "replayed": 10, "share": 10 / 31, "segments": 7, "whole": 2, "random": 1,
        "chance": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "counts"), [("match", 1), ("mismatch", 1), ("inconclusive", 0), ("replay.worker", 0)]
)
def test_a_segment_counts_that_was_looked_at(verdict: str, counts: int) -> None:
    """A replay that stops at a difference has seen that the segment is false; one that failed has seen nothing."""
    (row, _) = extent.replayed(CHIPS, TRANSCRIPTS, [segments(A, (1, 6, "random", verdict))])
    assert (row["whole"], row["random"], row["chance"]) == (counts, counts, counts / 5)


def test_where_no_segment_was_replayed_whole_it_says_what_nobody_looked_for() -> None:
    none = report(CHIPS, TRANSCRIPTS, [])
    assert extent.replays_in_words(none) == (
        "4 of 31 steps executed, 0 of 7 segments replayed whole: glued or interpolated histories were not looked for"
    )
    assert [name in line for name, line in zip((A, B), extent.not_looked_at(none["replayed"]), strict=True)] == [
        True
    ] * 2


def test_where_some_were_it_says_with_which_chance_and_where_not() -> None:
    some = report(CHIPS, TRANSCRIPTS, [segments(A, (1, 6, "random", "match"))])
    words = extent.replays_in_words(some)
    assert "1 of 7 segments replayed whole; one false segment" in words
    assert "with a probability of at least 0.2; of 1 of 2 transcripts no segment was replayed whole: there" in words
    (line,) = extent.not_looked_at(some["replayed"])
    assert B in line
    both = report(CHIPS, TRANSCRIPTS, [segments(name, (1, 6, "random", "match")) for name in (A, B)])
    assert "not looked for" not in extent.replays_in_words(both)
    assert both["replayed_in_all"]["chance"] == 1 / 5
    assert extent.not_looked_at(both["replayed"]) == []


def test_a_segment_that_the_weights_chose_gives_no_chance() -> None:
    """Where the weights change most is the Prover's to say: it can put the false segment elsewhere."""
    largest = report(CHIPS[:1], TRANSCRIPTS, [segments(A, (1, 6, "change", "match"))])
    assert largest["replayed_in_all"]["chance"] == 0.0
    assert "probability of at least 0" in extent.replays_in_words(largest)


def test_nothing_is_said_where_no_transcript_was_to_explain_anything() -> None:
    idle = report([{"snapshots": []}], [], [])
    assert extent.replays_in_words(idle) == ""
    assert idle["replayed_in_all"]["chance"] == idle["replayed_in_all"]["share"] == 0.0


def test_a_report_that_does_not_say_how_many_segments_there_are_claims_no_chance() -> None:
    old = report(CHIPS[:1], [transcript(A, 21, None)], [segments(A, (1, 6, "random", "match"))])
    assert (old["replayed"][0]["chance"], old["replayed_in_all"]["segments"]) == (None, None)
    assert extent.replays_in_words(old) == "7 of 21 steps executed, 1 segments replayed whole"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8), st.integers(0, 25))
def test_no_step_is_counted_twice(ranges: list[tuple[int, int]], steps: int) -> None:
    """Law: what is counted is the union of the ranges within the transcript."""
    chips = [{"snapshots": [snapshot(A, 99, each) for each in ranges]}]
    rows = extent.replayed(chips, [transcript(A, steps, 1)], [])
    expected = {step for first, last in ranges for step in range(first, last) if step < steps}
    assert [row["replayed"] for row in rows] == ([len(expected)] if ranges else [])
