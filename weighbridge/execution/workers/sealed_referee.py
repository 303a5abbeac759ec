"""The referee of a sealed dispute: the process that alone sees what both parties show, and lets out one ruling.

As every sealed worker it runs in a measured image and is confined before it has a key
(`weighbridge.execution.workers.sealed_worker`). It takes each party's files from that party's key alone, plays the game
(`weighbridge.execution.dispute.sealed_game`), and signs the ruling. What a party's files can take over are not this
process but those that read them: each is forked from a server that was started before there was any key, sees the files
of one party, and confines itself.

Each party's run and claim have the memory and the time that both parties agreed on, whatever the other one's take. The
launcher starts no worker on a machine that has less, and time runs from the attestation on.

The ruling leaves at one time and has one size. What has not ended by then is `late`, what failed is `aborted`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from nacl.signing import SigningKey

from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_dispute import Admission, DisputeTerms, admitted
from weighbridge.attest.sealed_order import OUTCOME, REFUSED, STARTED, Order, SealedWorkerError
from weighbridge.attest.sealed_ruling import CLASSES, RulingStatus, SealedRuling, sign
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution import worker_process
from weighbridge.execution.dispute import asking
from weighbridge.execution.dispute.asking import Claim, Judgement
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.recorded import Recorded, recorded
from weighbridge.execution.dispute.sealed_files import MAX_SHOWN
from weighbridge.execution.dispute.sealed_game import Files, Played, Processes, play
from weighbridge.execution.fork_server import SEALED
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers.sealed_lanes import Lanes
from weighbridge.execution.workers.sealed_worker import REQUIRED, confined, is_traced

_LENGTH = struct.Struct(">I")
_SIGNING_SECONDS = 3.0
"""So long before the ruling leaves, the game has to have ended."""
_CLASS_SECONDS = 10
"""So long at most a process takes that names the class of an operation; that of the parties' program."""

_SHOWN = 2 * MAX_SHOWN
"""Bytes that a judgement has for what an opening shows, several times, beside what the same operation had in the run.

Else a liar could choose an operation that the run has memory for and its judgement has not, which is `undecided`.
"""

_T = TypeVar("_T")


class MachineError(Exception):
    """No process can be started here any more, through no party's fault: there is no ruling."""


def main(told: str) -> None:
    """Judges one dispute, and ends the process.

    Args:
        told: As JSON, nothing of it secret: the order, the limits, and what the launcher has confined this process by.
    """
    warnings.filterwarnings("ignore")
    given = json.loads(told)
    order, scratch = Order.from_cbor(bytes.fromhex(given["order"])), Path(tempfile.gettempdir())
    assert order.referee is not None, "the launcher starts this for disputes alone"
    limits = Limits(memory=order.referee.memory, seconds=int(given["seconds"]))
    launcher = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes nowhere

    def send(kind: bytes, content: bytes) -> None:
        launcher.write(_LENGTH.pack(1 + len(content)) + kind + content)
        launcher.flush()

    def refuse(code: str, names: Iterable[str] = ()) -> None:
        send(REFUSED, ",".join((code, *names)).encode())

    code = 1
    try:
        os.environ |= {SEALED: "1", "PYTHONPATH": os.pathsep.join(("/code", "/site"))}
        forking = worker_process.prepare()
        applied = list(map(str, given["applied"])) + confined(limits, scratch)
        if (missing := set(REQUIRED) - set(applied)) or is_traced() or not forking:
            refuse("sealed.isolation", sorted(missing) or ["not-traced" if forking else "fork-server"])
        else:
            worker, signer = WorkerKey(), SigningKey.generate()
            deadline = time.monotonic() + order.referee.leaves_after_s - _SIGNING_SECONDS
            send(STARTED, worker.public + bytes(signer.verify_key) + ",".join(sorted(applied)).encode())
            source = os.fdopen(0, "rb")
            terms = admitted(Admission.receive(source), order)
            channels = [order.challenger_terms(worker.public), order.terms(worker.public)]
            lanes = Lanes(source, worker.streams(channels), scratch, limit=terms.inputs)
            files = lanes.wait(min(time.monotonic() + terms.clock_s, deadline))
            send(OUTCOME, sign(ruled(terms, order, (files[0], files[1]), deadline), signer))
            code = 0
    except (SealedInputError, SealedWorkerError) as error:
        refuse(error.reason)
    except WeighbridgeError:  # terms or seats are none
        refuse("sealed.inputs")
    finally:
        launcher.close()
        os._exit(code)  # what a game that is late still does is not waited for


def ruled(terms: DisputeTerms, order: Order, files: Files, deadline: float) -> SealedRuling:
    """Plays a dispute, and returns what is ruled; of a game without an end, that.

    Args:
        terms: What both parties agreed on.
        order: The order that terms and seats make.
        files: What each party gave in time.
        deadline: When the ruling has to be there, by the monotonic clock, in seconds.
    """
    found: list[SealedRuling] = []

    def work() -> None:
        with contextlib.suppress(Exception):  # of what it fails by, only that it failed may leave
            played = play(terms, files, processes(terms))
            found.append(
                SealedRuling(
                    order=order.digest, status="complete", challenger=played.verdicts.get(CHALLENGER, "none"),
                    defender=played.verdicts.get(DEFENDER, "none"), operation=_class(terms, played),
                )
            )  # fmt: skip

    thread = threading.Thread(target=work, name="game", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    late = time.monotonic() >= deadline
    if found and not late:
        return found[0]
    status: RulingStatus = "late" if late else "aborted"
    return SealedRuling(order=order.digest, status=status)


class _Allowance:
    """What is left of the seconds of one party's run and claim."""

    def __init__(self, terms: DisputeTerms) -> None:
        self._memory, self._left = terms.memory, float(terms.run_s)

    def spent_on(self, work: Callable[[Limits], _T], more: int = 0) -> _T:
        """Does work of one process.

        Args:
            work: The work, within limits.
            more: Bytes of memory that it has beside those of the run.

        Raises:
            ReplayWorkerError: Nothing was left, or the process died or exceeded what was.
            MachineError: It did not end by itself: what processes are forked from is gone.
        """
        if not worker_process.prepared():
            raise MachineError
        if self._left <= 0:
            raise ReplayWorkerError("the time of this party's run is over")
        began = time.monotonic()
        try:
            return work(Limits(memory=self._memory + more, seconds=math.ceil(self._left)))
        except ReplayWorkerError:
            if not worker_process.prepared():
                raise MachineError from None
            raise
        finally:
            self._left -= time.monotonic() - began


def processes(terms: DisputeTerms) -> Processes:
    """Returns the processes that read what the parties of a dispute gave, each party's within what both agreed on.

    Args:
        terms: What they agreed on.
    """
    allowances = (_Allowance(terms), _Allowance(terms))

    def judge(party: int, claim: Claim, opening: bytes) -> Judgement:
        def work(limits: Limits) -> Judgement:
            said = asking.judge(claim, opening, limits=limits)
            if said.code == ReplayWorkerError.code:  # told, and not raised, as no other referee accuses a party of it
                raise ReplayWorkerError(said.reason)
            return said

        return allowances[party].spent_on(work, _SHOWN)

    return Processes(
        record=lambda party, run, step: allowances[party].spent_on(partial(_record, run, step)),
        opening=lambda party, run, step, leaf: allowances[party].spent_on(partial(_opening, run, step, leaf)),
        judge=judge,
    )


def _record(run: Path, step: int, limits: Limits) -> Recorded:
    return recorded(run, step, limits=limits)


def _opening(run: Path, step: int, leaf: int, limits: Limits) -> bytes | None:
    return asking.trace(run, step, place=leaf, limits=limits).opening


def _class(terms: DisputeTerms, played: Played) -> str:
    """Returns the class of the operation that was judged, if that is shown."""
    if not terms.shows_class or played.leaf is None:
        return "none"
    with contextlib.suppress(WeighbridgeError):
        limits = Limits(memory=terms.memory, seconds=_CLASS_SECONDS)
        found = asking.class_of(played.tape, played.leaf, limits=limits)
        if found in CLASSES:
            return found
    return "none"


if __name__ == "__main__":
    main(sys.argv[1])
