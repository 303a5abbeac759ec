"""What was delivered is compared with what was ordered: real trainings, and transcripts that say what they like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import ordered
from support.audited import Audit, found
from support.ordered import CLIENT, ORDER, SEED, SERVICE, STEPS
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from verifier.auditing.delivery import Delivered, compare, delivered, ordered_like
from verifier.auditing.statements import AuditError
from verifier.auditing.verdict import judge, judge_again
from weighbridge.attest.training_order import OrderError, TrainingOrder, sign

HONEST = Delivered(
    signer=SERVICE.public.hex(), complete=True, steps=STEPS, passport=ORDER.passport.hex(),
    numbers={tape.hex(): taken.hex() for tape, taken in ORDER.numbers.items()},
    counts={tape.hex(): STEPS // 2 for tape in ORDER.numbers}, data=ORDER.data.hex(),
    records=ORDER.records, seeds=(f"{SEED:x}",) * 2, logs="full", batches=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def rehearsal(recordings: RecordingStore) -> Path:
    """Three steps, of another seed than the one that is ordered."""
    return recordings.get("ordered-rehearsal", partial(ordered.record, steps=3, seed=5))


@pytest.fixture(scope="module")
def order(rehearsal: Path) -> Iterator[TrainingOrder]:
    with workers_here():
        yield ordered_like(
            rehearsal, name="o", client=CLIENT.public, service=SERVICE.public, steps=STEPS, seed=SEED
        )  # fmt: skip


def _findings(order: TrainingOrder, run: Path) -> list[str]:
    with workers_here():
        return [each.id for each in compare(order, delivered(run), "run")]


def test_a_training_that_was_ordered_by_a_rehearsal_is_what_was_ordered(
    order: TrainingOrder, tmp_path: Path
) -> None:  # fmt: skip
    ordered.record(tmp_path / "run", key=SERVICE)
    assert _findings(order, tmp_path / "run") == []


@pytest.mark.finding("order.steps", "order.signer", "order.program", "order.data", "order.seed", "order.logs")
def test_each_way_to_deliver_something_else_is_found(order: TrainingOrder, tmp_path: Path) -> None:
    for name, options, expected in (
        ("fewer", {"steps": STEPS - 1}, ["order.steps"]),
        ("rate", {"rate": 0.2}, ["order.program"]),
        ("data", {"data": 2}, ["order.data"]),
        ("seed", {"seed": 12}, ["order.seed"]),
        ("logs", {"logs": "on-demand"}, ["order.logs"]),
        ("policy", {"policy": "strict"}, ["order.program"]),
    ):
        ordered.record(tmp_path / name, key=SERVICE, **options)
        assert _findings(order, tmp_path / name) == expected, name
    ordered.record(tmp_path / "signer", key=CLIENT)
    assert _findings(order, tmp_path / "signer") == ["order.signer"]


@pytest.mark.parametrize(
    ("rehearsed", "other"),
    [
        ({}, {"seeded": 12345}), ({"seeded": 3}, {"seeded": 4}), ({}, {"later": 777}), ({"later": 777}, {}),
        ({"pace": 1}, {"pace": 7}), ({"made": False, "seeded": 3}, {"seeded": 4}),
    ],
    ids=["seeds", "other seed", "seeds later", "seeds no more", "pace of a schedule", "other first weights"],
)  # fmt: skip
def test_a_service_does_not_choose_among_trainings_of_one_program(
    tmp_path: Path, rehearsed: dict[str, Any], other: dict[str, Any]
) -> None:
    ordered.record(tmp_path / "rehearsal", steps=4, seed=5, **rehearsed)
    with workers_here():
        wanted = ordered_like(
            tmp_path / "rehearsal", name="o", client=CLIENT.public, service=SERVICE.public, steps=STEPS, seed=SEED
        )  # fmt: skip
    ordered.record(tmp_path / "honest", key=SERVICE, **rehearsed)
    assert _findings(wanted, tmp_path / "honest") == []
    changed = other if other or "later" not in rehearsed else {"later": None}
    ordered.record(tmp_path / "other", key=SERVICE, **{**rehearsed, **changed})
    assert _findings(wanted, tmp_path / "other") == ["order.program"]


def test_a_program_that_seeds_with_what_was_ordered_is_as_it_was_rehearsed(tmp_path: Path) -> None:
    ordered.record(tmp_path / "rehearsal", steps=3, seed=5, seeded=5)
    with workers_here():
        wanted = ordered_like(
            tmp_path / "rehearsal", name="o", client=CLIENT.public, service=SERVICE.public, steps=STEPS, seed=SEED
        )  # fmt: skip
    ordered.record(tmp_path / "run", key=SERVICE, seeded=SEED)
    assert _findings(wanted, tmp_path / "run") == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"complete": False}, "order.steps"), ({"steps": STEPS + 1}, "order.steps"), ({"signer": ""}, "order.signer"),
        ({"passport": "00" * 32}, "order.program"), ({"numbers": {}}, "order.program"),
        ({"numbers": {**HONEST.numbers, "ab" * 32: "cd" * 32}}, "order.program"), ({"data": ""}, "order.data"),
        ({"records": 13}, "order.data"), ({"batches": ("data.order.differs",)}, "order.data"),
        ({"seeds": (f"{SEED:x}", "c")}, "order.seed"), ({"seeds": ("c", f"{SEED:x}")}, "order.seed"),
        ({"seeds": ("", "")}, "order.seed"), ({"seeds": ("none", "none")}, "order.seed"),
        ({"logs": "sketch"}, "order.logs"),
    ],
)  # fmt: skip
def test_every_field_counts(changes: dict[str, object], expected: str) -> None:
    assert compare(ORDER, HONEST, "run") == []
    (finding,) = compare(ORDER, replace(HONEST, **changes), "run")  # type: ignore[arg-type]
    assert (finding.id, finding.severity, finding.subject) == (expected, "violation", "run")


@pytest.mark.finding("order.runs")
def test_a_service_that_runs_the_cheap_program_instead_is_found_where_the_order_says_how_often(tmp_path: Path) -> None:
    """The last batch of an epoch is smaller. A service takes as many steps, nearly all with so small a batch."""
    ordered.record(tmp_path / "rehearsal", steps=4, seed=5, sizes=(5, 5, 2))
    ordered.record(tmp_path / "honest", key=SERVICE, sizes=(5, 5, 2))
    ordered.record(tmp_path / "cheap", key=SERVICE, sizes=(5, 5, 2, 2, 2, 2))
    asked: dict[str, Any] = {
        "name": "o", "client": CLIENT.public, "service": SERVICE.public, "steps": STEPS, "seed": SEED,
    }  # fmt: skip
    with workers_here():
        told = delivered(tmp_path / "rehearsal")
        dear = max(told.counts, key=lambda tape: told.counts[tape])
        free = ordered_like(tmp_path / "rehearsal", **asked)
        bound = ordered_like(tmp_path / "rehearsal", **asked, runs={dear[:12]: 3})
        for begins in ("", "no tape", "0", "1", "2", "3"):
            if sum(tape.startswith(begins) for tape in told.counts) != 1 or not begins:
                with pytest.raises(OrderError):
                    ordered_like(tmp_path / "rehearsal", **asked, runs={begins: 3})
    assert sorted(told.counts.values()) == [1, 1, 1, 2], "the initialisation is one of them"
    assert _findings(free, tmp_path / "cheap") == [], "the order leaves it to the service"
    assert _findings(bound, tmp_path / "cheap") == ["order.runs"]
    assert _findings(bound, tmp_path / "honest") == []
    assert TrainingOrder.from_cbor(bound.to_cbor()) == bound
    for runs in ({b"x" * 32: 1}, *({bytes.fromhex(dear): count} for count in (0, STEPS + 1, True))):
        with pytest.raises(OrderError):
            replace(bound, runs=runs)
    with pytest.raises(OrderError):
        replace(bound, runs=dict.fromkeys(bound.numbers, STEPS - 1))


def test_a_seed_that_is_to_follow_from_the_data_has_to() -> None:
    follows = replace(ORDER, seed=None)
    assert [each.id for each in compare(follows, HONEST, "run")] == ["order.seed"]
    assert compare(follows, replace(HONEST, seeds=("", "")), "run") == []


def test_a_rehearsal_without_data_orders_nothing(recordings: RecordingStore) -> None:
    from support import audited

    run = recordings.get("audited", audited.record)
    with workers_here(), pytest.raises(OrderError):
        ordered_like(run, name="o", client=CLIENT.public, service=SERVICE.public, steps=STEPS, seed=SEED)


# -- in audits ---------------------------------------------------------------------------------------------------------


class _Ordered(Audit):
    """An audit of a made-up transcript that was ordered."""

    orders: tuple[tuple[str, str], ...] | None = None

    def plan(self, **changed: object):  # type: ignore[no-untyped-def]
        source = super().plan().sources[0].digest
        orders = self.orders if self.orders is not None else ((source, ordered.accepted().to_cbor().hex()),)
        return super().plan(orders=orders, **changed)


@pytest.mark.finding("order.unchecked")
@pytest.mark.parametrize(
    ("came", "expected"),
    [(HONEST, None), (replace(HONEST, steps=5), "order.steps"), (None, "order.unchecked")],
)
def test_a_verdict_says_whether_what_was_ordered_came(
    tmp_path: Path, came: Delivered | None, expected: str | None
) -> None:  # fmt: skip
    audit = _Ordered(tmp_path / "case").enrol().commit().close().open()
    audit.pass_round(2)
    said = judge(audit.case, audit.beacon, audit.hidden, audit.execute, lambda digest: came)
    source = audit.case.plan.sources[0].digest
    assert found(said) == (set() if expected is None else {(expected, source)})
    audit.case.put("verdict", {name: each for name, each in said.items() if name != "plan"}, audit.coordinator)
    assert judge_again(audit.case, audit.beacon)[1]


def test_a_verdict_that_leaves_a_finding_about_an_order_out_does_not_count(tmp_path: Path) -> None:
    audit = _Ordered(tmp_path / "case").enrol().commit().close().open()
    audit.pass_round(2)
    said = judge(audit.case, audit.beacon, audit.hidden, audit.execute, lambda digest: replace(HONEST, steps=5))
    audit.case.put("verdict", {**{n: e for n, e in said.items() if n != "plan"}, "findings": []}, audit.coordinator)
    assert not judge_again(audit.case, audit.beacon)[1]


@pytest.mark.parametrize("raw", [None, {}, {**HONEST.to_json(), "steps": "6"}, {**HONEST.to_json(), "more": 1}])
def test_what_is_no_delivery_is_refused(raw: object) -> None:
    assert Delivered.from_json(HONEST.to_json()) == HONEST
    with pytest.raises(AuditError):
        Delivered.from_json(raw)


def test_a_plan_takes_only_orders_that_both_signed_one_for_each_transcript(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "case")
    source = audit.case.plan.sources[0].digest
    good = ordered.accepted().to_cbor().hex()
    assert audit.plan(orders=((source, good),)).ordered == {source: ORDER}
    for orders in (
        ((source, sign(ORDER, CLIENT).to_cbor().hex()),), (("ab" * 32, good),), ((source, good), (source, good)),
        ((source, "zz"),), ((source, None),),
    ):  # fmt: skip
        with pytest.raises(AuditError) as caught:
            audit.plan(orders=orders)
        assert caught.value.reason == "audit.plan"
