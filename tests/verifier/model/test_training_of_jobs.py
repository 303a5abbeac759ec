"""What is said of a job's training: never more than was seen of every program of every rank."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from verifier.model import fact_codec
from verifier.model.segments import Chosen, Replayed, Selection
from verifier.model.training import UNCOUNTED, of_job
from verifier.report.training import facts
from weighbridge.core.errors import FormatError
from weighbridge.execution.recognition.outcome import Recognition, Update
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Program, RunFacts

USUAL, OTHER = "aa" * 32, "bb" * 32


def step(number: int, tape: str = USUAL, *reasons: str) -> Recognition:
    update = Update("AdamW", (), {}, 1.0, None, ("model.weight",), 50, 0.1, 0.0, 0.0, 0.0)
    return Recognition(
        step=number, tape=tape, reasons=reasons, updates=(update,), weight_bits=1600, float_bits=64, other_bits=32
    )


def replayed(of_ranks: Sequence[Sequence[Recognition]], recognise: int = 2, verdict: str = "match") -> Replayed:
    selection = Selection(
        transcript="00" * 32, seed=b"seed", sampled=(2,), random=0, largest=0, secret=None,
        chosen=(Chosen(begin=0, end=4, reasons=("snapshot",)),),
    )  # fmt: skip
    result = ReplayResult(
        verdict=verdict,  # type: ignore[arg-type]
        steps=(0, 4), state="00", recognised=list(of_ranks[0]) if of_ranks else [],
        of_ranks=[list(each) for each in of_ranks],
    )  # fmt: skip
    return Replayed(selection=selection, recognise=recognise, results={0: result})


def counted(**steps: int) -> RunFacts:
    named = {"usual": USUAL, "other": OTHER}
    programs = [
        Program(digest=named[name], kind="step", first=1, count=count, operations=10, flops=100, steps=count)
        for name, count in steps.items()
    ]
    return RunFacts(
        steps=sum(steps.values()), flops={}, fixed=False, programs=tuple(programs), operations=(), parameters=50,
        used=0, seen=0,
    )  # fmt: skip


def test_a_job_is_recognised_if_every_program_of_every_rank_is() -> None:
    job = of_job(
        [replayed([[step(2), step(3)], [step(2, OTHER), step(3, OTHER)]])], [counted(usual=3), counted(other=3)]
    )
    assert job is not None
    assert (job.outcome, job.failures) == ("recognised", ())
    said = facts(job, 100)
    assert (said["looked_at"], said["recognised"], said["programs_recognised"]) == (2, 2, 2)
    assert said["verified_share"] == 1
    assert (said["data_share"], said["other_share"]) == (0.04, 0.02)


def test_a_program_that_another_rank_ran_in_a_step_that_was_not_looked_at_is_not_known() -> None:
    seen = replayed([[step(2)], [step(2)]])
    job = of_job([seen], [counted(usual=3), counted(usual=2, other=1)])
    assert job is not None
    assert job.outcome == "not known"
    assert "outcome" not in facts(job, 100)


def test_a_step_that_one_rank_did_not_train_in_counts_as_none() -> None:
    job = of_job([replayed([[step(2), step(3)], [step(2), step(3, USUAL, "an import")]])], [counted(usual=3)] * 2)
    assert job is not None
    assert job.outcome == "not recognised"
    said = facts(job, 100)
    assert (said["looked_at"], said["recognised"], said["verified_share"]) == (2, 1, 0.5)


@pytest.mark.parametrize(
    ("of_ranks", "second"),
    [
        pytest.param([[step(2)], [step(2)]], None, id="a rank was not counted"),
        pytest.param([[step(2)], [step(2)]], FormatError("unreadable"), id="a rank could not be read"),
        pytest.param([], counted(usual=3), id="an earlier version kept nothing of other ranks"),
    ],
)
def test_what_is_missing_of_a_rank_leaves_the_job_not_known(
    of_ranks: list[list[Recognition]], second: RunFacts | FormatError | None
) -> None:
    job = of_job([replayed(of_ranks)], [counted(usual=3), second])
    assert job is not None
    assert job.outcome == "not known"
    assert job.failures
    assert (UNCOUNTED in job.failures) is bool(of_ranks)


def test_replays_that_differ_show_nothing_and_no_replay_is_no_outcome() -> None:
    differs = of_job([replayed([[step(2)], [step(2)]], verdict="mismatch")], [counted(usual=3)] * 2)
    assert differs is not None
    assert (differs.outcome, differs.steps) == ("not known", [])
    assert of_job([replayed([[step(2)], [step(2)]], recognise=0)], [counted(usual=3)] * 2) is None


def test_steps_of_all_ranks_are_kept_in_the_database() -> None:
    result = replayed([[step(2)], [step(2, OTHER)]]).results[0]
    assert fact_codec.result_of(fact_codec.result_to(result)) == result
