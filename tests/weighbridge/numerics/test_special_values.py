"""Special values have the same bits after every rule, whatever the processor: zeros, subnormals, infinities, NaN."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import special_values
from support.recordings import train
from support.special_values import CALLS, FORMATS, Alone, bits, expected, special
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge import replay
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.conformance.bound_policy import calibrated
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations.rounded import wide_results
from weighbridge.numerics.rounding.canonical_nan import holds_nan, make_canonical
from weighbridge.numerics.slices import table

aten = torch.ops.aten
X86 = platform.machine() == "x86_64"
CANONICAL = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00, torch.float64: 0x7FF8 << 48}
GUILTY = ["_to_copy.default", "copy.default", "ceil.default", "gather.default", "fill.Tensor", "maximum.default"]
"""One of each kind of overload whose kernels differ."""


def elsewhere(capability: str, keys: list[str]) -> dict[str, Any]:
    """What the kernels of an instruction set give."""
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "support.special_values", *keys],
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def assert_alike(keys: list[str], capabilities: tuple[str, ...]) -> None:
    answers = [elsewhere(capability, keys) for capability in capabilities]
    assert len({answer["capability"] for answer in answers}) > 1, "this processor has one instruction set only"
    first = answers[0]["found"]
    assert len(first) > 100 * len(keys)
    for answer in answers[1:]:
        assert first.keys() == answer["found"].keys()
        differing = [call for call, digest in first.items() if answer["found"][call] != digest]
        assert not differing, (answer["capability"], differing[:20])


def test_every_rule_that_is_not_rounded_has_calls() -> None:
    assert set(CALLS) == expected()


def test_values_are_of_every_kind_and_both_signs() -> None:
    for dtype in FORMATS:
        values = special(dtype)
        patterns = set(bits(values).tolist())
        tiny = torch.finfo(dtype).smallest_normal
        finite = values[values.isfinite()].double()
        for kind in (values.isnan(), values.isinf(), values == 0, (values.abs().double() < tiny) & (values != 0)):
            assert kind.any()
            assert len(set(values[kind].signbit().tolist())) == 2
        assert float(finite.max()) == torch.finfo(dtype).max
        quiet = 1 << FORMATS[dtype][1] - 1
        payloads = {
            p & 2 * quiet - 1 for p, nan in zip(bits(values).tolist(), values.isnan().tolist(), strict=True) if nan
        }
        assert {p & quiet for p in payloads} == {0, quiet}, "signalling and quiet"
        assert len(payloads) >= 6
        assert len(patterns) > 40


def test_most_calls_are_evaluated_and_not_refused() -> None:
    """A call that fails on every instruction set in the same way would say nothing."""
    for key in sorted(CALLS):
        given = [outcome for _, outcome in special_values.outcomes([key], sizes=(7,))]
        assert any(isinstance(each, bytes) for outcome in given for each in outcome), key


@pytest.mark.essential
@pytest.mark.skipif(not X86, reason="PyTorch chooses kernels by instruction set on x86")
def test_guilty_kernels_give_the_same_bits_on_every_instruction_set() -> None:
    assert_alike(GUILTY, ("default", "avx2"))


@pytest.mark.skipif(not X86, reason="PyTorch chooses kernels by instruction set on x86")
def test_every_rule_gives_the_same_bits_on_every_instruction_set() -> None:
    best = torch.backends.cpu.get_cpu_capability()  # PyTorch obeys a setting that the processor does not have
    assert_alike([], ("default", "avx2", *(["avx512"] if "avx512" in best.lower() else [])))


def _alone(operands: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    return tuple(v[at : at + 1].clone() if isinstance(v, Tensor) and v.dim() else v for v in operands)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_an_element_alone_comes_out_as_among_others(dtype: torch.dtype) -> None:
    """Vector code and that of a tail say the same. Else a part of an operation, or a replay, had another result."""
    values, tried = special(dtype), 0
    for key in sorted(CALLS.keys() & table.members("element")):
        name, _, overload = key.partition(".")
        op = getattr(getattr(aten, name), overload)
        for operands in CALLS[key](values[torch.randperm(70, generator=torch.Generator().manual_seed(2))], values):
            named = operands[-1] if isinstance(operands[-1], dict) else {}
            args = operands[: -1 if named else None]
            try:
                whole = evaluate(op, args, named, Alone())
            except (RefusedOperationError, RuntimeError):
                continue
            single = torch.cat([evaluate(op, _alone(args, at), named, Alone()) for at in range(70)])
            assert torch.equal(bits(whole), bits(single)), (key, operands[1:])
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_signalling_nan_is_a_quiet_one_to_a_power_and_a_hypotenuse(dtype: torch.dtype) -> None:
    """These are rounded, and 1 to the power of a quiet NaN is 1. Vector code did not tell the two apart."""
    values = special(dtype)
    nans = values[values.isnan()].repeat(8)
    one, infinite, zero = (torch.full_like(nans, each) for each in (1.0, float("inf"), 0.0))
    for op, *args in (
        (aten.pow.Tensor_Tensor, one, nans), (aten.pow.Tensor_Tensor, nans, zero), (aten.hypot.default, infinite, nans),
        (aten.hypot.default, nans, infinite),
    ):  # fmt: skip
        whole = evaluate(op, args, {}, Alone())
        single = torch.cat([evaluate(op, _alone(tuple(args), at), {}, Alone()) for at in range(len(nans))])
        assert not bool(whole.isnan().any() | single.isnan().any())
        wide = torch.float64 if dtype is torch.float32 else torch.float32
        (at_once,) = wide_results(op, args, {}, wide, calibrated())
        assert not bool(at_once.isnan().any())
        assert all(
            not bool(wide_results(op, _alone(tuple(args), at), {}, wide, calibrated())[0].isnan().any())
            for at in range(len(nans))
        )
    assert bits(nans).tolist() == bits(values[values.isnan()].repeat(8)).tolist(), "operands stay as they are"


@pytest.mark.parametrize("to", FORMATS, ids=str)
@pytest.mark.parametrize("source", FORMATS, ids=str)
def test_a_converted_nan_is_the_canonical_one(source: torch.dtype, to: torch.dtype) -> None:
    if source is to:
        pytest.skip("a copy of the same type keeps its bits")
    x = special(source)
    target = torch.zeros(70, 3, dtype=to)[:, 1]  # with gaps
    context = Alone()
    results = [
        evaluate(aten._to_copy.default, (x,), {"dtype": to}, context),
        evaluate(aten.copy_.default, (target, x), {}, context),
    ]
    for result in results:
        assert result.dtype is to
        assert set(bits(result[x.isnan()]).tolist()) == {CANONICAL[to]}
        assert torch.equal(result[~x.isnan()], x[~x.isnan()].to(to))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_nan_that_is_only_moved_keeps_its_bits(dtype: torch.dtype) -> None:
    x, context = special(dtype), Alone()
    order = torch.arange(70).flip(0)
    for op, args in [
        (aten.clone.default, (x,)),
        (aten.copy_.default, (torch.zeros_like(x), x)),
        (aten.index_select.default, (x.flip(0), 0, order)),
        (aten.cat.default, ([x[:30], x[30:]],)),
        (aten.where.self, (x == x, x, x)),
    ]:
        assert torch.equal(bits(evaluate(op, args, {}, context)), bits(x)), op


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_nan_is_found_wherever_it_lies(dtype: torch.dtype) -> None:
    for x in special(dtype).split(1):
        assert holds_nan(x) == bool(x.isnan())
    harmless = special(dtype)[~special(dtype).isnan()]
    for nan in special(dtype)[special(dtype).isnan()].unique_consecutive():
        for size in (1, 2, 3, 5, 8, 33):
            assert not holds_nan(harmless[:size])
            for place in range(size):
                x = harmless[:size].clone()
                x[place] = nan
                assert holds_nan(x)
                make_canonical(x)
                assert bits(x)[place] == CANONICAL[dtype]
                rest = torch.arange(size) != place
                assert torch.equal(bits(x)[rest], bits(harmless[:size])[rest])


def test_products_of_16_bits_and_float64_keep_the_low_half_of_float64() -> None:
    wide = torch.tensor([0x3FF00000_FFFFFFFF], dtype=torch.int64).view(torch.float64)
    product = evaluate(aten.mul.Tensor, (torch.ones(1, dtype=torch.bfloat16), wide), {}, Alone())
    assert torch.equal(bits(product), bits(wide))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("op", "more"),
    [
        (aten.elu_backward.default, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0, "is_result": False}),
        (aten.hardswish_backward.default, {}),
    ],
    ids=str,
)
def test_gradients_at_nan_do_not_depend_on_an_element_s_place(
    op: Any, more: dict[str, Any], dtype: torch.dtype
) -> None:
    """Eight elements and more are vector code, one is the code of a tail."""
    x, gradient = special(dtype), torch.linspace(-1, 1, 70).to(dtype)
    operand = op._schema.arguments[-1].name

    def of(part: slice) -> Tensor:
        named = {**more, "grad_output": gradient[part].clone(), operand: x[part].clone()}
        result: Tensor = evaluate(op, (), named, Alone())
        return result

    together = of(slice(None))
    apart = torch.cat([of(slice(place, place + 1)) for place in range(70)])
    assert together[x.isnan()].isnan().all()
    assert torch.equal(together.isfinite(), apart.isfinite())


class Kept(nn.Module):
    """A layer with a copy of its last gradient in half the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(40, 33)
        self.register_buffer("last", torch.zeros(33, 40, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training whose loss is scaled too far at last: the gradients of that step are NaN, and it is skipped."""
    built: list[Kept] = []
    generator = torch.Generator().manual_seed(4)
    batches = [
        {"x": torch.randn(8, 40, generator=generator), "scale": torch.tensor(scale)} for scale in (1.0, 64.0, 3e38)
    ]

    def build() -> tuple[Kept, torch.optim.Optimizer]:
        model = Kept()
        built.append(model)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: dict[str, Tensor], model: Kept, optimizer: torch.optim.Optimizer) -> None:
        loss = F.relu(model(batch["x"])).square().sum() * batch["scale"]
        (loss * loss).backward()  # type: ignore[no-untyped-call]
        weight = model.layer.weight
        assert weight.grad is not None
        model.last.copy_(weight.grad)
        if bool(weight.grad.isfinite().all()):
            optimizer.step()
        optimizer.zero_grad()

    path = tmp_path_factory.mktemp("overflowed") / "run"
    train(path, build, step, batches, every=2)
    assert built[0].last.isnan().any()
    assert not built[0].layer.weight.isnan().any()
    return path


@pytest.mark.skipif(not X86, reason="PyTorch chooses kernels by instruction set on x86")
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_a_training_that_overflowed_matches_on_other_instruction_sets(overflowed: Path, capability: str) -> None:
    result = replay(overflowed, env={"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"})
    assert (result.verdict, result.first_difference) == ("match", None)
