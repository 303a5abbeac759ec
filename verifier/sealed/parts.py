"""Which replays of a session its parts make, and which of these the session's worker takes.

A part goes on from a case as the session does, up to the replays: of snapshots' positions and of segments. It makes
its share of them and judges nothing. The shares follow from the order in which the inspection comes to its replays,
which is the same in each worker, since each has the same case and files.

Only what matches is taken. Whatever else a replay found, or failed by, the session's worker finds out for itself: so a
part spares it work, and neither accuses a Prover nor excuses one.

A part can be started a second time on another machine, where its time and the length of its results are seen. A Prover
with several machines could so have a part repeated until a draw spares a false run. So nothing is taken of replays that
draw what they look at: sketches that are compared, results of a declared unit that are judged. The session's worker,
which starts once, makes these.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verifier.farm.local_farm import Cancelled, LocalFarm, Progress
from verifier.inspection import InspectionStoppedError
from verifier.model import fact_codec
from verifier.model.check_runner import Given
from verifier.model.collected import Collected
from verifier.model.facts import MATCHES
from verifier.model.replay_task import Outcome, Task
from verifier.registry import Registry
from verifier.sealed.case import Case
from verifier.sealed.session import begin
from verifier.stages import explain, fetch, read_logs, repeat_segments, replay_segments, replay_snapshots
from verifier.stages.setting import Setting
from verifier.store.cache import Cache
from weighbridge.attest.identity import Credentials
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.attest.sealed_part import PartResults
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.execution.worker_process import Limits

_STAGES = (
    read_logs.run, explain.run, fetch.run, replay_snapshots.run, repeat_segments.run, replay_segments.run,
)  # fmt: skip
"""Those that replays come from. Lineages are replayed under a salt that the session's worker draws, so by it alone."""
_ITEMS = 1 << 22


class PartFarm:
    """Makes its share of the replays, and of the others none; nor any that draws which sketches it looks at."""

    def __init__(self, number: int, count: int, collected: Collected) -> None:
        """Takes which part it is, from 1, of how many, and what says which transcripts have sketches."""
        self._number, self._count, self._collected = number, count, collected
        self._farm = LocalFarm()
        self._shares: dict[object, int] = {}
        self.made: dict[str, Outcome] = {}

    @property
    def slots(self) -> int:
        """See `verifier.farm.local_farm.Farm`."""
        return self._farm.slots

    def check(self, device: str) -> None:
        """See `verifier.farm.local_farm.Farm`."""
        self._farm.check(device)

    def run(
        self, tasks: Sequence[Task], progress: Progress, cancelled: Cancelled | None = None
    ) -> Iterator[tuple[Task, Outcome]]:
        """See `verifier.farm.local_farm.Farm`; a replay of another share has no result."""
        own, sketched = [], _sketched(self._collected)
        for task in tasks:
            if task.path not in sketched and self._share(task) == self._number:
                own.append(task)
            else:
                yield task, Outcome(ReplayWorkerError("another worker makes this replay"), 0.0)
        for task, outcome in self._farm.run(own, progress, cancelled):
            self.made[task.key] = outcome
            yield task, outcome

    def _share(self, task: Task) -> int:
        """The replay to one operation further belongs to whom the first one does, who alone knows that it is due."""
        to = None if task.stop is None else task.stop[0]
        place = self._shares.setdefault((task.path, task.rank, task.steps, to), len(self._shares))
        return 1 + place % self._count


def make(
    case: Case,
    files: Path,
    registry: Registry,
    cache: Cache,
    credentials: Credentials,
    *,
    number: int,
    count: int,
    limits: Limits,
    cancelled: Callable[[], bool],
) -> PartResults:
    """Makes the replays of one part; once `cancelled` says so, what there is by then.

    Args:
        case: What the session inspects.
        files: The Prover's, as `inputs` says.
        registry: An empty one, for this part.
        cache: An empty one, on the file system of `files`.
        credentials: Any; nothing is connected to.
        number: Which part, from 1.
        count: Of how many.
        limits: Of each replay.
        cancelled: Whether to end.

    Raises:
        WeighbridgeError: The rules or the policy of the case are none.
    """
    collected = Collected()
    begun, farm = begin(case, files, registry, cache, cancelled=cancelled), PartFarm(number, count, collected)
    given = Given(plan=case.plan, firmware=case.firmware, witness=case.witness, least=begun.regime.least)
    setting = Setting(
        id=case.inspection, given=given, registry=registry, cache=cache, credentials=credentials,
        manufacturer=case.manufacturer, witness=begun.witness, limits=limits, units=begun.units, farm=farm,
        progress=begun.progress, transient=lambda *_: None, cancelled=cancelled, regime=begun.regime,
        uploaded=begun.uploaded,
    )  # fmt: skip
    with contextlib.suppress(InspectionStoppedError):
        for stage in _STAGES:
            stage(setting, collected)
    made = {bytes.fromhex(key): _encoded(each) for key, each in farm.made.items() if matches(each)}
    return PartResults(memory=limits.memory, seconds=limits.seconds, replays=made)


def matches(outcome: Outcome) -> bool:
    """Whether a replay found that all is as its transcript says, did all that it was asked for, and drew nothing."""
    result = outcome.result
    if not isinstance(result, ReplayResult) or result.verdict not in MATCHES or result.recognition_failed:
        return False
    return result.unit.get("judged") == result.unit.get("could")  # all that a unit's model could be asked about


@dataclass(frozen=True, slots=True)
class Taken:
    """What the session's worker has of its parts.

    Attributes:
        replays: What they found, by the keys of the replays.
        refused: By number, why a part was refused.
    """

    replays: Mapping[str, Outcome] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Returns what the report says of it: how many replays were taken, and which parts were refused."""
        return {"replays": len(self.replays), "refused": {str(number): why for number, why in self.refused.items()}}


def taken(results: Mapping[int, PartResults | WeighbridgeError], limits: Limits) -> Taken:
    """Takes what parts found.

    Args:
        results: Of each part, or why it is refused.
        limits: Of each replay of the session; what a part made with less is left out, lest a Prover choose what fails.
    """
    found, refused = dict[str, Outcome](), dict[int, str]()
    for number, each in results.items():
        if isinstance(each, WeighbridgeError):
            refused[number] = each.reason
        elif each.memory < limits.memory or each.seconds < limits.seconds:
            refused[number] = SealedWorkerError.code
        else:
            for key, value in each.replays.items():
                if (outcome := _decoded(value)) is not None and matches(outcome):
                    found[key.hex()] = outcome
    return Taken(found, refused)


def until(deadline: float) -> Callable[[], bool]:
    """Returns what says that it is time to end, by `time.monotonic`."""
    return lambda: time.monotonic() >= deadline


def _sketched(collected: Collected) -> set[Path]:
    """Returns the directories of transcripts with sketches, and of their jobs."""
    found = set[Path]()
    for snapshot in collected.snapshots:
        opened = None if snapshot.transcript is None else snapshot.transcript.opened
        if isinstance(opened, OpenedTranscript) and opened.logs == "sketch":
            found.add(opened.path)
            if snapshot.shard is not None and isinstance(snapshot.shard.job, Path):
                found.add(snapshot.shard.job)
    return found


def _encoded(outcome: Outcome) -> bytes:
    return cbor(fact_codec.outcome_to(outcome))


def _decoded(value: bytes) -> Outcome | None:
    try:
        return fact_codec.outcome_of(decode_cbor(value, max_items=_ITEMS))
    except (WeighbridgeError, ValueError, TypeError, KeyError, AttributeError):
        return None
