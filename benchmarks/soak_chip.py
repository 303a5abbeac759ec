"""Takes a chip's power away at random moments, and looks whether it forgot anything that it had acknowledged.

`python -m benchmarks.soak_chip [--kills N] [--seed N]` runs a real chip with a small NVRAM and a real witness. A client
in the place of a shim logs events and snapshots as fast as it can; after a random time the chip is killed (SIGKILL) and
started again, in the mode in which it only logs or in that in which it waits for the witness, in turn. Each time

- every entry whose index the client was told is in the log, at that index, with that content;
- at most one entry is there that the client was not told of (the one that was in progress), besides those of boots;
- the log's tree continues the one before, with a proof;
- what the chip released is with the witness.

Hashes of entries stay in the NVRAM for ever, and a small one is full of them after some 6,000 entries. So every few
kills the chip is restarted with as much more NVRAM as they take: what is left for entries stays small.

Results go to benchmarks/results/soak_chip.json.
"""

from __future__ import annotations

import argparse
import random
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firmware_sim import ChipProcess, provision
from firmware_sim.frames import Connection
from firmware_sim.nvlog import MIN_CAPACITY
from protos.weighbridge.v1 import witness_pb2_grpc
from verifier.contact import witness_service
from verifier.contact.clients import ChipClient
from verifier.contact.witness import Witness, load_signer
from verifier.registry import Chip, Registry
from weighbridge.attest import chip_log
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import Token, verify, verify_log
from weighbridge.core import merkle
from weighbridge.core.errors import FormatError, WeighbridgeError
from weighbridge.rpc import endpoints

NOTHING = {"leaves": b"", "weights": b"", "safepoint": False, "head": b"", "running": b"", "step": -1, "op": -1}
COUNTERS = dict.fromkeys(["held", "stall_us", "unobserved"], 0)

KILLS_A_SIZE = 40  # An even number, so that each begins with the chip that only logs.


@dataclass
class Acknowledged:
    """What the client knows of the log.

    Attributes:
        entries: Name of the event (empty for a snapshot) by index.
        sizes: Checkpoints that were verified: size and root.
    """

    entries: dict[int, str] = field(default_factory=dict)
    sizes: list[tuple[int, bytes]] = field(default_factory=list)


class Rig:
    """A chip, a witness that runs all the time, and their authorities, in one directory."""

    def __init__(self, path: Path) -> None:
        """Provisions the chip and starts the witness."""
        self.manufacturer = CertificateAuthority.create("Manufacturer")
        self.authority = CertificateAuthority.create("Station")
        self.credentials = self.authority.issue_role("verifier", "verifier")
        self.ueid = provision(path / "chip", self.manufacturer)
        self.authority.issue_role("chip", "chip", ueids=[self.ueid]).save(path / "credentials")
        self.registry = Registry(path / "registry.db")
        self.registry.register(Chip(ueid=self.ueid, address="localhost:1"))
        self.witness = Witness(self.registry, self.manufacturer.certificate, load_signer(path / "witness-key"))
        self.path = path

    @contextmanager
    def serve(self, address: str = "127.0.0.1:0") -> Iterator[str]:
        """Serves the witness; yields its address."""
        server, bound = endpoints.server(self.credentials, allow=witness_service.ALLOW, address=address)
        witness_pb2_grpc.add_WitnessServiceServicer_to_server(  # type: ignore[no-untyped-call]
            witness_service.WitnessServicer(self.witness), server
        )
        server.start()
        try:
            yield bound
        finally:
            server.stop(0.2).wait()

    def chip(self, **options: Any) -> ChipProcess:
        """A chip that is not started yet; it trusts the witness."""
        options = {"witness_key": self.path / "witness-key.pub", "nvram": MIN_CAPACITY, **options}
        return ChipProcess(self.path / "chip", self.path / "credentials", allow_forced=True, **options)

    @contextmanager
    def both_modes(self, nvram: int = MIN_CAPACITY) -> Iterator[tuple[ChipProcess, ChipProcess]]:
        """The same chip twice: as one that only logs, which runs already, and as one that waits for the witness."""
        with self.serve() as witness, self.chip(witness=witness, nvram=nvram) as logs:
            waits = self.chip(report="wait", witness=witness, nvram=nvram)
            try:
                yield logs, waits
            finally:
                waits.stop()

    def log(self, chip: ChipProcess) -> tuple[list[Token], int, bytes]:
        """Reads all entries, released ones from the witness; returns them with the verified size and root."""
        while True:
            try:
                return self._log(chip)
            except WeighbridgeError as error:  # the chip reports meanwhile, and may release what the witness took in
                if error.reason != "chip.log.released":
                    raise

    def _log(self, chip: ChipProcess) -> tuple[list[Token], int, bytes]:
        nonce = secrets.token_bytes(32)
        with ChipClient(chip.address, self.credentials) as client:
            note, data = client.checkpoint(nonce)
            head = verify(data, self.manufacturer.certificate).token
            assert head.nonce == nonce
            checkpoint, _ = chip_log.open_checkpoint(note, head)
            held = self.witness.entries(self.ueid, 0, checkpoint.size)
            entries = [*held, *client.entries(checkpoint.size, len(held))]
        assert merkle.root([merkle.leaf_hash(entry) for entry in entries]) == checkpoint.root
        assert head.body["counter"] == checkpoint.size
        verified = [each.token for each in verify_log(entries, self.manufacturer.certificate)]
        return verified, checkpoint.size, checkpoint.root


def connect(chip: ChipProcess) -> Connection:
    """Attaches to the chip as a shim would."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(str(chip.socket))
    return Connection(end)


def ask(connection: Connection, message: dict[str, Any]) -> dict[str, Any] | None:
    """Asks the chip; returns its answer, None if it is gone."""
    try:
        connection.send(message)
        while (answer := connection.receive()) is not None and ("wait" in answer or "interrupt" in answer):
            pass
    except (OSError, FormatError):
        return None
    return answer


def work(connection: Connection, known: Acknowledged, number: Callable[[], int]) -> None:
    """Logs events and snapshots until the chip is gone, and remembers what it acknowledged."""
    if ask(connection, {"do": "hello"}) is None:
        return
    while True:
        if number() % 3 == 0:
            name = ""
            ask(connection, {"do": "force"})
            answer = ask(connection, {"do": "snapshot", **NOTHING, **COUNTERS})
        else:
            name = f"event {secrets.token_hex(8)}"
            answer = ask(connection, {"do": "event", "name": name, "digest": bytes(32)})
        if answer is None:
            return
        if "index" in answer:
            known.entries[int(answer["index"])] = name


def kill_once(rig: Rig, known: Acknowledged, chip: ChipProcess, seconds: float, then: ChipProcess) -> str:
    """Works on a running chip for a while, takes its power, starts it again as `then` and checks its log.

    Returns:
        What is wrong; empty if nothing is.
    """
    before = len(known.entries)
    counter = iter(range(1_000_000_000))
    worker = threading.Thread(target=work, args=(connect(chip), known, lambda: next(counter)), daemon=True)
    worker.start()
    time.sleep(seconds)
    chip.kill()
    worker.join()
    then.start()
    try:
        tokens, size, root = rig.log(then)
        with ChipClient(then.address, rig.credentials) as client:
            for old_size, old_root in known.sizes[-1:]:
                proof = client.consistency_proof(old_size, size)
                merkle.verify_consistency(old_size, size, proof, old_root, root)
    except (WeighbridgeError, AssertionError) as error:
        return f"the log does not verify: {error}"
    known.sizes.append((size, root))
    for index, name in known.entries.items():
        if index >= len(tokens) or tokens[index].body.get("name", "") != name:
            return f"entry {index} was acknowledged and is not there"
    untold = [token for token in tokens if token.kind != "boot" and token.index not in known.entries]
    for token in untold:
        known.entries[token.index] = str(token.body.get("name", ""))  # From now on it counts as known.
    # One that was in progress, and one of the chip's own about an interrupt that the client left standing.
    if len(untold) > 2:
        return f"{len(untold)} entries are there that were never reported"
    return "" if len(known.entries) > before or seconds < 0.2 else "nothing was logged"


def kills(rig: Rig, known: Acknowledged, choose: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Takes the power away `count` times; yields what is wrong."""
    for first in range(0, count, KILLS_A_SIZE):
        with rig.both_modes(MIN_CAPACITY + merkle.HASH_SIZE * len(known.entries)) as chips:
            for number in range(first, min(first + KILLS_A_SIZE, count)):
                seconds = choose.uniform(0.0, 0.6)
                if problem := kill_once(rig, known, chips[number % 2], seconds, chips[(number + 1) % 2]):
                    print(f"kill {number}: {problem}", flush=True)
                    yield {"kill": number, "seconds": seconds, "problem": problem}


def main() -> int:
    """Runs the soak; returns 1 if anything was lost."""
    from benchmarks import machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how often the power goes")
    parser.add_argument("--seed", type=int, default=1, help="chooses the moments")
    options = parser.parse_args()
    choose, known, begin = random.Random(options.seed), Acknowledged(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weighbridge-chip-soak-") as directory:
        rig = Rig(Path(directory))
        wrong = list(kills(rig, known, choose, options.kills))
        held = rig.witness.held(rig.ueid).size
    machine.save(
        "soak_chip",
        {
            **machine.about(),
            "seed": options.seed,
            "kills": options.kills,
            "entries": known.sizes[-1][0],
            "besides_boots": len(known.entries),
            "held_by_witness": held,
            "nvram_bytes_for_entries": MIN_CAPACITY,
            "wrong": wrong,
            "seconds": round(time.perf_counter() - begin, 1),
        },
    )
    print(f"{options.kills} kills, {known.sizes[-1][0]} entries, {len(wrong)} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
