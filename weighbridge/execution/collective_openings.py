"""Opening random chunks of collectives: spot checks of the results that a cell's replay took as given.

The Verifier chooses chunks of the results that a cell used. For each, the Prover opens the chunk of the result, and
every source's chunk of its contribution, with Merkle proofs against the step records of all ranks; here they are
combined again and compared. If a share q of the chunks is false, k random ones find it with probability 1 - (1 - q)^k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weighbridge.core import merkle
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import Finding, FormatError, ProofError, TapeError, UsageError, WeighbridgeError
from weighbridge.core.host_memory import octets
from weighbridge.execution.given_terms import MAX_OPENINGS
from weighbridge.numerics import exchanges
from weighbridge.transcript.collectives import CHUNK, Call, Pairing, calls, chunk_count, leaf
from weighbridge.transcript.job_record import MeshCoordinate, check_coordinate, rank_name, read_job
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import DTYPES, Ref, Tape

FORMAT = 1
_MAX_PROOF = 48


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One chunk of a result of a rank.

    Attributes:
        step: The step.
        op: Index of the collective in the rank's tape.
        out: Which of its results.
        chunk: Which chunk of that.
    """

    step: int
    op: int
    out: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Piece:
    """An opened chunk: its bytes and the Merkle path to the root in a step record."""

    data: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """An opened chunk of a result, and the chunks that it is made from, in the order of combination."""

    target: Target
    result: Piece
    parts: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """A collective with the roots that the rank's step record has for it."""

    call: Call
    contribution: bytes
    result: bytes


class Commitments:
    """What the step records of a job commit to about its collectives; reads transcripts and executes nothing."""

    def __init__(self, path: str | Path) -> None:
        """Opens all transcripts of a job.

        Raises:
            WeighbridgeError: One is damaged, or that of another rank (`job.rank.mismatch`).
        """
        self.record = read_job(path)
        self._transcripts = [Transcript.open(Path(path) / rank_name(rank)) for rank in range(self.record.ranks)]
        for rank, transcript in enumerate(self._transcripts):
            check_coordinate(self.record, rank, MeshCoordinate.of(transcript.draft))
        self._calls: dict[tuple[int, bytes], list[Call]] = {}
        self._steps: dict[tuple[int, int], dict[Pairing, Committed]] = {}

    def transcript(self, rank: int) -> Transcript:
        """Returns the transcript of a rank.

        Raises:
            UsageError: There is no such rank.
        """
        if not 0 <= rank < self.record.ranks:
            raise UsageError(f"the job has ranks 0:{self.record.ranks}; there is no rank {rank}")
        return self._transcripts[rank]

    def step(self, rank: int, step: int) -> dict[Pairing, Committed]:
        """Returns the collectives of a step of a rank by what the other members know them by.

        Raises:
            TapeError: The tape and the step record do not fit together.
            TranscriptError: There is no such step.
        """
        if (rank, step) not in self._steps:
            record = self.transcript(rank).step(step)
            found = self._calls.get((rank, record.tape))
            if found is None:
                tape = Tape.decode(self.transcript(rank).tape(record.tape))
                found = self._calls[rank, record.tape] = calls(tape, rank)
            if [call.op for call in found] != [op for op, _, _ in record.collectives]:
                raise TapeError(f"the record of step {step} of rank {rank} does not name the collectives of its tape")
            both = zip(found, record.collectives, strict=True)
            self._steps[rank, step] = {call.pairing(step): Committed(call, a, b) for call, (_, a, b) in both}
        return self._steps[rank, step]

    def at(self, rank: int, target: Target) -> Committed:
        """Returns the collective of a target.

        Raises:
            UsageError: The rank's results have no such chunk.
        """
        for committed in self.step(rank, target.step).values():
            outs = committed.call.outs
            if committed.call.op != target.op or not 0 <= target.out < len(outs):
                continue
            if 0 <= target.chunk < chunk_count(ref_bytes(outs[target.out])):
                return committed
        raise UsageError(f"the results of rank {rank} have no chunk {target}; choose among those of its tapes")

    def targets(self, rank: int, steps: tuple[int, int]) -> Iterator[Target]:
        """Yields every chunk of every result of a cell."""
        for step in range(*steps):
            for committed in self.step(rank, step).values():
                for out, ref in enumerate(committed.call.outs):
                    for chunk in range(chunk_count(ref_bytes(ref))):
                        yield Target(step, committed.call.op, out, chunk)

    def sources(self, rank: int, target: Target) -> list[tuple[int, Committed, int]]:
        """Returns (rank, its collective, which of its contributions) of everything that a result is made from.

        Raises:
            TapeError: A member has no such collective, or one that does not fit (`job.collective.mismatch`).
        """
        call = self.at(rank, target).call
        out, found = call.outs[target.out], []
        for peer, which in call.sources(rank)[target.out]:
            other = call.group[peer]
            theirs = self.step(other, target.step).get(call.pairing(target.step))
            if theirs is None or not call.matches(theirs.call) or which >= len(theirs.call.ins):
                raise _misfit(rank, target, call, other)
            given = theirs.call.ins[which]
            if (given[1], math.prod(given[2])) != (out[1], math.prod(out[2])):
                raise _misfit(rank, target, call, other)
            found.append((other, theirs, which))
        return found

    def equal_results(self, rank: int, steps: tuple[int, int]) -> list[Finding]:
        """Compares what the members of every all-reduce and broadcast of a cell say that they got."""
        findings = []
        for step in range(*steps):
            for pairing, committed in self.step(rank, step).items():
                if committed.call.name not in ("all_reduce", "broadcast"):
                    continue
                for other in committed.call.group:
                    theirs = self.step(other, step).get(pairing)
                    if theirs is None or not committed.call.matches(theirs.call):
                        target = Target(step, committed.call.op, 0, 0)
                        findings.append(_misfit(rank, target, committed.call, other).finding(subject=f"rank {other}"))
                    elif theirs.result != committed.result:
                        findings.append(
                            Finding(
                                id="job.results.differ",
                                message=f"Ranks {rank} and {other} got different results of one {committed.call.name}.",
                                expected=committed.result.hex(),
                                found=theirs.result.hex(),
                                subject=f"step {step}, operation {committed.call.op} of rank {rank}",
                            )
                        )
        return findings


def _misfit(rank: int, target: Target, call: Call, other: int) -> TapeError:
    return TapeError(
        f"step {target.step}, operation {target.op} ({call.name}) of rank {rank}: rank {other} has no collective that "
        "fits it; the ranks' tapes are not those of one job",
        code="job.collective.mismatch", step=target.step, op=target.op, rank=rank,
    )  # fmt: skip


def ref_bytes(ref: Ref) -> int:
    """Returns the bytes of the elements of a tensor."""
    return math.prod(ref[2]) * DTYPES[ref[1]].itemsize


def leaf_index(side: Sequence[Ref], which: int, chunk: int) -> int:
    """Returns the number of a chunk's leaf among those of all tensors of one side of a collective."""
    return sum(chunk_count(ref_bytes(ref)) for ref in side[:which]) + chunk


# -- wire --------------------------------------------------------------------------------------------------------------


def encode_targets(targets: Sequence[Target]) -> bytes:
    """Returns a list of chunks as deterministic CBOR: `[1, [[step, op, out, chunk], ...]]`."""
    return cbor([FORMAT, [[t.step, t.op, t.out, t.chunk] for t in targets]])


def decode_targets(data: bytes) -> list[Target]:
    """Reads what `encode_targets` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    return [_target(raw) for raw in _list(decode_cbor(data), "chunks")]


def encode(openings: Sequence[Opening]) -> bytes:
    """Returns openings as deterministic CBOR: `[1, [[chunk, result, [part, ...]], ...]]`; a piece is [bytes, path]."""
    return cbor(
        [
            FORMAT,
            [
                [
                    [o.target.step, o.target.op, o.target.out, o.target.chunk],
                    [o.result.data, o.result.proof],
                    [[p.data, p.proof] for p in o.parts],
                ]
                for o in openings
            ],
        ]
    )


def decode(data: bytes) -> list[Opening]:
    """Reads what `encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    return read_openings(decode_cbor(data, max_items=DEFAULT_LIMITS.items))


def read_openings(decoded: Any) -> list[Opening]:
    """Reads what `encode` wrote, once it is decoded.

    Raises:
        FormatError: It does not follow the format.
    """
    found = []
    for raw in _list(decoded, "openings"):
        match raw:
            case [target, result, list(parts)]:
                found.append(Opening(_target(target), piece(result), tuple(map(piece, parts))))
            case _:
                raise FormatError("an opening is not a chunk with a result and parts; ask for it again")
    return found


def _list(raw: Any, what: str) -> list[Any]:
    match raw:
        case [int(version), list(items)] if version == FORMAT and type(version) is int and len(items) <= MAX_OPENINGS:
            return items
    raise FormatError(f"this is no list of {what} of format {FORMAT}; ask for it again")


def _target(raw: Any) -> Target:
    if type(raw) is not list or len(raw) != 4 or not all(type(n) is int and 0 <= n < 1 << 48 for n in raw):
        raise FormatError("a chunk is not four natural numbers; ask for it again")
    return Target(*raw)


def piece(raw: Any) -> Piece:
    """Reads a piece from its bytes and Merkle path.

    Raises:
        FormatError: It is not one.
    """
    match raw:
        case [bytes(data), list(proof)] if len(data) <= CHUNK and len(proof) <= _MAX_PROOF:
            if all(type(h) is bytes and len(h) == merkle.HASH_SIZE for h in proof):
                return Piece(data, tuple(proof))
    raise FormatError("a chunk is not bytes with a Merkle path; ask for it again")


# -- verifying ---------------------------------------------------------------------------------------------------------


def verify(commitments: Commitments, rank: int, wanted: Sequence[Target], openings: Sequence[Opening]) -> list[Finding]:
    """Checks opened chunks of a cell's results, and does not stop at the first failure.

    Args:
        commitments: Those of the job.
        rank: The cell's rank.
        wanted: The chunks that were asked for.
        openings: What the Prover opened.

    Returns:
        `job.chunk.missing` for a chunk that was not opened, `merkle.proof` for one that is not what the step record
        commits to, `job.chunk.mismatch` for one that its sources do not make, `job.collective.mismatch`.
    """
    by_target = {opening.target: opening for opening in openings}
    findings = []
    for target in dict.fromkeys(wanted):
        subject = f"rank {rank}, step {target.step}, operation {target.op}, result {target.out}, chunk {target.chunk}"
        opening = by_target.get(target)
        if opening is None:
            message = "A chunk of a collective's result was not opened."
            findings.append(Finding(id="job.chunk.missing", message=message, subject=subject))
            continue
        try:
            found = _verify(commitments, rank, opening)
        except WeighbridgeError as error:
            findings.append(error.finding(subject=subject))
            continue
        if found is not None:
            message = "A chunk of a collective's result is not what the members' contributions make."
            findings.append(
                Finding(
                    id="job.chunk.mismatch", message=message, subject=subject,
                    expected=leaf(found).hex(), found=leaf(opening.result.data).hex(),
                )
            )  # fmt: skip
    return findings


def _verify(commitments: Commitments, rank: int, opening: Opening) -> bytes | None:
    """Checks one opening; returns what the result should have been if it is not that."""
    target = opening.target
    committed = commitments.at(rank, target)
    out = committed.call.outs[target.out]
    size = min(CHUNK, ref_bytes(out) - target.chunk * CHUNK)
    _check(opening.result, size, committed.call.outs, target.out, target.chunk, committed.result)
    sources = commitments.sources(rank, target)
    if len(sources) != len(opening.parts):
        raise ProofError(f"{len(opening.parts)} contributions were opened, and {len(sources)} are needed; ask again")
    for (_, theirs, which), part in zip(sources, opening.parts, strict=True):
        _check(part, size, theirs.call.ins, which, target.chunk, theirs.contribution)
    dtype = DTYPES[out[1]]
    parts = [torch.frombuffer(bytearray(part.data), dtype=dtype) for part in opening.parts]
    made = bytes(octets(exchanges.combine(committed.call.reduction, parts)))
    return None if made == opening.result.data else made


def _check(piece: Piece, size: int, side: Sequence[Ref], which: int, chunk: int, root: bytes) -> None:
    if len(piece.data) != size:
        raise ProofError(f"an opened chunk has {len(piece.data)} bytes and not {size}; ask for it again")
    total = leaf_index(side, len(side), 0)
    merkle.verify_inclusion(leaf(piece.data), leaf_index(side, which, chunk), total, list(piece.proof), root)
