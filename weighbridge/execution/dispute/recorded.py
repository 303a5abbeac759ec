"""What a signed transcript says of one step, read in a confined worker; nothing is executed for that.

A dispute in a sealed worker is about transcripts that both parties agreed on, so a party's claim there has to be about
its transcript's own record of the step (`sealed_game`). It also says how much a worker needs that executes the run up
to that step, for a party that is to agree on limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weighbridge.core.digests import bytes_digest
from weighbridge.execution.dispute.messages import Challenge
from weighbridge.execution.worker_answers import MALFORMED, digest, malformed, natural
from weighbridge.execution.worker_process import Limits, raise_error, run_worker

WORKER = "weighbridge.execution.workers.dispute_worker"
_DEFAULT = Limits()


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a transcript says of a step.

    Attributes:
        transcript: Digest of its manifest (32 bytes).
        signer: The key that signed that (32 bytes).
        terms: What the step's execution depends on in the draft, encoded.
        tape: Digest of the program (32 bytes).
        state: Digest of the state before the step (32 bytes).
        record: The step record, encoded.
        draft: Digest of the draft if the step's log was made on demand (32 bytes); else nothing.
        needs: Bytes that the storages of any step have at most, from the checkpoint before the step up to it.
        shows: Bytes of the operands of any operation of the step, at most.
    """

    transcript: bytes
    signer: bytes
    terms: bytes
    tape: bytes
    state: bytes
    record: bytes
    draft: bytes
    needs: int
    shows: int

    def bears(self, said: Challenge) -> bool:
        """Whether a claim is about this step of this transcript: what it names besides its leaves and its log.

        The log is the record's, or is judged by what the party signed of it (`signed_trees`).
        """
        named = (said.terms, bytes_digest(said.tape), said.state, said.record, said.draft)
        return named == (self.terms, self.tape, self.state, self.record, self.draft)


def recorded(
    path: str | Path, step: int, *, limits: Limits = _DEFAULT, env: Mapping[str, str] | None = None
) -> Recorded:  # fmt: skip
    """Reads what a transcript says of a step.

    Args:
        path: Transcript directory.
        step: The step.
        limits: On memory and time.
        env: Environment for the worker.

    Raises:
        WeighbridgeError: The transcript is damaged or not signed, or the step cannot be disputed.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request = {"task": "record", "path": str(Path(path).resolve()), "step": step, "device": "cpu"}
    message = run_worker(WORKER, request | {"memory": limits.memory, "seconds": limits.seconds}, limits, env)
    try:
        raise_error(message)
        raw = message["result"]
        return Recorded(
            transcript=digest(raw["transcript"]), signer=digest(raw["signer"]), terms=bytes.fromhex(raw["terms"]),
            tape=digest(raw["tape"]), state=digest(raw["state"]), record=bytes.fromhex(raw["record"]),
            draft=bytes.fromhex(raw["draft"]), needs=natural(raw["needs"]), shows=natural(raw["shows"]),
        )  # fmt: skip
    except MALFORMED as error:
        raise malformed(error) from None
