"""The Prover: records training runs and keeps their transcripts."""

from typing import TYPE_CHECKING, Any

from prover.recorder import Recorder

if TYPE_CHECKING:
    from prover.job import Job

__all__ = ["Job", "Recorder"]


def __getattr__(name: str) -> Any:
    """Loads `Job` when it is asked for: it brings all of torch.distributed, which one process does without."""
    if name == "Job":
        from prover.job import Job

        return Job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
