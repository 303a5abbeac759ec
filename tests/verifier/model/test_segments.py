"""Which segments are replayed whole: by rules that a reader can recompute, and that a report cannot bend."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from prover import Recorder
from verifier.model.segments import CRITERIA, Criterion, Secret, Selection, segments, select, verify
from verifier.model.weight_change import Changes, scores
from weighbridge.core.errors import FormatError, ProofError, UsageError, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.export import export

SEED = bytes(range(32))
JUMP = 13


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenedTranscript:
    """Twenty steps in segments of two; in step 13 the learning rate is fifty times what it is else."""
    path = tmp_path_factory.mktemp("runs") / "run"
    with Recorder(path, seed=5, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        recorder.attach(model, optimizer)
        for step in range(1, 21):
            optimizer.param_groups[0]["lr"] = 0.5 if step == JUMP else 0.01
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            with recorder.step({"x": x}):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return open_confined(path)


def test_segments_cover_every_step_once(run: OpenedTranscript) -> None:
    found = segments(run)
    assert found[:3] == [(0, 1), (1, 3), (3, 5)]
    assert [step for begin, end in found for step in range(begin, end)] == list(range(run.steps))


def test_snapshots_choose_their_segments_and_only_they_count_in_p(run: OpenedTranscript) -> None:
    found = select(run, sampled=[4, 3, 21], seed=SEED, largest=1)
    assert [(c.begin, c.end, c.reasons, c.in_p) for c in found.chosen] == [
        (3, 5, ("snapshot",), True),
        (13, 15, ("change",), False),
        (19, 21, ("snapshot",), True),
    ]


def test_the_largest_change_is_found_and_stands_out(run: OpenedTranscript) -> None:
    changes = Changes(run)
    assert changes.largest([begin for begin, _ in segments(run)], 1) == [JUMP]
    assert set(changes.total) == set(range(1, 20, 2))
    outstanding = changes.continuity()
    assert max(outstanding, key=lambda begin: outstanding[begin]) == JUMP
    assert outstanding[JUMP] > 5
    assert changes.of(JUMP, "model.0.weight") > 5 * changes.of(JUMP - 2, "model.0.weight") > 0
    assert changes.of(JUMP, "no such tensor") == 0


def test_random_segments_follow_from_the_seed(run: OpenedTranscript) -> None:
    def drawn(seed: bytes) -> list[int]:
        return [c.begin for c in select(run, sampled=[], seed=seed, random=3).chosen]

    assert drawn(SEED) == drawn(SEED)
    assert len(drawn(SEED)) == 3
    assert len({tuple(drawn(bytes([n]) * 32)) for n in range(8)}) > 4
    assert len(select(run, sampled=[], seed=SEED, random=99).chosen) == len(segments(run))


@pytest.mark.parametrize(
    ("criterion", "begins"),
    [
        (Criterion("step", 6), [5]),
        (Criterion("every", 4, 1.0), [1, 9, 17]),
        (Criterion("tensor", 0, 0.05, "model.0.weight"), [JUMP]),
    ],
)
def test_secret_criteria_choose_segments(run: OpenedTranscript, criterion: Criterion, begins: list[int]) -> None:
    found = select(run, sampled=[], seed=SEED, secret=Secret.of([criterion]))
    assert [c.begin for c in found.chosen] == begins
    assert all(c.reasons == ("secret",) and not c.in_p for c in found.chosen)


def full(run: OpenedTranscript, seed: bytes = SEED) -> tuple[Selection, str]:
    secret = Secret.of([Criterion("step", 6), Criterion("every", 5, 2.0)])
    return select(run, sampled=[4], seed=seed, random=2, largest=2, secret=secret), secret.commitment()


def test_a_reader_can_recompute_the_choice(run: OpenedTranscript) -> None:
    made, commitment = full(run)
    told = json.loads(json.dumps(made.to_json()))
    assert verify(run, told, commitment) == made
    plain = select(run, sampled=[4], seed=SEED)
    assert verify(run, plain.to_json()) == plain


def test_a_report_that_bends_the_choice_is_caught(run: OpenedTranscript) -> None:
    """One segment less, another seed, criteria that were made up afterwards or left out, a segment that counts in p."""
    made, commitment = full(run)
    told = made.to_json()
    # Two seeds in fifty draw the same two segments of eleven, and a report that names the other one is as good.
    other = next(seed for n in range(9) if full(run, seed := bytes([n]) * 32)[0].chosen != made.chosen)
    bent = []
    for change in (
        lambda t: t["chosen"].pop(),
        lambda t: t.update(seed=other.hex()),
        lambda t: t["sampled"].append(9),
        lambda t: t.update(random=1),
        lambda t: t["secret"]["criteria"].pop(),
        lambda t: t.update(secret=None),
        lambda t: t["chosen"][0].update(counts_in_p=not t["chosen"][0]["counts_in_p"]),
    ):
        lie = copy.deepcopy(told)
        change(lie)
        bent.append(lie)
    for lie in bent:
        with pytest.raises(ProofError):
            verify(run, lie, commitment)
    with pytest.raises(ProofError):
        verify(run, told)  # criteria without a commitment


def test_a_copy_without_checkpoints_has_no_changes(run: OpenedTranscript, tmp_path: Path) -> None:
    export(run.path, tmp_path / "copy", minimal=True)
    copied = open_confined(tmp_path / "copy")
    assert Changes(copied).total == {}
    assert select(copied, sampled=[], seed=SEED, largest=3).chosen == ()
    assert segments(copied) == segments(run)


criteria = st.one_of(
    st.builds(Criterion, st.just("step"), st.integers(0, 1 << 50)),
    st.builds(lambda n, r: Criterion("every", n, float(r % n)), st.integers(1, 1 << 30), st.integers(0, 1 << 30)),
    st.builds(lambda s, n: Criterion("tensor", 0, s, n), st.floats(0, 1e9), st.text("ab.0", min_size=1, max_size=9)),
)
opened = st.builds(Secret, st.binary(min_size=32, max_size=32), st.lists(criteria, max_size=4).map(tuple))


@given(opened)
def test_round_trip(secret: Secret) -> None:
    """Secret.from_json(json(s.to_json())) == s, with the same commitment."""
    found = Secret.from_json(json.loads(json.dumps(secret.to_json())))
    assert found == secret
    assert found.commitment() == secret.commitment()


@given(opened, opened)
def test_commitments_hide_and_bind(one: Secret, other: Secret) -> None:
    assert (one.commitment() == other.commitment()) == (one == other)
    assert Secret.of(one.criteria).commitment() != Secret.of(one.criteria).commitment()


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.one_of(hostile, st.fixed_dictionaries({"salt": st.just("0" * 64), "criteria": hostile})))
def test_hostile_criteria(value: object) -> None:
    try:
        Secret.from_json(value)
    except WeighbridgeError:
        return
    assert isinstance(value, dict)
    assert value["criteria"] == []


@given(st.dictionaries(st.sampled_from(["seed", "random", "largest", "sampled", "secret", "chosen"]), hostile))
def test_hostile_reports(value: dict[str, object]) -> None:
    with pytest.raises(WeighbridgeError):
        verify(_RUN[0], value)


_RUN: list[OpenedTranscript] = []


@pytest.fixture(scope="module", autouse=True)
def _keep(run: OpenedTranscript) -> None:
    _RUN.append(run)


@pytest.mark.parametrize(
    "fields",
    [("other", 1), ("step", -1), ("every", 0), ("every", 3, 3.0), ("every", 3, 0.5), ("tensor", 0, 0.5),
     ("step", 1, 0.0, "x"), ("tensor", 0, math.nan, "x"), ("step", True), ("step", 1, 1)],
    ids=str,
)  # fmt: skip
def test_criteria_that_make_no_sense(fields: tuple[object, ...]) -> None:
    with pytest.raises(UsageError):
        Criterion(*fields)  # type: ignore[arg-type]
    assert {"step", "every", "tensor"} == set(CRITERIA)


def test_reports_of_another_form(run: OpenedTranscript) -> None:
    with pytest.raises(FormatError):
        verify(run, {**full(run)[0].to_json(), "random": -1})


def test_scores_of_few_or_odd_values() -> None:
    assert scores([], []) == {}
    assert scores([1.0, 9.0], [3, 4]) == {3: 0.0, 4: 0.0}
    found = scores([0.0, math.inf, 0.0, 0.1, math.inf, 0.0], list(range(6)))
    assert found[1] == found[4] == math.inf
    assert all(math.isfinite(found[n]) for n in (0, 2, 3, 5))
