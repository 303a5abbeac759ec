"""Facts in the database: each kind comes back as it was, through CBOR as `verifier.units` writes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chip_logs import LogBuilder, anchor

from firmware_sim.device import Device
from verifier.model import fact_codec
from verifier.model.check_runner import Judgement
from verifier.model.facts import Cell, Entry, Explanation, LogFacts, Opening
from verifier.model.replay_task import Outcome
from verifier.model.supplement_facts import Asked
from verifier.registry import Chip
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import verify
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, Finding, ProofError, TokenError, UsageError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Amount, Program, Repetition, RunFacts

names = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, 1 << 70)
digests = st.binary(min_size=32, max_size=32)
scalars = st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | names
maps = st.dictionaries(st.text("abcdefg_", min_size=1, max_size=8), scalars | st.lists(scalars, max_size=3), max_size=3)
kinds = st.sampled_from([WeighbridgeError, ChipError, ProofError, TokenError, UsageError])
leaves = st.lists(st.tuples(numbers, digests), max_size=5)
storages = st.none() | st.lists(st.tuples(numbers, digests.map(bytes.hex)), max_size=3)
findings = st.builds(
    Finding, id=names, message=names, expected=names, found=names, subject=names,
    severity=st.sampled_from(["info", "warning", "violation"]), evidence=maps,
)  # fmt: skip
results = st.builds(
    ReplayResult, verdict=st.sampled_from(["match", "mismatch", "inconclusive"]), steps=st.tuples(numbers, numbers),
    state=names, followed=numbers, logged=numbers, rounded=numbers, evidence=maps,
    tapes=st.dictionaries(names, maps, max_size=2), findings=st.lists(findings, max_size=2),
    first_difference=st.none() | maps, live=storages, running=st.none() | names, head=st.none() | names,
    weights=storages, touched=numbers, flops=st.none() | numbers, narrow=numbers, device=names,
    confinement=st.lists(names, max_size=2),
)  # fmt: skip


@st.composite
def errors(draw: st.DrawFn) -> WeighbridgeError:
    details = {name: value for name, value in draw(maps).items() if name not in ("code", "message")}
    return draw(kinds)(draw(names), code=draw(st.none() | names), **details)


def through(value: Any) -> Any:
    """As `verifier.units` writes and reads it."""
    return cbor2.loads(cbor(value))


def alike(one: Any, other: Any) -> bool:
    """Equality; errors are equal if class, reason, message and details are."""
    if isinstance(one, WeighbridgeError):
        facts = [(type(e), e.reason, e.message, e.details, e.finding()) for e in (one, other)]
        return facts[0] == facts[1]
    return bool(one == other)


@given(errors())
def test_errors(error: WeighbridgeError) -> None:
    """error_of(error_to(e)) is e's class, reason, message and details."""
    assert alike(error, fact_codec.error_of(through(fact_codec.error_to(error))))


def test_an_error_of_a_class_that_is_gone_keeps_its_reason() -> None:
    found = fact_codec.error_of(["GoneError", "chip.gone", "it went", {"n": 1}])
    assert (type(found), found.reason, str(found)) == (WeighbridgeError, "chip.gone", "chip.gone: it went")


@given(st.none() | errors() | st.builds(Explanation, transcript_id=names, step=numbers, op=numbers,
                                        ranks=st.lists(names, max_size=3).map(tuple)))  # fmt: skip
def test_explanations(answer: Explanation | WeighbridgeError | None) -> None:
    """explanation_of(explanation_to(a)) == a."""
    assert alike(answer, fact_codec.explanation_of(through(fact_codec.explanation_to(answer))))


@given(errors() | st.builds(Opening, salt=digests, leaves=leaves, weights=leaves))
def test_openings(opening: Opening | WeighbridgeError) -> None:
    """opening_of(opening_to(o)) == o."""
    assert alike(opening, fact_codec.opening_of(through(fact_codec.opening_to(opening))))


@given(errors() | results, st.floats(0, 1e9))
def test_outcomes_of_replays(result: ReplayResult | WeighbridgeError, seconds: float) -> None:
    """outcome_of(outcome_to(o)) == o."""
    found = fact_codec.outcome_of(through(fact_codec.outcome_to(Outcome(result, seconds))))
    assert alike(result, found.result)
    assert found.seconds == seconds


@given(st.lists(findings, max_size=4), st.sets(st.integers(0, 3)), st.booleans())
def test_judgements(found: list[Finding], counted: set[int], not_sampled: bool) -> None:
    """judgement_of(judgement_to(j)) == j, for judgements in which nothing failed."""
    judgement = Judgement(
        findings=found, counted=[each for n, each in enumerate(found) if n in counted], not_sampled=not_sampled
    )
    back = fact_codec.judgement_of(through(fact_codec.judgement_to(judgement)))
    assert back.findings == judgement.findings
    assert all(each in back.counted for each in judgement.counted)
    assert (back.violated, back.not_sampled) == (judgement.violated, not_sampled)


programs = st.builds(
    Program, digest=names, kind=names, first=numbers, count=numbers, operations=numbers, flops=st.none() | numbers
)
amounts = st.builds(Amount, numbers, numbers)
run_facts = st.builds(
    RunFacts, steps=numbers, flops=st.none() | st.dictionaries(names, numbers, max_size=3),
    fixed=st.booleans(),
    programs=st.lists(programs, max_size=2).map(tuple), operations=st.lists(names, max_size=3).map(tuple),
    parameters=st.none() | numbers, used=numbers, seen=numbers,
    hyperparameters=st.dictionaries(names, st.tuples(*[st.floats(allow_nan=False)] * 3), max_size=2),
    initial=amounts,
    repetitions=st.lists(st.builds(Repetition, numbers, numbers, amounts, amounts), max_size=2).map(tuple),
)  # fmt: skip


@given(errors() | run_facts)
def test_facts_of_runs(facts: RunFacts | WeighbridgeError) -> None:
    """examined_of(examined_to(f)) == f."""
    assert alike(facts, fact_codec.examined_of(through(fact_codec.examined_to(facts))))


@given(
    st.builds(
        Asked, prover=names, transcript=names, steps=st.tuples(numbers, numbers), came=numbers,
        deadline_s=st.floats(0, 1e9), seconds=st.floats(0, 1e9), why=st.none() | errors(),
        findings=st.lists(findings, max_size=2),
    )
)  # fmt: skip
def test_requests_for_rounding_logs(asked: Asked) -> None:
    """asked_of(asked_to(a)) == a."""
    again = fact_codec.asked_of(through(fact_codec.asked_to(asked)))
    assert replace(again, why=None) == replace(asked, why=None)
    assert alike(again.why, asked.why)


def test_cells_whose_results_are_gone_are_asked_for_again(tmp_path: Path) -> None:
    cell = Cell(steps=(0, 3), results=tmp_path / "results", chunks=9, drawn=2, findings=[Finding(id="a", message="b")])
    with pytest.raises(FileNotFoundError):
        fact_codec.cell_of(through(fact_codec.cell_to(cell)))
    cell.results.write_bytes(b"")
    assert fact_codec.cell_of(through(fact_codec.cell_to(cell))) == cell
    error = ChipError("gone")
    assert alike(error, fact_codec.cell_of(through(fact_codec.cell_to(error))))


def test_logs_are_verified_again(device: Device, manufacturer: CertificateAuthority) -> None:
    """What was altered in the database is what an altered log would be."""
    log = LogBuilder(device).boot()
    log.event("something", b"d" * 32)
    root = manufacturer.certificate
    entries = [fact_codec.entry(data, root) for data in log.entries]
    head = log.head(b"n" * 32)
    facts = LogFacts(
        chip=Chip(ueid=device.ueid, address="chip:1", witnessed_size=1, witnessed_last=b"l" * 32),
        nonce=b"n" * 32,
        head=verify(head, root),
        head_token=head,
        entries=[
            *entries,
            Entry(data=b"x", digest=fact_codec.entry(b"x", root).digest, verified=TokenError("no token")),
        ],
        error=ChipError("it stopped"),
        refused=[("chip.log.changed", b"note")],
        history=ProofError("another past"),
        read_ms=1 << 41,
        anchors=[anchor(log)],
    )
    back = fact_codec.log_of(through(fact_codec.log_to(facts)), root)
    assert (back.chip, back.nonce, back.head, back.head_token) == (facts.chip, facts.nonce, facts.head, head)
    assert back.entries[:2] == entries
    assert isinstance(back.entries[2].verified, TokenError)
    assert alike(facts.error, back.error)
    assert isinstance(back.history, ProofError)
    assert (back.refused, back.read_ms, back.held, back.report) == (facts.refused, facts.read_ms, facts.held, None)
    assert back.anchors == facts.anchors
    silent = LogFacts(chip=facts.chip, nonce=b"", head=ChipError("nobody answers"))
    assert alike(silent.head, fact_codec.log_of(through(fact_codec.log_to(silent)), root).head)
    altered = fact_codec.log_to(facts)
    altered["head"] = head[:-1] + bytes([head[-1] ^ 1])
    with pytest.raises(TokenError):
        fact_codec.log_of(through(altered), root)
