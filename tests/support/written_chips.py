"""Chips whose logs a test writes: real keys and signatures, served over mutual TLS as a chip serves its own log.

For inspections of runs that a dishonest Prover wrote to order: the chip logs what it would have seen of such a run,
without training on a chip.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import grpc
from support.chip_logs import SALT, LogBuilder, make_device
from support.recordings import replay_here, replay_rank_here
from support.station import Station
from support.workers_here import workers_here

from firmware_sim.service import ALLOW as CHIP_ALLOW
from firmware_sim.service import ChipServicer
from protos.weighbridge.v1 import chip_pb2_grpc, prover_pb2_grpc
from prover.keeping.archive import Archive
from prover.service import ALLOW as PROVER_ALLOW
from prover.service import ProverService
from verifier.checks.commitment import EVENT
from verifier.registry import Chip
from verifier.store.cache import Cache
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.core import merkle
from weighbridge.core.digests import Leaf, snapshot_root
from weighbridge.rpc import endpoints
from weighbridge.transcript.job_record import is_job
from weighbridge.transcript.reader import Transcript


class WrittenChip:
    """A device and its log; has what `ChipServicer` asks of a firmware."""

    cosigned = b""

    def __init__(self, directory: Path, manufacturer: CertificateAuthority) -> None:
        """Provisions a device and boots it."""
        self.device = make_device(directory, manufacturer)
        self.log = LogBuilder(self.device, time_ms=int(time.time() * 1000) - 60_000).boot()
        self._opened: dict[int, tuple[list[Leaf], list[Leaf]]] = {}

    @property
    def ueid(self) -> bytes:
        """Its identity."""
        return self.device.ueid

    def told(self, run: Path) -> WrittenChip:
        """Logs that a run begins."""
        self.log.event(EVENT, Transcript.open(run).draft_digest)
        return self

    def saw(self, run: Path, step: int, op: int = 0, **claims: Any) -> int:
        """Logs the snapshot that an honest chip would have taken of a run there; returns its place in the log.

        Args:
            run: A transcript that replays up to there; if it is a rank's of a job, with all ranks.
            step: Step of the position.
            op: Operations of it that were complete.
            claims: In place of what the token would say.
        """
        replay = replay_rank_here if is_job(run.parent) else replay_here
        found = replay(run, stop=(step, op), salt=SALT)
        assert found["verdict"] == "match", found["findings"]
        leaves, weights = (
            [(size, bytes.fromhex(keyed)) for size, keyed in found[name] or ()] for name in ("live", "weights")
        )
        body = {
            "step": step,
            "op": op,
            "head": bytes.fromhex(found["head"]),
            "running": bytes.fromhex(found["running"]),
            "flops": found["flops"],
            "weights_root": snapshot_root(weights, SALT),
            "weights_bytes": sum(size for size, _ in weights),
        }
        return self.shows(leaves, weights, **{**body, **claims})

    def claims(self, run: Path, step: int) -> int:
        """Logs a snapshot at the beginning of a step of a run that does not replay up to there."""
        return self.shows([(8, b"a" * 32)], [], step=step, op=0, head=Transcript.open(run).head(step - 1), flops=0)

    def shows(self, leaves: list[Leaf], weights: list[Leaf], **claims: Any) -> int:
        """Logs a snapshot of some storages, and opens it as they are."""
        index = self.log.snapshot(leaves, **claims)
        self._opened[index] = leaves, weights
        return index

    def head(self, nonce: bytes) -> bytes:
        """See `firmware_sim.firmware.Firmware`, here and below."""
        return self.log.head(nonce)

    def checkpoint(self, nonce: bytes) -> tuple[bytes, bytes, None]:
        return self.log.checkpoint(), self.log.head(nonce), None

    def consistency_proof(self, old_size: int, size: int) -> list[bytes]:
        return merkle.consistency_proof([merkle.leaf_hash(entry) for entry in self.log.entries[:size]], old_size)

    def entries(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        yield from list(enumerate(self.log.entries))[start:end]

    def open_snapshot(self, index: int) -> tuple[bytes, list[Leaf], list[Leaf]]:
        return SALT, *self._opened[index]


class _Service(ChipServicer):
    """The log of the chip that the caller names."""

    def __init__(self, chips: dict[bytes, WrittenChip]) -> None:
        self._chips = chips

    def _chosen(self, context: grpc.ServicerContext) -> Any:
        named = next(value for key, value in context.invocation_metadata() if key == endpoints.CHIP)
        assert isinstance(named, bytes)
        return self._chips[named]


class Bench(Station):
    """A station on whose chips nothing has to run.

    Attributes:
        host: Credentials of the service that answers for all chips.
        address: Where it answers.
    """

    def __init__(self, root: Path) -> None:
        """Starts the service of the chips that will be written."""
        super().__init__(root)
        self._written: dict[bytes, WrittenChip] = {}
        self.host = self.authority.issue_role("chip", "written")
        server, self.address = endpoints.server(self.host, allow=CHIP_ALLOW)
        service = _Service(self._written)
        chip_pb2_grpc.add_ChipServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        server.start()
        self._stack.callback(lambda: server.stop(0).wait())

    def __enter__(self) -> Bench:
        return self

    def written(self) -> WrittenChip:
        """A new chip, with a log that has but a boot."""
        chip = WrittenChip(self.root / "written" / str(len(self._written)), self.manufacturer)
        self._written[chip.ueid] = chip
        return chip

    def at_end(self, run: Path, *, replays: bool = True) -> WrittenChip:
        """A new chip that has a run in memory, right after its last step; of one that does not replay, anything."""
        chip = self.written().told(run)
        see = chip.saw if replays else chip.claims
        see(run, Transcript.open(run).steps)
        return chip

    @contextmanager
    def shown(
        self,
        runs: Path,
        service: type[ProverService] = ProverService,
        *,
        credentials: Credentials | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Serves a Prover over some runs; yields its address."""
        credentials = credentials or self.authority.issue_role("prover", "p")
        server, address = endpoints.server(credentials, allow=PROVER_ALLOW)
        prover = service(Archive(runs), **options)
        prover_pb2_grpc.add_ProverServiceServicer_to_server(prover, server)  # type: ignore[no-untyped-call]
        server.start()
        try:
            yield address
        finally:
            server.stop(0).wait()

    def inspected(
        self,
        runs: Path,
        *chips: WrittenChip,
        service: type[ProverService] = ProverService,
        cache: Cache | None = None,
        apart: bool = False,
        **also: Any,
    ) -> dict[str, Any]:
        """Inspects exactly these chips, whose Prover shows what lies in a directory, and returns the report.

        Args:
            runs: The Prover's transcripts.
            chips: Whom to inspect.
            service: The Prover's service.
            cache: As for `Station.inspect`.
            apart: Whether workers are processes of their own, as they always are elsewhere.
            also: As for `Station.inspect`.
        """
        with self.shown(runs, service) as address, nullcontext() if apart else workers_here():
            names = []
            for chip in chips:
                names.append(chip.ueid.hex())
                self.ueids[names[-1]] = chip.ueid
                self.registry.register(Chip(ueid=chip.ueid, address=self.address, prover_address=address))
            return self.inspect(*names, cache=cache, **also)
