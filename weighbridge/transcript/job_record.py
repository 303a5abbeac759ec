"""Jobs on several ranks: the record that ties their transcripts together, and mesh coordinates (docs/sharding.md).

`job.cbor` says how many ranks there are and how they are arranged; each rank's draft says the same and which one it is,
so one rank's transcript cannot be shown for another's.
"""

from __future__ import annotations

import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weighbridge.core.bounded import decode_cbor, read_file
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TranscriptError, UsageError

RECORD = "job.cbor"
FORMAT = 1
MAX_RANKS = 4096
"""A draw's stream has twelve bits for a rank's mesh coordinate."""
AXES = ("pipeline", "data", "tensor")
KEY, SUPPLEMENTS, RESUME, REPEATS = ".key", ".supplements", ".resume", ".repeats.json"
"""What the name of a transcript's directory is followed by in those of its key, of its supplements, of what a start
after a crash needs, and of the segments whose logs may be due."""
_ID_BYTES = 16
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What ties the transcripts of a job together.

    Attributes:
        id: 16 random bytes.
        mesh: (axis, size) of each axis, the last one varying fastest from rank to rank.
    """

    id: bytes
    mesh: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return math.prod(size for _, size in self.mesh)

    def encode(self) -> bytes:
        """Returns the bytes of `job.cbor`."""
        return cbor({"format": FORMAT, **self.to_map()})

    def to_map(self) -> dict[str, Any]:
        """Returns what a rank's draft repeats."""
        return {"id": self.id, "mesh": [list(axis) for axis in self.mesh]}

    @staticmethod
    def decode(data: bytes) -> JobRecord:
        """Reads what `encode` wrote.

        Raises:
            FormatError: The bytes do not follow the format.
        """
        raw = decode_cbor(data)
        if not isinstance(raw, dict) or type(raw.get("format")) is not int or raw["format"] != FORMAT:
            raise FormatError(f"{RECORD} is not a job of format {FORMAT}; use a matching version")
        return _record({k: v for k, v in raw.items() if k != "format"})


@dataclass(frozen=True, slots=True)
class MeshCoordinate:
    """One rank's coordinate in the mesh of its job."""

    job: JobRecord
    rank: int

    def along(self, axis: str) -> int:
        """Returns this rank's coordinate along an axis; 0 on one that the mesh does not have."""
        rest = self.rank
        for name, size in reversed(self.job.mesh):
            if name == axis:
                return rest % size
            rest //= size
        return 0

    def stream(self, kind: str) -> int:
        """Returns the stream of random draws in a step of a kind: replicas begin alike and then see different noise."""
        replicas = dict(self.job.mesh).get("data", 1)
        return self.along("pipeline") * replicas + (self.along("data") if kind == "step" else 0)

    def to_map(self) -> dict[str, Any]:
        """Returns what the rank's draft says."""
        return {**self.job.to_map(), "rank": self.rank}

    @staticmethod
    def of(draft: dict[str, Any]) -> MeshCoordinate | None:
        """Returns the mesh coordinate that a transcript's draft names, or None if it belongs to no job.

        Raises:
            FormatError: What it says is malformed.
        """
        raw = draft.get("job")
        if raw is None:
            return None
        if not isinstance(raw, dict) or type(raw.get("rank")) is not int:
            raise FormatError("the draft's job is no map with a rank; ask for the run to be recorded again")
        job = _record({k: v for k, v in raw.items() if k != "rank"})
        if not 0 <= raw["rank"] < job.ranks:
            raise FormatError(
                f"the draft is of rank {raw['rank']} of {job.ranks}; ask for the run to be recorded again"
            )
        return MeshCoordinate(job, raw["rank"])


def _record(raw: dict[str, Any]) -> JobRecord:
    match raw:
        case {"id": bytes(identity), "mesh": list(mesh), **rest} if not rest and len(identity) == _ID_BYTES:
            axes = tuple(_axis(each) for each in mesh)
            names = [name for name, _ in axes]
            if axes and len(set(names)) == len(names) and math.prod(size for _, size in axes) <= MAX_RANKS:
                return JobRecord(identity, axes)
    raise FormatError("a job is not a map of id and mesh; fetch it again")


def _axis(raw: Any) -> tuple[str, int]:
    match raw:
        case [str(name), size] if name in AXES and type(size) is int and 1 <= size <= MAX_RANKS:
            return name, size
    raise FormatError(f"an axis of a mesh is not one of {', '.join(AXES)} with its size; fetch the job again")


def rank_name(rank: int) -> str:
    """Returns the name of a rank's directory in its job's."""
    return f"rank-{rank:04d}"


def is_job(path: Path) -> bool:
    """Whether a directory is that of a job."""
    return (path / RECORD).is_file()


def read_record(place: Path) -> JobRecord:
    """Reads `job.cbor`.

    Raises:
        TranscriptError: It cannot be read.
        FormatError: It does not follow its format.
    """
    return JobRecord.decode(read_file(place, max_bytes=_MAX_BYTES))


def read_job(path: str | Path) -> JobRecord:
    """Reads the record of a job and checks that there is a directory for each rank, and nothing that has no place.

    Beside the directory of a rank lie its key and its supplements if it has its logs on demand, and what it goes on
    with after a crash.

    Raises:
        UsageError: The directory is not that of a job.
        TranscriptError: A rank is missing, or there is something that does not belong to a job.
        FormatError: The record does not follow its format.
    """
    root = Path(path)
    if not is_job(root):
        raise UsageError(f"{root} is no job: it has no {RECORD}; give the directory that holds rank-0000")
    record = read_record(root / RECORD)
    ranks = {rank_name(rank) for rank in range(record.ranks)}
    expected = {RECORD, *ranks}
    found = {entry.name for entry in root.iterdir()}
    if missing := expected - found:
        raise TranscriptError(
            f"{min(missing)} of the job is missing; fetch it again", code="transcript.file.missing", path=min(missing)
        )
    if extra := {name for name in found - expected if _stem(name) not in ranks}:
        raise TranscriptError(
            f"{min(extra)[:100]!r} has no place in a job; remove it or fetch the job again",
            code="transcript.file.unlisted",
        )
    for name in expected - {RECORD}:
        if not stat.S_ISDIR((root / name).lstat().st_mode):
            raise TranscriptError(f"{name} is not a directory; fetch the job again", code="transcript.file.altered")
    return record


def _stem(name: str) -> str:
    """Returns the name of the transcript that something lies beside, or the name itself."""
    return name.removesuffix(next((s for s in (KEY, SUPPLEMENTS, RESUME, REPEATS) if name.endswith(s)), ""))


def check_coordinate(record: JobRecord, rank: int, coordinate: MeshCoordinate | None) -> MeshCoordinate:
    """Checks that a transcript is that of a rank of a job, fixed before its first step.

    Args:
        record: The job.
        rank: The rank.
        coordinate: What the transcript's draft says (`MeshCoordinate.of`).

    Raises:
        TranscriptError: It is another rank's or another job's, or belongs to no job (`job.rank.mismatch`).
    """
    if coordinate is None or coordinate != MeshCoordinate(record, rank):
        what = "no rank of a job"
        if coordinate is not None:
            what = f"rank {coordinate.rank} of the job {coordinate.job.id.hex()}"
        raise TranscriptError(
            f"{rank_name(rank)} holds the transcript of {what}, not that of rank {rank} of the job {record.id.hex()}; "
            "ask the Prover for the right one",
            code="job.rank.mismatch",
            expected=rank,
            found=-1 if coordinate is None else coordinate.rank,
        )
    return coordinate
