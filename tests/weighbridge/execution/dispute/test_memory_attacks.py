"""What a party to a dispute about a chip's memory may try: sizes at edges and beyond, other trees, messages of others.

The referee does not know who signed a token, so an attacker makes its own here, of storages that never existed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from support.chip_logs import SALT, LogBuilder, make_device
from support.command_line import answer, fails, weighbridge
from support.memory_claims import CLAIMANT, DENIER, REFEREE, opened, played, post, verdicts

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import Leaf, bytes_digest, cbor, record_digest, region_digest
from weighbridge.core.errors import FormatError
from weighbridge.core.treehash import descent
from weighbridge.execution.dispute import memory_moves
from weighbridge.execution.dispute.docket import Docket, PartyError
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.memory_claim import MAX_ITEMS, KeyedLeaf, Source
from weighbridge.execution.dispute.memory_game import MemoryGame
from weighbridge.execution.dispute.memory_messages import Doubt, Equality, Granted, Layer
from weighbridge.execution.dispute.messages import MAX_MESSAGES, START, DisputeError, Shown, pack, read, signed
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.refereeing import Referee, verify

MIB = 1 << 20
SIZES = (0, 1, 1023, 1024, 1025, 2048, MIB, MIB + 1)
"""Nothing, edges of a chunk, one and two chunks, and both sides of what one layer holds."""

Snapshot = Callable[[Sequence[Leaf]], bytes]


@pytest.fixture(scope="module")
def maker() -> CertificateAuthority:
    return CertificateAuthority.create("An attacker's manufacturer")


@pytest.fixture(scope="module")
def token(maker: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Makes a token over any storages."""
    device = make_device(tmp_path_factory.mktemp("own"), maker)

    def made(leaves: Sequence[Leaf]) -> bytes:
        log = LogBuilder(device).boot()
        entry: bytes = log.entries[log.snapshot(leaves)]
        return entry

    return made


def claim(token: Snapshot, held: bytes, source: Source, plain: bytes) -> Equality:
    """The claim that a storage that held some bytes held what a source names, whose highest layer is given."""
    leaves = [(len(held), region_digest(held, SALT)), (7, bytes(32))]
    place = sorted(leaves).index(leaves[0])
    said = memory_moves.claim(token(leaves), SALT, leaves, place, memory_moves.of_bytes(held))
    return replace(said, source=source.to_cbor(), plain=plain)


def honest(token: Snapshot, held: bytes, claimed: bytes) -> Equality:
    return claim(token, held, memory_moves.of_bytes(claimed).source, descent.layer(claimed, ()))


def game_of(referee: Referee) -> MemoryGame:
    assert referee.dispute.memory is not None
    return referee.dispute.memory


@pytest.mark.parametrize("size", SIZES)
def test_true_claims_of_every_size_hold_and_false_ones_do_not(token: Snapshot, size: int) -> None:
    data = random.Random(size).randbytes(size)
    true = honest(token, data, data)
    assert verdicts(played(true, (data, data), data)) == {CHALLENGER: ("undecided", "dispute.memory.granted")}
    referee = opened(true)
    while referee.ruling is None:
        game = game_of(referee)
        last = len(game.plain) // 32 - 1
        post(referee, Doubt(node=last) if game.due()[1] == "doubt" else memory_moves.reply(game, data))
    assert verdicts(referee) == {
        CHALLENGER: ("admissible", "dispute.memory.follows"),
        DEFENDER: ("false", "dispute.memory.same"),
    }
    if not size:
        return
    other = data[:-1] + bytes([data[-1] ^ 1])
    for denier in (data, other):
        referee = played(honest(token, data, other), (data, other), denier)
        assert verdicts(referee) == {CHALLENGER: ("false", "dispute.memory.differs")}
        assert verify(pack(referee.log())).agrees


def test_no_bytes_are_told_from_some(token: Snapshot) -> None:
    """The claim that an empty storage had another digest: there are no bytes to show, and that shows it."""
    for shown, verdict in ((b"", "false"), (b"x", "forfeit")):
        referee = opened(claim(token, b"", Source(kind="bytes", digest=bytes(32)), bytes(32)))
        post(referee, memory_moves.reply(game_of(referee), b""))
        assert game_of(referee).due() == (CHALLENGER, "opening")
        post(referee, Shown(opening=shown))
        assert verdicts(referee)[CHALLENGER][0] == verdict


def test_a_digest_of_larger_bytes_is_none_of_smaller_ones(token: Snapshot) -> None:
    """A digest binds no size by itself: the values of two inner nodes pass for those of two chunks."""
    held, large = (random.Random(seed).randbytes(size) for seed, size in ((1, 2048), (2, 4096)))
    left, right = (descent._above(descent._chunks(large, at, at + 2, None), None) for at in (0, 2))
    inner = descent._written(torch.cat([left, right]))
    said = claim(token, held, Source(kind="bytes", digest=blake3(large).digest(), size=2048), inner)
    refuted = played(said, (held, held), held)
    assert verdicts(refuted) == {CHALLENGER: ("false", "dispute.memory.differs")}
    for chunk in (large[:1024], held[:1024], b""):
        referee = opened(said)
        post(referee, Doubt(node=0))
        with pytest.raises(DisputeError):
            post(referee, Shown(opening=large[:2048]))  # none is as large, and the referee keeps nothing of it
        post(referee, Shown(opening=chunk))
        assert verdicts(referee)[CHALLENGER][0] in ("forfeit", "false")


def made_up(size: int, chunk: bytes, key: bytes | None) -> list[bytes]:
    """Returns the layers on the way down to the first chunk of a tree of which nothing else exists, and its digest."""
    value, layers = descent.value_of_chunk(chunk, size, (0,) * descent.height(size), key), list[bytes]()
    for depth in reversed(range(descent.height(size))):
        beside = np.random.default_rng(depth).bytes(32 * (descent.width(size, (0,) * depth) - 1))
        layers.insert(0, value + beside)
        level = torch.frombuffer(bytearray(layers[0]), dtype=torch.int32).view(-1, 8)
        while len(level) > 1:
            level = descent._above(level, key, root=not depth)
        value = descent._written(level)
    return [*layers, value]


def test_a_made_up_storage_of_two_exbibytes_ends_as_any_other(token: Snapshot) -> None:
    """Six layers, chunk numbers of 51 bits, and both parties in league: the referee and a reader get to the end."""
    size, chunk = 1 << 61, bytes(range(256)) * 4
    (*keyed, root), (*plain, digest) = (made_up(size, chunk, key) for key in (SALT, None))
    leaves = [(size, root)]
    said = Equality(
        token=token(leaves), salt=SALT, leaf=KeyedLeaf.among(leaves, 0).to_cbor(),
        source=Source(kind="bytes", digest=digest, size=size).to_cbor(), keyed=keyed[0], plain=plain[0],
    )  # fmt: skip
    referee = opened(said)
    for one, other in zip(keyed[1:], plain[1:], strict=True):
        post(referee, Doubt(node=0))
        post(referee, Layer(keyed=one, plain=other))
    post(referee, Doubt(node=0))
    post(referee, Shown(opening=chunk))
    assert verdicts(referee)[CHALLENGER] == ("admissible", "dispute.memory.follows")
    assert len(referee.log()) == 14 <= MAX_MESSAGES
    assert verify(pack(referee.log())).agrees


def test_messages_of_another_dispute_and_second_ones_are_refused(token: Snapshot) -> None:
    data = random.Random(3).randbytes(5000)
    first, second = opened(honest(token, data, data)), opened(honest(token, data, bytes(5000)))
    taken = signed(first.dispute.head, Doubt(node=3), DENIER).data
    first.post(taken)
    for referee in (first, second):  # said before, and said elsewhere
        with pytest.raises(DisputeError):
            referee.post(taken)
    for content in (Doubt(node=3), Doubt(node=3, chunk=data[3072:4096]), Granted(), Layer(keyed=b"", plain=b"")):
        for key in (CLAIMANT, DENIER):  # the chunk is to be shown, by the other party, and no node is below it
            with pytest.raises(DisputeError):
                first.post(signed(first.dispute.head, content, key).data)
    with pytest.raises(DisputeError):
        first.post(signed(first.dispute.head, Shown(opening=data[3072:4096]), DENIER).data)
    first.post(signed(first.dispute.head, Shown(opening=data[3072:4096]), CLAIMANT).data)
    assert verdicts(first)[DEFENDER] == ("false", "dispute.memory.same")
    with pytest.raises(DisputeError):
        first.post(signed(first.dispute.head, Granted(), DENIER).data)


def test_an_entry_that_stands_twice_is_refused(token: Snapshot) -> None:
    """Of two entries of one name, two readers could take either."""
    twice = b"\x85\x65state\x58\x20" + bytes(32) + b"\x01\x61a\xa2"
    twice = b"\x86" + twice[1:] + b"\x61a" + cbor([1, bytes(32)]) + b"\x61a" + cbor([2, bytes(32)]) + b"\xa0"
    with pytest.raises(FormatError):
        Source.from_cbor(twice)
    body = signed(START, honest(token, b"a", b"a"), CLAIMANT).content
    assert isinstance(body, Equality)
    fields = b"".join(cbor(name) + cbor(value) for name, value in [*vars(body).items(), ("salt", bytes(32))])
    raw = b"\x82" + cbor("equality") + b"\xa7" + fields
    head = record_digest("dispute-message/1", [START, raw, CLAIMANT.public])
    with pytest.raises(FormatError):
        read(cbor([START, raw, CLAIMANT.public, CLAIMANT.sign(b"weighbridge/dispute/1\x00" + head)]))


def test_a_referee_decodes_no_state_for_a_key_that_is_no_partys(token: Snapshot, tmp_path: Path) -> None:
    """A claim of a state takes it time, which only parties are charged for; and a state has an end."""
    said = replace(honest(token, b"a", b"a"), source=cbor([0] * (MAX_ITEMS + 1)))
    stranger = SigningKey.generate()
    docket = Docket(tmp_path / "docket", REFEREE, {CLAIMANT.public: "company", DENIER.public: "lab"})
    refusals: list[tuple[SigningKey, type[Exception]]] = [(stranger, PartyError), (CLAIMANT, FormatError)]
    for key, refused in refusals:
        message = signed(START, said, key)
        notice = Notice(referee=REFEREE.public, defender=DENIER.public, challenge=message.head).signed(key)
        with pytest.raises(refused):
            docket.open(notice, message.data)
    assert list((tmp_path / "docket").iterdir()) == []


def test_nothing_is_shown_to_a_claim_of_a_snapshot_that_no_chip_signed(
    token: Snapshot, maker: CertificateAuthority, tmp_path: Path
) -> None:
    """A claim about 1,024 bytes needs no knowledge of them, and who denies it shows all of them."""
    secret, key, case = tmp_path / "weights", tmp_path / "key", tmp_path / "case"
    secret.write_bytes(random.Random(6).randbytes(1024))
    assert weighbridge("rules", "key", key)[0] == 0
    fishing = claim(
        token, bytes(1024), memory_moves.of_bytes(secret.read_bytes()).source, bytes_digest(secret.read_bytes())
    )
    case.write_bytes(signed(START, fishing, CLAIMANT).data)
    before = case.read_bytes()
    for name, root, code in (("real", CertificateAuthority.create("The chips' manufacturer"), None), ("own", maker, 0)):
        (tmp_path / name).write_bytes(root.pem)
        said = ("dispute", "answer", case, secret, "--key", key, "--root", tmp_path / name)
        if code is None:
            assert fails(*said).startswith("identity.")
            assert case.read_bytes() == before
        else:
            assert answer(*said)["sent"] == "doubt"
            assert secret.read_bytes() in case.read_bytes()
