from protos import validation as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterChipRequest(_message.Message):
    __slots__ = ("ueid", "chip_address", "prover_address", "owner", "site", "chip_type", "name")
    UEID_FIELD_NUMBER: _ClassVar[int]
    CHIP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROVER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    CHIP_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ueid: bytes
    chip_address: str
    prover_address: str
    owner: str
    site: str
    chip_type: str
    name: str
    def __init__(self, ueid: _Optional[bytes] = ..., chip_address: _Optional[str] = ..., prover_address: _Optional[str] = ..., owner: _Optional[str] = ..., site: _Optional[str] = ..., chip_type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class RegisterChipResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChipsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChipsResponse(_message.Message):
    __slots__ = ("chips",)
    CHIPS_FIELD_NUMBER: _ClassVar[int]
    chips: _containers.RepeatedCompositeFieldContainer[RegisteredChip]
    def __init__(self, chips: _Optional[_Iterable[_Union[RegisteredChip, _Mapping]]] = ...) -> None: ...

class RegisteredChip(_message.Message):
    __slots__ = ("ueid", "chip_address", "prover_address", "owner", "site", "chip_type", "name")
    UEID_FIELD_NUMBER: _ClassVar[int]
    CHIP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROVER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    CHIP_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ueid: bytes
    chip_address: str
    prover_address: str
    owner: str
    site: str
    chip_type: str
    name: str
    def __init__(self, ueid: _Optional[bytes] = ..., chip_address: _Optional[str] = ..., prover_address: _Optional[str] = ..., owner: _Optional[str] = ..., site: _Optional[str] = ..., chip_type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListInspectionsRequest(_message.Message):
    __slots__ = ("prefix", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListInspectionsResponse(_message.Message):
    __slots__ = ("inspections",)
    INSPECTIONS_FIELD_NUMBER: _ClassVar[int]
    inspections: _containers.RepeatedCompositeFieldContainer[ListedInspection]
    def __init__(self, inspections: _Optional[_Iterable[_Union[ListedInspection, _Mapping]]] = ...) -> None: ...

class ListedInspection(_message.Message):
    __slots__ = ("inspection_id", "created_at", "stage", "verdict", "p", "samples", "violations", "warnings", "snapshots", "explained")
    INSPECTION_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    EXPLAINED_FIELD_NUMBER: _ClassVar[int]
    inspection_id: str
    created_at: str
    stage: str
    verdict: str
    p: float
    samples: int
    violations: int
    warnings: int
    snapshots: int
    explained: int
    def __init__(self, inspection_id: _Optional[str] = ..., created_at: _Optional[str] = ..., stage: _Optional[str] = ..., verdict: _Optional[str] = ..., p: _Optional[float] = ..., samples: _Optional[int] = ..., violations: _Optional[int] = ..., warnings: _Optional[int] = ..., snapshots: _Optional[int] = ..., explained: _Optional[int] = ...) -> None: ...

class StartInspectionRequest(_message.Message):
    __slots__ = ("samples", "seed", "flops_threshold", "chip_flops_per_day", "period_days", "snapshot_rate_per_day", "replay_device", "replay_env", "sharded", "chunks", "strata_by", "allocation", "type_flops_per_day", "cutoff_s", "random_segments", "largest_segments", "memorisation", "records", "peak_flops", "chosen_order", "sensitivity", "recognise", "regeneration_s")
    class ReplayEnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TypeFlopsPerDayEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FLOPS_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CHIP_FLOPS_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    PERIOD_DAYS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_RATE_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    REPLAY_DEVICE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENV_FIELD_NUMBER: _ClassVar[int]
    SHARDED_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STRATA_BY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FLOPS_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    CUTOFF_S_FIELD_NUMBER: _ClassVar[int]
    RANDOM_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    MEMORISATION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_FLOPS_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_ORDER_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    RECOGNISE_FIELD_NUMBER: _ClassVar[int]
    REGENERATION_S_FIELD_NUMBER: _ClassVar[int]
    samples: int
    seed: bytes
    flops_threshold: float
    chip_flops_per_day: float
    period_days: float
    snapshot_rate_per_day: float
    replay_device: str
    replay_env: _containers.ScalarMap[str, str]
    sharded: str
    chunks: int
    strata_by: _containers.RepeatedScalarFieldContainer[str]
    allocation: str
    type_flops_per_day: _containers.ScalarMap[str, float]
    cutoff_s: float
    random_segments: int
    largest_segments: int
    memorisation: int
    records: int
    peak_flops: float
    chosen_order: str
    sensitivity: int
    recognise: int
    regeneration_s: float
    def __init__(self, samples: _Optional[int] = ..., seed: _Optional[bytes] = ..., flops_threshold: _Optional[float] = ..., chip_flops_per_day: _Optional[float] = ..., period_days: _Optional[float] = ..., snapshot_rate_per_day: _Optional[float] = ..., replay_device: _Optional[str] = ..., replay_env: _Optional[_Mapping[str, str]] = ..., sharded: _Optional[str] = ..., chunks: _Optional[int] = ..., strata_by: _Optional[_Iterable[str]] = ..., allocation: _Optional[str] = ..., type_flops_per_day: _Optional[_Mapping[str, float]] = ..., cutoff_s: _Optional[float] = ..., random_segments: _Optional[int] = ..., largest_segments: _Optional[int] = ..., memorisation: _Optional[int] = ..., records: _Optional[int] = ..., peak_flops: _Optional[float] = ..., chosen_order: _Optional[str] = ..., sensitivity: _Optional[int] = ..., recognise: _Optional[int] = ..., regeneration_s: _Optional[float] = ...) -> None: ...

class StartInspectionResponse(_message.Message):
    __slots__ = ("inspection_id",)
    INSPECTION_ID_FIELD_NUMBER: _ClassVar[int]
    inspection_id: str
    def __init__(self, inspection_id: _Optional[str] = ...) -> None: ...

class WatchInspectionRequest(_message.Message):
    __slots__ = ("inspection_id", "after")
    INSPECTION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    inspection_id: str
    after: int
    def __init__(self, inspection_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class WatchInspectionResponse(_message.Message):
    __slots__ = ("stage", "done", "total", "message", "passing")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PASSING_FIELD_NUMBER: _ClassVar[int]
    stage: str
    done: int
    total: int
    message: str
    passing: bool
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., message: _Optional[str] = ..., passing: _Optional[bool] = ...) -> None: ...

class GetReportRequest(_message.Message):
    __slots__ = ("inspection_id",)
    INSPECTION_ID_FIELD_NUMBER: _ClassVar[int]
    inspection_id: str
    def __init__(self, inspection_id: _Optional[str] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class GetDrawRequest(_message.Message):
    __slots__ = ("inspection_id",)
    INSPECTION_ID_FIELD_NUMBER: _ClassVar[int]
    inspection_id: str
    def __init__(self, inspection_id: _Optional[str] = ...) -> None: ...

class GetDrawResponse(_message.Message):
    __slots__ = ("path", "data")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadTranscriptRequest(_message.Message):
    __slots__ = ("file", "data", "end")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    file: UploadHeader
    data: bytes
    end: UploadEnd
    def __init__(self, file: _Optional[_Union[UploadHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[UploadEnd, _Mapping]] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("id", "path", "size", "offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: str
    path: str
    size: int
    offset: int
    def __init__(self, id: _Optional[str] = ..., path: _Optional[str] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class UploadEnd(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class UploadTranscriptResponse(_message.Message):
    __slots__ = ("received", "complete")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    received: int
    complete: bool
    def __init__(self, received: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class UploadStatusRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class UploadStatusResponse(_message.Message):
    __slots__ = ("complete", "files")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    files: _containers.RepeatedCompositeFieldContainer[UploadedFile]
    def __init__(self, complete: _Optional[bool] = ..., files: _Optional[_Iterable[_Union[UploadedFile, _Mapping]]] = ...) -> None: ...

class UploadedFile(_message.Message):
    __slots__ = ("path", "held")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    path: str
    held: int
    def __init__(self, path: _Optional[str] = ..., held: _Optional[int] = ...) -> None: ...
