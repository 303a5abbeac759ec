"""A party's side of the referee's service."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, get_args

from protos.weighbridge.v1 import referee_pb2, referee_pb2_grpc
from weighbridge.attest.identity import Credentials
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import FormatError, WeighbridgeError
from weighbridge.execution.dispute.docket import Standing
from weighbridge.execution.dispute.game import Due
from weighbridge.execution.dispute.messages import MAX_MESSAGE, Message, unpack
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.service import PIECE
from weighbridge.rpc import endpoints

CALL_SECONDS = 20.0
SEND_SECONDS = 3600.0


class RefereeUnreachableError(WeighbridgeError):
    """A referee does not answer."""

    code = "rpc.failed"


class RefereeClient:
    """One referee's service.

    Example:
        >>> with RefereeClient("referee:4000", credentials) as referee:
        ...     dispute, merged = referee.open(challenge, defender, key)
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        """Prepares a connection.

        Args:
            address: The referee's `host:port`.
            credentials: The caller's own.
        """
        self._stack = ExitStack()
        self._address, self._credentials = address, credentials

    def __enter__(self) -> Self:
        channel = self._stack.enter_context(
            endpoints.channel(self._address, self._credentials, "referee", unreachable=RefereeUnreachableError)
        )
        self._stub = referee_pb2_grpc.RefereeServiceStub(channel)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def referee(self) -> tuple[bytes, float]:
        """Returns the referee's key, and the seconds that it gives each party."""
        found = self._call(self._stub.GetReferee, referee_pb2.GetRefereeRequest())
        return found.key, found.clock

    def open(self, challenge: Message, defender: bytes, key: SigningKey) -> tuple[str, bool]:
        """Opens a dispute; returns its name, and whether it was there before.

        Args:
            challenge: The challenge.
            defender: Raw public key of the party that is to answer.
            key: The challenger's, which signs for which referee and against whom the challenge is.
        """
        notice = Notice(referee=self.referee()[0], defender=defender, challenge=challenge.head).signed(key)
        pieces = (
            referee_pb2.OpenDisputeRequest(notice=b"" if at else notice, data=challenge.data[at : at + PIECE])
            for at in range(0, len(challenge.data), PIECE)
        )
        found = self._call(self._stub.OpenDispute, pieces, SEND_SECONDS)
        return found.id, found.merged

    def post(self, dispute: str, data: bytes) -> None:
        """Sends the message that is due."""
        pieces = (
            referee_pb2.PostMessageRequest(id=dispute, data=data[at : at + PIECE])
            for at in range(0, len(data), PIECE)
        )  # fmt: skip
        self._call(self._stub.PostMessage, pieces, SEND_SECONDS)

    def standing(self, dispute: str) -> Standing:
        """Returns how far a dispute has come.

        Raises:
            FormatError: The referee answers nonsense.
        """
        found = self._call(self._stub.GetDispute, referee_pb2.GetDisputeRequest(id=dispute))
        if len(found.parties) != 2 or found.party > 1 or len(found.used) != 2 or found.due not in get_args(Due):
            raise FormatError("The referee does not say how far the dispute has come; ask another one.")
        return Standing(
            parties=(found.parties[0], found.parties[1]), party=found.party, due=found.due,
            used=(found.used[0], found.used[1]), ruled=found.ruled, messages=found.messages,
        )  # fmt: skip

    def messages(self, dispute: str) -> list[Message]:
        """Returns all messages of a dispute, whose signatures and order were checked.

        Raises:
            FormatError, DisputeError: The referee sends no such file.
        """
        data = bytearray()
        request = referee_pb2.FetchDisputeRequest(id=dispute)
        for piece in endpoints.stream(
            self._stub.FetchDispute, request, deadline_s=SEND_SECONDS, unreachable=RefereeUnreachableError
        ):
            data += piece.data
            if len(data) > 4 * MAX_MESSAGE:
                raise FormatError("The referee sends more than a dispute can have; ask another one.")
        return list(unpack(bytes(data)))

    def _call(self, method: Any, request: Any, seconds: float = CALL_SECONDS) -> Any:
        return endpoints.call(method, request, deadline_s=seconds, unreachable=RefereeUnreachableError)
