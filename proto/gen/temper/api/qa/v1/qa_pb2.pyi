import datetime

from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from temper.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnvironmentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENVIRONMENT_STATE_UNSPECIFIED: _ClassVar[EnvironmentState]
    ENVIRONMENT_STATE_DRAFT: _ClassVar[EnvironmentState]
    ENVIRONMENT_STATE_CHECKING: _ClassVar[EnvironmentState]
    ENVIRONMENT_STATE_ADMITTED: _ClassVar[EnvironmentState]
    ENVIRONMENT_STATE_REJECTED: _ClassVar[EnvironmentState]
    ENVIRONMENT_STATE_QUARANTINED: _ClassVar[EnvironmentState]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_ERROR: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
ENVIRONMENT_STATE_UNSPECIFIED: EnvironmentState
ENVIRONMENT_STATE_DRAFT: EnvironmentState
ENVIRONMENT_STATE_CHECKING: EnvironmentState
ENVIRONMENT_STATE_ADMITTED: EnvironmentState
ENVIRONMENT_STATE_REJECTED: EnvironmentState
ENVIRONMENT_STATE_QUARANTINED: EnvironmentState
SEVERITY_UNSPECIFIED: Severity
SEVERITY_ERROR: Severity
SEVERITY_WARNING: Severity
SEVERITY_INFO: Severity

class EnvironmentRecord(_message.Message):
    __slots__ = ("env", "state", "description", "domain", "owner", "licence", "report", "registered_at", "reason", "live", "revision")
    ENV_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LICENCE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    env: _common_pb2.EnvRef
    state: EnvironmentState
    description: str
    domain: str
    owner: str
    licence: str
    report: CheckReport
    registered_at: _timestamp_pb2.Timestamp
    reason: str
    live: LiveRate
    revision: int
    def __init__(self, env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., state: _Optional[_Union[EnvironmentState, str]] = ..., description: _Optional[str] = ..., domain: _Optional[str] = ..., owner: _Optional[str] = ..., licence: _Optional[str] = ..., report: _Optional[_Union[CheckReport, _Mapping]] = ..., registered_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., live: _Optional[_Union[LiveRate, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class LiveRate(_message.Message):
    __slots__ = ("n", "solved", "infra_failed", "mean_reward", "recent")
    N_FIELD_NUMBER: _ClassVar[int]
    SOLVED_FIELD_NUMBER: _ClassVar[int]
    INFRA_FAILED_FIELD_NUMBER: _ClassVar[int]
    MEAN_REWARD_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    n: int
    solved: int
    infra_failed: int
    mean_reward: float
    recent: float
    def __init__(self, n: _Optional[int] = ..., solved: _Optional[int] = ..., infra_failed: _Optional[int] = ..., mean_reward: _Optional[float] = ..., recent: _Optional[float] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("id", "severity", "passed", "evidence", "wall_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    severity: Severity
    passed: bool
    evidence: str
    wall_s: float
    def __init__(self, id: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., passed: bool = ..., evidence: _Optional[str] = ..., wall_s: _Optional[float] = ...) -> None: ...

class CheckReport(_message.Message):
    __slots__ = ("digest", "checker", "backend", "results", "passed", "finished_at")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECKER_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    checker: str
    backend: str
    results: _containers.RepeatedCompositeFieldContainer[CheckResult]
    passed: bool
    finished_at: _timestamp_pb2.Timestamp
    def __init__(self, digest: _Optional[str] = ..., checker: _Optional[str] = ..., backend: _Optional[str] = ..., results: _Optional[_Iterable[_Union[CheckResult, _Mapping]]] = ..., passed: bool = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class VerdictRecord(_message.Message):
    __slots__ = ("environment", "verdict", "time")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    environment: EnvironmentRecord
    verdict: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, environment: _Optional[_Union[EnvironmentRecord, _Mapping]] = ..., verdict: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RegisterEnvironmentRequest(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: _common_pb2.BlobRef
    def __init__(self, bundle: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class RegisterEnvironmentResponse(_message.Message):
    __slots__ = ("environment",)
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    environment: EnvironmentRecord
    def __init__(self, environment: _Optional[_Union[EnvironmentRecord, _Mapping]] = ...) -> None: ...

class GetEnvironmentRequest(_message.Message):
    __slots__ = ("name", "params_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    params_json: str
    def __init__(self, name: _Optional[str] = ..., params_json: _Optional[str] = ...) -> None: ...

class GetEnvironmentResponse(_message.Message):
    __slots__ = ("environment",)
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    environment: EnvironmentRecord
    def __init__(self, environment: _Optional[_Union[EnvironmentRecord, _Mapping]] = ...) -> None: ...

class ListEnvironmentsRequest(_message.Message):
    __slots__ = ("prefix", "page_size", "page_token")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    page_size: int
    page_token: str
    def __init__(self, prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListEnvironmentsResponse(_message.Message):
    __slots__ = ("environments", "next_page_token")
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    environments: _containers.RepeatedCompositeFieldContainer[EnvironmentRecord]
    next_page_token: str
    def __init__(self, environments: _Optional[_Iterable[_Union[EnvironmentRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CheckEnvironmentRequest(_message.Message):
    __slots__ = ("name", "params_json", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    params_json: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., params_json: _Optional[str] = ..., force: bool = ...) -> None: ...

class CheckEnvironmentResponse(_message.Message):
    __slots__ = ("environment",)
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    environment: EnvironmentRecord
    def __init__(self, environment: _Optional[_Union[EnvironmentRecord, _Mapping]] = ...) -> None: ...

class QuarantineEnvironmentRequest(_message.Message):
    __slots__ = ("name", "reason", "lift")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIFT_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    lift: bool
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., lift: bool = ...) -> None: ...

class QuarantineEnvironmentResponse(_message.Message):
    __slots__ = ("environments",)
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    environments: _containers.RepeatedCompositeFieldContainer[EnvironmentRecord]
    def __init__(self, environments: _Optional[_Iterable[_Union[EnvironmentRecord, _Mapping]]] = ...) -> None: ...

class EnvironmentWish(_message.Message):
    __slots__ = ("name", "params_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    params_json: str
    def __init__(self, name: _Optional[str] = ..., params_json: _Optional[str] = ...) -> None: ...

class ResolveEnvironmentsRequest(_message.Message):
    __slots__ = ("wishes", "dry_run")
    WISHES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    wishes: _containers.RepeatedCompositeFieldContainer[EnvironmentWish]
    dry_run: bool
    def __init__(self, wishes: _Optional[_Iterable[_Union[EnvironmentWish, _Mapping]]] = ..., dry_run: bool = ...) -> None: ...

class ResolveEnvironmentsResponse(_message.Message):
    __slots__ = ("envs",)
    ENVS_FIELD_NUMBER: _ClassVar[int]
    envs: _containers.RepeatedCompositeFieldContainer[_common_pb2.EnvRef]
    def __init__(self, envs: _Optional[_Iterable[_Union[_common_pb2.EnvRef, _Mapping]]] = ...) -> None: ...
