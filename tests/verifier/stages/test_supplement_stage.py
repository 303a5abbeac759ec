"""Which rounding logs are asked for, of whom, and how the requests are counted when replays could not read some."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import on_demand
from support.workers_here import workers_here

from verifier.contact.supplement_records import SupplementRecords
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.facts import Plan, TranscriptFacts
from verifier.model.replay_task import Outcome
from verifier.model.supplement_facts import REFUSED, Asked, Steps
from verifier.registry import Chip, Registry
from verifier.stages import fetch_parents, supplement_requests
from verifier.stages.replay_runner import task
from verifier.stages.setting import Setting
from verifier.store.cache import Cache
from verifier.units import Units
from weighbridge.core.errors import Finding, ProverError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.execution.worker_process import Limits

UEID = b"\x01" + b"u" * 16
PLAN = Plan(
    samples=1, seed=bytes(16), flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0, snapshot_rate_per_day=1.0
)


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> OpenedTranscript:
    """A run of four steps without logs; checkpoints are before the steps 1 and 3."""
    with workers_here():
        return open_confined(on_demand.record(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """What these stages use of a setting: an inspection that has been started, and no machine to replay on."""
    registry, cache = Registry(tmp_path / "registry.db"), Cache(tmp_path / "cache")
    registry.register(Chip(ueid=UEID, address="chip:1"))
    registry.start_inspection("one", seed=b"s" * 16, plan={}, chips=[UEID])
    used = {
        "id": "one", "registry": registry, "cache": cache, "plan": PLAN, "limits": Limits(),
        "units": Units(registry.session, cache, "one"), "cancelled": lambda: False,
        "farm": SimpleNamespace(run=lambda tasks, *_: iter(tasks)),
    }  # fmt: skip
    yield cast(Setting, SimpleNamespace(**used))
    registry.close()


def request(transcript: OpenedTranscript, steps: Steps, came: int, prover: str = "a") -> Asked:
    why = None if came == steps[1] - steps[0] else ProverError("no", code=REFUSED)
    return Asked(
        prover=prover, transcript=transcript.digest, steps=steps, came=came, deadline_s=1.0, seconds=0.0, why=why
    )


def shown(transcript: OpenedTranscript, *provers: str) -> Collected:
    """What is collected if some Provers show a transcript."""
    facts = TranscriptFacts(id=transcript.digest, opened=transcript)
    return Collected(transcripts={(each, transcript.digest): facts for each in provers})


def asks(
    monkeypatch: pytest.MonkeyPatch, collected: Collected, transcript: OpenedTranscript, steps: Steps,
    makes: tuple[str, ...] = ("a",),
) -> list[tuple[str, Steps]]:  # fmt: skip
    """Whom `ask` asks for which steps, if some Provers make all that they are asked for and the others nothing."""
    out = []

    def answered(_: Any, collected: Collected, transcript: OpenedTranscript, wanted: Steps, prover: str) -> Asked:
        out.append((prover, wanted))
        asked = request(transcript, wanted, wanted[1] - wanted[0] if prover in makes else 0, prover)
        collected.supplements.append(asked)
        return asked

    monkeypatch.setattr(supplement_requests, "_request", answered)
    supplement_requests.ask(cast(Setting, None), collected, transcript, steps)
    return out


@given(st.sets(st.integers(0, 40)))
def test_ranges_are_those_steps_and_have_no_holes(steps: set[int]) -> None:
    """Law: their union is the steps, they ascend, and between two of them is a step that is not wanted."""
    ranges = supplement_requests._ranges(sorted(steps))
    assert [each for begin, end in ranges for each in range(begin, end)] == sorted(steps)
    assert all(end < begin for (_, end), (begin, _) in pairwise(ranges))


def test_what_was_asked_for_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, transcript: OpenedTranscript
) -> None:
    """Steps on either side of those that are known are two requests: one would cost the Prover a run for nothing."""
    collected = shown(transcript, "a")
    collected.supplements.append(request(transcript, (2, 3), 1))
    assert transcript.checkpoint_steps == [1, 3]
    assert asks(monkeypatch, collected, transcript, (1, 4)) == [("a", (1, 2)), ("a", (3, 4))]
    assert asks(monkeypatch, collected, transcript, (1, 4)) == []


@pytest.mark.parametrize(("makes", "asked"), [(("a",), "a"), (("c",), "abc"), (("b", "c"), "ab"), ((), "abc")], ids=str)
def test_provers_are_asked_in_turn_until_one_makes_all(
    monkeypatch: pytest.MonkeyPatch, transcript: OpenedTranscript, makes: tuple[str, ...], asked: str
) -> None:
    collected = shown(transcript, "a", "b", "c")
    assert asks(monkeypatch, collected, transcript, (3, 4), makes) == [(each, (3, 4)) for each in asked]


def test_of_an_uploaded_transcript_nobody_is_asked_if_no_prover_shows_it(
    monkeypatch: pytest.MonkeyPatch, transcript: OpenedTranscript
) -> None:
    for provers, asked in (([""], ""), (["", "a"], "a")):
        assert asks(monkeypatch, shown(transcript, *provers), transcript, (3, 4)) == [(asked, (3, 4))]


def unreadable(step: int) -> ReplayResult:
    """A replay that could not read the log of a step."""
    malformed = Finding(id="transcript.supplement.malformed", message="", subject=f"{step:08d}.wsup")
    return ReplayResult(verdict="match", steps=(1, 4), state="00", findings=[malformed])


def test_a_log_that_a_replay_of_a_parent_could_not_read_counts_for_nothing(
    setting: Setting, transcript: OpenedTranscript
) -> None:
    """As one that a replay of the run itself could not read."""
    collected = shown(transcript, "a")
    collected.supplements.append(request(transcript, (1, 4), 3))
    salt = b"s" * 32
    to, steps = task(setting, transcript, stop=(3, 0), salt=salt), task(setting, transcript, steps=(3, 4))
    for each, bad in ((to, 2), (steps, 3)):
        setting.units.put("replay", each.key, fact_codec.outcome_to(Outcome(unreadable(bad), 0.0)))
    fetch_parents._replay_to(setting, collected, transcript, 3, salt)
    fetch_parents._replay_steps(setting, collected, transcript, (3, 4))
    supplement_requests.settle(setting, collected)
    (settled,) = collected.supplements
    assert (settled.came, settled.regenerated) == (1, False)
    assert settled.why is not None
    assert settled.why.reason == REFUSED
    assert SupplementRecords(setting.registry.session).earlier("another") == {"a": (1, 0)}


def test_a_log_that_cannot_be_read_is_held_against_the_prover_who_sent_it(
    setting: Setting, transcript: OpenedTranscript
) -> None:
    """The last of several that sent any: what it sent is in the place of what the others had."""
    collected = shown(transcript, "a", "b", "c")
    collected.supplements += [
        request(transcript, (1, 4), 1, "a"), request(transcript, (1, 4), 2, "b"), request(transcript, (1, 4), 0, "c"),
    ]  # fmt: skip
    collected.lineage_replays.append((transcript.digest, unreadable(2)))
    supplement_requests.settle(setting, collected)
    assert [(each.prover, each.came) for each in collected.supplements] == [("a", 1), ("b", 1), ("c", 0)]
