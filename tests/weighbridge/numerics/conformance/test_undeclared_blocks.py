"""Provers who compute products in other blocks than their draft says: what that gains them, and where it is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.disputed import STEP, Party, reasons
from support.forging import forge
from support.narrowed import judged, opened, play, verdicts
from support.recordings import replay_here, train, violations
from support.second_executor import NEEDED
from support.second_executor import replay as second_replay
from torch import nn

from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.numerics.arrays.blocked_products import length, roundings
from weighbridge.numerics.conformance.bound_policy import BLOCKS
from weighbridge.numerics.operations import prescribed_products
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

Batch = Mapping[str, torch.Tensor]
SIZES = {0: (2051, 1400), 256: (512, 236), 64: (512, 30)}
"""By the block that is computed: terms, and how many units of roundoff the exact sum is below half way.

Each of the small terms of the first block adds a unit too much if it is added one by one: 2,048, 253 and 61. Policies
with smaller blocks contest what is within twice 239 units (`blocked-256`) and 74 (`blocked-64`).
"""


def below(terms: int, units: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a row and a column whose product is so many units of 2^-53 below 1 + 2^-24, half way between floats."""
    x, w = torch.full((1, terms), 2.0**-26), torch.full((terms, 1), 2.0**-27 * (1 + 2.0**-20))
    x[0, :3] = torch.tensor([1.0, 2.0**-12, -(terms - 3 + units) * 2.0**-30])
    w[:3, 0] = torch.tensor([1.0, 2.0**-12, 2.0**-23])
    return x, w


def one_by_one(x: torch.Tensor, w: torch.Tensor, block: int) -> torch.Tensor:
    """Returns a product of equal rows with equal columns, in blocks whose terms are added one after the other."""
    terms = x[0].numpy() * w[:, 0].numpy()
    parts = [np.add.accumulate(terms[at : at + block])[-1] for at in range(0, len(terms), block)]
    return torch.full((x.shape[0], w.shape[1]), np.add.accumulate(parts)[-1], dtype=torch.float64)


@contextmanager
def computing(block: int, terms: int) -> Iterator[None]:
    """Has this process compute products of so many terms in blocks of its own choice, whatever is declared."""
    honest = prescribed_products.evaluate

    def evaluate(op: Any, args: Any, kwargs: Any, declared: Any) -> Any:
        if str(op) == "aten.mm.default" and args[0].shape[1] == terms:
            return one_by_one(*args, length(terms, block) if block else terms)
        return honest(op, args, kwargs, declared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prescribed_products, "evaluate", evaluate)
        yield


def recorded(path: Path, computed: int, policy: str, **options: Any) -> Path:
    """Records a step with that product, which goes into the weights."""

    def step(batch: Batch, layer: nn.Linear) -> None:
        with torch.no_grad():
            layer.bias.copy_((batch["x"] @ batch["w"]).view(1))

    x, w = below(*SIZES[computed])
    with computing(computed, SIZES[computed][0]):
        train(path, lambda: (nn.Linear(1, 1),), step, [{"x": x, "w": w}], policy=policy, **options)
    return path


def found(result: dict[str, Any]) -> tuple[str, list[str], str]:
    """Returns the verdict, the violations, and the operation that differs."""
    return result["verdict"], violations(result), (result["first_difference"] or {}).get("operation", "")


FALSE = "mismatch", ["replay.mismatch"], "mm.default"


@pytest.mark.parametrize("policy", ["mixed", *BLOCKS])
@pytest.mark.parametrize("computed", SIZES)
def test_what_other_blocks_give_is_found_where_the_declared_bound_does_not_cover_it(
    tmp_path: Path, computed: int, policy: str
) -> None:
    """Blocks where none are declared are one of the orders that strict bounds are for, and so are smaller blocks."""
    terms = SIZES[computed][0]
    covered = roundings(terms, computed) <= roundings(terms, BLOCKS.get(policy, 0))
    assert found(replay_here(recorded(tmp_path / "run", computed, policy))) == (("match", [], "") if covered else FALSE)


def test_without_a_log_no_log_is_waited_for_that_could_not_explain_it(tmp_path: Path) -> None:
    """A replay is inconclusive only where a log within the declared bound could lead to what was recorded."""
    assert found(replay_here(recorded(tmp_path / "run", 0, "blocked-64", logs="on-demand", device="cpu"))) == FALSE


@pytest.mark.parametrize("policy", BLOCKS)
def test_a_policy_that_is_put_into_the_draft_later_does_not_explain_it(tmp_path: Path, policy: str) -> None:
    """Honest under its own policy; under the draft of a run in blocks, its records and logs are none."""
    run = recorded(tmp_path / "run", 0, "mixed")
    assert replay_here(run)["verdict"] == "match"
    assert found(replay_here(forge(run, tmp_path / "forged", lambda *_: None, policy=policy))) == FALSE


@NEEDED
def test_the_second_executor_finds_it_too(tmp_path: Path) -> None:
    result = second_replay(recorded(tmp_path / "run", 0, "blocked-64"))
    assert (result.verdict, result.lacks) == ("differs", "")
    assert result.first_difference is not None
    assert result.first_difference["operation"] == "mm.default"


# --- disputes ---------------------------------------------------------------------------------------------------------

ROWS, COLUMNS = 16, 32


class OneByOne(Party):
    """A party that computes the product one term after the other, in blocks of its own choice."""

    block = 0

    def tree(self, place: int | None = None, part: int | None = None) -> Any:
        with computing(self.block, SIZES[0][0]):
            return super().tree(place, part)


class InBlocks(OneByOne):
    """The same with sums that are within every bound."""

    block = 64


def disputed(path: Path, policy: str, block: int) -> Path:
    """Records steps of which the last has that product 512 times over, in two chunks."""

    def step(batch: Batch, layer: nn.Linear) -> None:
        with torch.no_grad():
            layer.weight.copy_(batch["x"] @ batch["w"])

    row, column = below(*SIZES[0])
    x, w = row.expand(ROWS, -1).contiguous(), column.expand(-1, COLUMNS).contiguous()
    batches = [{"x": x * (number == STEP), "w": w} for number in range(1, STEP + 1)]
    with computing(block, SIZES[0][0]):
        train(path, lambda: (nn.Linear(COLUMNS, ROWS),), step, batches, every=STEP, policy=policy)
    return path


@pytest.mark.parametrize("policy", ["mixed", "blocked-64"])
def test_a_chunk_of_a_product_is_judged_by_the_bound_of_the_declared_blocks(tmp_path: Path, policy: str) -> None:
    """Rows and columns are cut and sums are not, so a part is split as the whole is, and has its bound."""
    honest, lying = disputed(tmp_path / "honest", policy, 64), disputed(tmp_path / "run", policy, 0)
    referee = play(InBlocks(honest), OneByOne(lying))
    assert referee.dispute.part == 0
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "admissible" if policy == "mixed" else "false"}
    assert reasons(referee)[DEFENDER] == ("dispute.follows.part" if policy == "mixed" else "dispute.leaf")
    transcript, told = Transcript.open(honest), InBlocks(honest).tree()[0]
    nodes = Tape.decode(transcript.tape(transcript.step(STEP).tape)).nodes
    place = 1 + next(number for number, node in enumerate(nodes) if node.op == "mm.default")
    for part in (0, 1):
        found = judged(honest, place, part, told, opened(honest, place, part).opening or b"")
        assert (found.verdict, found.code) == ("admissible", "dispute.follows.part"), found.reason
