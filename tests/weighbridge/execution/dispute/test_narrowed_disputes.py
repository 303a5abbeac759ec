"""Disputes about one chunk of a result: what is judged of it, and what a liar shows instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.disputed import STEP, Party, cheat, judge_here, reasons
from support.narrowed import KEYS, forged, judged, opened, places, play, verdicts
from support.recordings import train
from torch import nn

from weighbridge.execution.dispute import game, moves
from weighbridge.execution.dispute.asking import Judgement, Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import DisputeError, Parts, Shown, pack, read, signed
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import verify
from weighbridge.transcript.tape import Tape


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 40))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batches = [
        {"x": torch.randn(32, 48, generator=generator), "y": torch.randint(0, 40, (32,), generator=generator)}
        for _ in range(STEP)
    ]
    path = tmp_path_factory.mktemp("narrowed") / "run"
    train(path, build, step, batches, every=STEP)
    return path


@pytest.fixture(scope="module")
def honest(run: Path) -> tuple[Traced, list[str]]:
    told = Party(run).tree()[0]
    return told, ["enter", *(node.op for node in Tape.decode(told.tape).nodes), "finish"]


@pytest.mark.parametrize("op", ["addmm.default", "mm.default", "gelu.default", "gelu_backward.default", "mul_.Tensor"])
def test_an_honest_chunk_follows_and_takes_less(run: Path, honest: tuple[Traced, list[str]], op: str) -> None:
    told, names = honest
    (place,) = places(names, op)
    whole = opened(run, place, None)
    last = len(whole.parts) // 32 - 1
    assert last > 0
    for part in {0, last}:
        shown = opened(run, place, part).opening
        assert shown is not None
        assert whole.opening is not None
        assert len(shown) < len(whole.opening)
        found = judged(run, place, part, told, shown)
        assert (found.verdict, found.code) == ("admissible", "dispute.follows.part"), found.reason


@pytest.mark.parametrize("own", [True, False])
def test_a_liar_is_found_by_one_chunk(run: Path, honest: tuple[Traced, list[str]], own: bool) -> None:
    (place,) = places(honest[1], "addmm.default")
    liar = cheat(run, place - 1)
    mine = Party(run) if own else Party(run, record=liar.record)
    referee = play(mine, liar, denied=None if own else place)
    assert referee.dispute.part == 0
    assert verdicts(referee) == ({CHALLENGER: "admissible", DEFENDER: "false"} if own else {DEFENDER: "false"})
    assert reasons(referee)[DEFENDER] == "dispute.leaf"
    assert max(sum(m.key == key.public for m in referee.log()) for key in KEYS) <= 6
    assert verify(pack(referee.log()), judge_here).agrees


def test_a_false_chunk_is_false_and_another_one_of_that_result_follows(
    run: Path, honest: tuple[Traced, list[str]]
) -> None:
    """The liar's leaf, memory and parts all fit one false result; only executing the chunk shows it."""
    told, names = honest
    for place in places(names, "addmm.default", "gelu.default", "mm.default"):
        made, data = opened(run, place, None), opened(run, place, 1).opening
        assert data is not None
        lie = forged(told, place, 1, made, data)
        found = judged(run, place, 1, told, data, **lie)
        assert (found.verdict, found.code) == ("false", "dispute.leaf")
        assert "chunk 1 of" in found.reason
        beside = judged(run, place, 0, told, opened(run, place, 0).opening or b"", **lie)
        assert beside.verdict == "admissible"


@pytest.mark.finding("dispute.follows.part")
def test_an_accomplice_who_loses_on_purpose_vindicates_one_chunk_and_no_more(
    run: Path, honest: tuple[Traced, list[str]]
) -> None:
    """A liar is false at chunk 1. An accomplice, false at chunk 0, draws the dispute there; the ruling says so."""
    told, names = honest
    (place,) = places(names, "addmm.default")
    made, data = opened(run, place, None), opened(run, place, 1).opening
    assert data is not None
    lie = forged(told, place, 1, made, data)

    def ruled(part: int) -> Judgement:
        return judged(run, place, part, told, opened(run, place, part).opening or b"", **lie)

    drawn = ruled(0)
    assert (drawn.verdict, drawn.code) == ("admissible", "dispute.follows.part")
    assert "chunk 0 of 8 of the result" in drawn.reason
    assert "elements 0 to 255 of 2048, in [0:4, 0:64]," in drawn.reason
    assert "no other part of it was executed" in drawn.reason
    assert ruled(1).verdict == "false"  # an honest challenger disputes the same claim


def test_a_liar_who_names_other_parts_gains_nothing(run: Path, honest: tuple[Traced, list[str]]) -> None:
    (place,) = places(honest[1], "addmm.default")
    liar, true = cheat(run, place - 1), opened(run, place, None)
    lie = liar.tree(place)[0]
    for other, verdict in (
        (Parts(leaf=lie.leaf, parts=true.parts), "false"),  # no chunk differs: all is judged
        (Parts(leaf=lie.leaf, parts=lie.parts[:32]), "forfeit"),
        (Parts(leaf=lie.leaf, parts=b""), "false"),
        (Parts(leaf=true.leaf, parts=lie.parts), "forfeit"),
        (Parts(leaf=b"leaf", parts=lie.parts), "forfeit"),
        (Parts(leaf=lie.leaf, parts=true.parts[:-32] + bytes(32)), "false"),  # another chunk than the false one
    ):
        referee = play(Party(run), liar, forged=other)
        assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: verdict}


@pytest.mark.finding("dispute.opening")
def test_an_opening_of_other_chunks_shows_nothing(run: Path, honest: tuple[Traced, list[str]]) -> None:
    told, names = honest
    (place,) = places(names, "addmm.default")
    data = opened(run, place, 1).opening
    assert data is not None
    shown = Opening.from_cbor(data)
    at = max(range(len(shown.slots)), key=lambda i: len(shown.slots[i][1] or b""))
    slot, content, held, proof = shown.slots[at]
    assert content is not None

    def with_content(other: bytes) -> bytes:
        return replace(shown, slots=[*shown.slots[:at], (slot, other, held, proof), *shown.slots[at + 1 :]]).to_cbor()

    assert judged(run, place, 1, told, with_content(content)).verdict == "admissible"
    for other in (
        with_content(bytes([content[0] ^ 1]) + content[1:]),
        with_content(content[1024:2048] + content[:1024] + content[2048:]),
        with_content(content[1024:]),  # a smaller box than is needed
        with_content(content + bytes(32)),
        opened(run, place, 0).opening or b"",
        opened(run, place, None).opening or b"",
        replace(shown, slots=shown.slots[:-1]).to_cbor(),
    ):
        found = judged(run, place, 1, told, other)
        assert (found.verdict, found.code) == ("forfeit", "dispute.opening")
    assert judged(run, place, 1, told, data, parts=opened(run, place, None).parts[:32]).verdict == "forfeit"
    assert judged(run, place, 1, told, data, shown=b"").verdict == "forfeit"


def test_what_is_executed_whole_has_no_parts(run: Path, honest: tuple[Traced, list[str]]) -> None:
    told, names = honest
    (place,) = places(names, "nll_loss_forward.default")
    assert opened(run, place, None).parts == b""
    found = judged(run, place, 0, told, opened(run, place, None).opening or b"", parts=bytes(32))
    assert (found.verdict, found.code) == ("forfeit", "dispute.opening")


def test_parts_come_before_openings_and_once(run: Path, honest: tuple[Traced, list[str]]) -> None:
    (place,) = places(honest[1], "addmm.default")
    told, lie = honest[0], cheat(run, place - 1).tree()[0]
    dispute = game.Dispute((KEYS[0].public, KEYS[1].public))
    asked = moves.challenge(told, STEP, own=True)
    parts = Parts(leaf=b"", parts=bytes(64))
    for party, content in ((0, asked), (1, moves.answer(lie, asked)), (0, parts)):
        dispute.take(signed(dispute.head, content, KEYS[party]))
    assert dispute.due() == (DEFENDER, "parts")
    with pytest.raises(DisputeError):
        dispute.take(signed(dispute.head, Shown(opening=b""), KEYS[1]))
    dispute.take(signed(dispute.head, replace(parts, parts=bytes(31) + b"\1"), KEYS[1]))
    assert (dispute.part, dispute.due()) == (0, (CHALLENGER, "opening"))
    with pytest.raises(DisputeError):
        dispute.take(signed(dispute.head, parts, KEYS[0]))
    assert read(signed(dispute.head, parts, KEYS[0]).data).content == parts
