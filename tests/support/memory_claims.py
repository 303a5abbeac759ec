"""A chip in its own process whose snapshot has known contents, and disputes about it, played to their end."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.chip_station import ChipStation

from firmware_sim.frames import Connection
from firmware_sim.snapshot_report import pack_leaves
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import Leaf, region_digest
from weighbridge.execution.dispute import memory_moves
from weighbridge.execution.dispute.memory_messages import Equality
from weighbridge.execution.dispute.messages import START, Content, signed
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.rpc import endpoints

CLAIMANT, DENIER, REFEREE = (SigningKey.generate() for _ in range(3))
SIZES = {"short": 700, "step": 5000, "large": (1 << 20) + 4100}


def contents(seed: int = 1) -> dict[str, bytes]:
    """Returns bytes of one chunk, of several, and of several layers."""
    return {name: random.Random(f"{seed} {name}").randbytes(size) for name, size in SIZES.items()}


@dataclass(frozen=True)
class Taken:
    """A snapshot that a chip signed, opened."""

    token: bytes
    salt: bytes
    leaves: list[Leaf]
    manufacturer: Path

    def claim(self, held: bytes, claimed: bytes) -> Equality:
        """The claim that the storage that held `held` held `claimed`, made by one who has both."""
        place = memory_moves.storage_of(self.leaves, self.salt, held)
        assert place is not None
        said = memory_moves.claim(self.token, self.salt, self.leaves, place, memory_moves.of_bytes(claimed))
        keyed = memory_moves.claim(self.token, self.salt, self.leaves, place, memory_moves.of_bytes(held)).keyed
        return Equality(**{**vars(said), "keyed": keyed})


@contextmanager
def taken(path: Path, held: Mapping[str, bytes]) -> Iterator[Taken]:
    """Takes a snapshot of a memory with these contents on a running chip."""
    station = ChipStation.create(path)
    with station.chip(allow_forced=True, rate_per_day=0.0) as chip:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(str(chip.socket))
        connection = Connection(end)
        connection.send({"do": "hello"})
        salt = (connection.receive() or {})["salt"]
        assert isinstance(salt, bytes)
        connection.send({"do": "force"})
        assert "interrupt" in (connection.receive() or {})
        assert (connection.receive() or {})["ok"] is True
        leaves = pack_leaves([(len(data), region_digest(data, salt)) for data in held.values()])
        connection.send(
            {"do": "snapshot", "leaves": leaves, "weights": b"", "safepoint": False, "head": b"", "running": b""}
            | {"step": -1, "op": -1} | dict.fromkeys(("held", "stall_us", "unobserved"), 0)
        )  # fmt: skip
        index = (connection.receive() or {})["index"]
        assert isinstance(index, int)
        with endpoints.channel(chip.address, station.verifier(), "chip") as channel:
            stub = chip_pb2_grpc.ChipServiceStub(channel)
            request = chip_pb2.ListEntriesRequest(start=index, end=index + 1)
            (entry,) = endpoints.stream(stub.ListEntries, request)
        opened, found = station.open(chip, index)
        assert opened == salt
        connection.close()
        yield Taken(entry.token, salt, found, station.path / "manufacturer" / "certificate.pem")


def post(referee: Referee, content: Content) -> None:
    """Sends what is due, signed by whose turn it is."""
    party, _ = referee.dispute.due()
    referee.post(signed(referee.dispute.head, content, (CLAIMANT, DENIER)[party]).data)


def opened(claim: Equality) -> Referee:
    """A referee that took the claim."""
    referee = Referee((CLAIMANT.public, DENIER.public), REFEREE)
    referee.post(signed(START, claim, CLAIMANT).data)
    return referee


def played(claim: Equality, claimant: tuple[bytes, bytes], denier: bytes) -> Referee:
    """Plays a dispute to its end.

    Args:
        claim: What is claimed.
        claimant: The bytes whose keyed and whose plain tree the claimant shows.
        denier: The bytes that the denier has.
    """
    referee = opened(claim)
    while referee.ruling is None:
        game = referee.dispute.memory
        assert game is not None
        said = memory_moves.reply(game, denier if game.due()[1] == "doubt" else claimant[1])
        if game.due()[1] == "layer" and claimant[0] != claimant[1]:
            own = memory_moves.reply(game, claimant[0])
            said = type(own)(**{**vars(own), "plain": vars(said)["plain"]})
        post(referee, said)
    return referee


def verdicts(referee: Referee) -> dict[int, tuple[str, str]]:
    """Returns verdict and reason by party."""
    assert referee.ruling is not None
    return {party: (verdict, code) for party, verdict, code, _ in vars(referee.ruling.content)["claims"]}
