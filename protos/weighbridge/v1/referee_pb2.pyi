from protos import validation as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetRefereeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRefereeResponse(_message.Message):
    __slots__ = ("key", "clock")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    clock: float
    def __init__(self, key: _Optional[bytes] = ..., clock: _Optional[float] = ...) -> None: ...

class OpenDisputeRequest(_message.Message):
    __slots__ = ("notice", "data")
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    notice: bytes
    data: bytes
    def __init__(self, notice: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class OpenDisputeResponse(_message.Message):
    __slots__ = ("id", "merged")
    ID_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    id: str
    merged: bool
    def __init__(self, id: _Optional[str] = ..., merged: _Optional[bool] = ...) -> None: ...

class PostMessageRequest(_message.Message):
    __slots__ = ("id", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    data: bytes
    def __init__(self, id: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class PostMessageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDisputeRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetDisputeResponse(_message.Message):
    __slots__ = ("parties", "party", "due", "used", "ruled", "messages")
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    RULED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    parties: _containers.RepeatedScalarFieldContainer[bytes]
    party: int
    due: str
    used: _containers.RepeatedScalarFieldContainer[float]
    ruled: bool
    messages: int
    def __init__(self, parties: _Optional[_Iterable[bytes]] = ..., party: _Optional[int] = ..., due: _Optional[str] = ..., used: _Optional[_Iterable[float]] = ..., ruled: _Optional[bool] = ..., messages: _Optional[int] = ...) -> None: ...

class FetchDisputeRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class FetchDisputeResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
