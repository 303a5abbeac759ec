"""Straight-line programs: a step run as one has the results, counts and errors of its operations one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.recordings import train
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge.core.errors import LogError, WeighbridgeError
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import Following
from weighbridge.execution.straight_line.frame import Frame
from weighbridge.execution.straight_line.program import Program
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rounding.rounding_log import LogReader, OpEntries
from weighbridge.numerics.rule_table import Kind, settled
from weighbridge.program.operands import resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

STEPS = 5
LAST = STEPS


NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(32, 12), nn.LayerNorm(12), nn.Dropout(0.1),
                          nn.GELU(), nn.Linear(12, 4))  # fmt: skip
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def built_in(types: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    if types not in NARROW:
        return build()
    model = build()[0].to(NARROW[types])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)


def step(batch: tuple[Tensor, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def autocast_step(batch: tuple[Tensor, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


KINDS = [
    ("full", "f32"), ("on-demand", "f32"), ("full", "autocast"), ("on-demand", "bf16"), ("full", "f16"),
    ("sketch", "bf16"),
]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    path = tmp_path_factory.mktemp("runs") / "run"
    logs, types = request.param
    torch.manual_seed(3)
    batches = [(torch.randint(0, 9, (6, 4)), torch.randint(0, 4, (6,))) for _ in range(STEPS)]
    options = {} if logs == "full" else {"logs": logs, "device": "cpu"}
    train(path, lambda: built_in(types), autocast_step if types == "autocast" else step, batches, **options)
    return Transcript.open(path)


class Replayed:
    """A replay by an Executor that may use programs or not."""

    def __init__(self, run: Transcript, *, programs: bool) -> None:
        self.run = run
        self.executor = Executor("cpu", 7, 1 << 30, bound_policy.declared(run.draft))
        self.executor.programs = programs

    def step(self, number: int, record: StepRecord | None = None, log: bytes | None = None) -> Following:
        run, record = self.run, record or self.run.step(number)
        reader = run.log(number) if log is None else LogReader(log, max_entries=1 << 20)
        tape = Tape.decode(run.tape(record.tape))
        with torch.no_grad():
            return self.executor.run(
                tape, record.tape, record, reader, run.batch(number), run.undeclared(number),
                sketches=run.sketches(number),
            )  # fmt: skip

    def error(self, record: StepRecord, log: bytes | None = None) -> dict[str, Any]:
        """What is said of a changed last step or log; the state is as before afterwards."""
        state, rng = self.executor.state, dict(self.executor.rng)
        self.executor.state = {name: data.clone() for name, data in state.items()}
        try:
            with pytest.raises(WeighbridgeError) as caught:
                self.step(LAST, record, log)
        finally:
            self.executor.state, self.executor.rng = state, rng
        return {"message": caught.value.message, "code": caught.value.reason, **caught.value.details}


@pytest.fixture
def both(run: Transcript) -> Iterator[tuple[Replayed, Replayed]]:
    """Two replays before the last step."""
    replays = Replayed(run, programs=True), Replayed(run, programs=False)
    for number in range(LAST):
        for each in replays:
            each.step(number)
    assert not replays[1].executor.made
    return iter([replays])  # type: ignore[return-value]


def test_results_and_counts_are_the_same(run: Transcript) -> None:
    replays = Replayed(run, programs=True), Replayed(run, programs=False)
    for number in range(run.steps):
        contexts = [each.step(number) for each in replays]
        assert all(each.executor.state_digest() == run.step(number).state for each in replays)
        names = ("followed", "rounded_elements", "checked", "hosts", "calibrated_elements", "rng")
        assert len({str([getattr(context, name) for name in names]) for context in contexts}) == 1
    (program,) = [made for made in replays[0].executor.made.values() if made is not None]
    assert program.listed > 60
    assert program.widened >= 10
    tallies = [each.executor.tally for each in replays]
    drawn = ("only_logged", "only_here", "both")  # of outputs that each replay draws for itself
    counts = [{k: v for k, v in tally.to_json().items() if k not in drawn} for tally in tallies]
    assert counts[0] == counts[1]


def test_the_first_false_checksum_is_named(both: Any) -> None:
    with_programs, without = next(both)
    record = with_programs.run.step(LAST)
    count = len(record.checksums) // 8
    for place in (0, 1, *range(2, count, max(1, count // 5)), count - 1):
        forged = bytearray(record.checksums)
        forged[8 * place] ^= 1
        forged[-1] ^= 1  # a later one is false too
        changed = replace(record, checksums=bytes(forged))
        assert with_programs.error(changed) == without.error(changed)


def test_a_false_number_is_named(both: Any) -> None:
    with_programs, without = next(both)
    record = with_programs.run.step(LAST)
    assert record.host
    for place in range(0, len(record.host), 3):
        hosts = [value + (at == place) for at, value in enumerate(record.host)]
        changed = replace(record, host=hosts)
        found = with_programs.error(changed)
        assert found == without.error(changed)
        assert found["operation"] == "_local_scalar_dense.default"


@pytest.mark.parametrize("number", [0.5, float("inf"), 1 << 60, True])
def test_another_number_of_the_optimizer_is_found_out(both: Any, number: float) -> None:
    with_programs, without = next(both)
    record = with_programs.run.step(LAST)
    for place in (0, len(record.values) // 2, len(record.values) - 1):
        values = [number if at == place else value for at, value in enumerate(record.values)]
        changed = replace(record, values=values)
        assert with_programs.error(changed) == without.error(changed)


def test_missing_and_additional_results_are_found_out(both: Any) -> None:
    with_programs, without = next(both)
    record = with_programs.run.step(LAST)
    for changed in (
        replace(record, checksums=record.checksums[:-8]),
        replace(record, checksums=record.checksums + bytes(8)),
        replace(record, checksums=b""),
    ):
        assert with_programs.error(changed) == without.error(changed)


def test_a_false_log_is_found_out(both: Any) -> None:
    """Entries for operations that round nothing, false ones where something is rounded, and bytes that are none."""
    with_programs, without = next(both)
    run = with_programs.run
    record = run.step(LAST)
    if run.log(LAST) is None:
        return  # a step without a log; what its record commits to is looked at above
    tape = Tape.decode(run.tape(record.tape))
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.uint64)
    at = place(tape, "addmm.default")
    own = {
        bit: rounding_log.encode([OpEntries(at, 0, 3 * one, one.astype(np.uint8), none + np.uint64(bit))])
        for bit in (0, 1)
    }
    said = []
    for bit, log in own.items():  # a result that is not contested has one value: one bit is its own, the other false
        try:
            said.append(with_programs.error(record, log))
        except pytest.fail.Exception:
            continue
        assert said[-1] == without.error(record, log), bit
    if not record.sketches:  # which are followed instead, where a result has 16 bits
        assert [each["code"] for each in said] == ["replay.rounding.inadmissible"]
    for name in ("mul_.Tensor", "_local_scalar_dense.default"):
        log = rounding_log.encode([OpEntries(place(tape, name), 0, 3 * one, one.astype(np.uint8), none)])
        assert with_programs.error(record, log) == without.error(record, log), name
    for at in range(6, len(own[0])):
        log = bytearray(own[0])
        log[at] ^= 0x55
        with suppress(LogError):  # one that is refused before it comes to the Executor
            LogReader(bytes(log), max_entries=9)
            assert with_programs.error(record, bytes(log)) == without.error(record, bytes(log)), at


def test_entries_that_overrule_are_followed_alike(both: Any) -> None:
    """One entry of a log says the other neighbour: its output differs; if the checksum is changed too, a later one."""
    with_programs, without = next(both)
    run = with_programs.run
    record, entries = run.step(LAST), entries_of(run)
    for number in range(0, len(entries), max(1, len(entries) // 4)):
        forged = [replace(each, bits=each.bits ^ np.uint64(at == number)) for at, each in enumerate(entries)]
        log = rounding_log.encode(forged)
        first = with_programs.error(record, log)
        assert first == without.error(record, log)
        if first["code"] != "replay.mismatch":
            continue  # the other neighbour was too far
        checksums = np.frombuffer(record.checksums, dtype="<u8").copy()
        checksums[checksums == int(first["expected"], 16)] = int(first["found"], 16)
        changed = replace(record, checksums=checksums.tobytes())
        try:
            second = with_programs.error(changed, log)
        except pytest.fail.Exception:  # nothing else comes of it, such as of a norm that is too small to clip
            without.step(LAST, changed, log)
            return
        assert second == without.error(changed, log)
        assert second["op"] >= first["op"], "another output of it, or a later operation"
        assert second != first


def entries_of(run: Transcript) -> list[OpEntries]:
    """The entries of the last step's log; none if it has no log by itself."""
    reader = run.log(LAST)
    if reader is None or run.draft.get("logs") == "sketch":
        return []
    return rounding_log.decode(run.rounding(LAST), max_entries=1 << 20)


def place(tape: Tape, name: str) -> int:
    return next(index for index, node in enumerate(tape.nodes) if node.op == name)


def test_only_what_was_executed_completely_is_run_as_a_program(run: Transcript) -> None:
    """Operands are checked operation by operation the first time, and where a step is cut short or observed."""
    replay = Replayed(run, programs=True)
    for number in (0, 1):
        replay.step(number)
    assert not replay.executor.made
    replay.executor.before = lambda index, slots: None
    for number in (2, 3):
        replay.step(number)
    assert not replay.executor.made
    replay.executor.before = None
    replay.step(4)
    assert len(replay.executor.made) == 1


def test_safepoints_are_moments_of_the_tape(run: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = Replayed(run, programs=True)
    for number in range(LAST):
        replayed.step(number)
    record = run.step(LAST)
    tape = Tape.decode(run.tape(record.tape))
    replayed.executor.made[record.tape] = Program(tape, 4)
    seen: list[tuple[int, set[int]]] = []

    def framed(*args: Any) -> Frame:
        frame = Frame(*args)
        frame.reached = lambda complete: seen.append((complete, set(frame.slots)))
        return frame

    monkeypatch.setattr("weighbridge.execution.executor.Frame", framed)
    replayed.step(LAST)
    assert replayed.executor.state_digest() == record.state
    inputs = {item.slot for item in tape.inputs if item.origin != "dropped"}
    for complete, live in seen:
        born = {slot for node in tape.nodes[:complete] for slot, _ in node.births}
        dead = {slot for at, slot in tape.frees if at < complete}
        assert live == (inputs | born) - dead, complete
    places = [complete for complete, _ in seen]
    assert places == sorted(set(places))
    assert places[-1] == len(tape.nodes)
    computing = [n for n, node in enumerate(tape.nodes) if not _view(node.op)]
    between = [sum(a <= n < b for n in computing) for a, b in pairwise([0, *places])]
    assert max(between) == 4


def _view(name: str) -> bool:
    rule = settled(resolve(name))
    return rule is not None and rule.kind is Kind.VIEW
