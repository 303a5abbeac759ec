"""Replays for the stages: each once, several at a time, and durable as it ends."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.farm.local_farm import CancelledError
from verifier.model import fact_codec
from verifier.model.replay_task import Outcome, Task
from verifier.stages.setting import InspectionStoppedError, Setting
from verifier.units import key_of
from weighbridge.execution.transcript_facts import OpenedTranscript


def task(
    setting: Setting,
    transcript: OpenedTranscript,
    *,
    steps: tuple[int, int] | None = None,
    stop: tuple[int, int] | None = None,
    salt: bytes | None = None,
    recognise: tuple[int, int] = (0, 0),
    sensitivity: int = 0,
) -> Task:
    """Returns the replay of one transcript, of some steps or to a position, as the plan has replays done."""
    plan = setting.plan
    return Task(
        key=key_of("transcript", transcript.digest, steps, stop, salt),
        name=transcript.manifest.name,
        path=transcript.path,
        steps=steps,
        stop=stop,
        salt=salt,
        recognise=recognise,
        sensitivity=sensitivity,
        device=plan.replay_device,
        limits=setting.limits,
        env=plan.replay_env,
    )


def replayed(setting: Setting, stage: str, tasks: Sequence[Task]) -> dict[str, Outcome]:
    """Runs replays, unless that was done already; returns the outcomes by the tasks' keys.

    Args:
        setting: The inspection's.
        stage: Whose they are, for progress.
        tasks: What to replay; tasks with the same key are run once.

    Raises:
        InspectionStoppedError: The process wants to end; the replays in progress are begun anew later.
    """
    wanted = {each.key: each for each in tasks}
    done: dict[str, Outcome] = {}
    for key in wanted:
        if (known := setting.units.get("replay", key, fact_codec.outcome_of)) is not None:
            done[key] = known
    left = [each for key, each in wanted.items() if key not in done]

    def say(each: Task, steps: int, of: int) -> None:
        setting.transient(stage, len(done), len(wanted), f"replaying {each.name}: {steps} of {of} steps")

    try:
        for each, outcome in setting.farm.run(left, say, setting.cancelled):
            setting.units.put("replay", each.key, fact_codec.outcome_to(outcome))
            done[each.key] = outcome
            setting.progress(stage, len(done), len(wanted), f"replayed {each.name}")
    except CancelledError:
        raise InspectionStoppedError("the Verifier is shutting down; the inspection goes on when it is back") from None
    return done
