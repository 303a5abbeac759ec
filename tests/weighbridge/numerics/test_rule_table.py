"""The table of rules: closed, free of contradictions, and about overloads that exist."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.operator_examples import EXAMPLES
from support.releases import lacking

from weighbridge.core.errors import UnknownOperationError
from weighbridge.numerics import refusals, rule_table, schemas
from weighbridge.numerics.bounds import relative
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rule_table import Kind

aten = torch.ops.aten


def overloads_under(key: str) -> list[schemas.Op]:
    """Every overload of this PyTorch, functional or in place, that a line of the table governs."""
    name, _, overload = key.partition("/")[0].partition(".")
    library, _, short = name.rpartition("::")
    space = getattr(torch.ops, library) if library else aten  # collectives are operators of our own library
    packets = [getattr(space, n, None) for n in (short, f"{short}_")]
    found = [getattr(p, overload) for p in packets if p is not None and overload in p.overloads()]
    return [op for op in found if ".".join(rule_table.base_name(op)) == f"{name}.{overload}"]


@pytest.mark.parametrize("key", sorted(rule_table.RULES))
def test_every_line_names_an_overload_that_exists(key: str) -> None:
    assert overloads_under(key) or key in lacking()


def test_no_overload_is_on_two_lists() -> None:
    lists = [
        *(
            names.split()
            for names in (
                rule_table._VIEW,
                rule_table._MOVE,
                rule_table._SELECT,
                rule_table._EMPTY,
                rule_table._EXACT,
                rule_table._RANDOM,
                rule_table._HOST,
            )
        ),
        [name for family in rule_table.FAMILIES for line in family.LINES for name in line.keys],
        list(refusals.ON_FLOATS),
        list(refusals.ALWAYS),
    ]
    for first, second in itertools.combinations(lists, 2):
        assert not set(first) & set(second)
    for names in lists:
        assert len(names) == len(set(names))


def test_a_ruled_overload_is_not_decomposed_unless_its_operands_decide() -> None:
    """What a decomposition always replaces never reaches a tape, so a rule for it would be dead."""
    both = {k for k in rule_table.RULES for op in overloads_under(k) if decompositions.find(op) is not None}
    assert {k.partition(".")[0] for k in both} == {name.removesuffix("_") for name in decompositions.CONDITIONAL}


def test_a_rule_has_a_bound_if_and_only_if_it_is_rounded() -> None:
    for key, rule in rule_table.RULES.items():
        assert (rule.bound is not None) == (rule.kind is Kind.ROUNDED), key
        assert bool(rule.note) == (rule.kind is Kind.REFUSED), key


def test_every_rounded_overload_has_an_example() -> None:
    assert set(EXAMPLES) == {key for key, rule in rule_table.RULES.items() if rule.kind is Kind.ROUNDED}


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
def test_in_place_and_out_forms_follow_the_functional_form(op: schemas.Op, expected: tuple[str, str]) -> None:
    assert rule_table.base_name(op) == expected


def test_an_overload_without_a_line_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnknownOperationError, match=r"rule\('aten::cholesky_solve.default'\)") as caught:
        rule_table.find(aten.cholesky_solve.default, {})
    assert caught.value.details["operation"] == "aten.cholesky_solve.default"


def test_operations_of_other_libraries_do_not_borrow_a_rule() -> None:
    @torch.library.custom_op("weighbridge_test::add", mutates_args=())
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(UnknownOperationError):
        rule_table.find(torch.ops.weighbridge_test.add.default, {})


def test_fractional_ramps_are_rounded_and_whole_ones_are_moves() -> None:
    assert rule_table.find(aten.arange.default, {"end": 5}).kind is Kind.MOVE
    assert rule_table.find(aten.arange.default, {"end": 5.5}).kind is Kind.ROUNDED
    assert rule_table.find(aten.arange.start_step, {"start": 0, "end": 5, "step": 0.5}).kind is Kind.ROUNDED


def test_what_an_overload_changes_comes_from_its_schema() -> None:
    assert schemas.mutated(aten.add_.Tensor) == ("self",)
    assert schemas.mutated(aten.add.Tensor) == ()
    assert schemas.mutated(aten.add.out) == ("out",)


def test_registering_a_rule_changes_the_digest_and_is_possible_once() -> None:
    before = rule_table.table_digest()
    rule_table.register("cross.default", Kind.ROUNDED, relative(8))
    try:
        assert rule_table.table_digest() != before
        with pytest.raises(ValueError, match="reviewed"):
            rule_table.register("cross.default", Kind.MOVE)
    finally:
        del rule_table.RULES["cross.default"]
    assert rule_table.table_digest() == before


def test_the_digest_changes_on_purpose_only() -> None:
    """A transcript names the table that it was made under, and is replayed under no other."""
    assert rule_table.table_digest() == "32e3d7dcef01d04882b0f6224b349d07b7590e768226e072b2c843fb5b506f3b"


@pytest.mark.parametrize(("kind", "bound"), [(Kind.ROUNDED, None), (Kind.MOVE, relative(8))])
def test_a_bound_comes_with_a_rounded_rule_only(kind: Kind, bound: object) -> None:
    with pytest.raises(ValueError, match="bound"):
        rule_table.register("cross.default", kind, bound)  # type: ignore[arg-type]
    assert "cross.default" not in rule_table.RULES
