from protos import validation as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListTranscriptsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTranscriptsResponse(_message.Message):
    __slots__ = ("transcripts",)
    TRANSCRIPTS_FIELD_NUMBER: _ClassVar[int]
    transcripts: _containers.RepeatedCompositeFieldContainer[TranscriptSummary]
    def __init__(self, transcripts: _Optional[_Iterable[_Union[TranscriptSummary, _Mapping]]] = ...) -> None: ...

class TranscriptSummary(_message.Message):
    __slots__ = ("id", "name", "steps", "manifest_digest")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    steps: int
    manifest_digest: bytes
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., steps: _Optional[int] = ..., manifest_digest: _Optional[bytes] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("ueid", "log_index", "step", "op", "head")
    UEID_FIELD_NUMBER: _ClassVar[int]
    LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ueid: bytes
    log_index: int
    step: int
    op: int
    head: bytes
    def __init__(self, ueid: _Optional[bytes] = ..., log_index: _Optional[int] = ..., step: _Optional[int] = ..., op: _Optional[int] = ..., head: _Optional[bytes] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("explained", "transcript_id", "step", "op", "ranks")
    EXPLAINED_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    explained: bool
    transcript_id: str
    step: int
    op: int
    ranks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, explained: _Optional[bool] = ..., transcript_id: _Optional[str] = ..., step: _Optional[int] = ..., op: _Optional[int] = ..., ranks: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchTranscriptRequest(_message.Message):
    __slots__ = ("id", "path", "offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: str
    path: str
    offset: int
    def __init__(self, id: _Optional[str] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchTranscriptResponse(_message.Message):
    __slots__ = ("path", "offset", "data", "last")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    data: bytes
    last: bool
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class ResultChunk(_message.Message):
    __slots__ = ("step", "op", "out", "chunk")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    step: int
    op: int
    out: int
    chunk: int
    def __init__(self, step: _Optional[int] = ..., op: _Optional[int] = ..., out: _Optional[int] = ..., chunk: _Optional[int] = ...) -> None: ...

class FetchResultsRequest(_message.Message):
    __slots__ = ("id", "ranks", "begin", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: str
    ranks: _containers.RepeatedScalarFieldContainer[str]
    begin: int
    end: int
    def __init__(self, id: _Optional[str] = ..., ranks: _Optional[_Iterable[str]] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class FetchResultsResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class OpenContributionsRequest(_message.Message):
    __slots__ = ("id", "ranks", "chunks")
    ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    ranks: _containers.RepeatedScalarFieldContainer[str]
    chunks: _containers.RepeatedCompositeFieldContainer[ResultChunk]
    def __init__(self, id: _Optional[str] = ..., ranks: _Optional[_Iterable[str]] = ..., chunks: _Optional[_Iterable[_Union[ResultChunk, _Mapping]]] = ...) -> None: ...

class OpenContributionsResponse(_message.Message):
    __slots__ = ("place", "part", "data", "path")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    place: int
    part: int
    data: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, place: _Optional[int] = ..., part: _Optional[int] = ..., data: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OpenRecordsRequest(_message.Message):
    __slots__ = ("id", "records")
    ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    records: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., records: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenRecordsResponse(_message.Message):
    __slots__ = ("record", "content", "path")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    record: int
    content: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, record: _Optional[int] = ..., content: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FetchSupplementsRequest(_message.Message):
    __slots__ = ("id", "begin", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: str
    begin: int
    end: int
    def __init__(self, id: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class FetchSupplementsResponse(_message.Message):
    __slots__ = ("progress", "piece")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    progress: RegenerationProgress
    piece: SupplementPiece
    def __init__(self, progress: _Optional[_Union[RegenerationProgress, _Mapping]] = ..., piece: _Optional[_Union[SupplementPiece, _Mapping]] = ...) -> None: ...

class RegenerationProgress(_message.Message):
    __slots__ = ("done", "total")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class SupplementPiece(_message.Message):
    __slots__ = ("step", "offset", "data", "last")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    step: int
    offset: int
    data: bytes
    last: bool
    def __init__(self, step: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...
