"""What a liar tried in disputes: records beside true leaves, other values, noise, and leaves that do not exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.disputed import STEP, Party, judge_here, reasons, record
from support.recording_store import RecordingStore
from support.recordings import train

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.dispute import moves, tracing
from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.leaves import values_of
from weighbridge.execution.dispute.messages import START, Ruling, Shown, pack, read, signed
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import Referee, verify
from weighbridge.numerics.rounding import contested
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()
Opened = Callable[[int], bytes]


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", record)


def played(mine: Traced, theirs: Traced, openings: tuple[Opened, Opened], *, own: bool) -> Referee:
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    asked = moves.challenge(mine, STEP, own=own)
    referee.post(signed(referee.dispute.head, asked, KEYS[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(theirs, asked), KEYS[1]).data)
    while referee.ruling is None:
        party, _ = referee.dispute.due()
        leaf = referee.dispute.leaf
        assert leaf is not None
        referee.post(signed(referee.dispute.head, Shown(opening=openings[party](leaf)), KEYS[party]).data)
    return referee


def verdicts(referee: Referee) -> dict[int, str]:
    assert referee.ruling is not None
    assert isinstance(referee.ruling.content, Ruling)
    return {party: verdict for party, verdict, _, _ in referee.ruling.content.claims}


def opened(party: Party) -> Opened:
    return lambda leaf: party.tree(leaf)[0].opening or b""


@pytest.mark.parametrize("changes", [{"state": bytes(32)}, {"rounded": 1}, {"rng": {}}], ids=str)
def test_a_record_that_ends_otherwise_is_false(run: Path, changes: dict[str, object]) -> None:
    """Its results are those of its operations; what the step leaves, or how much it did, is not."""
    lie = replace(Transcript.open(run).step(STEP), **changes)  # type: ignore[arg-type]
    auditor = Party(run, record=lie)
    told = auditor.tree()[0]
    assert told.parted
    assert verdicts(played(told, told, (opened(auditor), opened(auditor)), own=False))[DEFENDER] == "false"


@pytest.mark.finding("dispute.records")
def test_true_leaves_do_not_vindicate_a_record_of_something_else(run: Path) -> None:
    said = Transcript.open(run).step(STEP)
    lie = replace(said, state=bytes(32), checksums=bytes(len(said.checksums)))
    honest = Party(run).tree()[0]
    nothing: Opened = lambda leaf: b""  # noqa: E731
    found = played(honest, replace(honest, record=lie.to_cbor()), (nothing, nothing), own=True)
    assert verdicts(found) == {CHALLENGER: "undecided", DEFENDER: "undecided"}
    assert set(reasons(found).values()) == {"dispute.records"}


def test_values_are_those_of_the_first_leaf(run: Path) -> None:
    """The liar names and shows the agreed first leaf, and computes one operation with another learning rate."""
    said = Transcript.open(run).step(STEP)
    honest, leaves, _ = Party(run).tree()
    tape = Tape.decode(honest.tape)
    at = max(i for i, n in enumerate(tape.nodes) if any(type(v) is float for v in values_of(n, said.values)))
    value = next(v for v in values_of(tape.nodes[at], said.values) if type(v) is float)
    values = list(said.values)
    values[max(i for i, v in enumerate(values) if v == value and type(v) is float)] = value * 16
    liar = Party(run, flips=10**9, record=replace(said, values=values))
    told, other, made = liar.tree()
    assert any(leaves[i] != other[i] for i in range(1, len(leaves)))
    told = replace(told, leaves=(honest.leaves[0], *told.leaves[1:]), record=replace(made, values=values).to_cbor())
    mine = (opened(Party(run)), opened(liar))

    def showing_the_agreed(leaf: int) -> bytes:
        return replace(Opening.from_cbor(mine[1](leaf)), first=leaves[0].to_cbor()).to_cbor()

    assert verdicts(played(honest, told, mine, own=True)) == {CHALLENGER: "admissible", DEFENDER: "forfeit"}
    found = played(honest, told, (mine[0], showing_the_agreed), own=True)
    assert verdicts(found) == {CHALLENGER: "admissible", DEFENDER: "false"}


def test_another_first_leaf_shows_nothing(run: Path) -> None:
    honest = Party(run).tree()[0]
    told = replace(honest, leaves=(*honest.leaves[:20], *[bytes(32)] * (len(honest.leaves) - 20)))

    def forged(leaf: int) -> bytes:
        shown = Opening.from_cbor(opened(Party(run))(leaf))
        return replace(shown, first=shown.previous).to_cbor()

    found = played(honest, told, (opened(Party(run)), forged), own=True)
    assert verdicts(found) == {CHALLENGER: "admissible", DEFENDER: "forfeit"}


def test_a_leaf_beyond_the_last_is_false(run: Path) -> None:
    honest, leaves, _ = Party(run).tree()
    more = replace(honest, leaves=(*honest.leaves, bytes(32)))
    log = Transcript.open(run).rounding(STEP)
    shown: Opened = lambda leaf: Opening(log=log, previous=leaves[-1].to_cbor()).to_cbor()  # noqa: E731
    assert verdicts(played(more, honest, (shown, shown), own=False))[CHALLENGER] == "false"


@pytest.mark.finding("dispute.bound")
def test_noise_beside_a_checksum_that_could_be_explained_is_false(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One element next to a boundary explains the record's checksum. It does not explain any leaf whatever."""

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(512, 512)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: dict[str, torch.Tensor], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["x"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run, generator = tmp_path / "run", torch.Generator().manual_seed(0)
    train(run, build, step, [{"x": torch.randn(256, 512, generator=generator)} for _ in range(STEP)], every=STEP)
    found: list[tuple[int, int, int]] = []
    plain = tracing.contested.follow

    def follow(wide: torch.Tensor, bound: contested.Bound, entries: contested.OpEntries | None) -> object:
        result = plain(wide, bound, entries)
        if not judging:  # a step before the disputed one, which is replayed and not traced
            return result
        e, y = contested.dense_bound(wide, bound).cpu().numpy(), contested.flat(wide).cpu().numpy()
        low, high = (y - 6 * e).astype("f4"), (y + 6 * e).astype("f4")
        own = contested.flat(result.out).cpu().numpy()
        for index in np.flatnonzero(low != high):
            other = own.copy()
            other[index] = high[index] if own[index] == low[index] else low[index]
            changed = torch.from_numpy(other)
            wanted = contested.canonicalise(changed.clone())
            made = contested.explanation(wide, bound, entries, result.out, wanted, result.checksum)
            if wanted != result.checksum and made is not None:
                assert torch.equal(contested.flat(made).view(torch.int32), changed.view(torch.int32))
                tracer = judging[0]
                found.append((tracer.op, tracer.checked, wanted))
                break
        return result

    judging: list[tracing.Tracing] = []
    original = tracing.Tracing.rounded

    def rounded(self: tracing.Tracing, *rest: object) -> torch.Tensor:
        judging[:] = [self]
        return original(self, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tracing.contested, "follow", follow)
        patch.setattr(tracing.Tracing, "rounded", rounded)
        honest = Party(run).tree()[0]
    assert found, "no element lies next to a boundary"
    op, at, wanted = found[-1]
    said = Transcript.open(run).step(STEP)
    sums = np.frombuffer(said.checksums, dtype="<u8").copy()
    sums[at] = wanted
    lie = replace(said, checksums=sums.tobytes(), state=bytes(32))
    noise = [b"\1" * 32] * (len(honest.leaves) - op - 1)
    told = replace(honest, record=lie.to_cbor(), leaves=(*honest.leaves[: op + 1], *noise))
    played_out = played(honest, told, (opened(Party(run)), opened(Party(run))), own=True)
    assert verdicts(played_out) == {CHALLENGER: "admissible", DEFENDER: "false"}
    # A party whose device rounded so names the leaf that this gives, and is not refuted here.
    other = Party(run, flips=10**9, record=replace(said, checksums=sums.tobytes()), explaining=True)
    theirs, _, made = other.tree()
    assert theirs.leaves[: op + 1] == honest.leaves[: op + 1]
    assert theirs.leaves[op + 1] != honest.leaves[op + 1]
    played_out = played(honest, replace(theirs, record=made.to_cbor()), (opened(Party(run)), opened(other)), own=True)
    assert verdicts(played_out) == {CHALLENGER: "admissible", DEFENDER: "undecided"}
    assert reasons(played_out)[DEFENDER] == "dispute.bound"


def test_a_party_is_a_number(run: Path) -> None:
    for party in (0.0, True, 2):
        ruling = Ruling(
            leaf=-1, claims=[(party, "forfeit", "x", "r")], seconds=(2.0, 0.0), clock=1.0, sent=(0, 0), judged=0.0  # type: ignore[list-item]
        )  # fmt: skip
        with pytest.raises(WeighbridgeError):
            read(signed(START, ruling, REFEREE).data)


def test_false_counts_of_bytes_are_noticed(run: Path) -> None:
    told = Party(run).tree()[0]
    nothing: Opened = lambda leaf: b""  # noqa: E731
    referee = played(told, told, (nothing, nothing), own=True)
    *said, last = referee.log()
    assert verify(pack(referee.log()), judge_here).agrees
    assert isinstance(last.content, Ruling)
    false = signed(said[-1].head, replace(last.content, sent=(1, 1 << 40)), REFEREE)
    assert not verify(pack([*said, false]), judge_here).agrees
