"""Makes the rounding logs of steps that were recorded without them, and signs them as supplements.

The Prover runs the tapes again, on the kind of device that recorded them: there wide values are the same, and so are
the contested elements and how they were rounded. Every result is compared with what the transcript says, and at the end
of each step the digest of its rounded outputs and the state, so nothing is signed that another replay would not accept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import bytes_digest
from weighbridge.core.durable import sync
from weighbridge.core.errors import UsageError
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.dispute.asking import NOT_DISPUTED, roots
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import DifferenceError, Following
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.conformance.device_kind import device_kind, may_be
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import LogReader, LogWriter
from weighbridge.numerics.rule_table import table_digest
from weighbridge.numerics.warm import warm
from weighbridge.transcript.collectives import Exchange
from weighbridge.transcript.declared_device import declared_device
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.supplements import Statement, encode, folder_of, statement_of, supplement_name
from weighbridge.transcript.tape import Tape

_MEMORY = 1 << 62
"""Bytes that the storages of a tape may have: the Prover recorded it on such a machine."""


@dataclass(frozen=True, slots=True)
class Regenerated:
    """What was made.

    Attributes:
        steps: First step and the one after the last that have a supplement now.
        written: Supplements that are new or were damaged; the others were there, and say the same.
        bytes: Size of all of them.
        logged: Entries of their logs.
        folder: Where they are.
    """

    steps: tuple[int, int]
    written: int
    bytes: int
    logged: int
    folder: Path


def regenerate(
    path: str | Path, key: SigningKey, *, steps: tuple[int, int] | None = None, device: str | None = None,
    out: str | Path | None = None, tree: bool = False, progress: Callable[[int, int], None] | None = None,
) -> Regenerated:  # fmt: skip
    """Makes the supplements of some steps of a transcript that has its logs on demand.

    Args:
        path: The transcript; it is the caller's own, and is executed in this process.
        key: The key that signed it.
        steps: (first, last + 1); all by default. Execution starts at the nearest checkpoint at or before `first`.
        device: `cpu`, `cuda`, `cuda:1`, ...; by default what the transcript names.
        out: Directory for the supplements; by default `PATH.supplements`.
        tree: Whether to sign the root of each step's tree too, so that in a dispute no other leaves may be named. A
            confined worker executes the steps once more for that, and makes the trees.
        progress: Called with (steps done, steps to do).

    Raises:
        UsageError: The transcript has its logs in full, was signed by another key, or was recorded by another kind of
            device or under other rules (`record.regenerate.device`, `replay.rules.unknown`), which the message names;
            or a supplement that is there already says otherwise (`record.regenerate.differs`), or a tree is wanted of a
            step that cannot be disputed (`dispute.step`).
        ReplayWorkerError: The worker that makes trees died, or ran out of its limits.
        DifferenceError: The repeat differs; the error names the first operation and step.
        TranscriptError: The transcript is unreadable, altered or incomplete.
    """
    regeneration = Regeneration(path, key, out, tree=tree)
    if regeneration.coordinate is not None:
        raise UsageError(f"{path} is one rank of a job, and needs the others; give the directory of the job")
    first, last = steps or (0, regeneration.transcript.steps)
    begin = max((c for c in regeneration.transcript.checkpoint_steps if c <= first), default=0)
    regeneration.prepare(begin, (first, last), device)
    keep_freed()
    warm()
    with torch.no_grad(), conforming():
        return regeneration.run(progress)


def _device_of(transcript: Transcript, step: int) -> str:
    declared = declared_device(transcript.draft, transcript.resumptions, step)
    return "cuda" if declared is not None and declared.startswith("cuda") else "cpu"


def _require_same_machine(transcript: Transcript, steps: range, device: str) -> None:
    """Checks that this is the kind of device, and the table of rules, under which steps were recorded."""
    if transcript.draft.get("rules") != table_digest():
        raise UsageError(
            "the run was recorded under another table of rules than this version has; regenerate with the version of "
            f"its draft ({str(transcript.draft.get('weighbridge'))[:40]})",
            code="replay.rules.unknown",
        )
    here = device_kind(device)
    for step in steps:
        there = declared_device(transcript.draft, transcript.resumptions, step)
        if not may_be(there, here):
            raise UsageError(
                f"step {step} was recorded on another kind of machine: {_difference(there, here)}; "
                "regenerate on that kind, with the same threads, libraries and settings",
                code="record.regenerate.device",
                recorded=there or "",
                here=here,
            )


def _difference(there: str | None, here: str) -> str:
    if there is None:
        return "the transcript does not say which"
    pairs = zip_longest(there.split(", "), here.split(", "), fillvalue="nothing more")
    return "; ".join(f"{old} there, {new} here" for old, new in pairs if old != new)


class _Searching(Following):
    """The context of a repeated step: compares every result, and searches it for contested elements if asked to."""

    def prepare(self, *, searches: bool) -> None:
        """Begins a step; without a search no bounds are needed."""
        self.written = LogWriter()
        self.bounded = searches

    def rounded(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> torch.Tensor:
        """See `Context.rounded`."""
        wanted, small = self._next_checksum(), dtype in formats.NARROW
        if self.bounded:
            index = self.op, self._output
            result = narrow.record(wide, bound, dtype, *index) if small else contested.record(wide, bound, *index)
            if result.entries is not None:
                self.written.add(result.entries)
            out, checksum = result.out, result.checksum
        else:
            out, checksum = narrow.round_plain(wide, dtype) if small else contested.round_plain(wide)
        if checksum != wanted:
            raise self._difference(f"{wanted:016x}", f"{checksum:016x}")
        if self.outputs is not None:
            self.outputs.add(self.op, self._output, out)
        self._output += 1
        self.rounded_elements += wide.numel()
        return out

    def wants_bounds(self, outputs: int, *, small: bool) -> bool:
        """Whether outputs are searched for contested elements, by their bounds."""
        return self.bounded


class _Repeating(Executor):
    """Runs steps again, those of a tape that was executed before as its straight-line program."""

    straight = _Searching
    searches = False

    def _context(self, record: StepRecord, log: LogReader | None) -> Following:
        context = _Searching(record, None, self._seed, self._policy)
        context.prepare(searches=self.searches)
        return context


class Regeneration:
    """One regeneration: of a run, or of one rank of a job beside those of the others.

    Attributes:
        path: The transcript's directory.
        transcript: The transcript.
        coordinate: Its mesh coordinate, if it is a rank's.
    """

    def __init__(self, path: str | Path, key: SigningKey, out: str | Path | None, *, tree: bool = False) -> None:
        """Opens the transcript; arguments are those of `regenerate`, which says what is raised."""
        self.path = Path(path).resolve()
        self.transcript = transcript = Transcript.open(self.path)
        if not transcript.on_demand:
            raise UsageError(f"{path} has its rounding logs in full; there is nothing to regenerate")
        if key.public != transcript.manifest.public:
            raise UsageError(
                f"{path} was signed by the key {transcript.manifest.keyid[:16]}, and this is {key.keyid[:16]}; "
                "give the key of the recording (--key)"
            )
        self.coordinate = MeshCoordinate.of(transcript.draft)
        self._key, self._folder = key, folder_of(self.path) if out is None else Path(out)
        self._tree = tree
        self._tapes: dict[bytes, Tape] = {}
        self._written = self._bytes = self._logged = 0

    def prepare(
        self, begin: int, steps: tuple[int, int], device: str | None, exchange: Exchange | None = None
    ) -> None:  # fmt: skip
        """Checks that some steps can be repeated here, and makes the directory.

        Args:
            begin: The checkpoint to begin at; 0 if there is none before.
            steps: (first, last + 1) of those that are to have a supplement.
            device: As for `regenerate`.
            exchange: Gives a rank the results of its collectives.
        """
        transcript, (first, last) = self.transcript, steps
        if not 0 <= first < last <= transcript.steps:
            raise UsageError(f"{self.path} has the steps 0:{transcript.steps}; {first}:{last} are not among them")
        if self._tree and any(transcript.step(step).sketches for step in range(begin, last)):
            raise UsageError("steps with sketches have no tree, as they cannot be disputed", code=NOT_DISPUTED)
        device = device or _device_of(transcript, begin)
        _require_same_machine(transcript, range(begin, last), device)
        self._folder.mkdir(parents=True, exist_ok=True)
        transcript.supplement(self._folder)
        self._kind, self._range, self._device = device_kind(device), (begin, first, last), device
        policy = policies.declared(transcript.draft)
        seed = int(transcript.draft["seed"])
        self._executor = _Repeating(device, seed, _MEMORY, policy, self.coordinate, exchange)

    def run(self, progress: Callable[[int, int], None] | None) -> Regenerated:
        """Repeats the steps from the checkpoint on, and writes the supplements of those that are wanted."""
        begin, first, last = self._range
        if begin:
            self._executor.load(self.transcript.checkpoint(begin))
        entries: dict[int, int] = {}
        with tempfile.TemporaryDirectory(prefix="weighbridge-logs-") as there:
            for step in range(begin, last):
                self._executor.searches = self._tree or step >= first
                log = self._repeat(step)
                if log is not None and self._tree:  # those before the first one are followed too, and not signed
                    (Path(there) / str(step)).write_bytes(log.finish())
                    entries[step] = log.entries
                elif log is not None:
                    self._keep(step, log.finish(), log.entries)
                if progress is not None:
                    progress(step + 1 - begin, last - begin)
            found = roots(self.path, self._range, there, device=self._device) if self._tree else []
            for step, root in enumerate(found, first):
                self._keep(step, (Path(there) / str(step)).read_bytes(), entries[step], root.hex())
        return Regenerated((first, last), self._written, self._bytes, self._logged, self._folder)

    def _repeat(self, step: int) -> LogWriter | None:
        """Runs a step; returns its log if it is wanted."""
        transcript, executor = self.transcript, self._executor
        record = transcript.step(step)
        if record.tape not in self._tapes:
            self._tapes[record.tape] = Tape.decode(transcript.tape(record.tape))
        tape = self._tapes[record.tape]
        if record.kind == "init" and not tape.nodes:  # the model existed before: W_0 is a committed checkpoint
            executor.load(transcript.checkpoint(step + 1))
            return LogWriter() if executor.searches else None
        batch, undeclared = transcript.batch(step), transcript.undeclared(step)
        context = executor.run(tape, record.tape, record, None, batch, undeclared)
        if (found := executor.state_digest()) != record.state:
            raise DifferenceError(
                f"the state after step {step} differs although every result in it matched",
                step=step, op=len(tape.nodes), operation="state", expected=record.state.hex(), found=found.hex(),
            )  # fmt: skip
        assert isinstance(context, _Searching)
        return context.written if executor.searches else None

    def _keep(self, step: int, encoded: bytes, entries: int, tree: str = "") -> None:
        transcript = self.transcript
        rounding, there = bytes_digest(encoded).hex(), transcript.supplements
        known = None if there is None else there.rounding(step)
        if known is not None and known != rounding:
            raise UsageError(
                f"the supplement of step {step} in {self._folder} has another log than this repeat made; to sign both "
                "would be taken for two versions of the truth: find out which machine made the other",
                code="record.regenerate.differs",
            )
        signed = "" if there is None else there.tree(step)
        if tree and signed not in ("", tree):
            raise UsageError(
                f"the supplement of step {step} in {self._folder} has another tree than this repeat made; to sign both "
                "would be taken for two versions of the truth: find out which machine made the other",
                code="record.regenerate.differs",
            )
        place = self._folder / supplement_name(step)
        # A statement that is there tells nothing of the log beside it, which a disk may have damaged.
        if there is None or there.reader(transcript.step(step)) is None or (tree and not signed):
            before = transcript.step(step - 1) if step else None
            statement = Statement(
                **statement_of(transcript.draft_digest, transcript.step(step), before),
                rounding=rounding, logged=entries, device=self._kind, tree=tree or signed,
            )  # fmt: skip
            partial = place.with_suffix(".tmp")
            partial.write_bytes(encode(statement, encoded, self._key))
            sync(partial)
            os.replace(partial, place)
            sync(self._folder)
            self._written += 1
        self._bytes += place.stat().st_size
        self._logged += entries
