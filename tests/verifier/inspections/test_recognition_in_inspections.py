"""Inspections say what each run's training is: of every program, and never more than was looked at."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from redteam.values import CARRIED, carrying, pieces, times_zero, wanted
from redteam.workshop import Batch, Recorded, Training, Update, Workshop, accusations, digits, flat, update
from support.forging import resign
from support.ruled import ruled
from support.written_chips import Bench
from torch import nn, optim
from torch.nn import functional as F

from verifier.farm.local_farm import LocalFarm
from verifier.model import fact_codec
from verifier.model.policies import SegmentPolicy
from verifier.model.replay_task import Task
from verifier.model.training import draw_seed
from verifier.report import consistency
from verifier.report.page import render_html
from verifier.rules import ruleset
from verifier.rules.judge import judge
from weighbridge.cli.report import as_text
from weighbridge.execution.recognition import limits
from weighbridge.execution.recognition.in_replay import choose
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.training_claims import CLAIMS, Claims, encode

STEPS, SEED = 4, 1
VAST = (1 << 21, 1 << 21)
RULES = Path(__file__).parents[3] / "docs" / "rules.md"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Bench(tmp_path_factory.mktemp("recognition")) as bench:
        yield Workshop(bench, apart=False)


@pytest.fixture(scope="module")
def honest(shop: Workshop) -> Recorded:
    return shop.record(Training(batches=digits(SEED, STEPS)), SEED, verifiable=True)


def inspected(shop: Workshop, run: Recorded, recognise: int = 2) -> dict[str, Any]:
    policy = SegmentPolicy(random=0, recognise=recognise)
    report = shop.bench.inspected(run.path.parent, shop.bench.at_end(run.path), segments=policy)
    assert consistency.check(report) == []
    return report


def training(report: dict[str, Any]) -> dict[str, Any]:
    (found,) = report["evidence"]["training"]
    return dict(found)


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    """By hex digest of each program, what is said of it."""
    return {each["tape"]: each["outcome"] for each in training(report)["programs"]}


def claimed(shop: Workshop, run: Recorded, change: Callable[[str, Claims, Tape], Claims]) -> Recorded:
    """A copy of a run whose Prover claims something else of each program, given by its hex digest."""
    path = shop.place() / "run"
    shutil.copytree(run.path, path)
    old = Transcript.open(path)
    claims = {digest: change(digest.hex(), each, Tape.decode(old.tape(digest))) for digest, each in old.claims.items()}
    (path / CLAIMS).write_bytes(encode(claims))
    resign(path)
    return replace(run, path=path)


def programs(run: Recorded) -> list[str]:
    """Of each step, in order, the hex digest of its program."""
    return [record.tape.hex() for record in Transcript.open(run.path).records() if record.kind == "step"]


def rules(report: dict[str, Any]) -> dict[str, str]:
    """By rule of the example in docs/rules.md about training, its outcome over the facts of a report."""
    (example,) = re.findall(r"^## Training\n.*?```toml\n(.*?)```", RULES.read_text(), re.MULTILINE | re.DOTALL)
    document = tomllib.loads(f'format = 1\nid = "example"\nversion = 1\ntitle = "Example"\n{example}')
    return {each.rule.id: each.outcome for each in judge(ruleset.parse(document), report["facts"])}


def alternating(step: int, batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Honest steps of two programs."""
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    (loss if step % 2 else loss * 0.5).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def importing(shop: Workshop, step: Update) -> Recorded:
    """A run whose last batch carries weights."""
    batches = digits(SEED, STEPS)
    batches[-1] = carrying(batches[-1], flat(wanted(SEED)))
    return shop.record(Training(batches=batches, step=step), SEED)


def at_last(step: int, batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Trains until the last step, whose program puts other weights in."""
    (times_zero if step == STEPS else update)(step, batch, model, optimizer)


# -- honest runs -------------------------------------------------------------------------------------------------------


def test_an_honest_run_is_named(shop: Workshop, honest: Recorded) -> None:
    report = inspected(shop, honest)
    said = training(report)
    assert accusations(report) == frozenset()
    assert [f["id"] for f in report["findings"] if f["id"].startswith("recognition.")] == []
    assert (said["outcome"], said["looked_at"], said["recognised"]) == ("recognised", 2, 2)
    line = "the update is SGD of the gradient of cross entropy of the model and the batch, verified on 2 steps"
    assert said["found"] == [line]
    for shown in (as_text(report), render_html(report)):
        assert line in shown
        assert "a batch brings 65,536 bits of floating-point numbers and 2,048 others; the weights have 38,720" in shown
        assert "no list of the rules in force approves it" in shown
    (transcript,) = report["transcripts"]
    charged = transcript["chosen"]["recognition"]
    assert 0 < charged["bits"] < 0.1 * 2 * 38_720
    assert charged["budget"] is None


def test_any_reader_can_draw_the_steps_again(shop: Workshop, honest: Recorded) -> None:
    report = inspected(shop, honest, 1)
    said, tapes = training(report), programs(honest)
    seed = draw_seed(bytes.fromhex(report["plan"]["seed"]), said["draft"], 1)
    assert said["draw"][-1] == {"begin": 1, "seed": f"{seed:016x}"}
    drawn = choose([(number, bytes.fromhex(tape)) for number, tape in enumerate(tapes, 1)], 1, seed)
    assert [each["looked_at"] for each in said["programs"]] == [drawn]
    said["draw"][-1]["seed"] = "0" * 16
    assert [each.id for each in consistency.check({**report, "evidence": {**report["evidence"], "training": [said]}})]


def test_it_can_be_switched_off(shop: Workshop, honest: Recorded) -> None:
    report = inspected(shop, honest, 0)
    assert report["evidence"]["training"] == []
    assert "training" not in report["facts"]["runs"][0]
    assert "Training of the runs" not in render_html(report)
    assert set(rules(report).values()) == {"undecided"}


def test_rules_may_ask_for_it(shop: Workshop, honest: Recorded) -> None:
    report = inspected(shop, honest)
    assert report["facts"]["runs"][0]["training"]["verified_share"] == 1
    assert rules(report) == {
        "trains": "holds",
        "methods": "holds",
        "whole": "violated",
    }  # 32 images have more bits than 1,210 weights


def test_a_list_of_the_rules_may_approve_the_data(shop: Workshop, honest: Recorded, tmp_path: Path) -> None:
    root = training(inspected(shop, honest))["data_root"]
    regime = ruled(tmp_path / "rules", "runs.all(r, r.data.root in lists.data)", lists={"data": [root]})
    report = shop.bench.inspected(
        honest.path.parent, shop.bench.at_end(honest.path), regime=regime, segments=SegmentPolicy()
    )
    assert training(report)["data_approved_in"] == ["data"]
    assert "its data set is approved by the rule set (data)" in as_text(report)


# -- attacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.finding("recognition.none")
def test_an_import_is_no_training(shop: Workshop) -> None:
    report = inspected(shop, importing(shop, times_zero))
    assert training(report)["outcome"] == "not recognised"
    (found,) = [each for each in report["findings"] if each["id"] == "recognition.none"]
    assert found["severity"] == "info"
    assert rules(report)["trains"] == "violated"


@pytest.mark.finding("recognition.unknown")
@pytest.mark.parametrize("looked_at", [1, 2])
def test_what_is_recognised_of_one_program_is_said_of_no_other(shop: Workshop, looked_at: int) -> None:
    """The last step runs another program than those before it; of one step that is looked at, one is unknown."""
    run = importing(shop, at_last)
    usual, other = programs(run)[0], programs(run)[-1]
    report = inspected(shop, run, looked_at)
    found = outcomes(report)
    assert set(found) == {usual, other}
    if looked_at == 2:
        assert (found[usual], found[other]) == ("recognised", "not recognised")
        assert training(report)["outcome"] == "not recognised"
        return
    assert (found[usual], found[other]) in [("recognised", "not known"), ("not known", "not recognised")]
    assert training(report)["outcome"] != "recognised"
    (unknown,) = [each for each, said in found.items() if said == "not known"]
    assert any(f["id"] == "recognition.unknown" and f["severity"] == "info" for f in report["findings"])
    assert f"no step was looked at: {unknown[:16]}" in as_text(report)
    for shown in (as_text(report), render_html(report)):
        assert ("recognised in part" in shown) is (found[usual] == "recognised")
    assert rules(report)["trains"] == ("violated" if found[other] == "not recognised" else "undecided")


def test_claims_that_are_true_of_one_program_only(shop: Workshop) -> None:
    """Two programs that train; of the second the Prover claims another optimizer."""
    run = shop.record(Training(batches=digits(SEED, STEPS), step=alternating), SEED)
    first, second = programs(run)[:2]
    assert outcomes(inspected(shop, run)) == {first: "recognised", second: "recognised"}

    def false(program: str, claims: Claims, _: Tape) -> Claims:
        steps = tuple(replace(each, optimizer="Adagrad") for each in claims.steps)
        return claims if program == first else replace(claims, steps=steps)

    report = inspected(shop, claimed(shop, run, false))
    assert outcomes(report) == {first: "recognised", second: "not recognised"}
    assert training(report)["outcome"] == "not recognised"
    assert rules(report)["trains"] == "violated"


def test_false_claims_accuse_nobody_and_recognise_nothing(shop: Workshop, honest: Recorded) -> None:
    stops = tuple((op, 0) for op in range(6))
    report = inspected(shop, claimed(shop, honest, lambda _, claims, __: replace(claims, stops=stops)))
    assert training(report)["outcome"] == "not recognised"
    assert accusations(report) == frozenset()


def in_the_step(step: int, batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Adds what a number in the batch switches on, right after the optimizer; the claims say that it belongs to it."""
    F.cross_entropy(model(batch["x"][CARRIED:]), batch["y"][CARRIED:]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with torch.no_grad():
        for p, x in pieces(batch, model.parameters()):
            p.copy_(p + batch["switch"][0] * x)
    optimizer.zero_grad()


def in_the_gradient(step: int, batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Adds it to the gradients before the optimizer reads them."""
    F.cross_entropy(model(batch["x"][CARRIED:]), batch["y"][CARRIED:]).backward()  # type: ignore[no-untyped-call]
    for p, x in pieces(batch, model.parameters()):
        assert p.grad is not None
        p.grad.add_(batch["switch"][0] * x)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("step", "why"),
    [(in_the_step, "SGD reads x, which is none of its"), (in_the_gradient, "before the step (operation ")],
    ids=["in_the_step", "in_the_gradient"],
)
def test_what_a_batch_switches_on_is_found_where_it_is_off(shop: Workshop, step: Update, why: str) -> None:
    """In all steps but the last the update is exactly SGD's; one of those is looked at, or the last."""
    batches = digits(SEED, STEPS)
    batches[-1] = carrying(batches[-1], flat(wanted(SEED)))
    batches = [{**b, "switch": torch.full((len(b["y"]),), float(b is batches[-1]))} for b in batches]

    def longer(_: str, claims: Claims, tape: Tape) -> Claims:
        (update,) = claims.steps
        return replace(claims, steps=(replace(update, end=len(tape.nodes)),))

    run = shop.record(Training(batches=batches, step=step), SEED)
    report = inspected(shop, claimed(shop, run, longer) if step is in_the_step else run, 1)
    assert training(report)["outcome"] == "not recognised"
    assert why in as_text(report)


def test_what_takes_too_long_is_not_known(shop: Workshop, honest: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(limits, "MOST_REPLAYS", 0.0)
    report = inspected(shop, honest)
    assert outcomes(report) == {programs(honest)[0]: "not known"}
    assert "takes far longer than to replay it" in as_text(report)
    assert accusations(report) == frozenset()
    assert rules(report)["trains"] == "undecided"


def test_what_takes_more_memory_than_there_is_is_not_known(shop: Workshop) -> None:
    """The claims name a view of 16 TiB, on a few bytes, as where the gradient of a weight lies."""

    def vast(step: int, batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        batch["x"][:1, :1].expand(*VAST)[:1, :1].square()
        update(step, batch, model, optimizer)

    def false(_: str, claims: Claims, tape: Tape) -> Claims:
        (backward,) = claims.backwards
        (view,) = [number for number, ref in enumerate(tape.refs) if tuple(ref[2]) == VAST]
        gradients = (replace(backward.gradients[0], after=view), *backward.gradients[1:])
        return replace(claims, backwards=(replace(backward, gradients=gradients),))

    run = shop.record(Training(batches=digits(SEED, STEPS), step=vast), SEED)
    report = inspected(shop, claimed(shop, run, false))
    assert training(report)["outcome"] == "not known"
    assert "more memory than there is" in as_text(report)


def test_a_worker_that_fails_at_it_costs_no_replay(shop: Workshop, honest: Recorded) -> None:
    """Claims of many backward passes outlast the worker; without them the replay matches."""

    def endless(_: str, claims: Claims, __: Tape) -> Claims:
        (backward,) = claims.backwards
        empty = replace(backward, begin=backward.end, gradients=())
        return replace(claims, backwards=(backward, *[empty] * 20_000))

    run = claimed(shop, honest, endless)
    usual = Task(key="a", name="a", path=run.path, steps=(1, 5))
    assert list(LocalFarm().run([usual], lambda *_: None))  # whatever workers share is there after that
    task = replace(usual, recognise=(2, 7), limits=Limits(4 << 30, 4))
    ((_, outcome),) = LocalFarm().run([task], lambda *_: None)
    kept = fact_codec.outcome_of(fact_codec.outcome_to(outcome)).result
    assert isinstance(kept, ReplayResult)
    assert (kept.verdict, kept.recognised) == ("match", [])
    assert "ended" in kept.recognition_failed
