"""The Verifier's side of ChipService and ProverService: what arrives is counted here and judged elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from cryptography.x509 import Certificate
from grpc import Channel

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc, prover_pb2, prover_pb2_grpc
from verifier.model.facts import Explanation, Opening, digest, number
from verifier.store.cache import Piece
from weighbridge.attest.identity import Credentials
from weighbridge.attest.tokens import MAX_TOKEN_BYTES, Token, Verified, verify
from weighbridge.core.digests import DIGEST_SIZE, Leaf
from weighbridge.core.errors import ChipError, FormatError, ProverError, TokenError, WeighbridgeError
from weighbridge.execution import collective_openings
from weighbridge.execution.collective_openings import Target
from weighbridge.rpc import endpoints
from weighbridge.rpc.patience import Patience
from weighbridge.transcript.job_record import MAX_RANKS
from weighbridge.transcript.record_opening import OpenedRecord

T = TypeVar("T")

CALL_SECONDS = 20.0
"""For a call that needs no work to speak of."""
LOG_SECONDS = 300.0
"""For all entries of a log, or all leaves of a snapshot."""
FETCH_SECONDS = 4 * 3600.0
"""For one transcript."""
FETCH_IDLE_S, FETCH_LEAST_PER_S = 60.0, float(128 << 10)
"""Seconds for which a Prover may send nothing, and bytes a second that it must send on average beyond these."""
FETCH_ATTEMPTS, FETCH_PAUSE_S = 5, 1.0
"""How often, and after how long, a transcript is asked for again when its connection breaks."""
MAX_ENTRIES = 1_000_000
MAX_LEAVES = 4_000_000
_MAX_PATH = 65
"""Digests of a Merkle path that are read: no tree that counts its leaves in 64 bits needs more."""


class _Client:
    def __init__(self, address: str, credentials: Credentials, role: str, unreachable: type[WeighbridgeError]) -> None:
        self._stack = ExitStack()
        self._address, self._credentials, self._role, self._unreachable = address, credentials, role, unreachable

    def __enter__(self) -> Self:
        channel = self._stack.enter_context(
            endpoints.channel(self._address, self._credentials, self._role, unreachable=self._unreachable)
        )
        self._connect(channel)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def _connect(self, channel: Channel) -> None:
        raise NotImplementedError


class ChipClient(_Client):
    """One chip's service.

    Example:
        >>> with ChipClient("chip-7:4000", credentials) as chip:
        ...     token = chip.head(nonce)
    """

    def __init__(self, address: str, credentials: Credentials, ueid: bytes = b"") -> None:
        """Prepares a connection.

        Args:
            address: The chip's `host:port`.
            credentials: The Verifier's own.
            ueid: Which chip is wanted, where many answer. Who did answer is what signatures say.

        Raises:
            ChipError: There is no address.
        """
        if not address:
            raise ChipError("the registry has no address of this chip; have its holder name it, or inspect it on site")
        super().__init__(address, credentials, "chip", ChipError)
        self._metadata = ((endpoints.CHIP, ueid),) if ueid else ()

    def _connect(self, channel: Channel) -> None:
        self._stub = chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]

    def identity(self, nonce: bytes, manufacturer: Certificate) -> Verified:
        """Returns who the chip is and how long its log is, as a verified token of kind head over `nonce`.

        Args:
            nonce: 8 to 64 fresh random bytes.
            manufacturer: Root certificate that the chip's identity must lead to.

        Raises:
            TokenError: The token does not verify, is not over `nonce`, or says other things than the answer around it.
            IdentityError: Its certificates do not lead to `manufacturer`.
            WeighbridgeError: As `head`.
        """
        answer = self._call(self._stub.GetIdentity, chip_pb2.GetIdentityRequest(nonce=nonce))
        verified = verify(bytes(answer.token), manufacturer)
        if verified.token.kind != "head" or verified.token.nonce != nonce:
            raise TokenError("the chip did not sign over the nonce that it was sent; its answer may be an old one")
        ueid, tcb = verified.identity.ueid, verified.identity.tcb
        said = (answer.ueid, answer.firmware_version, answer.firmware_digest, answer.firmware_svn, answer.mode)
        if (*said, answer.hwmodel) != (ueid, tcb.version, tcb.measurement, tcb.svn, tcb.mode, tcb.model):
            raise TokenError("the chip says other things about itself than its certificates; do not believe it")
        return verified

    def head(self, nonce: bytes) -> bytes:
        """Returns the token of kind head over `nonce`.

        Raises:
            WeighbridgeError: The chip does not answer (`chip.unreachable`), or answers with an error of its own.
        """
        request = chip_pb2.GetHeadRequest(nonce=nonce)
        return bytes(self._call(self._stub.GetHead, request).token)

    def checkpoint(self, nonce: bytes) -> tuple[bytes, bytes]:
        """Returns the log's checkpoint, a signed note, and the head token over `nonce` that binds it to the chip.

        Raises:
            WeighbridgeError: As `head`.
        """
        request = chip_pb2.GetCheckpointRequest(nonce=nonce)
        answer = self._call(self._stub.GetCheckpoint, request)
        return bytes(answer.checkpoint), bytes(answer.token)

    def consistency_proof(self, old_size: int, size: int) -> list[bytes]:
        """Returns the chip's proof that its log of `old_size` entries is a prefix of that of `size`; not verified.

        Raises:
            WeighbridgeError: As `head`.
        """
        request = chip_pb2.GetConsistencyProofRequest(old_size=old_size, size=size)
        return list(self._call(self._stub.GetConsistencyProof, request).hashes)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """Returns the chip's proof that entry `index` is in its log of `size` entries; not verified.

        Raises:
            WeighbridgeError: As `head`.
        """
        request = chip_pb2.GetInclusionProofRequest(index=index, size=size)
        return list(self._call(self._stub.GetInclusionProof, request).hashes)

    def add_cosignature(self, checkpoint: bytes) -> int:
        """Gives the chip a cosigned checkpoint; returns the lowest index that it still keeps.

        Raises:
            WeighbridgeError: The chip refuses it, or as `head`.
        """
        request = chip_pb2.AddCosignatureRequest(checkpoint=checkpoint)
        return int(self._call(self._stub.AddCosignature, request).first)

    def entries(self, size: int, start: int = 0) -> Iterator[bytes]:
        """Yields the log entries from `start` to before `size` as the chip sends them.

        Raises:
            ChipError: The log is longer than a Verifier reads, or the entries do not come in order.
            WeighbridgeError: As `head`.
        """
        if size > MAX_ENTRIES:
            raise ChipError(
                f"the log claims {size} entries; a Verifier reads at most {MAX_ENTRIES}", code="chip.log.size"
            )
        request = chip_pb2.ListEntriesRequest(start=start, end=size)
        for seen, message in enumerate(self._stream(self._stub.ListEntries, request), start):
            if message.index != seen or seen >= size or len(message.token) > MAX_TOKEN_BYTES:
                raise ChipError(
                    f"entry {message.index} came where entry {seen} of {size} was due; ask the chip again",
                    code="chip.log.incomplete",
                )
            yield bytes(message.token)

    def open_snapshot(self, token: Token) -> Opening:
        """Returns salt and leaves of a snapshot, and which of these the workload declared as weights.

        Args:
            token: Its token, which says how many leaves there must be.

        Raises:
            FormatError: The answer has another form, or more leaves than were signed for.
            WeighbridgeError: As `head`.
        """
        promised = number(token, "leaves")
        if promised > MAX_LEAVES:
            raise FormatError(f"the snapshot claims {promised} storages; a Verifier reads at most {MAX_LEAVES}")
        salt, leaves, weights = b"", list[Leaf](), list[Leaf]()
        request = chip_pb2.OpenSnapshotRequest(index=token.index)
        for message in self._stream(self._stub.OpenSnapshot, request):
            if bool(message.salt) == bool(salt):
                raise FormatError("an opened snapshot must begin with its salt, and hold no other; ask the chip again")
            salt = salt or bytes(message.salt)
            leaves += [(int(leaf.bytes), bytes(leaf.digest)) for leaf in message.leaves]
            weights += [(int(leaf.bytes), bytes(leaf.digest)) for leaf in message.weights]
            if max(len(leaves), len(weights)) > promised:
                raise FormatError(f"the chip opened more than the {promised} storages that it signed for")
        if len(salt) != DIGEST_SIZE or any(len(digest) != DIGEST_SIZE for _, digest in leaves + weights):
            raise FormatError("the salt and the digests of an opened snapshot have 32 bytes each; ask the chip again")
        return Opening(salt=salt, leaves=leaves, weights=weights)

    def _call(self, method: Callable[..., T], request: Any) -> T:
        return endpoints.call(method, request, deadline_s=CALL_SECONDS, metadata=self._metadata)

    def _stream(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        return endpoints.stream(method, request, deadline_s=LOG_SECONDS, metadata=self._metadata)


class ProverClient(_Client):
    """One Prover's service."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        """Prepares a connection to `address` (host:port) with the Verifier's credentials."""
        super().__init__(address, credentials, "prover", ProverError)

    def _connect(self, channel: Channel) -> None:
        self._stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]

    def explain(self, token: Token) -> Explanation | None:
        """Returns the Prover's claim where a snapshot came from, or None if it has no explanation.

        Raises:
            WeighbridgeError: The Prover does not answer (`prover.unreachable`), or answers with an error of its own.
        """
        request = prover_pb2.ExplainRequest(
            ueid=token.ueid,
            log_index=token.index,
            step=number(token, "step"),
            op=number(token, "op"),
            head=digest(token, "head"),
        )
        answer = endpoints.call(self._stub.Explain, request, deadline_s=CALL_SECONDS, unreachable=ProverError)
        if not answer.explained:
            return None
        ranks = tuple(each[:100] for each in answer.ranks[:MAX_RANKS])
        return Explanation(transcript_id=answer.transcript_id[:100], step=answer.step, op=answer.op, ranks=ranks)

    def pieces(self, transcript_id: str) -> Iterator[Piece]:
        """Yields the pieces of a transcript's files; goes on where it was when a connection breaks.

        Raises:
            WeighbridgeError: As `explain`, after `FETCH_ATTEMPTS` connections in a row that brought nothing, or once
                all of them together are slower than `FETCH_LEAST_PER_S` allows.
        """
        end, attempts = time.monotonic() + FETCH_SECONDS, 0
        patience = Patience(FETCH_IDLE_S, FETCH_LEAST_PER_S)
        path, offset, complete = "", 0, False
        while True:
            request = prover_pb2.FetchTranscriptRequest(id=transcript_id, path=path, offset=offset)
            left = max(0.0, end - time.monotonic())
            try:
                for piece in endpoints.stream(
                    self._stub.FetchTranscript,
                    request,
                    deadline_s=left,
                    unreachable=ProverError,
                    patience=patience,
                ):
                    if complete and piece.path == path:
                        continue  # The end of a file that is here already.
                    path, offset, complete, attempts = piece.path, piece.offset + len(piece.data), piece.last, 0
                    yield piece
                return
            except ProverError as error:
                attempts += 1
                if not path or error.reason != ProverError.code or attempts >= FETCH_ATTEMPTS or patience.spent:
                    raise
            patience.pause(min(FETCH_PAUSE_S, max(0.0, end - time.monotonic())))

    def records(self, transcript_id: str, records: Sequence[int]) -> list[OpenedRecord]:
        """Returns those of some records of a data set that the Prover opens; not verified.

        Args:
            transcript_id: The transcript that is committed to the data set.
            records: Ids of records, none twice.

        Raises:
            FormatError: The Prover sends other records, or not in their order.
            WeighbridgeError: As `explain`.
        """
        request = prover_pb2.OpenRecordsRequest(id=transcript_id, records=records)
        found: list[OpenedRecord] = []
        waiting = iter(records)
        for message in endpoints.stream(
            self._stub.OpenRecords, request, deadline_s=LOG_SECONDS, unreachable=ProverError
        ):
            if message.record not in waiting:  # this takes from the iterator up to there
                raise FormatError(f"record {message.record} came, which was not asked for or not due; ask again")
            path = tuple(bytes(each) for each in message.path[:_MAX_PATH])
            found.append(OpenedRecord(record=int(message.record), content=bytes(message.content), proof=path))
        return found

    def supplements(
        self, transcript_id: str, steps: tuple[int, int], *, deadline_s: float,
        progress: Callable[[int, int], None],
    ) -> Iterator[tuple[int, int, bytes, bool]]:  # fmt: skip
        """Yields the rounding logs of some steps in pieces: (step, offset, data, last); not verified.

        The Prover makes them meanwhile, and may do so until the deadline as long as it shows signs of life.

        Args:
            transcript_id: The transcript.
            steps: (first, last + 1).
            deadline_s: Seconds for all of it; the Prover is told.
            progress: Told how many steps the Prover says that it has executed, and of how many; not what cannot be.

        Raises:
            WeighbridgeError: As `explain`.
        """
        request = prover_pb2.FetchSupplementsRequest(id=transcript_id, begin=steps[0], end=steps[1])
        for message in endpoints.stream(
            self._stub.FetchSupplements,
            request,
            deadline_s=deadline_s,
            unreachable=ProverError,
            patience=Patience(FETCH_IDLE_S, 0.0),
        ):
            if message.HasField("piece"):
                piece = message.piece
                yield int(piece.step), int(piece.offset), bytes(piece.data), bool(piece.last)
            elif message.HasField("progress"):
                done, total = int(message.progress.done), int(message.progress.total)
                if 0 <= done <= total <= steps[1]:  # no more are executed than lie before the end
                    progress(done, total)

    def cell_results(
        self, transcript_id: str, ranks: Sequence[str], steps: tuple[int, int], *, limit: int, deadline_s: float
    ) -> Iterator[bytes]:
        """Yields a file with the results of a cell's collectives, in pieces; not verified.

        Args:
            transcript_id: The transcript of the cell's rank.
            ranks: Those of all ranks of the job, by rank.
            steps: (first, last + 1) of the cell.
            limit: Bytes that the file may have.
            deadline_s: Seconds for all of it; the Prover replays the job meanwhile.

        Raises:
            FormatError: The Prover sends more than that.
            WeighbridgeError: As `explain`.
        """
        request = prover_pb2.FetchResultsRequest(id=transcript_id, ranks=ranks, begin=steps[0], end=steps[1])
        size = 0
        for message in endpoints.stream(
            self._stub.FetchResults,
            request,
            deadline_s=deadline_s,
            unreachable=ProverError,
            patience=Patience(FETCH_IDLE_S, FETCH_LEAST_PER_S, first_s=deadline_s),
        ):
            size += len(message.data)
            if size > limit:
                raise FormatError(f"the Prover sends more than the {limit} bytes that these results can have")
            yield bytes(message.data)

    def open_chunks(
        self, transcript_id: str, ranks: Sequence[str], targets: Sequence[Target], *, limit: int, deadline_s: float
    ) -> Iterator[list[collective_openings.Piece]]:
        """Yields the opened pieces of each chunk in the order of `targets`, the result's first; not verified.

        Args:
            transcript_id: The transcript of the cell's rank.
            ranks: Those of all ranks of the job, by rank.
            targets: The chunks, none twice.
            limit: Pieces that one chunk may have.
            deadline_s: Seconds for all of it; the Prover replays the job meanwhile.

        Raises:
            FormatError: The pieces do not come in order, or are too many or too large.
            WeighbridgeError: As `explain`.
        """
        chunks = [prover_pb2.ResultChunk(step=t.step, op=t.op, out=t.out, chunk=t.chunk) for t in targets]
        request = prover_pb2.OpenContributionsRequest(id=transcript_id, ranks=ranks, chunks=chunks)
        pieces: list[collective_openings.Piece] = []
        place = 0
        answers = endpoints.stream(
            self._stub.OpenContributions,
            request,
            deadline_s=deadline_s,
            unreachable=ProverError,
            patience=Patience(FETCH_IDLE_S, FETCH_LEAST_PER_S, first_s=deadline_s),
        )
        for message in answers:
            if message.place == place + 1 and pieces:
                yield pieces
                place, pieces = place + 1, []
            if (message.place, message.part) != (place, len(pieces)) or place >= len(targets) or len(pieces) >= limit:
                raise FormatError(
                    f"part {message.part} of chunk {message.place} came where part {len(pieces)} of chunk {place} was "
                    "due; ask the Prover again"
                )
            pieces.append(collective_openings.piece([bytes(message.data), [bytes(each) for each in message.path]]))
        if pieces:
            yield pieces
