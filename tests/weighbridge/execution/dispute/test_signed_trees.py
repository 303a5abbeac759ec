"""Signed roots of trees: who handed out one log of a step and disputes with another loses, and no honest party does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import on_demand
from support.disputed import judge_here, reasons
from support.on_demand import copied, flipped, key_of, place, regenerated, resigned
from support.workers_here import workers_here

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError
from weighbridge.execution.dispute import asking, moves, tracing
from weighbridge.execution.dispute.asking import Claim, Judgement, Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.leaves import tree_root
from weighbridge.execution.dispute.messages import START, Answer, Challenge, DisputeError, Shown, pack, read, signed
from weighbridge.execution.dispute.refereeing import Referee, verify
from weighbridge.transcript.supplements import Statement, decode, encode, read_signed, read_statement

STEP = 2
AUDITOR, REFEREE = SigningKey.generate(), SigningKey.generate()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose step has a supplement without a tree."""
    run = on_demand.record(tmp_path_factory.mktemp("bare") / "run")
    regenerated(run, steps=(STEP, STEP + 1))
    return run


@pytest.fixture(scope="module")
def run(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run once its Prover has signed the tree of the step."""
    there = copied(bare, tmp_path_factory.mktemp("signed"))
    with workers_here():
        assert regenerated(there, steps=(STEP, STEP + 1), tree=True).written == 1
    return there


@contextmanager
def kept_checksums() -> Iterator[None]:
    """A party that chooses roundings so that checksums come out: here every result passes for the one of the record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing.Tracing, "recorded", lambda self: True)
        patch.setattr(tracing, "ends_as", lambda *_: True)
        patch.setattr(tracing.Tracer, "_compare_outputs", lambda *_: None)
        yield


def traced(run: Path, place: int | None = None) -> Traced:
    with workers_here():
        return asking.trace(run, STEP, place=place)


@pytest.fixture(scope="module")
def chooser(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the same Prover, who made another log of the step after the first one was handed out."""
    there = copied(run, tmp_path_factory.mktemp("chooser"))
    resigned(there, STEP, entries=flipped, said=lambda each: replace(each, tree=""))
    with kept_checksums():
        other = tree_root(traced(there).leaves).hex()
    log = decode(place(there, STEP).read_bytes()).log(DEFAULT_LIMITS)
    said = decode(place(there, STEP).read_bytes()).statement
    place(there, STEP).write_bytes(encode(replace(said, tree=other), log, key_of(there)))
    return there


def unexecuted(claim: Claim, opening: bytes) -> Judgement:
    """Judges as the worker does, and executes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing.Tracer, "_perform", lambda *_: pytest.fail("an operation was executed"))
        return judge_here(claim, opening)


def played(
    challenger: Path, defender: Path, keys: tuple[SigningKey, SigningKey], *, own: bool = False, judge: object = None,
    asked: Challenge | None = None, answered: Answer | None = None,
) -> Referee:  # fmt: skip
    referee = Referee((keys[0].public, keys[1].public), REFEREE, judge=judge or judge_here)  # type: ignore[arg-type]
    asked = asked or moves.challenge(traced(challenger), STEP, own=own)
    referee.post(signed(referee.dispute.head, asked, keys[0]).data)
    answered = answered or moves.answer(traced(defender), asked)
    referee.post(signed(referee.dispute.head, answered, keys[1]).data)
    while referee.ruling is None:
        party, due = referee.dispute.due()
        assert due == "opening"
        shown = traced((challenger, defender)[party], referee.dispute.leaf).opening
        referee.post(signed(referee.dispute.head, Shown(opening=shown or b""), keys[party]).data)
    assert verify(pack(referee.log()), judge or judge_here).agrees  # type: ignore[arg-type]
    return referee


# -- honest ------------------------------------------------------------------------------------------------------------


def test_the_signed_root_is_that_of_the_leaves(bare: Path, run: Path) -> None:
    mine = traced(run)
    assert mine.parted == ""
    said, signer = read_signed(mine.signed)
    assert (said.tree, signer) == (tree_root(mine.leaves).hex(), key_of(run).public)
    assert said.rounding == mine.log.hex()
    assert said.draft == mine.draft.hex()
    assert replace(said, tree="") == decode(place(bare, STEP).read_bytes()).statement, "the rest is as it was"


def test_a_confined_worker_makes_the_same_tree(bare: Path, run: Path, tmp_path: Path) -> None:
    """Of a step that is not the first after a checkpoint, and follows one whose log is not signed."""
    there = copied(bare, tmp_path)
    regenerated(there, steps=(STEP, STEP + 1), tree=True)
    assert read_statement(place(there, STEP))[0] == read_statement(place(run, STEP))[0]
    assert asking.trace(there, STEP).leaves == traced(run).leaves
    assert not place(there, STEP - 1).exists()


def test_an_honest_party_that_signed_its_tree_wins(run: Path) -> None:
    keys = AUDITOR, key_of(run)
    assert reasons(played(run, run, keys)) == {DEFENDER: "dispute.equal"}
    told = traced(run)
    asked = moves.challenge(replace(told, leaves=told.leaves[:7]), STEP, own=False)
    assert asked.supplements == [told.signed]
    assert reasons(played(run, run, keys, asked=asked)) == {DEFENDER: "dispute.follows"}


def test_a_party_whose_leaves_are_not_those_that_it_signed_is_told_before_it_speaks(bare: Path, run: Path) -> None:
    """On another device a result that a wider bound explains may come out otherwise; the claim would be false."""
    told = traced(run)
    moves.require_own(told)
    moves.require_own(replace(traced(bare), leaves=told.leaves[:7]))
    with pytest.raises(UsageError) as refused:
        moves.require_own(replace(told, leaves=told.leaves[:7]))
    assert refused.value.reason == "dispute.supplement"


def test_a_supplement_without_a_tree_behaves_as_before(bare: Path) -> None:
    told = traced(bare)
    asked = moves.challenge(replace(told, leaves=told.leaves[:7]), STEP, own=False)
    assert (told.signed, asked.supplements) == (b"", [])
    assert reasons(played(bare, bare, (AUDITOR, key_of(bare)), asked=asked)) == {DEFENDER: "dispute.follows"}


def test_a_challenger_that_is_not_bound_may_name_other_leaves(run: Path) -> None:
    """The auditor denies what the Prover signed: the signature is not its own, and its claim is judged by execution."""
    told = traced(run)
    asked = moves.challenge(replace(told, leaves=(*told.leaves[:7], *told.leaves[6:-1])), STEP, own=False)
    found = reasons(played(run, run, (AUDITOR, key_of(run)), asked=asked))
    assert found == {CHALLENGER: "dispute.leaf", DEFENDER: "dispute.follows"}


# -- attacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.finding("dispute.supplement")
def test_a_chooser_loses_by_what_it_signed_before(bare: Path, run: Path, chooser: Path) -> None:
    """The auditor has the first supplement; the Prover answers with other roundings, and names its second one."""
    keys = AUDITOR, key_of(run)
    with kept_checksums():
        answered = moves.answer(traced(chooser), moves.challenge(traced(run), STEP, own=False))
        assert len(answered.supplements) == 1
        found = played(run, chooser, keys, answered=answered)
        assert reasons(found)[DEFENDER] == "dispute.supplement"
        quiet = replace(answered, supplements=[])
        assert reasons(played(run, chooser, keys, answered=quiet))[DEFENDER] == "dispute.supplement"
        asked = moves.challenge(traced(bare), STEP, own=False)
        found = played(bare, chooser, keys, asked=asked, answered=quiet)
        assert reasons(found)[DEFENDER] == "dispute.follows", "what no tree was signed of rests on checksums"


def test_nothing_is_executed_for_that(run: Path, chooser: Path) -> None:
    with kept_checksums():
        asked = moves.challenge(traced(run), STEP, own=False)
        answered = moves.answer(traced(chooser), asked)
    referee = Referee((AUDITOR.public, key_of(run).public), REFEREE, judge=lambda *_: pytest.fail("too early"))
    for content, key in ((asked, AUDITOR), (answered, key_of(run))):
        referee.post(signed(referee.dispute.head, content, key).data)
    claim = referee.dispute.claim(DEFENDER)
    assert claim is not None
    assert unexecuted(claim, b"").code == "dispute.supplement"
    other = referee.dispute.claim(CHALLENGER)
    assert other is not None
    assert (other.supplements, other.root) == ((), b""), "the other party signed none"


def test_a_challenger_is_bound_by_what_it_signed_about_its_own_record(run: Path, chooser: Path) -> None:
    """It shows its second supplement, or none; the defender shows the first one."""
    first = read_statement(place(run, STEP))[2]
    with kept_checksums():
        no: list[bytes] = []
        for shown in (no, None):
            asked = moves.challenge(traced(chooser), STEP, own=True)
            asked = asked if shown is None else replace(asked, supplements=shown)
            answered = moves.answer(traced(run), asked, [first])
            found = reasons(played(chooser, run, (key_of(run), AUDITOR), asked=asked, answered=answered))
            assert found == {CHALLENGER: "dispute.supplement", DEFENDER: "dispute.follows"}


def test_who_names_no_draft_is_bound_all_the_same(run: Path, chooser: Path) -> None:
    with kept_checksums():
        asked = moves.challenge(traced(run), STEP, own=True)
        answered = replace(moves.answer(traced(chooser), asked), draft=b"", supplements=[])
        found = reasons(played(run, chooser, (AUDITOR, key_of(run)), asked=asked, answered=answered))
    assert found[DEFENDER] == "dispute.supplement"


def test_the_same_tree_with_another_log_is_another_one(run: Path, tmp_path: Path) -> None:
    there = copied(run, tmp_path)
    resigned(there, STEP, said=lambda each: replace(each, rounding="ab" * 32))
    other = read_statement(place(there, STEP))[2]
    told = traced(run)
    found = played(run, run, (AUDITOR, key_of(run)), asked=moves.challenge(told, STEP, own=False, supplements=[other]))
    assert reasons(found) == {DEFENDER: "dispute.supplement"}


def _said(run: Path, key: SigningKey, **changes: str | int) -> bytes:
    """A statement about a step, with changes, as a key signs it."""
    statement = replace(read_statement(place(run, STEP))[0], **changes)  # type: ignore[arg-type]
    return bytes(decode_cbor(encode(statement, b"no log", key))["statement"])


def _refused(asked: Challenge) -> bool:
    referee = Referee((AUDITOR.public, REFEREE.public), REFEREE)
    with pytest.raises(DisputeError, match="supplement"):
        referee.post(signed(START, asked, AUDITOR).data)
    return not referee.dispute.messages


def test_what_is_forged_or_foreign_is_not_taken(bare: Path, run: Path) -> None:
    told, key = traced(run), key_of(run)
    plain = moves.challenge(replace(told, signed=b""), STEP, own=False)
    for wrong in (
        told.signed.replace(b'"sig":"', b'"sig":"AAAA', 1), b"", b"{}", bytes(80_000),
        read_statement(place(bare, STEP))[2], _said(run, key, step=STEP - 1), _said(run, key, draft="ab" * 32),
    ):  # fmt: skip
        assert _refused(replace(plain, supplements=[wrong]))
    assert _refused(replace(plain, draft=b"", supplements=[told.signed]))
    assert _refused(replace(plain, own=True, supplements=[_said(run, key, step=STEP - 1)]))


def test_what_another_signed_or_of_another_record_binds_no_honest_party(run: Path) -> None:
    """The challenger signs what it likes with its key, and shows what the Prover signed about another outcome."""
    key, told = key_of(run), traced(run)
    foreign = [_said(run, AUDITOR, tree="ab" * 32), *(_said(run, key, tree="ab" * 32, **{each: "cd" * 32})
               for each in ("before", "state", "outputs"))]  # fmt: skip
    plain = moves.challenge(replace(told, leaves=told.leaves[:7]), STEP, own=False, supplements=[])
    asked = replace(plain, supplements=foreign)
    assert reasons(played(run, run, (AUDITOR, key), asked=asked)) == {DEFENDER: "dispute.follows"}


def test_a_party_answers_for_its_own_run_alone(run: Path) -> None:
    """Another run of the same key may have the same record and another log, as of another policy: another step."""
    key, told = key_of(run), traced(run)
    other = moves.challenge(replace(told, draft=bytes(32), signed=_said(run, key, draft="00" * 32)), STEP, own=False)
    assert moves.answer(told, other).record == b""
    asked = moves.challenge(told, STEP, own=True, supplements=[_said(run, key, draft="00" * 32, tree="ab" * 32)])
    assert reasons(played(run, run, (AUDITOR, key), asked=asked)) == {DEFENDER: "dispute.equal"}


# -- messages ----------------------------------------------------------------------------------------------------------

digests = st.binary(min_size=32, max_size=32)


@given(st.sampled_from([b""]) | digests, st.lists(st.binary(max_size=40), max_size=4), st.booleans())
@settings(max_examples=40)
def test_messages_are_read_as_they_were_written(draft: bytes, shown: list[bytes], asks: bool) -> None:
    some = bytes(32)
    content: Challenge | Answer = Answer(record=b"r", log=some, leaves=some, draft=draft, supplements=shown)
    if asks:
        content = Challenge(
            terms=b"", tape=b"", state=some, step=1, record=b"r", own=True, log=some, leaves=b"", draft=draft,
            supplements=shown,
        )  # fmt: skip
    message = signed(START, content, AUDITOR)
    assert read(message.data).content == content
    named = set(decode_cbor(decode_cbor(message.data)[1])[1])
    assert {"draft", "supplements"} & named == {name for name in ("draft", "supplements") if getattr(content, name)}


@pytest.mark.parametrize(
    "more", [{"draft": b""}, {"supplements": []}, {"draft": b"x"}, {"supplements": [1]}, {"supplements": b"x"},
             {"supplements": [b"x"] * 5}, {"other": b""}],
    ids=str,
)  # fmt: skip
def test_other_fields_are_not_taken(more: dict[str, object]) -> None:
    fields = asdict(Answer(record=b"r", log=bytes(32), leaves=b""))
    del fields["draft"], fields["supplements"]
    with pytest.raises(WeighbridgeError) as refused:
        read(_signed(["answer", fields | more]))
    assert isinstance(refused.value, FormatError)


def _signed(body: object) -> bytes:
    from weighbridge.execution.dispute.messages import _head

    data = cbor(body)
    return cbor(
        [START, data, AUDITOR.public, AUDITOR.sign(b"weighbridge/dispute/1\x00" + _head(START, data, AUDITOR.public))]
    )


def test_statements_with_other_trees_are_equivocation(run: Path, chooser: Path, tmp_path: Path) -> None:
    from weighbridge.transcript.reader import Transcript

    def found(statement: Statement) -> list[str]:
        there = copied(run, tmp_path / statement.tree[:8] / statement.rounding[:8])
        log = decode(place(run, STEP).read_bytes()).log(DEFAULT_LIMITS)
        place(there, STEP).with_name("other.wsup").write_bytes(encode(statement, log, key_of(run)))
        transcript = Transcript.open(there)
        transcript.supplement(place(there, STEP).parent)
        assert transcript.supplements is not None
        return [each.id for each in transcript.supplements.findings]

    own = decode(place(run, STEP).read_bytes()).statement
    assert found(own) == found(replace(own, tree="")) == []
    assert found(replace(own, tree="ab" * 32)) == ["transcript.supplement.equivocation"]
    assert found(decode(place(chooser, STEP).read_bytes()).statement) == ["transcript.supplement.equivocation"] * 2
