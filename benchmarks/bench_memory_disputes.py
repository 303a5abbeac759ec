"""What a dispute about a chip's memory takes, against the size of the storage.

`python -m benchmarks.bench_memory_disputes [--bytes N ...] [--rounds N]`. A chip, in a process of its own, signs a
snapshot of one storage of each size. The challenger claims that it held other bytes, which differ by one bit in the
middle, and shows all of both trees; the defender has the bytes that the chip had. The referee has neither.

- *Messages* and *bytes* are what each party sends.
- *Claim*, *doubt* and *layer* are a party's longest message of that kind, with all hashing; *digest* is hashing the
  storage once with and once without the key, which an inspection does anyway.
- *Referee* is all its work, the ruling included.

Each ruling is checked: the claim is `false`. Times are minima over rounds. Results go to
benchmarks/results/memory_disputes.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_disputes import KEYS, SEED
from firmware_sim import ChipProcess, Shim
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import Leaf, bytes_digest
from weighbridge.execution.dispute import memory_moves
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.memory_messages import Layer
from weighbridge.execution.dispute.messages import Content, Ruling, signed
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.rpc import endpoints

SIZES = (1 << 10, 1 << 20, 1 << 24, 1 << 28)
ROUNDS = 3


def snapshot(directory: Path, size: int) -> tuple[bytes, bytes, bytes, list[Leaf]]:
    """Returns the bytes of a storage that a chip had in memory, its token, the salt and all storages."""
    authority, manufacturer = CertificateAuthority.create("Station"), CertificateAuthority.create("Manufacturer")
    manufacturer.save(directory / "manufacturer")
    authority.issue_role("chip", "chip").save(directory / "credentials")
    chip = ChipProcess(
        directory / "chip", directory / "credentials", manufacturer=directory / "manufacturer", rate_per_day=0.0,
        allow_forced=True,
    )  # fmt: skip
    with chip:
        with Shim.connect(chip.socket) as shim:
            generator = torch.Generator().manual_seed(SEED)
            held = torch.randn(size // 4, generator=generator)
            shim.request_snapshot()
            held.add_(0)  # the chip takes a snapshot before a kernel
            data = held.numpy().tobytes()
        with endpoints.channel(chip.address, authority.issue_role("verifier", "verifier"), "chip") as channel:
            stub = chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]
            entries = list(endpoints.stream(stub.ListEntries, chip_pb2.ListEntriesRequest(start=0, end=3)))
            first, *rest = endpoints.stream(stub.OpenSnapshot, chip_pb2.OpenSnapshotRequest(index=2))
    return data, entries[2].token, first.salt, [(leaf.bytes, leaf.digest) for part in rest for leaf in part.leaves]


def play(token: bytes, salt: bytes, leaves: list[Leaf], held: bytes) -> dict[str, Any]:
    """Plays a dispute about a claim that is false by one bit; returns what it took."""
    other = bytearray(held)
    other[len(held) // 2] ^= 1
    claimed = bytes(other)
    seconds: defaultdict[str, float] = defaultdict(float)
    sent, messages = [0, 0], [0, 0]
    referee = Referee((KEYS[CHALLENGER].public, KEYS[DEFENDER].public), SigningKey.generate())

    def post(party: int, content: Content) -> None:
        data = signed(referee.dispute.head, content, KEYS[party]).data
        sent[party], messages[party] = sent[party] + len(data), messages[party] + 1
        begin = time.perf_counter()
        referee.post(data)
        seconds["referee"] += time.perf_counter() - begin

    begin = time.perf_counter()
    place = memory_moves.storage_of(leaves, salt, held)
    bytes_digest(held)
    seconds["digest"] = time.perf_counter() - begin
    assert place is not None, "the chip had these bytes"
    begin = time.perf_counter()
    claim = memory_moves.claim(token, salt, leaves, place, memory_moves.of_bytes(claimed))
    seconds["claim"] = time.perf_counter() - begin
    keyed = memory_moves.claim(token, salt, leaves, place, memory_moves.of_bytes(held)).keyed
    post(CHALLENGER, replace(claim, keyed=keyed))
    while referee.ruling is None:
        game = referee.dispute.memory
        assert game is not None
        party, due = game.due()
        begin = time.perf_counter()
        said: Content = memory_moves.reply(game, claimed if party == CHALLENGER else held)
        seconds[due] = max(seconds[due], time.perf_counter() - begin)
        if isinstance(said, Layer):
            true = memory_moves.reply(game, held)
            assert isinstance(true, Layer)
            said = replace(said, keyed=true.keyed)
        post(party, said)
    assert isinstance(referee.ruling.content, Ruling)
    if [each[:2] for each in referee.ruling.content.claims] != [(CHALLENGER, "false")]:
        raise RuntimeError("a false claim was not refuted")
    return {"messages": messages, "bytes": sent, "seconds": dict(seconds)}


def main() -> None:
    """Measures each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
    rows = []
    for size in options.bytes:
        with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
            held, token, salt, leaves = snapshot(Path(directory), size)
        play(token, salt, leaves, held)  # compiles kernels
        rounds = [play(token, salt, leaves, held) for _ in range(options.rounds)]
        least = {name: round(min(each["seconds"][name] for each in rounds), 4) for name in rounds[0]["seconds"]}
        rows.append({"size": size, **{name: rounds[0][name] for name in ("messages", "bytes")}, "seconds": least})
        print(rows[-1], flush=True)
    about = {**machine.about(), "load_before": load, "rounds": options.rounds, "seed": SEED}
    machine.save("memory_disputes", {**about, "storages": rows})


if __name__ == "__main__":
    main()
