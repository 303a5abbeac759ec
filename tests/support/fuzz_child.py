"""Runs hostile tapes in one confined process: a line of JSON numbers on stdin, a line of JSON on stdout.

`python -m support.fuzz_child RUN ...` mutates the steps of recorded runs, bends the calls of the rules' examples, and
invents calls; some are executed twice, the second time as a straight-line program. It says for each what came out: a
verdict with its code, or the traceback of what should not happen.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.executed_twice import executed_twice
from support.inventions import bent, invented
from support.mutations import Case, Choices, mutated, steps_of
from support.operator_examples import EXAMPLES, Maker

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import DifferenceError
from weighbridge.execution.workers import confinement
from weighbridge.execution.workers.serving import prepare
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

MEMORY = 64 << 20
"""Bytes that a tape may use."""


def told(execute: Callable[[], str]) -> str:
    """Returns what an execution returns, or the code of the finding that ends it."""
    try:
        return execute()
    except DifferenceError as error:
        return "inconclusive" if error.details.get("inconclusive") else error.reason
    except WeighbridgeError as error:
        return error.reason
    except MemoryError:
        return "memory"


def executed(case: Case) -> str:
    """Executes one step."""
    encoded = case.tape.encode()
    tape = Tape.decode(encoded)
    executor = Executor("cpu", case.seed, MEMORY)
    if case.checkpoint is not None:
        executor.load(case.checkpoint)
    log = rounding_log.LogReader(case.log, max_entries=1 << 20)
    executor.run(tape, bytes(32), case.record, log, case.batch, case.free)
    executor.state_digest()
    return "match"


def twice(case: Case, pick: Choices, answer: dict[str, Any]) -> str:
    """Executes one step twice, and notes whether the second one was a program."""
    code, answer["program"] = executed_twice(case, pick, MEMORY)
    return code


def main() -> None:
    """Answers until stdin ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runs = [case for path in sys.argv[1:] for case in steps_of(Transcript.open(Path(path)))]
    examples = [example for key in sorted(EXAMPLES) for example in EXAMPLES[key](Maker("plain"))]
    prepare("cpu")
    torch.set_num_threads(1)
    confinement.limit_resources(2 << 30, 100_000, address_space=True)
    confinement.restrict_files(confinement.program_paths(), Path(tempfile.gettempdir()))
    confinement.deny_system_calls(allow_exec=False)
    for line in sys.stdin:
        pick = Choices(json.loads(line))
        kind = pick.below(6)
        answer: dict[str, Any] = {"kind": kind}
        try:
            if kind in (0, 4):
                case = mutated(pick.of(runs), pick)
            elif kind == 3:
                case = pick.of(runs)
            elif kind in (1, 5):
                example = pick.of(examples)
                case = bent(example.op, example.args, example.kwargs, pick)
            else:
                case = invented(pick)
        except Exception:
            answer["unmade"] = traceback.format_exc(limit=-3)  # an example that the mutations cannot express
        else:
            answer["ops"] = [node.op for node in case.tape.nodes][:1]
            try:
                execute = partial(twice, case, pick, answer) if kind in (4, 5) else partial(executed, case)
                answer["outcome"] = told(execute)
            except BaseException:
                answer["bug"] = traceback.format_exc(limit=-6)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
