"""The Prover: records training runs and keeps their transcripts.

`capture` turns one step into a tape, `ranks` adds what jobs on several ranks need, `recording` is the Recorder on top
of both, `following` records whole programs without blocks, `examination` says beforehand what stands in the way of
that, and `keeping` looks after transcripts; `service` and `recipes` use them.
"""

from typing import TYPE_CHECKING, Any

from prover.following.follow import Following, follow
from prover.recording.recorder import Recorder
from prover.recording.repeating import Repeats

if TYPE_CHECKING:
    from prover.ranks.job import Job

__all__ = ["Following", "Job", "Recorder", "Repeats", "follow", "formulas"]


def __getattr__(name: str) -> Any:
    """Loads `Job` when it is asked for: it brings all of torch.distributed, which one process does without."""
    if name == "Job":
        from prover.ranks.job import Job  # noqa: PLC0415 (loads torch.distributed)

        return Job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
