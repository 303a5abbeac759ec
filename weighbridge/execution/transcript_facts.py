"""A transcript for a process that must not decode it: its files are verified here, its content in a confined worker.

Hashing is no decoding: this process compares sizes and digests of files with the signed manifest, and decodes nothing
but that manifest. Everything else (draft, step records, tapes, batches, checkpoints, notes) is decoded by
`weighbridge.execution.workers.transcript_facts_worker`, which has no keys, network or files but the transcript's, and
answers with the few facts below. The answers are read as hostile: a worker that was taken over can lie about the
transcript that did so, and do nothing else.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from weighbridge.attest.approved_passport import passport_digest
from weighbridge.attest.manifest import Manifest
from weighbridge.attest.repeats import Declared
from weighbridge.core import bounded
from weighbridge.core.digests import DIGEST_SIZE, Leaf
from weighbridge.core.errors import Finding, FormatError, ReplayWorkerError, TranscriptError, UsageError
from weighbridge.execution.replay_answer import MOST_FINDINGS, finding_of
from weighbridge.execution.worker_answers import MALFORMED, digest, malformed, natural, shaped, share, text, truth
from weighbridge.execution.worker_process import Limits, raise_error, run_worker
from weighbridge.program.chosen_bits import CHANNELS
from weighbridge.transcript.files import read_manifest, verify_files
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate
from weighbridge.transcript.log_kinds import KINDS, LogKind
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.resumption_notes import Resumption

T = TypeVar("T")

INSPECTED = bounded.Limits(steps=2_000_000)
"""What a Verifier takes from a transcript: 64 bytes of each step come into its own memory."""
OPENING = Limits(memory=4 << 30, seconds=900)
"""What a worker may use to open a transcript: decoding the draft, the step records and one tape."""
QUESTIONS = Limits()
"""What a worker may use to answer more about one: it reads batches and checkpoints."""

MOST_SNAPSHOTS, MOST_WEIGHTS, MOST_LEAVES, MOST_DECLARED = 200_000, 500_000, 1_000_000, 1_000
"""How much of each kind an answer may hold."""
MOST_TAPES = 100_000
_WORKER = "weighbridge.execution.workers.transcript_facts_worker"

Order = Literal["verifiable", "seeded", "listed"]
"""`verifiable`: its seed follows from the data. `seeded`: from a seed that the Prover chose. `listed`: the Prover gave
it record by record."""
SnapshotPlace = tuple[bytes, int, int, int]
"""(chip UEID, log index, step, operations complete)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """What a transcript committed to before training.

    Attributes:
        root: Root over the record digests (32 bytes).
        count: Number of records.
        order: Who chose the order of use.
        seed_follows: Whether the seed of all randomness inside steps, W_0's too, follows from the data.
        seed: Of an order of use that is `seeded`; else None.
    """

    root: bytes
    count: int
    order: Order
    seed_follows: bool
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a transcript consists of.

    Attributes:
        kinds: Kind of step record to how many there are.
        tapes: Digest of a tape (32 bytes) to how often it ran, the most frequent first.
        first: Digest of a tape to the step that ran it first, in the same order.
        fixed: Whether the draft names the programs that may run.
        undeclared: Undeclared tensors of all steps.
    """

    kinds: dict[str, int]
    tapes: dict[bytes, int]
    first: dict[bytes, int]
    fixed: bool
    undeclared: int


class OpenedTranscript:
    """A transcript whose files are those of its manifest, and which a confined worker could read.

    Attributes:
        path: The directory.
        manifest: The verified manifest.
        digest: Hex digest of `manifest.json`: the transcript's identifier.
        steps: Number of steps.
        checkpoint_steps: Steps whose checkpoint is here, ascending.
        draft_digest: Digest of the draft (32 bytes).
        data: The data commitment; None without one.
        resumptions: The crashes that the recording survived, without their snapshots.
        returned: Steps the state before which entered again later, as the transcript says, ascending.
        declared: Texts of the draft's metadata.
        on_demand: Whether its rounding logs are made on demand.
        seed: Of all randomness inside steps; None if the draft has none below 2^64.
        logs: Which kind of rounding logs it has.
    """

    path: Path
    manifest: Manifest
    digest: str
    steps: int
    checkpoint_steps: list[int]
    draft_digest: bytes
    data: DataFacts | None
    resumptions: list[Resumption]
    returned: list[int]
    declared: dict[str, str]
    on_demand: bool
    seed: int | None
    logs: LogKind

    def __init__(self, path: Path, manifest: Manifest, checkpoint_steps: list[int], limits: Limits) -> None:
        """Use `open_confined`; this takes over what it has verified."""
        self.path, self.manifest, self.checkpoint_steps, self._limits = path, manifest, checkpoint_steps, limits
        self.digest, self.steps = manifest.digest, manifest.steps
        self._answers: dict[str, Any] = {}

    def head(self, step: int) -> bytes:
        """Returns the running head after `step` (32 bytes); for -1 the digest of the draft."""
        return self.draft_digest if step == -1 else self._of_step(self._heads, step)

    def state(self, step: int) -> bytes:
        """Returns the digest of the state after `step`, as its record names it (32 bytes)."""
        return self._of_step(self._states, step)

    def outputs(self, step: int) -> bytes:
        """Returns the digest of the rounded outputs of `step` of a run with logs on demand, as its record names it."""
        return self._of_step(self._outputs, step)

    def snapshots(self, step: int) -> list[tuple[bytes, int, int]]:
        """Returns (chip UEID, log index, operations complete) of every snapshot that was taken in `step`.

        Those that the step's record names, and those taken when it was recomputed after a crash. `steps` is a step too:
        the one that did not become whole, or what came after the last one.
        """
        return [(ueid, index, op) for ueid, index, at, op in (*self._recorded, *self._beside) if at == step]

    def recorded(self, step: int | None = None) -> list[tuple[bytes, int, int]]:
        """Returns those of them that the step's own record names; without a step, those of all records."""
        return [(ueid, index, op) for ueid, index, at, op in self._recorded if step in (at, None)]

    def all_snapshots(self) -> list[SnapshotPlace]:
        """Returns every snapshot that the transcript names: those of step records first."""
        return [*self._recorded, *self._beside]

    def initialises(self) -> bool:
        """Tells whether step 0 made the weights; else the run began from weights that it was given.

        Raises:
            WeighbridgeError: The tape of step 0 cannot be read.
        """
        return self._known(self._initialises)

    def parent(self) -> Parent | None:
        """Returns the parent that the draft declares, or None if it declares none.

        Raises:
            WeighbridgeError: What it declares is malformed.
        """
        return self._known(self._parent)

    def coordinate(self) -> MeshCoordinate | None:
        """Returns the mesh coordinate that the draft names, or None if the run belongs to no job.

        Raises:
            WeighbridgeError: What it says is malformed.
        """
        return self._known(self._coordinate)

    def repeats(self) -> Declared | None:
        """Returns what the draft declares of segments to be repeated while the run goes on, or None.

        Raises:
            WeighbridgeError: What it declares is malformed.
        """
        return self._known(self._repeats)

    def check_data(self) -> list[Finding]:
        """Compares every batch with its record and with the data commitment; see `Transcript.check_data`.

        Raises:
            WeighbridgeError: A worker could not do it.
        """
        return self._ask("data", lambda raw: [finding_of(each) for each in raw["findings"][:MOST_FINDINGS]])

    def distances(self) -> Mapping[int, Mapping[str, float]]:
        """Returns the relative change of each weight between checkpoints; see `weight_distance.distances`.

        Raises:
            WeighbridgeError: A worker could not do it.
        """

        def read(raw: Any) -> dict[int, dict[str, float]]:
            return {
                natural(begin): {
                    text(name, 65536): math.inf if change is None else share(change) for name, change in named
                }
                for begin, named in raw["segments"]
            }

        return self._ask("weights", read)

    def batches(self, step: int, salt: bytes) -> list[Leaf]:
        """Lists batches and undeclared tensors of a step and its neighbours as (bytes, digest keyed by `salt`).

        Whether a chip holds the batch before or after depends on how the program loads data, which no tape tells; and
        it knows of an undeclared tensor once a kernel reads it.

        Raises:
            WeighbridgeError: A worker could not do it.
        """
        return self._ask("batches", _leaves, step=step, salt=salt.hex())

    def entered(self, salt: bytes, *, trained: bool = False) -> Counter[Leaf]:
        """Returns what W_0 was made from and no recorded program made; see `parentage.entered`.

        Args:
            salt: Of the digests.
            trained: Whether to leave out what no weights began with, nor averages of them; see `brought_state`.

        Raises:
            WeighbridgeError: A worker could not do it.
        """
        return Counter(self._ask("given", _leaves, salt=salt.hex(), trained=trained))

    def held(self, step: int, salt: bytes, *, made: bool = False) -> Counter[Leaf]:
        """Returns what the checkpoint before `step` holds; see `parentage.held`.

        Args:
            step: The step.
            salt: Of the digests.
            made: Whether to leave out what steps only were given; see `brought_state`.

        Raises:
            WeighbridgeError: A worker could not do it, or there is no such checkpoint.
        """
        return Counter(self._ask("state", _leaves, step=step, salt=salt.hex(), made=made))

    def chosen_after(self, ancestors: Sequence[Path]) -> Mapping[str, float]:
        """Returns the bits that this run and its ancestors chose, all together, by channel of the ledger.

        Programs are described given those of the runs before, so those that run again cost next to nothing. What only
        shows when programs run is left out.

        Args:
            ancestors: Directories of their transcripts, the first of them first; verified, as this one.

        Raises:
            WeighbridgeError: A worker could not do it.
        """

        def read(raw: Any) -> dict[str, float]:
            if not set(raw["bits"]) <= set(CHANNELS):
                raise ValueError("channel")
            return {channel: share(bits) for channel, bits in raw["bits"].items()}

        return self._ask("chosen", read, before=[str(each.resolve()) for each in ancestors])

    def used(self, records: list[int]) -> set[int]:
        """Returns which of some records of the data set any step used.

        Raises:
            WeighbridgeError: A worker could not do it.
        """
        known = set(records)
        return self._ask("used", lambda raw: known & set(map(natural, raw["used"])), records=records)

    def comparable(self, begin: int, end: int) -> tuple[list[int], list[int]]:
        """Returns the steps whose batches tell what weights remember of a segment: its own last ones, and later ones.

        Both are empty if there are none to compare.

        Raises:
            WeighbridgeError: A worker could not do it.
        """

        def read(raw: Any) -> tuple[list[int], list[int]]:
            return [natural(step) for step in raw["own"]], [natural(step) for step in raw["control"]]

        return self._ask("comparable", read, begin=begin, end=end)

    def summary(self) -> Summary:
        """Counts steps and programs.

        Raises:
            WeighbridgeError: A worker could not do it.
        """

        def read(raw: Any) -> Summary:
            return Summary(
                kinds={text(kind, 10): natural(count) for kind, count in raw["kinds"]},
                tapes={digest(tape): natural(count) for tape, count, _ in raw["tapes"][:MOST_TAPES]},
                first={digest(tape): natural(first) for tape, _, first in raw["tapes"][:MOST_TAPES]},
                fixed=truth(raw["fixed"]),
                undeclared=natural(raw["undeclared"]),
            )

        return self._ask("summary", read)

    def program(self, tape: str | None, step: int | None, *, operations: bool) -> dict[str, Any]:
        """Describes a program, as `weighbridge.program.tape_description.describe` does.

        Args:
            tape: Its digest in hexadecimal digits, or how that begins.
            step: The step that ran it. Without either it is the program that ran most often.
            operations: Whether to list every operation.

        Raises:
            UsageError: There is no such step, or not exactly one such tape.
            WeighbridgeError: The tape is malformed, or a worker could not do it.
        """
        from weighbridge.program import tape_description  # noqa: PLC0415 (loads all rules)

        def read(raw: Any) -> dict[str, Any]:
            said = cast("dict[str, Any]", shaped(raw, tape_description.SHAPE))
            return {**said, "findings": [finding_of(each).to_json() for each in raw["findings"]]}

        return self._ask("program", read, tape=tape, step=step, operations=operations)

    def passport(self) -> dict[str, Any]:
        """Returns the passport of the programs, as `weighbridge.program.passport.passport` does.

        Raises:
            WeighbridgeError: A tape is malformed, or a worker could not do it.
        """
        from weighbridge.program import passport  # noqa: PLC0415 (loads all rules)

        def read(raw: Any) -> dict[str, Any]:
            said = cast("dict[str, Any]", shaped(raw, passport.SHAPE))
            if passport_digest(said["facts"]) != said["digest"]:
                raise ValueError("digest")
            return said

        return self._ask("passport", read)

    def learn(self, limits: Limits) -> None:
        """Asks a worker for the facts; `open_confined` has done so.

        Raises:
            WeighbridgeError: The transcript does not follow its format, or exceeded the worker's limits.
        """
        self._ask("facts", self._take, limits=limits)

    def _take(self, raw: Any) -> None:
        self.draft_digest = digest(raw["draft"])
        if self.draft_digest.hex() != self.manifest.draft:
            raise ValueError("draft")
        self._heads, self._states = (_packed(raw[name], self.steps) for name in ("heads", "states"))
        if self.head(self.steps - 1).hex() != self.manifest.head:
            raise ValueError("head")
        self.on_demand = raw["outputs"] is not None
        self._outputs = _packed(raw["outputs"], self.steps) if self.on_demand else b""
        self._recorded, self._beside = (_places(raw[name]) for name in ("recorded", "beside"))
        self.resumptions = [Resumption(natural(step), natural(begin)) for step, begin in raw["resumptions"]]
        self.returned = [natural(step, self.steps + 1) for step in raw["returned"]]
        self.data = None if raw["data"] is None else _data(raw["data"])
        self._initialises = _fact(raw["initialises"], truth)
        self._parent = _fact(raw["parent"], _read_parent)
        self._coordinate = _fact(raw["coordinate"], _read_coordinate)
        self._repeats = _fact(raw["repeats"], _read_repeats)
        self.seed = _seed(raw["seed"])
        self.logs = KINDS[KINDS.index(raw["logs"])]
        self.declared = {text(name, 200): text(value, 4000) for name, value in raw["declared"][:MOST_DECLARED]}

    def _ask(self, question: str, read: Callable[[Any], T], *, limits: Limits | None = None, **about: Any) -> T:
        """Asks a worker, once for each question, and reads its answer as hostile."""
        key = f"{question} {about}"
        if key not in self._answers:
            limits = limits or self._limits
            request = {
                "path": str(self.path.resolve()), "question": question, "about": about,
                "paths": [str(self.path.resolve()), *about.get("before", ())],
                "device": "cpu", "memory": limits.memory, "seconds": limits.seconds,
            }  # fmt: skip
            message = run_worker(_WORKER, request, limits)
            raise_error(message)
            try:
                self._answers[key] = read(message["result"])
            except MALFORMED as error:
                raise malformed(error) from None
        return cast(T, self._answers[key])

    def _of_step(self, packed: bytes, step: int) -> bytes:
        if not 0 <= step < self.steps:
            raise TranscriptError(f"there is no step {step}; this transcript has steps 0 to {self.steps - 1}")
        return packed[step * DIGEST_SIZE : (step + 1) * DIGEST_SIZE]

    def _known(self, fact: tuple[T] | dict[str, Any]) -> T:
        if isinstance(fact, dict):
            raise_error(fact)
            raise ReplayWorkerError("the worker's answer is malformed")
        return fact[0]


def open_confined(path: str | Path, *, opening: Limits = OPENING, limits: Limits = QUESTIONS) -> OpenedTranscript:
    """Opens a transcript without decoding anything of it here but its manifest.

    Args:
        path: The directory; no other process writes to it.
        opening: What the worker that opens it may use.
        limits: What workers may use that are asked more about it later.

    Raises:
        TranscriptError: The manifest or a file does not verify, or the content breaks its format; the codes are those
            of `weighbridge.transcript.reader.Transcript.open`.
        ReplayWorkerError: The worker died or ran out of its limits.
    """
    root = Path(path)
    manifest = read_manifest(root, INSPECTED)
    opened = OpenedTranscript(root, manifest, verify_files(root, manifest, INSPECTED), limits)
    opened.learn(opening)
    return opened


def _packed(raw: Any, steps: int) -> bytes:
    data = base64.b64decode(raw, validate=True)
    if len(data) != DIGEST_SIZE * steps:
        raise ValueError("digests")
    return data


def _places(raw: Any) -> list[SnapshotPlace]:
    if len(raw) > MOST_SNAPSHOTS:
        raise ValueError("snapshots")
    return [(bytes.fromhex(ueid[:128]), natural(index), natural(step), natural(op)) for ueid, index, step, op in raw]


def _leaves(raw: Any) -> list[Leaf]:
    if len(raw["leaves"]) > MOST_LEAVES:
        raise ValueError("leaves")
    return [(natural(size), digest(leaf)) for size, leaf in raw["leaves"]]


def _data(raw: Any) -> DataFacts:
    if raw["order"] not in get_args(Order):
        raise ValueError("order")
    return DataFacts(
        root=digest(raw["root"]), count=natural(raw["count"]), order=raw["order"],
        seed_follows=truth(raw["seed_follows"]), seed=_seed(raw["seed"]),
    )  # fmt: skip


def _seed(raw: Any) -> int | None:
    if raw is None:
        return None
    if not isinstance(raw, str) or not 1 <= len(raw) <= 16:
        raise ValueError("seed")
    return int(raw, 16)


def _fact(raw: Any, read: Callable[[Any], T]) -> tuple[T] | dict[str, Any]:
    """Returns a fact as a tuple of one, or the message of the error that stands for it."""
    if "error" in raw:
        return {"error": {"code": str(raw["error"]["code"])[:200], "message": str(raw["error"]["message"])[:2000]}}
    return (read(raw["is"]),)


def _read_parent(raw: Any) -> Parent | None:
    try:
        return None if raw is None else Parent(transcript=raw[0], step=raw[1], state=digest(raw[2]))
    except UsageError as error:
        raise ValueError(error.message) from None


def _read_repeats(raw: Any) -> Declared | None:
    try:
        return None if raw is None else Declared(beacon=digest(raw[0]), share=share(raw[1]), delay_s=natural(raw[2]))
    except UsageError as error:
        raise ValueError(error.message) from None


def _read_coordinate(raw: Any) -> MeshCoordinate | None:
    if raw is None:
        return None
    try:
        job, rank = JobRecord.decode(bytes.fromhex(raw[0][:8192])), natural(raw[1])
    except FormatError as error:
        raise ValueError(error.message) from None
    if rank >= job.ranks:
        raise ValueError("rank")
    return MeshCoordinate(job, rank)
