from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    PURPOSE_TRAIN: _ClassVar[Purpose]
    PURPOSE_DEMO: _ClassVar[Purpose]
    PURPOSE_EVAL: _ClassVar[Purpose]

class SampleClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLE_CLASS_UNSPECIFIED: _ClassVar[SampleClass]
    SAMPLE_CLASS_SCORED: _ClassVar[SampleClass]
    SAMPLE_CLASS_AGENT_FAILED: _ClassVar[SampleClass]
    SAMPLE_CLASS_INFRA_FAILED: _ClassVar[SampleClass]
    SAMPLE_CLASS_STALE: _ClassVar[SampleClass]
    SAMPLE_CLASS_REVOKED: _ClassVar[SampleClass]
    SAMPLE_CLASS_INVALID_TOKENS: _ClassVar[SampleClass]

class DropReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DROP_REASON_UNSPECIFIED: _ClassVar[DropReason]
    DROP_REASON_STALE: _ClassVar[DropReason]
    DROP_REASON_POISON: _ClassVar[DropReason]
    DROP_REASON_REVOKED: _ClassVar[DropReason]
    DROP_REASON_INVALID: _ClassVar[DropReason]
    DROP_REASON_LATE: _ClassVar[DropReason]
    DROP_REASON_CORRUPT: _ClassVar[DropReason]
    DROP_REASON_FLAT: _ClassVar[DropReason]
    DROP_REASON_ROLLED_BACK: _ClassVar[DropReason]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_LIMIT: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
PURPOSE_UNSPECIFIED: Purpose
PURPOSE_TRAIN: Purpose
PURPOSE_DEMO: Purpose
PURPOSE_EVAL: Purpose
SAMPLE_CLASS_UNSPECIFIED: SampleClass
SAMPLE_CLASS_SCORED: SampleClass
SAMPLE_CLASS_AGENT_FAILED: SampleClass
SAMPLE_CLASS_INFRA_FAILED: SampleClass
SAMPLE_CLASS_STALE: SampleClass
SAMPLE_CLASS_REVOKED: SampleClass
SAMPLE_CLASS_INVALID_TOKENS: SampleClass
DROP_REASON_UNSPECIFIED: DropReason
DROP_REASON_STALE: DropReason
DROP_REASON_POISON: DropReason
DROP_REASON_REVOKED: DropReason
DROP_REASON_INVALID: DropReason
DROP_REASON_LATE: DropReason
DROP_REASON_CORRUPT: DropReason
DROP_REASON_FLAT: DropReason
DROP_REASON_ROLLED_BACK: DropReason
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_TOOL_LIMIT: FinishReason
FINISH_REASON_ERROR: FinishReason

class BlobRef(_message.Message):
    __slots__ = ("key", "sha256", "size")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: str
    sha256: str
    size: int
    def __init__(self, key: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class RewardComponent(_message.Message):
    __slots__ = ("value", "weight")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    value: float
    weight: float
    def __init__(self, value: _Optional[float] = ..., weight: _Optional[float] = ...) -> None: ...

class EnvRef(_message.Message):
    __slots__ = ("name", "version", "digest", "bundle", "params_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    bundle: BlobRef
    params_json: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., bundle: _Optional[_Union[BlobRef, _Mapping]] = ..., params_json: _Optional[str] = ...) -> None: ...

class IndexRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("start", "end", "version")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    version: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...
