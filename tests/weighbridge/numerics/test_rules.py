"""The table of rules: closed, free of contradictions, and about overloads that exist."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.releases import lacking

from examples import EXAMPLES
from weighbridge.errors import UnknownOperationError
from weighbridge.numerics import decompositions, refusals, rules
from weighbridge.numerics.bounds import relative
from weighbridge.numerics.rules import Kind

aten = torch.ops.aten


def overloads_under(key: str) -> list[rules.Op]:
    """Every overload of this PyTorch, functional or in place, that a line of the table governs."""
    name, _, overload = key.partition("/")[0].partition(".")
    library, _, short = name.rpartition("::")
    space = getattr(torch.ops, library) if library else aten  # collectives are operators of our own library
    packets = [getattr(space, n, None) for n in (short, f"{short}_")]
    found = [getattr(p, overload) for p in packets if p is not None and overload in p.overloads()]
    return [op for op in found if ".".join(rules.base_name(op)) == f"{name}.{overload}"]


@pytest.mark.parametrize("key", sorted(rules.RULES))
def test_every_line_names_an_overload_that_exists(key: str) -> None:
    assert overloads_under(key) or key in lacking()


def test_no_overload_is_on_two_lists() -> None:
    lists = [
        *(
            names.split()
            for names in (
                rules._VIEW,
                rules._MOVE,
                rules._SELECT,
                rules._EMPTY,
                rules._EXACT,
                rules._RANDOM,
                rules._HOST,
            )
        ),
        [name for names in rules._ROUNDED for name in names.split()],
        list(refusals.ON_FLOATS),
        list(refusals.ALWAYS),
    ]
    for first, second in itertools.combinations(lists, 2):
        assert not set(first) & set(second)
    for names in lists:
        assert len(names) == len(set(names))


def test_a_ruled_overload_is_not_decomposed_unless_its_operands_decide() -> None:
    """What a decomposition always replaces never reaches a tape, so a rule for it would be dead."""
    both = {k for k in rules.RULES for op in overloads_under(k) if decompositions.find(op) is not None}
    assert {k.partition(".")[0] for k in both} == {name.removesuffix("_") for name in decompositions.CONDITIONAL}


def test_a_rule_has_a_bound_if_and_only_if_it_is_rounded() -> None:
    for key, rule in rules.RULES.items():
        assert (rule.bound is not None) == (rule.kind is Kind.ROUNDED), key
        assert bool(rule.note) == (rule.kind is Kind.REFUSED), key


def test_every_rounded_overload_has_an_example() -> None:
    assert set(EXAMPLES) == {key for key, rule in rules.RULES.items() if rule.kind is Kind.ROUNDED}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.add_.Tensor, ("add", "Tensor")),
        (aten.add.out, ("add", "Tensor")),
        (aten.mm.out, ("mm", "default")),
        (aten.sum.IntList_out, ("sum", "IntList")),
        (aten.mul_.Scalar, ("mul", "Scalar")),
        (aten.__and__.Tensor, ("__and__", "Tensor")),
        (aten.max.dim, ("max", "dim")),
    ],
)
def test_in_place_and_out_forms_follow_the_functional_form(op: rules.Op, expected: tuple[str, str]) -> None:
    assert rules.base_name(op) == expected


def test_an_overload_without_a_line_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnknownOperationError, match=r"rule\('aten::cholesky_solve.default'\)") as caught:
        rules.find(aten.cholesky_solve.default, {})
    assert caught.value.details["operation"] == "aten.cholesky_solve.default"


def test_operations_of_other_libraries_do_not_borrow_a_rule() -> None:
    @torch.library.custom_op("weighbridge_test::add", mutates_args=())
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(UnknownOperationError):
        rules.find(torch.ops.weighbridge_test.add.default, {})


def test_fractional_ramps_are_rounded_and_whole_ones_are_moves() -> None:
    assert rules.find(aten.arange.default, {"end": 5}).kind is Kind.MOVE
    assert rules.find(aten.arange.default, {"end": 5.5}).kind is Kind.ROUNDED
    assert rules.find(aten.arange.start_step, {"start": 0, "end": 5, "step": 0.5}).kind is Kind.ROUNDED


def test_what_an_overload_changes_comes_from_its_schema() -> None:
    assert rules.mutated(aten.add_.Tensor) == ("self",)
    assert rules.mutated(aten.add.Tensor) == ()
    assert rules.mutated(aten.add.out) == ("out",)


def test_registering_a_rule_changes_the_digest_and_is_possible_once() -> None:
    before = rules.table_digest()
    rules.register("cross.default", Kind.ROUNDED, relative(8))
    try:
        assert rules.table_digest() != before
        with pytest.raises(ValueError, match="reviewed"):
            rules.register("cross.default", Kind.MOVE)
    finally:
        del rules.RULES["cross.default"]
    assert rules.table_digest() == before


@pytest.mark.parametrize(("kind", "bound"), [(Kind.ROUNDED, None), (Kind.MOVE, relative(8))])
def test_a_bound_comes_with_a_rounded_rule_only(kind: Kind, bound: object) -> None:
    with pytest.raises(ValueError, match="bound"):
        rules.register("cross.default", kind, bound)  # type: ignore[arg-type]
    assert "cross.default" not in rules.RULES
