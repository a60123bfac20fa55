import datetime

from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EgressPolicy(_message.Message):
    __slots__ = ("mode", "rules")
    MODE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    mode: str
    rules: _containers.RepeatedCompositeFieldContainer[EgressRule]
    def __init__(self, mode: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[EgressRule, _Mapping]]] = ...) -> None: ...

class EgressRule(_message.Message):
    __slots__ = ("host", "ports", "secret", "approve")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    APPROVE_FIELD_NUMBER: _ClassVar[int]
    host: str
    ports: _containers.RepeatedScalarFieldContainer[int]
    secret: str
    approve: bool
    def __init__(self, host: _Optional[str] = ..., ports: _Optional[_Iterable[int]] = ..., secret: _Optional[str] = ..., approve: bool = ...) -> None: ...

class SetEgressRequest(_message.Message):
    __slots__ = ("session_id", "policy", "expected_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    policy: EgressPolicy
    expected_version: int
    def __init__(self, session_id: _Optional[str] = ..., policy: _Optional[_Union[EgressPolicy, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class SetEgressResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class GetEgressRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetEgressResponse(_message.Message):
    __slots__ = ("policy", "version")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    policy: EgressPolicy
    version: int
    def __init__(self, policy: _Optional[_Union[EgressPolicy, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class EgressAttempt(_message.Message):
    __slots__ = ("session_id", "job_id", "host", "step", "target", "port", "reason", "policy_version", "at")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    job_id: str
    host: str
    step: int
    target: str
    port: int
    reason: str
    policy_version: int
    at: _timestamp_pb2.Timestamp
    def __init__(self, session_id: _Optional[str] = ..., job_id: _Optional[str] = ..., host: _Optional[str] = ..., step: _Optional[int] = ..., target: _Optional[str] = ..., port: _Optional[int] = ..., reason: _Optional[str] = ..., policy_version: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
