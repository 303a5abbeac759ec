"""What confined workers answer is read as hostile: it has its shape to the last item, or it is refused."""

from __future__ import annotations

import copy
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution import job_questions, transcript_facts, worker_process
from weighbridge.execution.job_questions import Side, chunks_of
from weighbridge.execution.worker_answers import MALFORMED, digest, natural, shaped, text, truth
from weighbridge.transcript.collectives import CHUNK

GOLDEN = Path(__file__).parents[2] / "golden"
SHAPE = {"n": int, "name": str, "tags": [str], "by": {str: int}, "maybe?": (None, bool), "either": (int, [int])}
GOOD = {"n": 1, "name": "a", "tags": ["b"], "by": {"c": 2}, "maybe": None, "either": [3]}

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=6),
    max_leaves=12,
)


def test_what_has_its_shape_is_returned() -> None:
    assert shaped(GOOD, SHAPE) == GOOD
    assert shaped({name: GOOD[name] for name in GOOD if name != "maybe"}, SHAPE).keys() == GOOD.keys() - {"maybe"}
    assert shaped({**GOOD, "maybe": True, "either": 3}, SHAPE)["either"] == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", True), ("n", 1.0), ("n", "1"), ("n", None), ("name", 1), ("name", None), ("tags", "b"), ("tags", [1]),
        ("tags", {"0": "b"}), ("by", {"c": "d"}), ("by", []), ("maybe", 0), ("either", "3"), ("either", ["3"]),
        ("more", 1),
    ],
)  # fmt: skip
def test_one_item_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(MALFORMED):
        shaped({**GOOD, name: value}, SHAPE)
    with pytest.raises(MALFORMED):
        shaped({each: GOOD[each] for each in GOOD if each != "n"}, SHAPE)


@given(PLAIN | st.builds(lambda name, value: {**GOOD, name: value}, st.sampled_from([*GOOD, "x"]), PLAIN))
def test_whatever_is_returned_has_the_shape(raw: Any) -> None:
    """Nothing but what stands in `MALFORMED` is raised, and what is returned is returned again."""
    try:
        found = shaped(raw, SHAPE)
    except MALFORMED:
        return
    assert found == raw
    assert shaped(found, SHAPE) == found
    assert type(found["n"]) is int
    assert all(type(each) is str for each in (found["name"], *found["tags"], *found["by"]))


def test_half_characters_are_replaced() -> None:
    assert shaped(["\ud800"], [str]) == ["?"]
    assert shaped({"\ud800": 1}, {str: int}) == {"?": 1}
    assert text("ab\ud800", 3) == "ab?"


@pytest.mark.parametrize("raw", [-1, 1 << 64, True, 1.0, "1", None])
def test_numbers_that_are_not_natural_are_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        natural(raw)
    assert natural(7, 8) == 7
    with pytest.raises(ValueError, match="number"):
        natural(8, 8)


def test_truth_values_and_digests() -> None:
    assert truth(False) is False
    with pytest.raises(ValueError, match="truth"):
        truth(0)
    assert digest("00" * 32) == bytes(32)
    for raw in ("00" * 31, "zz" * 32, 7, None):
        with pytest.raises(MALFORMED):
            digest(raw)


def test_an_answer_of_many_items_is_refused_before_it_becomes_objects() -> None:
    line = b'{"result": [' + b"[]," * (1 << 24) + b"[]]}\n"
    with pytest.raises(ReplayWorkerError, match="not a result"):
        worker_process.read_answer(BytesIO(line), None)


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Honest answers: of a transcript and of a job."""
    from weighbridge.execution.workers import job_questions_worker, transcript_facts_worker

    about = {"tape": None, "step": None, "operations": True}
    asked = {"path": str(GOLDEN / "digits"), "question": "program", "about": about}
    return {
        "program": transcript_facts_worker.answer(asked),
        "describe": job_questions_worker.answer({"path": str(GOLDEN / "job"), "question": "describe", "about": {}}),
        "results": job_questions_worker.answer(
            {"path": str(GOLDEN / "job"), "question": "results", "about": {"rank": 0, "steps": [1, 3]}}
        ),
    }


def ask(question: str) -> Any:
    if question == "describe":
        return job_questions.describe(GOLDEN / "job")
    if question == "results":
        return job_questions.results(GOLDEN / "job", 0, (1, 3))
    opened = object.__new__(transcript_facts.OpenedTranscript)
    opened.path, opened._limits, opened._answers = GOLDEN / "digits", transcript_facts.QUESTIONS, {}
    return opened.program(None, None, operations=True)


def parts(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a nest; of a list the first item only."""
    if isinstance(value, dict):
        return [at, *(place for key, each in value.items() for place in parts(each, (*at, key)))]
    return [at, *(parts(value[0], (*at, 0)) if isinstance(value, list) and value else ())]


@pytest.mark.parametrize("question", ["program", "describe", "results"])
def test_an_answer_with_any_part_of_another_type_is_refused(
    question: str, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {}
    for module in (transcript_facts, job_questions):
        monkeypatch.setattr(module, "run_worker", lambda *_: said)
    said["result"] = answers[question]
    assert ask(question)
    for place in parts(answers[question]):
        if place and place[-1] == "here":  # a number of any kind
            continue
        said["result"] = copy.deepcopy(answers[question])
        if not place:
            said["result"] = 0.5
        else:
            owner = said["result"]
            for key in place[:-1]:
                owner = owner[key]
            owner[place[-1]] = 0.5
        with pytest.raises(ReplayWorkerError, match="malformed"):
            ask(question)


# -- chunks ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5 * CHUNK), max_size=5))
def test_chunks_have_numbers_in_the_order_of_the_program(sizes: list[int]) -> None:
    sides = [Side(step, 0, 0, size) for step, size in enumerate(sizes)]
    total = sum(side.chunks for side in sides)
    found = chunks_of(sides, range(total))
    assert [(each.step, each.chunk) for each in found] == [(s.step, n) for s in sides for n in range(s.chunks)]


def test_more_chunks_than_memory_holds_are_drawn_from() -> None:
    sides = [Side(1, 2, 0, 1 << 61), Side(1, 3, 0, 7)]
    (last,) = chunks_of(sides, [(1 << 61) // CHUNK])
    assert (last.op, last.chunk) == (3, 0)
    (before,) = chunks_of(sides, [(1 << 61) // CHUNK - 1])
    assert (before.op, before.chunk) == (2, (1 << 61) // CHUNK - 1)
