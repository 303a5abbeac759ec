"""Disputes under a declared unit: its model says what the right result is, and the bound excuses no other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from redteam.own_rounding import rounding_by
from support.chosen_flips import Choosing, Flipping
from support.disputed import STEP, Party, cheat, judge_here, reasons
from support.forging import forge
from support.narrowed import judged, opened, places, play, verdicts
from support.recordings import replay_here, train, violations
from support.sealed_disputes import Setting, claim_of
from support.workers_here import workers_here
from torch import nn

from weighbridge.core.bounded import decode_cbor
from weighbridge.execution.dispute import asking, moves, part_execution, sealed_game, tracing
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.part_judgement import PART
from weighbridge.execution.dispute.recorded import recorded
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.rounding import narrow
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.units import injection
from weighbridge.numerics.units.declared_products import LONGEST
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

ROWS, WIDTH, SIDE = 128, 2048, 96
"""Sums of one sign, whose truncation errs in one direction, in a product of 24 chunks."""
SIGNATURE = f"bf16 {ROWS}x{WIDTH}x{SIDE}"
OP = "addmm.default"
UNITS = ("a100", "h100")
Batch = Mapping[str, torch.Tensor]


def build(width: int = WIDTH) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(width, SIDE), nn.Tanh(), nn.Linear(SIDE, 4))
    with torch.no_grad():
        model[0].weight.abs_()  # type: ignore[operator]
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def pictures() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(
        nn.Conv2d(4, 12, 3, padding=1), nn.GELU(), nn.Conv2d(12, 12, 3, groups=3), nn.Flatten(), nn.Linear(1200, 4)
    )
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def batches(*shape: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    labels = partial(torch.randint, 4, (shape[0],), generator=generator)
    return [{"x": torch.randn(*shape, generator=generator).abs(), "y": labels()} for _ in range(STEP)]


def trained(path: Path, unit: str, orders: Mapping[str, int] | None = None, width: int = WIDTH) -> Path:
    with injection.injected(unit, orders):
        train(path, lambda: build(width), step, batches(ROWS, width), policy=f"unit-{unit}", every=STEP)
    return path


def flipped(path: Path, place: int, record: Callable[[Path], Any]) -> Party:
    """Records again with the lowest bit of a result flipped, and returns the party that stands by that."""
    with rounding_by(narrow, Flipping(place - 1, honest=STEP - 1).record):
        record(path)
    return cheat(path, place - 1)


@pytest.fixture(scope="module", params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(unit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("honest") / unit, unit)


@pytest.fixture(scope="module")
def lying(unit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose log has one result of the disputed step as the bound admits it, and not as the unit computes it.

    Of A100's results a flip is suppressed, and of H100's one is made up.
    """
    honest = 2 * (STEP - 1)  # each step has one such result forward, and one backward
    liar = Choosing((ROWS, SIDE), suppress=unit == "a100", honest=honest)
    with rounding_by(narrow, liar.record):
        path = trained(tmp_path_factory.mktemp("lying") / unit, unit)
    assert liar.lies == 1
    result = replay_here(path)
    assert (result["verdict"], violations(result)) == ("match", ["replay.unit.false"])
    return path


@contextmanager
def following_logs() -> Iterator[None]:
    """The software of a liar, which asks no model: its leaves are what its log says."""

    def followed(wide: Any, bound: Any, found: Rounded, entries: Any) -> tuple[torch.Tensor, int]:
        return found.out, found.checksum

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "of_unit", followed)
        yield


class Liar(Party):
    """Stands by the results of its log."""

    def tree(self, place: int | None = None, part: int | None = None) -> Any:
        with following_logs():
            return super().tree(place, part)


def named(run: Path) -> list[str]:
    transcript = Transcript.open(run)
    tape = Tape.decode(transcript.tape(transcript.step(STEP).tape))
    return ["enter", *(node.op for node in tape.nodes), "finish"]


# -- one result that the bound admits, and the unit does not compute ---------------------------------------------------


def test_a_log_that_chooses_within_the_bound_is_false(run: Path, lying: Path) -> None:
    """Between two trainings: the right result stands, and one chunk shows it."""
    (place,) = places(named(run), OP)
    referee = play(Party(run), Liar(lying))
    assert (referee.dispute.leaf, referee.dispute.part is None) == (place, False)
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert reasons(referee) == {CHALLENGER: PART, DEFENDER: "replay.unit.false"}
    reverse = play(Liar(lying), Party(run))
    assert verdicts(reverse) == {CHALLENGER: "false", DEFENDER: "admissible"}


@pytest.mark.finding("replay.unit.false")
def test_an_auditor_of_such_a_log_finds_the_operation_and_wins(lying: Path) -> None:
    """The auditor has no training of its own: its copy of the run does not get past the false result."""
    (place,) = places(named(lying), OP)
    told = Party(lying).tree()[0]
    assert (len(told.leaves), "not those of the unit" in told.parted) == (place, True)
    referee = play(Party(lying), Liar(lying), denied=place)
    assert (referee.dispute.leaf, referee.dispute.part is None) == (place, False)
    assert (verdicts(referee), reasons(referee)) == ({DEFENDER: "false"}, {DEFENDER: "replay.unit.false"})


def test_an_operation_that_is_judged_whole_is_judged_by_the_model_too(lying: Path) -> None:
    (place,) = places(named(lying), OP)
    told, asked = Liar(lying).tree()[0], Party(lying).tree()[0]
    claim = moves.challenge(told, STEP, own=True)
    with following_logs():
        shown = Party(lying).tree(place)[0].opening
    made = asking.Claim(
        terms=told.terms, tape=told.tape, state=told.state, record=told.record, log=told.log, own=True,
        count=len(told.leaves), index=place, leaf=told.leaves[place], previous=told.leaves[place - 1],
        first=told.leaves[0],
    )  # fmt: skip
    assert claim.record == asked.record
    assert shown is not None
    found = judge_here(made, shown)
    assert (found.verdict, found.code) == ("false", "replay.unit.false")
    assert "1 results that the log names are not those of the unit" in found.reason


def test_the_bound_alone_would_have_admitted_it(run: Path, lying: Path) -> None:
    """Else the tests above showed nothing: a referee that follows the log has the liar's leaf."""
    (place,) = places(named(lying), OP)
    told = Liar(lying).tree()[0]
    one, other = Party(run).tree(place)[0].parts, Liar(lying).tree(place)[0].parts
    part = next(n for n in range(24) if one[32 * n : 32 * n + 32] != other[32 * n : 32 * n + 32])

    def followed(wide: Any, bound: Any, found: Rounded, entries: Any) -> tuple[torch.Tensor, int]:
        return found.out, found.checksum

    with following_logs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_execution, "of_unit", followed)
        made = Party(lying).tree(place, part)[0]
        found = judged(lying, place, part, told, made.opening or b"", parts=made.parts, shown=made.leaf)
        assert (found.verdict, found.code) == ("admissible", PART)


def test_a_true_record_beside_a_false_log_is_false(run: Path, lying: Path, tmp_path: Path) -> None:
    """Its results are the unit's and its leaves are honest; its log, which replays follow, says otherwise."""
    logs = Transcript.open(lying)

    def change(number: int, _: Tape, fields: dict[str, Any]) -> None:
        if number == STEP:
            fields["rounding"] = logs.named_log(STEP)

    mixed = forge(run, tmp_path / "mixed", change)
    (place,) = places(named(run), OP)
    honest = Party(run).tree()[0]
    assert len(Party(mixed).tree()[0].leaves) == place
    referee = play(Party(mixed), Beside(mixed, honest), denied=place)
    assert (verdicts(referee), reasons(referee)) == ({DEFENDER: "false"}, {DEFENDER: "replay.unit.false"})


class Beside(Party):
    """Names the leaves of an honest run beside its own log and record."""

    def __init__(self, run: Path, honest: asking.Traced) -> None:
        super().__init__(run)
        self.honest = honest

    def tree(self, place: int | None = None, part: int | None = None) -> Any:
        made, leaves, record = super().tree(place, part)
        return replace(made, leaves=self.honest.leaves, leaf=b"" if place is None else made.leaf), leaves, record


def test_a_result_beside_the_bound_is_false(run: Path, unit: str, tmp_path: Path) -> None:
    (place,) = places(named(run), OP)
    referee = play(Party(run), flipped(tmp_path / "run", place, lambda path: trained(path, unit)))
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert reasons(referee)[DEFENDER] == "dispute.leaf"


# -- orders ------------------------------------------------------------------------------------------------------------


def test_parts_are_summed_in_the_order_that_is_declared_for_the_whole(unit: str, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", unit, {SIGNATURE: 512})
    terms = decode_cbor(Party(run).tree()[0].terms)
    assert terms["orders"] == {SIGNATURE: 512}, "a referee has no draft"
    (place,) = places(named(run), OP)
    told = Party(run).tree()[0]
    for part in (0, 11, 23):
        found = judged(run, place, part, told, opened(run, place, part).opening or b"")
        assert (found.verdict, found.code) == ("admissible", PART), found.reason
    liar = flipped(tmp_path / "lying", place, lambda path: trained(path, unit, {SIGNATURE: 512}))
    assert verdicts(play(Party(run), liar)) == {CHALLENGER: "admissible", DEFENDER: "false"}


@pytest.mark.parametrize("has", [{SIGNATURE: 512}, {}], ids=["undeclared", "made up"])
def test_a_prover_with_another_order_than_it_declares_loses(unit: str, has: dict[str, int], tmp_path: Path) -> None:
    """Each of its results is within the bound; the draft says in which order the unit adds."""
    declares = {} if has else {SIGNATURE: 512}
    run = forge(trained(tmp_path / "run", unit, has), tmp_path / "forged", lambda *_: None, orders=declares)
    names = named(run)
    place = len(Party(run).tree()[0].leaves)
    assert names[place] == OP
    referee = play(Party(run), Liar(run), denied=place)
    assert (verdicts(referee), reasons(referee)) == ({DEFENDER: "false"}, {DEFENDER: "replay.unit.false"})


def test_long_sums_are_judged_in_parts_too(unit: str, tmp_path: Path) -> None:
    """They have no log: every bit is the model's, in the declared order."""
    width = LONGEST + 16
    record = partial(trained, unit=unit, orders={f"bf16 {ROWS}x{width}x{SIDE}": 1024}, width=width)
    run = record(tmp_path / "run")
    (place,) = places(named(run), OP)
    told = Party(run).tree()[0]
    assert not told.parted
    found = judged(run, place, 3, told, opened(run, place, 3).opening or b"")
    assert (found.verdict, found.code) == ("admissible", PART), found.reason
    referee = play(Party(run), flipped(tmp_path / "lying", place, record))
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}


@pytest.mark.parametrize("ordered", [False, True])
def test_convolutions_are_judged_by_the_model(unit: str, ordered: bool, tmp_path: Path) -> None:
    """In parts, unless orders are declared: the signatures of a part's products are others."""

    def record(path: Path) -> None:
        with injection.injected(unit, {"bf16 1x2x3": 16} if ordered else {}):
            train(path, pictures, step, batches(8, 4, 12, 12), policy=f"unit-{unit}", every=STEP)

    run = tmp_path / "run"
    record(run)
    told, names = Party(run).tree()[0], named(run)
    assert not told.parted
    for op in ("convolution.default", "convolution_backward.default"):
        place = len(names) - 1 - names[::-1].index(op)
        whole = opened(run, place, None)
        if ordered:
            assert whole.parts == b""
            continue
        last = len(whole.parts) // 32 - 1
        assert last > 0
        for part in (0, last):
            found = judged(run, place, part, told, opened(run, place, part).opening or b"")
            assert (found.verdict, found.code) == ("admissible", PART), found.reason
    place = names.index("convolution.default")
    referee = play(Party(run), flipped(tmp_path / "lying", place, record))
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}


# -- a unit that every machine computes --------------------------------------------------------------------------------


def test_products_of_a_unit_that_is_computed_exactly_are_judged_in_parts(tmp_path: Path) -> None:
    def record(path: Path) -> None:
        train(path, build, step, batches(ROWS, WIDTH), policy="unit-vdpbf16ps", every=STEP)

    run = tmp_path / "run"
    record(run)
    (place,) = places(named(run), OP)
    referee = play(Party(run), flipped(tmp_path / "lying", place, record))
    assert referee.dispute.part == 0
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert reasons(referee) == {CHALLENGER: PART, DEFENDER: "dispute.leaf"}
    assert not bound_policy.declared(decode_cbor(Party(run).tree()[0].terms)).truncating


# -- inside a sealed worker --------------------------------------------------------------------------------------------


def test_a_sealed_referee_asks_the_model(run: Path, lying: Path, tmp_path: Path) -> None:
    setting = Setting((run, lying))
    claims = [claim_of(Party(run)), claim_of(Liar(lying))]
    given = [setting.given(tmp_path / str(party), (run, lying)[party], claims[party]) for party in range(2)]
    processes = sealed_game.Processes(
        record=lambda party, run, step: recorded(run, step),
        opening=lambda party, run, step, leaf: asking.trace(run, step, place=leaf).opening,
        judge=lambda party, claim, opening: judge_here(claim, opening),
    )
    with workers_here():
        found = sealed_game.play(setting.terms, (given[0], given[1]), processes)
    assert found.verdicts == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert found.leaf == places(named(run), OP)[0]
