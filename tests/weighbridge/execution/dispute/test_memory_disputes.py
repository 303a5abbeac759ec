"""A claim about a chip's memory goes down two trees to the chunk that cannot have both values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_claims import (
    CLAIMANT,
    DENIER,
    REFEREE,
    Taken,
    contents,
    opened,
    played,
    post,
    taken,
    verdicts,
)

from weighbridge.core.digests import cbor, region_digest
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError
from weighbridge.core.memory_map import Held
from weighbridge.execution.dispute import memory_moves
from weighbridge.execution.dispute.docket import Docket
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.memory_claim import KeyedLeaf, Source
from weighbridge.execution.dispute.memory_messages import Doubt, Granted, Layer
from weighbridge.execution.dispute.messages import START, DisputeError, Shown, pack, read, signed
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.refereeing import Referee, verify
from weighbridge.transcript.state import state_digest

HELD = contents()
NAMES = sorted(HELD)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    with taken(tmp_path_factory.mktemp("chip"), HELD) as found:
        yield found


def other(data: bytes, at: int = -1) -> bytes:
    """The same but for one bit."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def checked(referee: Referee) -> None:
    """A reader of the file comes to the same."""
    found = verify(pack(referee.log()))
    assert found.agrees
    assert found.parties == (CLAIMANT.public, DENIER.public)


@pytest.mark.finding("dispute.memory.granted")
@pytest.mark.parametrize("name", NAMES)
def test_a_true_claim_is_granted_by_who_has_the_bytes(snapshot: Taken, name: str) -> None:
    data = HELD[name]
    referee = played(snapshot.claim(data, data), (data, data), data)
    assert verdicts(referee) == {CHALLENGER: ("undecided", "dispute.memory.granted")}
    checked(referee)


@pytest.mark.finding("dispute.memory.differs")
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", NAMES)
def test_a_false_claim_is_refuted_by_who_has_either_content(snapshot: Taken, name: str, at: int) -> None:
    """The claimant has both contents and can show all of either tree; no chunk has both values."""
    held, claimed = HELD[name], other(HELD[name], at)
    for denier in (held, claimed):
        referee = played(snapshot.claim(held, claimed), (held, claimed), denier)
        assert verdicts(referee) == {CHALLENGER: ("false", "dispute.memory.differs")}
        assert len(referee.dispute.messages) <= 4, "each party sends two messages at most for so few bytes"
        checked(referee)


@pytest.mark.parametrize("name", NAMES)
def test_a_false_claim_is_refuted_without_a_chunk_from_the_denier(snapshot: Taken, name: str) -> None:
    """Whichever bytes the claimant shows in the end, they refute it; those of neither forfeit."""
    held, claimed = HELD[name], other(HELD[name])
    for shown, verdict in ((held, "false"), (claimed, "false"), (other(held, -2), "forfeit"), (b"", "forfeit")):
        referee = opened(snapshot.claim(held, claimed))
        game = referee.dispute.memory
        assert game is not None
        while game.due()[1] != "opening":
            said = memory_moves.reply(game, held if game.due()[1] == "doubt" else claimed)
            if isinstance(said, Layer):
                keyed = memory_moves.reply(game, held)
                assert isinstance(keyed, Layer)
                said = replace(said, keyed=keyed.keyed)
            post(referee, replace(said, chunk=b"") if isinstance(said, Doubt) else said)
        post(referee, memory_moves.reply(game, shown) if shown else Shown(opening=b""))
        assert verdicts(referee)[CHALLENGER][0] == verdict
        checked(referee)


@pytest.mark.finding("dispute.memory.same", "dispute.memory.follows")
@pytest.mark.parametrize("name", NAMES)
def test_a_true_claim_is_not_refuted_by_any_doubt(snapshot: Taken, name: str) -> None:
    data = HELD[name]
    referee = opened(snapshot.claim(data, data))
    game = referee.dispute.memory
    assert game is not None
    while referee.ruling is None:
        post(referee, Doubt(node=0) if game.due()[1] == "doubt" else memory_moves.reply(game, data))
    assert verdicts(referee) == {
        CHALLENGER: ("admissible", "dispute.memory.follows"),
        DEFENDER: ("false", "dispute.memory.same"),
    }
    checked(referee)


def test_what_is_not_due_is_refused_and_changes_nothing(snapshot: Taken) -> None:
    held, claimed = HELD["large"], other(HELD["large"])
    referee = opened(snapshot.claim(held, claimed))
    game = referee.dispute.memory
    assert game is not None
    for wrong in (Doubt(node=2), Doubt(node=0, chunk=held[:1024]), Layer(keyed=b"", plain=b""), Shown(opening=b"")):
        with pytest.raises(DisputeError):
            post(referee, wrong)
    post(referee, Doubt(node=1))
    honest = memory_moves.reply(game, claimed)
    assert isinstance(honest, Layer)
    for bad in (honest, Layer(keyed=honest.plain, plain=honest.plain), Layer(keyed=b"", plain=b""), Granted()):
        with pytest.raises(DisputeError):
            post(referee, bad)  # the keyed layer of other bytes is not below the node that was shown
    keyed = memory_moves.reply(game, held)
    assert isinstance(keyed, Layer)
    post(referee, replace(honest, keyed=keyed.keyed))
    with pytest.raises(DisputeError):
        post(referee, Granted())  # it was denied before
    for chunk in (bytes(1024), held[-1:], b"x"):
        with pytest.raises(DisputeError):
            post(referee, Doubt(node=4, chunk=chunk))
    post(referee, memory_moves.reply(game, held))
    assert verdicts(referee) == {CHALLENGER: ("false", "dispute.memory.differs")}


def test_a_claim_about_another_token_salt_or_storage_is_refused(snapshot: Taken) -> None:
    data = HELD["step"]
    claim = snapshot.claim(data, data)
    leaf, short = KeyedLeaf.from_cbor(claim.leaf), snapshot.claim(HELD["short"], HELD["short"])
    invented = [(len(data), region_digest(data, snapshot.salt))]
    for wrong in (
        replace(claim, token=claim.token[:-1]),
        replace(claim, token=b""),
        replace(claim, salt=bytes(32)),
        replace(claim, salt=b""),
        replace(claim, leaf=replace(leaf, index=leaf.index ^ 1).to_cbor()),
        replace(claim, leaf=replace(leaf, size=leaf.size + 1).to_cbor()),
        replace(claim, leaf=replace(leaf, digest=bytes(32)).to_cbor()),
        replace(claim, leaf=replace(leaf, tree=bytes(32)).to_cbor()),
        replace(claim, leaf=KeyedLeaf.among(invented, 0).to_cbor()),
        replace(claim, leaf=short.leaf),
        replace(claim, source=short.source),
        replace(claim, keyed=claim.plain),
        replace(claim, plain=claim.keyed),
        replace(claim, plain=b""),
    ):
        with pytest.raises(WeighbridgeError):
            opened(wrong)


def test_bytes_of_neither_refute_nothing(snapshot: Taken) -> None:
    held = HELD["step"]
    game = opened(snapshot.claim(held, other(held))).dispute.memory
    assert game is not None
    with pytest.raises(UsageError, match="neither"):
        memory_moves.reply(game, bytes(len(held)))
    with pytest.raises(UsageError, match="5000 bytes"):
        memory_moves.reply(game, held[1:])


def test_a_file_of_another_size_is_not_read(snapshot: Taken, tmp_path: Path) -> None:
    """Whoever names the wrong file, such as a disk, is told so before it is in memory."""
    held = HELD["step"]
    game = opened(snapshot.claim(held, other(held))).dispute.memory
    assert game is not None
    (tmp_path / "right").write_bytes(held)
    assert memory_moves.contents(game, tmp_path / "right") == held
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="5000 bytes"):
        memory_moves.contents(game, tmp_path / "huge")


def test_a_referees_service_keeps_such_a_dispute(snapshot: Taken, tmp_path: Path) -> None:
    """Identical claims merge, a restart goes on, and the loser is charged."""
    held, claimed = HELD["large"], other(HELD["large"])
    claim = signed(START, snapshot.claim(held, claimed), CLAIMANT)
    parties = {CLAIMANT.public: "company", DENIER.public: "lab"}
    docket = Docket(tmp_path, REFEREE, parties)
    notice = Notice(referee=REFEREE.public, defender=DENIER.public, challenge=claim.head).signed(CLAIMANT)
    name, merged = docket.open(notice, claim.data)
    assert (merged, docket.open(notice, claim.data)) == (False, (name, True))
    turns = []
    while (due := docket.standing(name)).due != "nothing":
        turns.append(due.due)
        docket = Docket(tmp_path, REFEREE, parties)
        followed = Referee((CLAIMANT.public, DENIER.public), REFEREE)
        for message in docket.messages(name):
            followed.post(message.data)
        game = followed.dispute.memory
        assert game is not None
        said = memory_moves.reply(game, held if due.due == "doubt" else claimed)
        if isinstance(said, Layer):
            keyed = memory_moves.reply(game, held)
            assert isinstance(keyed, Layer)
            said = replace(said, keyed=keyed.keyed)
        docket.post(name, signed(followed.dispute.head, said, (CLAIMANT, DENIER)[due.party]).data)
    docket.judge()
    assert turns == ["doubt", "layer", "doubt"]
    assert [charge.organisation for charge in docket.charges()] == ["company"]
    forged = signed(START, replace(snapshot.claim(held, claimed), salt=bytes(32)), CLAIMANT)
    notice = Notice(referee=REFEREE.public, defender=DENIER.public, challenge=forged.head).signed(CLAIMANT)
    with pytest.raises(DisputeError):
        docket.open(notice, forged.data)


digests = st.binary(min_size=32, max_size=32)
naturals = st.integers(0, (1 << 62) - 1)
leaves = st.builds(
    KeyedLeaf, index=naturals, size=naturals, digest=digests, tree=digests, proof=st.lists(digests, max_size=9)
)


@st.composite
def sources(draw: st.DrawFn) -> Source:
    if draw(st.booleans()):
        return Source(kind="bytes", digest=draw(digests), size=draw(naturals))
    regions = draw(st.dictionaries(st.text(max_size=8), st.builds(Held, naturals, digests), min_size=1, max_size=4))
    rng = draw(st.dictionaries(st.text(max_size=4), naturals, max_size=2))
    digest = state_digest({name: (each.size, each.content) for name, each in regions.items()}, rng)
    region = draw(st.sampled_from(sorted(regions)))
    return Source(kind="state", digest=digest, step=draw(naturals), region=region, regions=regions, rng=rng)


@given(leaf=leaves, source=sources(), at=naturals)
def test_claims_come_back_as_they_were_written(leaf: KeyedLeaf, source: Source, at: int) -> None:
    """Law: `from_cbor(x.to_cbor()) == x`; where `from_cbor(data)` returns, its `to_cbor()` is `data`."""
    assert KeyedLeaf.from_cbor(leaf.to_cbor()) == leaf
    assert Source.from_cbor(source.to_cbor()) == source
    for kind, data in ((KeyedLeaf, leaf.to_cbor()), (Source, source.to_cbor())):
        changed = bytearray(data)
        changed[at % len(data)] ^= 1 + at % 255
        try:
            found = kind.from_cbor(bytes(changed))
        except FormatError:
            continue
        assert found.to_cbor() == bytes(changed)


@given(raw=st.recursive(st.none() | st.integers() | st.binary() | st.text(max_size=5), st.lists, max_leaves=8))
def test_no_other_bytes_are_a_claim(raw: object) -> None:
    for kind in (KeyedLeaf, Source):
        try:
            found = kind.from_cbor(cbor(raw))
        except FormatError:
            continue
        assert found.to_cbor() == cbor(raw)


@given(node=st.integers(0, 1 << 40), chunk=st.binary(max_size=64), layer=st.lists(digests, max_size=3))
def test_messages_come_back(node: int, chunk: bytes, layer: list[bytes]) -> None:
    """Law: `read(signed(START, c, key).data).content == c`."""
    for content in (Doubt(node=node, chunk=chunk), Granted(), Layer(keyed=b"".join(layer), plain=b"".join(layer))):
        assert read(signed(START, content, CLAIMANT).data).content == content
