"""The process that evaluates losses of a run's own batches at its checkpoints: `workers.losses_worker`.

See `weighbridge.execution.batch_losses`. It executes programs of the transcript from the state in a checkpoint up to
their loss, and follows no log: what comes out is a measurement, not a replay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from weighbridge.core.errors import TapeError
from weighbridge.execution.scoring import ScoringError
from weighbridge.execution.workers.scoring_worker import Evaluator, operand, place_of_loss
from weighbridge.execution.workers.serving import serve
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape


def losses(request: dict[str, Any], confined: list[str], send: Any) -> dict[str, Any]:
    """Evaluates the batches of some steps at some checkpoints.

    Raises:
        ScoringError: A program cannot be executed on them.
    """
    transcript = Transcript.open(request["path"])
    draft = transcript.draft
    policy = policies.declared(draft)
    evaluator = Evaluator(request["device"], int(draft["seed"]), int(request["memory"]), policy)
    return {
        "losses": [
            _at(transcript, evaluator, int(checkpoint), [int(step) for step in request["steps"]])
            for checkpoint in request["checkpoints"]
        ]
    }


def _at(transcript: Transcript, evaluator: Evaluator, checkpoint: int, steps: list[int]) -> list[float]:
    """Returns the loss of each step's batch under the weights of a checkpoint, by the program that ran there."""
    number = min(checkpoint, transcript.steps - 1)
    record = replace(transcript.step(number), step=checkpoint)
    tape = Tape.decode(transcript.tape(record.tape))
    place = place_of_loss(tape)
    found = []
    for step in steps:
        evaluator.load(transcript.checkpoint(checkpoint))
        log = LogReader(transcript.rounding(number), max_entries=record.logged)
        try:
            evaluator.run(tape, record.tape, record, log, transcript.batch(step), transcript.undeclared(number), place)
        except TapeError as error:
            raise ScoringError(
                f"the program of step {number} cannot be executed on that data: {error.message}"
            ) from None
        found.append(_mean(evaluator, tape, tape.nodes[place]))
    return found


def _mean(evaluator: Evaluator, tape: Tape, node: Node) -> float:
    """The mean negative log-likelihood of the answers that the program asks for, in nats."""
    scores, answers, weight, _, ignored = node.args
    if weight is not None or type(ignored) is not int:
        raise ScoringError("the loss weighs classes, or its operands are of another form; it cannot be evaluated")
    given, asked = operand(evaluator, tape, scores).double(), operand(evaluator, tape, answers).reshape(-1)
    classes = given.movedim(1, -1).reshape(-1, given.shape[1]) if given.ndim > 1 else given.reshape(1, -1)
    kept = asked != ignored
    classes, asked = classes[kept], asked[kept]
    if not asked.numel() or not (int(asked.min()) >= 0 and int(asked.max()) < classes.shape[1]):
        raise ScoringError("the program asks for classes that it does not have, or for none")
    return float(-torch.log_softmax(classes, dim=1).gather(1, asked[:, None]).mean())


def main() -> None:
    """Answers one request."""
    serve(losses)


if __name__ == "__main__":
    main()
