"""The process that scores a run's final state: `workers.scoring_worker`; see `scoring`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weighbridge.core.errors import TapeError
from weighbridge.execution.executor import Executor
from weighbridge.execution.free_run import Free, FreeExecutor
from weighbridge.execution.scoring import EXPECTED, ScoringError
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.execution.workers.serving import serve
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.program.operands import tensor
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape
from weighbridge.transcript.tensor_file import TensorFile

_LOSSES = ("nll_loss_forward.default", "nll_loss2d_forward.default")
_MOST_BATCHES = 1_000_000


class _Fresh(Free):
    """The context of a program up to its loss on other data."""

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        raise ScoringError(
            f"operation {self.op} ({self.operation}) reads a number back from a tensor before the loss, so the rest of "
            "the program depends on the data; such a program cannot be evaluated on other data"
        )


def place_of_loss(tape: Tape) -> int:
    """Returns which operation of a program is its loss.

    Raises:
        ScoringError: It has none that is a negative log-likelihood, or several.
    """
    places = [place for place, node in enumerate(tape.nodes) if node.op in _LOSSES]
    if len(places) != 1:
        raise ScoringError(f"the program has {len(places)} losses of negative log-likelihoods; one is needed")
    return places[0]


class Evaluator(FreeExecutor):
    """Executes programs on data that nothing was recorded of."""

    context = _Fresh


def score(request: dict[str, Any], confined: list[str], send: Any) -> dict[str, Any]:
    """Replays the last step, then evaluates its program on every batch of the benchmark.

    Raises:
        ScoringError: That cannot be done.
    """
    transcript = Transcript.open(request["path"])
    if MeshCoordinate.of(transcript.draft) is not None:
        raise ScoringError("the run has several ranks; only runs on one chip can be scored")
    number = next((n for n in reversed(range(transcript.steps)) if transcript.step(n).kind == "step"), None)
    if number is None:
        raise ScoringError("the run has no step, so there is no program to evaluate")
    last = transcript.steps - 1
    replay = _Last({**request, "steps": [last, last + 1], "stop": None, "salt": None, "results": None}, confined, send)
    outcome = replay.run()
    if outcome["verdict"] != "match":
        raise ScoringError(
            f"the replay of the last step ended in {outcome['verdict']}, so its state is not established"
        )
    record = replace(transcript.step(number), step=transcript.steps)
    tape = Tape.decode(transcript.tape(record.tape))
    place = place_of_loss(tape)
    evaluator = replay.evaluator()
    state = {name: data.clone() for name, data in evaluator.state.items()}
    total, answers = 0.0, 0
    for batch in _batches(Path(request["benchmark"])):
        expected = batch.pop(EXPECTED)
        evaluator.state = {name: data.clone() for name, data in state.items()}
        undeclared = transcript.undeclared(number)
        log = LogReader(transcript.rounding(number), max_entries=record.logged)
        try:
            evaluator.run(tape, record.tape, record, log, batch, undeclared, place)
        except TapeError as error:
            raise ScoringError(f"the program cannot be executed once more on this data: {error.message}") from None
        found, count = _measure(evaluator, tape, tape.nodes[place], expected, request["metric"])
        total, answers = total + found, answers + count
    if not answers:
        raise ScoringError("the benchmark asks for no answers")
    return {"value": total / answers, "answers": answers}


class _Last(Replay):
    def evaluator(self) -> Evaluator:
        """Returns an executor on the state that was reached."""
        draft = self._transcript.draft
        policy = policies.declared(draft)
        found = Evaluator(self._device, int(draft["seed"]), self._executor._max_bytes, policy)
        found.state, found.rng = self._executor.state, dict(self._executor.rng)
        return found


def _batches(path: Path) -> Iterator[dict[str, torch.Tensor]]:
    file = TensorFile(path, other_writers=True)  # the Verifier's own
    for number in range(_MOST_BATCHES):
        names = file.below(str(number))
        if not names:
            return
        batch = {name.removeprefix(f"{number}/"): file.read(name) for name in names}
        if EXPECTED not in batch or batch[EXPECTED].dtype != torch.int64 or batch[EXPECTED].ndim != 1:
            raise ScoringError(f"batch {number} of the benchmark has no int64 tensor {EXPECTED!r} in one dimension")
        yield batch


def _measure(evaluator: Executor, tape: Tape, node: Node, expected: torch.Tensor, metric: str) -> tuple[float, int]:
    """Computes a metric from the operands of the loss; returns its sum and the number of answers."""
    scores, answers, weight, _, ignored = node.args
    if weight is not None or type(ignored) is not int:
        raise ScoringError("the loss weighs classes, or its operands are of another form; it cannot be evaluated")
    given = operand(evaluator, tape, scores).double()
    asked = operand(evaluator, tape, answers)
    classes = given.movedim(1, -1).reshape(-1, given.shape[1]) if given.ndim > 1 else given.reshape(1, -1)
    asked = asked.reshape(-1)
    kept = asked != ignored
    classes, asked = classes[kept], asked[kept]
    if not torch.equal(asked.cpu(), expected):
        raise ScoringError("the program asks for other answers than those of the benchmark, or in another order")
    if asked.numel() and not (int(asked.min()) >= 0 and int(asked.max()) < classes.shape[1]):
        raise ScoringError("the benchmark asks for classes that the program does not have")
    likely = torch.log_softmax(classes, dim=1)  # whatever the program calls log-probabilities, these are some
    if metric == "accuracy":
        return float((likely.argmax(dim=1) == asked).sum()), asked.numel()
    return float(-likely.gather(1, asked[:, None]).sum()), asked.numel()


def operand(evaluator: Executor, tape: Tape, value: Any) -> torch.Tensor:
    """Returns what an operand of the loss holds at the present position.

    Raises:
        ScoringError: It is no tensor.
    """
    match value:
        case ("t", int(index)):
            ref = tape.refs[index]
            return tensor(evaluator.live[ref[0]], ref)
    raise ScoringError("an operand of the loss is no tensor; it cannot be evaluated")


def main() -> None:
    """Answers one request."""
    serve(score)


if __name__ == "__main__":
    main()
