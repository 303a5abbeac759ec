"""The stages of an inspection, one module each, in the order in which they run.

| stage | what it does | what it leaves in `verifier.collected.Collected` |
|---|---|---|
| `logs` | reads and judges each drawn chip's log, and keeps it as witnessed if nothing is against it | `chips`, `logs`, `snapshots`, `sound`, `lost` |
| `explain` | asks the Provers where each snapshot came from, then looks among their uploads | `explanation` of each snapshot |
| `fetch` | fetches the transcripts that they name, if they are not here, and puts jobs together | `transcripts`, `shards`; `transcript` and `shard` of each snapshot |
| `lineage` | finds out where each run began | `lineages`, and the parents in `transcripts` |
| `cells` | asks for what the replay of one rank of a job alone takes, if the plan wants that | `cell` of each snapshot |
| `replay` | opens the snapshots, and replays to every claimed position | `opening`, `batches`, `replayed`, `after` of each snapshot |
| `segments` | replays whole segments, if the plan asks for that | `segments` |
| `openrecords` | asks for random records, if the plan wants that | `records` |
| `memorise` | tests what weights remember, if the plan asks for that | `memories` |
| `examine` | counts what the tapes of each run say about it | `examined` |
| `score` | scores runs on the rule set's benchmarks, if it has any | `scores` |
| `judge` | runs the checks over snapshots, chips and everything together | `status` of each snapshot |

Every stage reports findings through `Collected.report`. What a chip, a log or a Prover does wrong costs its own part of
the inspection and no other. To add a stage, write a module with `run(setting, collected)` and name it in `ALL`.
"""  # noqa: E501 (a table)

from __future__ import annotations

from collections.abc import Callable, Sequence

from verifier.collected import Collected
from verifier.stages import (
    cells,
    examine,
    explain,
    fetch,
    judge,
    lineage,
    logs,
    memorise,
    openrecords,
    replay,
    score,
    segments,
)
from verifier.stages.setting import Setting

Stage = Callable[[Setting, Collected], None]

ALL: Sequence[Stage] = (
    logs.run,
    explain.run,
    fetch.run,
    lineage.run,
    cells.run,
    replay.run,
    segments.run,
    memorise.run,
    openrecords.run,
    examine.run,
    score.run,
    judge.run,
)
