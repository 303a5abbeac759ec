"""Runs whose 16-bit products are a truncating unit's: recorded with its model in the device's place, replayed without
it, and judged by it. Who declares another unit, order or signature than it has is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from redteam.own_rounding import rounding_by
from support.compiled_programs import Gpt2, Images, Program
from support.forging import forge
from support.recordings import replay_here, train, violations
from torch import nn

from prover import Recorder
from weighbridge.core.errors import DeviceArithmeticError, UsageError
from weighbridge.execution.replay import replay
from weighbridge.execution.unit_results import PROBES
from weighbridge.numerics.arrays.physical import coordinates, flat
from weighbridge.numerics.conformance import bound_policy, probes
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.rounding import narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.formats import to_format
from weighbridge.numerics.units import chunked_products, injection, truncated_products
from weighbridge.numerics.units.declared_products import LONGEST
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

WIDTH, ROWS, SIDE = 4000, 256, 33
"""Sums nearly as long as any that have a bound, where errors of truncation are largest."""
SIGNATURE = f"bf16 {ROWS}x{WIDTH}x{SIDE}"
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Batch = Mapping[str, torch.Tensor]


def build(width: int = WIDTH) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A layer with positive weights: sums of one sign, whose truncation errs in one direction."""
    model = nn.Sequential(nn.Linear(width, SIDE), nn.Tanh(), nn.Linear(SIDE, 4))
    with torch.no_grad():
        model[0].weight.abs_()  # type: ignore[operator]
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer, dtype: str = "bf16") -> None:
    with torch.autocast("cpu", TYPES[dtype]):
        nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def rows(width: int = WIDTH, count: int = 1) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [
        {"x": torch.randn(ROWS, width, generator=generator).abs(), "y": torch.randint(4, (ROWS,), generator=generator)}
        for _ in range(count)
    ]


def recorded(folder: Path, unit: str = "h100", declared: str = "", orders: Mapping[str, int] | None = None) -> Path:
    """Records with a unit's model, under the policy of the unit that is declared; a dishonest Prover chooses one."""
    run = folder / f"{unit}-{declared}"
    with injection.injected(unit, orders), unprobed():
        train(run, build, step, rows(), policy=f"unit-{declared or unit}")
    return run


@contextmanager
def unprobed() -> Iterator[None]:
    """A Prover who leaves out the test that its device has the unit; it declares the orders that it says it has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "truncated_conform", lambda *_: True)
        patch.setattr(probes, "require_unit", lambda policy: policy.truncating and injection.current().orders)  # type: ignore[union-attr]
        yield


def ids(result: dict[str, Any]) -> set[str]:
    return {each["id"] for each in result["findings"]} - {"data.not_precommitted"}


def said(result: dict[str, Any]) -> str:
    (found,) = [each for each in result["findings"] if each["id"] == "replay.unit.false"]
    return str(found["message"])


def elements(run: Path) -> int:
    return sum(record.logged for record in Transcript.open(run).records())


# --- the log path, end to end -----------------------------------------------------------------------------------------


class Half(Program):
    dtype = torch.bfloat16

    def loss(self, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            return super().loss(batch).float()


class Text(Half, Gpt2):
    """A GPT-2 under autocast: its products, those of attention too, and their gradients."""


class Pictures(Half, Images):
    """Convolutions under autocast."""

    dtype = torch.float16


@pytest.fixture(scope="module", params=[("h100", Text), ("a100", Text), ("h100", Pictures)], ids=str)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    unit, made = request.param
    path = tmp_path_factory.mktemp("trained") / "run"
    program = made()
    with injection.injected(unit), Recorder(path, seed=7, policy=f"unit-{unit}") as recorder:
        recorder.attach(program.model, program.optimizer)
        for number in range(3):
            batch = program.batch(number)
            with recorder.step(batch):
                program.function(batch)
    return path


def test_it_replays_without_the_unit(trained: Path) -> None:
    result = replay_here(trained)
    transcript = Transcript.open(trained)
    assert (result["verdict"], result["state"]) == ("match", transcript.step(3).state.hex())
    assert ids(result) == set()
    unit = result["unit"]
    assert unit["results"] > 10
    assert unit["judged"] == unit["could"] > 100
    assert (unit["overruled"], unit["suppressed"], unit["unjudged_bits"]) == (unit["confirmed"], 0, 0)
    policy = bound_policy.declared(transcript.draft)
    assert (policy.truncating, policy.at(torch.float32).name) == (True, "calibrated")


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_it_replays_to_the_same_state_on_other_instruction_sets(trained: Path, capability: str) -> None:
    """In fresh, confined processes; entries mean the same there, since bounds have the same bits."""
    library = {"default": "SSE4_2", "avx2": "AVX2"}[capability]
    result = replay(trained, env={"ATEN_CPU_CAPABILITY": capability, "MKL_ENABLE_INSTRUCTIONS": library})
    assert (result.verdict, result.state) == ("match", Transcript.open(trained).step(3).state.hex())
    assert (result.unit["judged"], result.unit["suppressed"]) == (result.unit["could"], 0)
    assert not [each for each in result.findings if each.severity == "violation"]


@pytest.mark.parametrize("unit", ["a100", "h100"])
def test_flips_are_logged_confirmed_and_chose_nothing(tmp_path: Path, unit: str) -> None:
    run = recorded(tmp_path, unit)
    result = replay_here(run)
    assert (result["verdict"], ids(result)) == ("match", set())
    assert result["unit"]["overruled"] == result["unit"]["confirmed"] > 0
    assert result["unit"]["overruled"] == pytest.approx(result["unit"]["expected"], abs=12)
    assert "roundings" not in result["chosen"], "the unit had no choice"
    with injection.injected(unit):  # a replayer that has the unit
        same = replay_here(run)
    assert (same["verdict"], same["followed"], same["state"]) == ("match", 0, result["state"])


def test_compiled_steps_of_a_replay_are_judged_too(tmp_path: Path) -> None:
    """Steps whose tape was executed before run as programs, which ask for bounds only where something looks at them."""
    with injection.injected("h100"):
        train(tmp_path / "run", build, step, rows(count=4), policy="unit-h100")
    result = replay_here(tmp_path / "run")
    assert result["verdict"] == "match"
    assert result["unit"]["results"] == 4 * replay_here(tmp_path / "run", steps=(0, 2))["unit"]["results"]


def test_long_sums_have_no_log_and_are_computed_by_the_model(tmp_path: Path) -> None:
    width = LONGEST + 8
    with injection.injected("h100"):
        train(tmp_path / "run", lambda: build(width), step, rows(width), policy="unit-h100")
    result = replay_here(tmp_path / "run")
    assert (result["verdict"], ids(result)) == ("match", set())
    transcript = Transcript.open(tmp_path / "run")
    nodes = Tape.decode(transcript.tape(transcript.step(1).tape)).nodes
    first = next(number for number, node in enumerate(nodes) if node.op == "addmm.default")
    logs = rounding_log.decode(transcript.rounding(1), max_entries=1 << 20)
    assert first not in {entries.op for entries in logs}


def test_declared_orders_stand_in_the_draft_and_are_those_that_judge(tmp_path: Path) -> None:
    run = recorded(tmp_path, orders={SIGNATURE: 512})
    assert Transcript.open(run).draft["orders"] == {SIGNATURE: 512}
    result = replay_here(run)
    assert (result["verdict"], ids(result)) == ("match", set())
    plain = replay_here(recorded(tmp_path / "plain"))
    more = result["chosen"]["selection"]["bits"] - plain["chosen"]["selection"]["bits"]
    assert more == 20, "a Prover may choose an order for what comes of it"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_where_nothing_has_the_unit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing here computes products as h100 does"):
        train(tmp_path / "run", build, step, rows(), policy="unit-h100")
    with injection.injected("a100"), pytest.raises(DeviceArithmeticError, match="not those of h100 here"):
        train(tmp_path / "run", build, step, rows(), policy="unit-h100")
    with injection.injected("h100"), pytest.raises(UsageError, match="logs in full"):
        train(tmp_path / "run", build, step, rows(), policy="unit-h100", logs="on-demand")
    with pytest.raises(UsageError, match="no model of 'mi300'"), injection.injected("mi300"):
        pass


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has", "declares"), [("a100", "h100"), ("h100", "a100")])
def test_a_false_unit_is_found_and_named(tmp_path: Path, has: str, declares: str) -> None:
    """Its errors are within the other's bound, so that every entry is admissible and the replay matches."""
    result = replay_here(recorded(tmp_path, has, declares))
    assert result["verdict"] == "match", "which is why the finding is needed"
    assert violations(result) == ["replay.unit.false"]
    assert f"are those of {has} in one chain" in said(result)


class Nearest:
    """A device that adds in float32, or better."""

    orders: Mapping[str, int] = {}

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return chunked_products.chunked(a, b).sums.float()


def test_sums_that_do_not_truncate_are_found(tmp_path: Path) -> None:
    """Such a Prover overrules nothing at all: what it should have overruled tells."""
    with pytest.MonkeyPatch.context() as patch, unprobed():
        patch.setattr(injection, "current", Nearest)
        train(tmp_path / "run", build, step, rows(), policy="unit-h100")
    result = replay_here(tmp_path / "run")
    assert (result["verdict"], result["followed"]) == ("match", 0)
    assert violations(result) == ["replay.unit.false"]
    assert "rounded once" in said(result)


@pytest.mark.parametrize("logs", ["on-demand", "sketch"])
def test_a_prover_without_logs_does_not_pass_for_the_unit(tmp_path: Path, logs: str) -> None:
    """The Recorder refuses that; one that does not, on a device that adds as a replayer does, needs no log."""
    first = iter([False])
    with pytest.MonkeyPatch.context() as patch, unprobed():
        patch.setattr(injection, "current", Nearest)
        patch.setattr(Policy, "truncating", property(lambda self: next(first, self.name in bound_policy.TRUNCATING)))
        train(tmp_path / "run", build, step, rows(), policy="unit-h100", logs=logs)
    result = replay_here(tmp_path / "run")
    assert (result["verdict"], violations(result)) == ("match", ["replay.unit.false"])


@pytest.mark.parametrize(
    ("has", "declares"),
    [({SIGNATURE: 512}, {}), ({}, {SIGNATURE: 512}), ({SIGNATURE: 512}, {f"bf16 {SIDE}x{WIDTH}x{ROWS}": 512})],
    ids=["undeclared", "made up", "of another signature"],
)
def test_a_false_order_or_signature_is_found(tmp_path: Path, has: dict[str, int], declares: dict[str, int]) -> None:
    run = recorded(tmp_path, orders=has)
    forged = forge(run, tmp_path / "forged", lambda *_: None, orders=declares)
    result = replay_here(forged)
    assert result["verdict"] == "match"
    assert violations(result) == ["replay.unit.false"]
    assert ("chains of 512" if has else "one chain") in said(result)


def test_a_policy_of_another_kind_does_not_pass_for_the_unit_s(tmp_path: Path) -> None:
    """The same results under the name of a unit whose products have no log, and under calibrated bounds."""
    run = recorded(tmp_path)
    exact = replay_here(forge(run, tmp_path / "exact", lambda *_: None, policy="unit-vdpbf16ps"))
    assert (exact["verdict"], exact["first_difference"]["operation"]) == ("mismatch", "addmm.default")
    with pytest.raises(UsageError, match="which the policy"):
        replay_here(forge(run, tmp_path / "orders", lambda *_: None, policy="mixed", orders={}))


class Choosing:
    """Has one flip of the first product suppressed, or made up, with a log that says so, or says nothing of it."""

    def __init__(self, *, suppress: bool, silent: bool = False, true: bool = False) -> None:
        self.suppress, self.lies, self.silent, self.true = suppress, 0, silent, true

    def record(self, x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        if bound.judge is None or tuple(x.shape) != (ROWS, SIDE) or self.lies:
            return narrow.record(x, bound, dtype, op, output)
        judge: Any = bound.judge
        y = chunked_products.chunked(judge.a, judge.b).sums.float() + judge.added
        other = (to_format(x, dtype) != to_format(y, dtype)).flatten()
        if self.suppress:
            (place, *_), value = other.nonzero().flatten().tolist(), flat(y)
        else:
            e = bound.factors[0].expand(x.shape)
            near = (to_format(y - e, dtype) != to_format(y, dtype)).flatten() & ~other
            (place, *_), value = near.nonzero().flatten().tolist(), flat(y - e)
        self.lies += 1
        lying = x.clone()
        flat(lying)[place] = flat(x)[place] if self.true else value[place]
        assert float(judge.at(coordinates(x, torch.tensor([place])))) == float(flat(x)[place])
        found = narrow.record(lying, bound, dtype, op, output)
        if self.silent:
            said = found.entries
            assert said is not None
            others = said.positions != place
            kept = {name: getattr(said, name)[others] for name in ("positions", "widths", "bits")}
            found = replace(found, entries=replace(said, **kept))
        return found


@pytest.mark.parametrize("suppress", [True, False], ids=["suppressed", "made up"])
def test_one_rounding_that_the_unit_did_not_make_is_found(tmp_path: Path, suppress: bool) -> None:
    liar = Choosing(suppress=suppress)
    with injection.injected("h100"), rounding_by(narrow, liar.record):
        train(tmp_path / "run", build, step, rows(), policy="unit-h100")
    result = replay_here(tmp_path / "run")
    assert liar.lies == 1
    assert result["verdict"] == "match"
    assert violations(result) == ["replay.unit.false"]
    unit = result["unit"]
    assert (unit["suppressed"], unit["overruled"] - unit["confirmed"]) == ((1, 0) if suppress else (0, 1))
    assert said(result).startswith(f"1 of {unit['judged'] + unit['overruled']} results")


@pytest.mark.parametrize("true", [True, False])
def test_an_unlogged_result_is_inconclusive_only_if_it_is_the_units(tmp_path: Path, true: bool) -> None:
    """A bound that is too small would leave out entries of true results; of others, it explains nothing."""
    liar = Choosing(suppress=true, silent=True, true=true)
    with injection.injected("h100"), rounding_by(narrow, liar.record):
        train(tmp_path / "run", build, step, rows(), policy="unit-h100")
    assert liar.lies == 1
    elsewhere = forge(tmp_path / "run", tmp_path / "elsewhere", lambda *_: None, device="another")
    assert replay_here(elsewhere)["verdict"] == ("inconclusive" if true else "mismatch")


def boundless(batch: Batch, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """The first product has two terms more, of a huge number and zero each: its bounds, made of norms, are infinite."""
    huge, zero = (torch.tensor([each]).bfloat16() for each in ((3e38, 0.0), (0.0, 1e9)))
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.cat([batch["x"].bfloat16(), huge.expand(ROWS, 2)], 1)
        w = torch.cat([model[0].weight.bfloat16(), zero.expand(SIDE, 2)], 1)
        first = nn.functional.linear(x, w, model[0].bias)
        nn.functional.cross_entropy(model[2](model[1](first)).float(), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("lies", [True, False], ids=["suppressed", "honest"])
def test_elements_without_a_finite_bound_are_judged_too(tmp_path: Path, lies: bool) -> None:
    liar = Choosing(suppress=True)
    liar.lies = 0 if lies else 1
    with injection.injected("h100"), rounding_by(narrow, liar.record):
        train(tmp_path / "run", build, boundless, rows(), policy="unit-h100")
    result, none = replay_here(tmp_path / "run"), replay_here(tmp_path / "run", tapes=NONE)
    assert result["verdict"] == "match"
    assert violations(result) == (["replay.unit.false"] if lies else [])
    unit = result["unit"]
    assert (unit["suppressed"], unit["judged"] == unit["could"] > ROWS * SIDE / 2) == (int(lies), True)
    assert unit["overruled"] == unit["confirmed"] == pytest.approx(unit["expected"], abs=14)
    assert none["chosen"]["roundings"]["bits"] > unit["expected"] / 2, "what is not judged is charged there too"


# --- where not all is judged ------------------------------------------------------------------------------------------

NONE, FEW = {"unit_terms": 0}, {"unit_terms": 40 * WIDTH}
"""Room for no element, and for some forty of the first product."""


def test_what_is_not_judged_is_charged_as_chosen(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    whole, none, few = (replay_here(run, tapes=tapes) for tapes in ({}, NONE, FEW))
    assert [ids(each) for each in (whole, none, few)] == [set(), set(), set()]
    seen = [each["unit"]["judged"] for each in (none, few)]
    assert 0 < seen[0] <= PROBES * none["unit"]["results"], "some of every result, whatever the room"
    assert seen[1] <= PROBES * few["unit"]["results"] + 40
    bits = [each["unit"]["unjudged_bits"] for each in (whole, few, none)]
    assert bits[0] == 0 < bits[1] < bits[2]
    assert none["chosen"]["roundings"]["bits"] == pytest.approx(bits[2], rel=1e-3)
    assert "were not looked for" in none["chosen"]["roundings"]["what"]
    assert none["unit"]["overruled"] == none["unit"]["confirmed"] > 0, "entries that overrule are judged all the same"


def test_elements_are_drawn_where_flips_are_probable(tmp_path: Path) -> None:
    """Of a Prover who suppresses all flips, a sample sees far more than its share of the elements."""
    with pytest.MonkeyPatch.context() as patch, unprobed():
        patch.setattr(injection, "current", Nearest)
        train(tmp_path / "run", build, step, rows(), policy="unit-h100")
    whole, few = replay_here(tmp_path / "run"), replay_here(tmp_path / "run", tapes=FEW)
    assert violations(few) == ["replay.unit.false"]
    share = few["unit"]["judged"] / whole["unit"]["judged"]
    assert share < 0.6
    assert few["unit"]["suppressed"] > share * whole["unit"]["suppressed"]


class Later:
    """Has the unit until a product comes again, and then adds without truncation."""

    orders: Mapping[str, int] = {}

    def __init__(self, lies: bool) -> None:
        self.left = 1 if lies else 2

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape != (ROWS, WIDTH):
            return truncated_products.product(a, b, "h100")
        self.left -= 1
        return Nearest().product(a, b) if self.left < 0 else truncated_products.product(a, b, "h100")


def twice(batch: Batch, model: Any, optimizer: torch.optim.Optimizer) -> None:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model[0](batch["x"])
    step(batch, model, optimizer)


@pytest.mark.parametrize("lies", [True, False])
def test_no_product_takes_all_room_from_another(tmp_path: Path, lies: bool) -> None:
    """A first product that nothing depends on takes all room for judging, and would leave the second one unseen."""
    with pytest.MonkeyPatch.context() as patch, unprobed():
        device = Later(lies)
        patch.setattr(injection, "current", lambda: device)
        train(tmp_path / "run", build, twice, rows(), policy="unit-h100")
    result = replay_here(tmp_path / "run", tapes=FEW)
    assert device.left == (-1 if lies else 0)
    assert (result["verdict"], violations(result)) == ("match", ["replay.unit.false"] if lies else [])
    assert result["unit"]["judged"] < result["unit"]["could"]


def test_flips_that_are_missing_are_counted_where_none_is_judged(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, unprobed():
        patch.setattr(injection, "current", Nearest)
        train(tmp_path / "run", build, step, rows(count=6), policy="unit-a100")
    result = replay_here(tmp_path / "run", tapes=NONE)
    (found,) = [each for each in result["findings"] if each["id"] == "replay.unit.flips"]
    assert found["severity"] == "warning"
    assert (found["evidence"]["overruled"], found["evidence"]["expected"] > 20) == (0, True)


def test_orders_of_the_draft_that_are_none_end_a_replay(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with pytest.raises(UsageError, match="orders of the draft"):
        replay_here(forge(run, tmp_path / "forged", lambda *_: None, orders={"bf16 1x1x1": 7}))


def test_a_policy_names_its_unit() -> None:
    for name, unit in (("unit-a100", "a100"), ("unit-h100", "h100")):
        policy = bound_policy.named(name)
        assert (policy.unit, policy.truncating, policy.narrow, policy.block) == (unit, True, True, 0)
        assert replace(policy, orders={"bf16 1x2x3": 16}).orders
    assert not bound_policy.named("unit-vdpbf16ps").truncating


INF = float("inf")


@pytest.mark.parametrize(
    ("dtype", "odd"),
    [("fp16", (float("nan"),)), ("bf16", (INF, -INF)), ("fp16", (INF,)), ("bf16", (3e38, -3e38))],
)  # fmt: skip
def test_honest_runs_that_diverge_are_confirmed(tmp_path: Path, dtype: str, odd: tuple[float, ...]) -> None:
    """Infinities and NaN are judged as any results are."""
    (batch,) = rows()
    for at, value in enumerate(odd):
        batch["x"][at, : 10 + at] = value
    batch["x"][5, : len(odd)] = torch.tensor(odd)
    with injection.injected("h100"):
        train(tmp_path / "run", build, lambda *more: step(*more, dtype=dtype), [batch], policy="unit-h100")
    result, none = replay_here(tmp_path / "run"), replay_here(tmp_path / "run", tapes=NONE)
    assert (result["verdict"], ids(result), ids(none)) == ("match", set(), set())
    assert result["unit"]["judged"] == result["unit"]["could"] > none["unit"]["judged"]
