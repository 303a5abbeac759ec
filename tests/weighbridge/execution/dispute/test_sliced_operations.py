"""Disputes about chunks of convolutions, of rows that an index names, and of reductions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.disputed import STEP, Party, cheat, judge_here, reasons
from support.narrowed import KEYS, REFEREE, forged, judged, opened, play, verdicts
from support.recordings import train
from torch import nn

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.dispute import asking, moves
from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER, Dispute
from weighbridge.execution.dispute.messages import Course, pack, signed
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import Referee, verify
from weighbridge.transcript.tape import Tape

OPERATIONS = ("convolution.default", "embedding.default", "sum.dim_IntList", "index_select.default", "amax.default")


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 24)
        self.first = nn.Conv2d(3, 8, 3, padding=1, groups=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=2, dilation=2, groups=4)
        self.third = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, groups=2)

    def forward(self, x: torch.Tensor, words: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        made = self.third(self.second(self.first(x)))
        told = self.words(words).index_select(1, order)
        return made.sum(dim=1).amax(dim=2).sum() + told.sum(dim=1).square().mean() + told.amax(dim=2).mean()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _Model()
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["x"], batch["words"], batch["order"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batches = [
        {
            "x": torch.randn(2, 3, 14, 14, generator=generator),
            "words": torch.randint(0, 64, (24, 12), generator=generator),
            "order": torch.randint(0, 12, (30,), generator=generator),
        }
        for _ in range(STEP)
    ]
    path = tmp_path_factory.mktemp("sliced") / "run"
    train(path, build, step, batches, every=STEP)
    return path


@pytest.fixture(scope="module")
def honest(run: Path) -> tuple[Traced, list[str]]:
    told = Party(run).tree()[0]
    return told, ["enter", *(node.op for node in Tape.decode(told.tape).nodes), "finish"]


def parted(run: Path, names: list[str], op: str) -> list[int]:
    """Returns the leaves of an operation that have parts."""
    return [at for at, name in enumerate(names) if name == op and opened(run, at, None).parts]


@pytest.mark.parametrize("op", OPERATIONS)
def test_honest_chunks_follow_and_false_ones_are_refuted(run: Path, honest: tuple[Traced, list[str]], op: str) -> None:
    told, names = honest
    found = parted(run, names, op)
    assert len(found) >= (3 if op == "convolution.default" else 1)
    for place in found:
        whole = opened(run, place, None)
        last = len(whole.parts) // 32 - 1
        for part in {0, last // 2, last}:
            shown = opened(run, place, part).opening
            assert shown is not None
            assert whole.opening is not None
            assert len(shown) < len(whole.opening) + 4096  # proofs of small operands
            said = judged(run, place, part, told, shown)
            assert (said.verdict, said.code) == ("admissible", "dispute.follows.part"), said.reason
            lie = forged(told, place, part, whole, shown)
            said = judged(run, place, part, told, shown, **lie)
            assert (said.verdict, said.code) == ("false", "dispute.leaf")
            assert f"chunk {part} of" in said.reason


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_dispute_about_a_convolution_is_won_by_a_slice(
    run: Path, honest: tuple[Traced, list[str]], which: int
) -> None:
    place = parted(run, honest[1], "convolution.default")[which]
    referee = play(Party(run), cheat(run, place - 1))
    assert referee.dispute.part == 0
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert reasons(referee)[DEFENDER] == "dispute.leaf"
    assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.opening")
@pytest.mark.parametrize("op", ["convolution.default", "embedding.default"])
def test_false_parts_of_operands_show_nothing(run: Path, honest: tuple[Traced, list[str]], op: str) -> None:
    """A window of other places, rows that the index does not name, other names of rows, or too much."""
    told, names = honest
    place = parted(run, names, op)[0]
    data = opened(run, place, 1).opening
    assert data is not None
    shown = Opening.from_cbor(data)
    for at, (slot, content, held, proof) in enumerate(shown.slots):
        if not content:
            continue
        for other in (
            bytes([content[0] ^ 1]) + content[1:], content[:-1] + bytes([content[-1] ^ 1]), content + bytes(32),
            content[32:], b"",
        ):  # fmt: skip
            slots = [*shown.slots[:at], (slot, other, held, proof), *shown.slots[at + 1 :]]
            found = judged(run, place, 1, told, replace(shown, slots=slots).to_cbor())
            assert (found.verdict, found.code) == ("forfeit", "dispute.opening")
    last = len(opened(run, place, None).parts) // 32 - 1
    for beside in (
        opened(run, place, None).opening,
        opened(run, place, last).opening if op != "embedding.default" else b"",
    ):
        assert judged(run, place, 1, told, beside or b"").verdict == "forfeit"
    for beyond in (last + 1, 1 << 40):
        assert judged(run, place, beyond, told, data).verdict == "forfeit"


@pytest.mark.finding("dispute.slices")
def test_parties_with_other_tables_are_told_before_they_play(run: Path, honest: tuple[Traced, list[str]]) -> None:
    told = honest[0]
    terms = decode_cbor(told.terms)
    others = [cbor(terms | {asking.SLICES: "ab" * 32}), cbor({k: v for k, v in terms.items() if k != asking.SLICES})]
    for theirs, name in zip(others, ("ab" * 32, "none"), strict=True):
        for content in (
            moves.challenge(replace(told, terms=theirs), STEP, own=True), Course(terms=theirs, states=b"", inputs=b""),
        ):  # fmt: skip
            dispute = Dispute((KEYS[0].public, KEYS[1].public))
            assert moves.other_tables(told.terms, dispute.messages) == ""
            dispute.take(signed(dispute.head, content, KEYS[0]))
            said = moves.other_tables(told.terms, dispute.messages)
            assert name in said
            assert terms[asking.SLICES] in said
            assert moves.other_tables(theirs, dispute.messages) == ""
        # A party that plays on all the same loses nothing, whoever has the other table.
        referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
        course = Course(terms=theirs, states=bytes(32), inputs=bytes(32))
        referee.post(signed(referee.dispute.head, course, KEYS[0]).data)
        referee.post(signed(referee.dispute.head, replace(course, terms=told.terms), KEYS[1]).data)
        assert reasons(referee) == {CHALLENGER: "dispute.slices", DEFENDER: "dispute.slices"}
        assert set(verdicts(referee).values()) == {"undecided"}
        referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
        asked = moves.challenge(replace(told, terms=theirs), STEP, own=True)
        referee.post(signed(referee.dispute.head, asked, KEYS[0]).data)
        referee.post(signed(referee.dispute.head, moves.answer(told, asked), KEYS[1]).data)
        assert set(verdicts(referee).values()) == {"undecided"}


def test_a_referee_with_another_table_says_so(run: Path, honest: tuple[Traced, list[str]]) -> None:
    told, names = honest
    place = parted(run, names, "convolution.default")[0]
    shown = opened(run, place, 0).opening or b""
    terms = decode_cbor(told.terms)
    assert judged(run, place, 0, told, shown).verdict == "admissible"
    with pytest.raises(WeighbridgeError, match="another table of slices"):
        judged(run, place, 0, told, shown, terms=cbor(terms | {asking.SLICES: "ab" * 32}))
    before = cbor({name: value for name, value in terms.items() if name != asking.SLICES})
    with pytest.raises(WeighbridgeError, match="another table of slices"):
        judged(run, place, 0, told, shown, terms=before)
