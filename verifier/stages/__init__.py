"""The stages of an inspection, one module each, in the order in which they run.

| stage | what it does | what it leaves in `verifier.model.collected.Collected` |
|---|---|---|
| `read_logs` | reads and judges the log of each drawn chip; keeps it as witnessed if no finding counts against it | `chips`, `logs`, `snapshots`, `sound`, `lost` |
| `explain` | asks the Provers where each snapshot came from, then searches their uploads | `explanation` of each snapshot |
| `fetch` | fetches the transcripts that explain snapshots, and assembles the jobs of sharded ones | `transcripts`, `shards`; `transcript` and `shard` of each snapshot |
| `fetch_parents` | finds out where each run began, and fetches the parents that runs declare | `lineages`, and the parents in `transcripts` |
| `prepare_cells` | asks for the material to replay one rank of a job alone, if the plan wants that | `cell` of each snapshot |
| `replay_snapshots` | opens the snapshots and replays to every claimed position | `opening`, `batches`, `replayed`, `after` of each snapshot |
| `repeat_segments` | finds out which segments were due while runs went on, and compares their logs with the commitments to them | `repeats` |
| `replay_segments` | replays whole segments, unless the plan asks for none | `segments` |
| `memorise` | tests whether weights remember their batches, if the plan asks for that; evidence only | `memories` |
| `open_records` | asks Provers to open random records of their data sets, if the plan asks for that | `records` |
| `examine` | counts facts about each run from its tapes | `examined` |
| `score` | scores each run's final state on the rule set's benchmarks, if it has any | `scores` |
| `run_checks` | runs the checks over snapshots, chips and the whole inspection | `status` of each snapshot |

Every stage reports findings through `Collected.report`. What a chip, a log or a Prover does wrong costs its own part of
the inspection and no other. To add a stage, write a module with `run(setting, collected)` and name it in `ALL`.
"""  # noqa: E501 (a table)

from __future__ import annotations

from collections.abc import Callable, Sequence

from verifier.model.collected import Collected
from verifier.stages import (
    examine,
    explain,
    fetch,
    fetch_parents,
    memorise,
    open_records,
    prepare_cells,
    read_logs,
    repeat_segments,
    replay_segments,
    replay_snapshots,
    run_checks,
    score,
)
from verifier.stages.setting import Setting

Stage = Callable[[Setting, Collected], None]

ALL: Sequence[Stage] = (
    read_logs.run,
    explain.run,
    fetch.run,
    fetch_parents.run,
    prepare_cells.run,
    replay_snapshots.run,
    repeat_segments.run,
    replay_segments.run,
    memorise.run,
    open_records.run,
    examine.run,
    score.run,
    run_checks.run,
)
