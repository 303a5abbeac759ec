from protos import validation as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetIdentityRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetIdentityResponse(_message.Message):
    __slots__ = ("ueid", "certificate_chain", "firmware_version", "firmware_digest", "token", "firmware_svn", "mode", "hwmodel")
    UEID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    FIRMWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRMWARE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIRMWARE_SVN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HWMODEL_FIELD_NUMBER: _ClassVar[int]
    ueid: bytes
    certificate_chain: _containers.RepeatedScalarFieldContainer[bytes]
    firmware_version: str
    firmware_digest: bytes
    token: bytes
    firmware_svn: int
    mode: str
    hwmodel: str
    def __init__(self, ueid: _Optional[bytes] = ..., certificate_chain: _Optional[_Iterable[bytes]] = ..., firmware_version: _Optional[str] = ..., firmware_digest: _Optional[bytes] = ..., token: _Optional[bytes] = ..., firmware_svn: _Optional[int] = ..., mode: _Optional[str] = ..., hwmodel: _Optional[str] = ...) -> None: ...

class GetHeadRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetHeadResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    def __init__(self, token: _Optional[bytes] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint", "token", "cosigned")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COSIGNED_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    token: bytes
    cosigned: bytes
    def __init__(self, checkpoint: _Optional[bytes] = ..., token: _Optional[bytes] = ..., cosigned: _Optional[bytes] = ...) -> None: ...

class GetConsistencyProofRequest(_message.Message):
    __slots__ = ("old_size", "size")
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    old_size: int
    size: int
    def __init__(self, old_size: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class GetConsistencyProofResponse(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetInclusionProofRequest(_message.Message):
    __slots__ = ("index", "size")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    index: int
    size: int
    def __init__(self, index: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class GetInclusionProofResponse(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AddCosignatureRequest(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    def __init__(self, checkpoint: _Optional[bytes] = ...) -> None: ...

class AddCosignatureResponse(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: int
    def __init__(self, first: _Optional[int] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("index", "token")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    index: int
    token: bytes
    def __init__(self, index: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class OpenSnapshotRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class OpenSnapshotResponse(_message.Message):
    __slots__ = ("salt", "leaves", "weights")
    SALT_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    salt: bytes
    leaves: _containers.RepeatedCompositeFieldContainer[Leaf]
    weights: _containers.RepeatedCompositeFieldContainer[Leaf]
    def __init__(self, salt: _Optional[bytes] = ..., leaves: _Optional[_Iterable[_Union[Leaf, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[Leaf, _Mapping]]] = ...) -> None: ...

class Leaf(_message.Message):
    __slots__ = ("bytes", "digest")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    digest: bytes
    def __init__(self, bytes: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class OpenToWorkerRequest(_message.Message):
    __slots__ = ("order", "attestation", "snapshots", "tokens")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    attestation: bytes
    snapshots: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, order: _Optional[bytes] = ..., attestation: _Optional[bytes] = ..., snapshots: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenToWorkerResponse(_message.Message):
    __slots__ = ("token", "index", "data", "last")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    token: bool
    index: int
    data: bytes
    last: bool
    def __init__(self, token: _Optional[bool] = ..., index: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...
