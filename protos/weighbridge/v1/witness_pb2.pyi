from protos import validation as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetWitnessedRequest(_message.Message):
    __slots__ = ("ueid",)
    UEID_FIELD_NUMBER: _ClassVar[int]
    ueid: bytes
    def __init__(self, ueid: _Optional[bytes] = ...) -> None: ...

class GetWitnessedResponse(_message.Message):
    __slots__ = ("size", "checkpoint", "nonce")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    size: int
    checkpoint: bytes
    nonce: bytes
    def __init__(self, size: _Optional[int] = ..., checkpoint: _Optional[bytes] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class AddCheckpointRequest(_message.Message):
    __slots__ = ("ueid", "checkpoint", "token", "proof", "entries")
    UEID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ueid: bytes
    checkpoint: bytes
    token: bytes
    proof: _containers.RepeatedScalarFieldContainer[bytes]
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ueid: _Optional[bytes] = ..., checkpoint: _Optional[bytes] = ..., token: _Optional[bytes] = ..., proof: _Optional[_Iterable[bytes]] = ..., entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AddCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    def __init__(self, checkpoint: _Optional[bytes] = ...) -> None: ...

class CompareCheckpointRequest(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    def __init__(self, checkpoint: _Optional[bytes] = ...) -> None: ...

class CompareCheckpointResponse(_message.Message):
    __slots__ = ("consistent", "checkpoint")
    CONSISTENT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    consistent: bool
    checkpoint: bytes
    def __init__(self, consistent: _Optional[bool] = ..., checkpoint: _Optional[bytes] = ...) -> None: ...
