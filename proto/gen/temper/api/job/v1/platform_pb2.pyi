import datetime

from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from temper.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Presence(_message.Message):
    __slots__ = ("service", "instance", "version", "host", "pid", "started_at", "seen_at", "state", "status")
    class StatusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    service: str
    instance: str
    version: str
    host: str
    pid: int
    started_at: _timestamp_pb2.Timestamp
    seen_at: _timestamp_pb2.Timestamp
    state: str
    status: _containers.ScalarMap[str, str]
    def __init__(self, service: _Optional[str] = ..., instance: _Optional[str] = ..., version: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ..., status: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ListServicesRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class ListServicesResponse(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[Presence]
    def __init__(self, instances: _Optional[_Iterable[_Union[Presence, _Mapping]]] = ...) -> None: ...

class DrainServiceRequest(_message.Message):
    __slots__ = ("service", "instance")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    service: str
    instance: str
    def __init__(self, service: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class DrainServiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainOrder(_message.Message):
    __slots__ = ("requested_by",)
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    requested_by: str
    def __init__(self, requested_by: _Optional[str] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("seq", "subject", "reason", "id", "type", "time", "body_json", "deliveries")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    BODY_JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    subject: str
    reason: str
    id: str
    type: str
    time: _timestamp_pb2.Timestamp
    body_json: str
    deliveries: int
    def __init__(self, seq: _Optional[int] = ..., subject: _Optional[str] = ..., reason: _Optional[str] = ..., id: _Optional[str] = ..., type: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., body_json: _Optional[str] = ..., deliveries: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("page_size", "after_seq")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    after_seq: int
    def __init__(self, page_size: _Optional[int] = ..., after_seq: _Optional[int] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ...) -> None: ...

class RetryDeadLetterRequest(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class RetryDeadLetterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DropDeadLetterRequest(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class DropDeadLetterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Policy(_message.Message):
    __slots__ = ("job_id", "version", "step", "manifest", "state", "published_at", "reward_model")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    REWARD_MODEL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: int
    step: int
    manifest: _common_pb2.BlobRef
    state: str
    published_at: _timestamp_pb2.Timestamp
    reward_model: _common_pb2.BlobRef
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., manifest: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., state: _Optional[str] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reward_model: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class Promotion(_message.Message):
    __slots__ = ("job_id", "version", "manifest", "verdict", "point", "forced", "reason", "promoted_at", "returns_to")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_AT_FIELD_NUMBER: _ClassVar[int]
    RETURNS_TO_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: int
    manifest: _common_pb2.BlobRef
    verdict: str
    point: str
    forced: bool
    reason: str
    promoted_at: _timestamp_pb2.Timestamp
    returns_to: int
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[int] = ..., manifest: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., verdict: _Optional[str] = ..., point: _Optional[str] = ..., forced: bool = ..., reason: _Optional[str] = ..., promoted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., returns_to: _Optional[int] = ...) -> None: ...

class PromotedPolicy(_message.Message):
    __slots__ = ("name", "history")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    history: _containers.RepeatedCompositeFieldContainer[Promotion]
    def __init__(self, name: _Optional[str] = ..., history: _Optional[_Iterable[_Union[Promotion, _Mapping]]] = ...) -> None: ...

class PromotePolicyRequest(_message.Message):
    __slots__ = ("name", "job_id", "version", "force", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    job_id: str
    version: int
    force: bool
    reason: str
    def __init__(self, name: _Optional[str] = ..., job_id: _Optional[str] = ..., version: _Optional[int] = ..., force: bool = ..., reason: _Optional[str] = ...) -> None: ...

class PromotePolicyResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: PromotedPolicy
    def __init__(self, policy: _Optional[_Union[PromotedPolicy, _Mapping]] = ...) -> None: ...

class DemotePolicyRequest(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DemotePolicyResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: PromotedPolicy
    def __init__(self, policy: _Optional[_Union[PromotedPolicy, _Mapping]] = ...) -> None: ...

class ListPromotionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPromotionsResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[PromotedPolicy]
    def __init__(self, policies: _Optional[_Iterable[_Union[PromotedPolicy, _Mapping]]] = ...) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ("name", "chunk")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    name: str
    chunk: bytes
    def __init__(self, name: _Optional[str] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadResponse(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: _common_pb2.BlobRef
    def __init__(self, ref: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: _common_pb2.BlobRef
    def __init__(self, ref: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class DownloadResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...
