"""A Verifier whose witness chips report to, and a beacon: what runs need that repeat segments while they go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.on_demand import STEPS, place, regenerated
from support.station import Station
from support.tied_rows import ones, square, ties
from support.train_job import FORMULAS, batch_of, build, update
from support.written_chips import Bench, WrittenChip

from firmware_sim import ChipProcess, Shim, provision
from protos.weighbridge.v1 import witness_pb2_grpc
from prover import Recorder, Repeats
from verifier.contact import witness_service
from verifier.contact.witness import Witness, load_signer
from verifier.registry import Chip
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.chip_link import ChipLink
from weighbridge.attest.repeats import KEY, SEGMENT, commitment, commitment_event
from weighbridge.rpc import endpoints
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import read_statement


@contextmanager
def published(beacon: LocalBeacon, directory: Path) -> Iterator[Path]:
    """Publishes each value of a beacon once its time has come, as a cron job would; yields the directory."""
    ended = threading.Event()

    def publish() -> None:
        number = beacon.info.round_after(int(beacon.info.genesis_s * 1000)) - 1
        while not ended.wait(0.1):
            while beacon.value(number) is not None:
                beacon.publish(directory, number)
                number += 1

    beacon.publish(directory, 1)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield directory
    finally:
        ended.set()
        thread.join()


class WitnessedStation(Station):
    """A station whose chips report to the Verifier's witness.

    Attributes:
        witness: The witness.
        beacon: A beacon of its own, of a value each second.
        values: Where these are published.
    """

    def __init__(self, root: Path) -> None:
        """Starts the witness's service, and publishes the beacon's values."""
        super().__init__(root)
        signer = load_signer(root / "witness-key")
        self.witness = Witness(self.registry, self.manufacturer.certificate, signer)
        server, self._address = endpoints.server(self.verifier, allow=witness_service.ALLOW)
        witness_pb2_grpc.add_WitnessServiceServicer_to_server(  # type: ignore[no-untyped-call]
            witness_service.WitnessServicer(self.witness), server
        )
        server.start()
        self._stack.callback(lambda: server.stop(0).wait())
        self.beacon = LocalBeacon.load(root / "beacon-key")
        self.values = self._stack.enter_context(published(self.beacon, root / "beacon"))

    def __enter__(self) -> WitnessedStation:
        return self

    def watched(self, name: str, prover: str = "") -> ChipProcess:
        """A chip that reports to the witness."""
        directory = self.root / "chips" / name
        self.ueids[name] = ueid = provision(directory, self.manufacturer, image=self.image)
        self.authority.issue_role("chip", name, ueids=[ueid]).save(self.root / f"{name}-credentials")
        chip = ChipProcess(
            directory, self.root / f"{name}-credentials", rate_per_day=1.0, hold=64, allow_forced=True,
            witness=self._address, witness_key=self.root / "witness-key.pub",
        )  # fmt: skip
        self.chips[name] = self._stack.enter_context(chip)
        self.register(name, prover)
        return chip

    def repeats(self, share: float = 1.0, delay_s: int = 300) -> Repeats:
        """What a Recorder is given."""
        return Repeats(beacon=self.values, share=share, delay_s=delay_s)


def record(
    out: Path, chip: ChipLink, repeats: Repeats, *, steps: int = 3, every: int = 3, logs: Any = "on-demand", **also: Any
) -> Recorder:
    """Records a small training on a chip that takes a snapshot in its last step; with sketches, in bfloat16."""
    also = {"seed": 1, "formulas": FORMULAS, "logs": logs, "device": "cpu", **also}
    narrow = torch.autocast("cpu", torch.bfloat16, enabled=logs == "sketch")
    with Recorder(out, chip=chip, checkpoint_every=every, repeats=repeats, **also) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        model.register_forward_hook(lambda *_: chip.request_snapshot() if step == steps else None)  # type: ignore[attr-defined]
        for step in range(1, steps + 1):
            batch = batch_of(step)
            with recorder.step(batch), narrow:
                update(model, optimizer, batch)
    return recorder


def trained(out: Path, socket: Path, repeats: Repeats, **also: Any) -> Recorder:
    """Trains on the chip with a socket."""
    with Shim.connect(str(socket)) as chip:
        return record(out, chip, repeats, **also)


def declaring(path: Path, said: object, *, first: int = 0, **options: Any) -> Path:
    """Records the run of `support.on_demand`, with a draft that says something of repeats, and makes all its logs.

    Args:
        path: The run.
        said: What its draft says of repeats.
        first: Number of the first batch.
        options: Those of the Recorder.
    """

    class Declares(Recorder):
        _declares: Mapping[str, Any] = {KEY: said}

    with Declares(path, **{"seed": 7, "checkpoint_every": 2, "logs": "on-demand", **options}) as recorder:
        with recorder.initialisation():
            built = ones()
        recorder.attach(*built)
        for batch in map(ties, range(first, first + STEPS)):
            with recorder.step(batch):
                square(batch, *built)
    regenerated(path)
    return path


@dataclass
class Told:
    """A written chip that logs what a Prover tells it of a run, and reports to a witness now and then.

    Attributes:
        bench: Whose chip it is.
        chip: The chip; its clock is the witness's too.
        run: The run.
    """

    bench: Bench
    chip: WrittenChip
    run: Path

    @classmethod
    def begins(cls, bench: Bench, run: Path) -> Told:
        """A new chip that has logged the run's draft."""
        chip = bench.written()
        bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=""))
        return cls(bench, chip.told(run), run)

    @property
    def transcript(self) -> Transcript:
        return Transcript.open(self.run)

    def ends(self, end: int) -> Told:
        """Logs the end of the segment before a step."""
        self.chip.log.event(SEGMENT, self.transcript.head(end - 1))
        return self

    def commits(self, begin: int, end: int, *, about: int | None = None, logs: Sequence[bytes] | None = None) -> Told:
        """Logs a commitment to the logs that lie beside the run, or to others, for their segment or `about` another."""
        found = [bytes.fromhex(read_statement(place(self.run, step))[0].rounding) for step in range(begin, end)]
        heads = self.transcript.head(begin - 1), self.transcript.head(end - 1)
        digest = commitment(self.transcript.draft_digest, heads, found if logs is None else logs)
        self.chip.log.event(commitment_event(begin if about is None else about), digest)
        return self

    def waits(self, seconds: float) -> Told:
        """Lets time pass."""
        self.chip.log.time_ms += int(seconds * 1000)
        self.chip.log.uptime_ms += int(seconds * 1000)
        return self

    def reports(self) -> Told:
        """Reports to the Verifier's witness."""
        witness, log = Witness(self.bench.registry, self.root, self._signer, self._clock), self.chip.log
        held, nonce = witness.nonce(self.chip.ueid)
        note, token, _ = self.chip.checkpoint(nonce)
        proof = self.chip.consistency_proof(held.size, len(log.entries))
        witness.receive(self.chip.ueid, note, token, proof, log.entries[held.size :])
        return self

    def repeats(self, begin: int, end: int) -> Told:
        """What an honest Prover does with a segment that is due."""
        return self.ends(end).reports().waits(1).commits(begin, end).reports()

    def _clock(self) -> float:
        return self.chip.log.time_ms / 1000

    @property
    def root(self) -> Any:
        return self.bench.manufacturer.certificate

    @property
    def _signer(self) -> Any:
        return load_signer(self.bench.root / "witness-key")
