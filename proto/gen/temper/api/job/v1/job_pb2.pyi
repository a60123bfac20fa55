import datetime

from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from temper.api.common.v1 import common_pb2 as _common_pb2
from temper.api.job.v1 import spec_pb2 as _spec_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_PENDING: _ClassVar[JobState]
    JOB_STATE_STARTING: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_PAUSED: _ClassVar[JobState]
    JOB_STATE_FINISHING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_PENDING: JobState
JOB_STATE_STARTING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_PAUSED: JobState
JOB_STATE_FINISHING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState

class Job(_message.Message):
    __slots__ = ("id", "spec", "state", "reason", "created_at", "started_at", "ended_at", "progress", "evals", "request_id", "etag", "gates", "held", "rollbacks_asked", "promoted_versions")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    EVALS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_ASKED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: _spec_pb2.JobSpec
    state: JobState
    reason: str
    created_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    progress: JobProgress
    evals: _containers.RepeatedCompositeFieldContainer[EvalResult]
    request_id: str
    etag: str
    gates: _containers.RepeatedCompositeFieldContainer[GateVerdict]
    held: str
    rollbacks_asked: _containers.RepeatedScalarFieldContainer[str]
    promoted_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[_spec_pb2.JobSpec, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., progress: _Optional[_Union[JobProgress, _Mapping]] = ..., evals: _Optional[_Iterable[_Union[EvalResult, _Mapping]]] = ..., request_id: _Optional[str] = ..., etag: _Optional[str] = ..., gates: _Optional[_Iterable[_Union[GateVerdict, _Mapping]]] = ..., held: _Optional[str] = ..., rollbacks_asked: _Optional[_Iterable[str]] = ..., promoted_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class GateCheck(_message.Message):
    __slots__ = ("domain", "bound", "verdict", "value", "low", "high", "limit", "n", "reference", "message")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    domain: str
    bound: str
    verdict: str
    value: float
    low: float
    high: float
    limit: float
    n: int
    reference: str
    message: str
    def __init__(self, domain: _Optional[str] = ..., bound: _Optional[str] = ..., verdict: _Optional[str] = ..., value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., limit: _Optional[float] = ..., n: _Optional[int] = ..., reference: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GateVerdict(_message.Message):
    __slots__ = ("point", "step", "version", "verdict", "action", "checks", "manifest", "message", "rollback")
    POINT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    point: str
    step: int
    version: int
    verdict: str
    action: str
    checks: _containers.RepeatedCompositeFieldContainer[GateCheck]
    manifest: _common_pb2.BlobRef
    message: str
    rollback: int
    def __init__(self, point: _Optional[str] = ..., step: _Optional[int] = ..., version: _Optional[int] = ..., verdict: _Optional[str] = ..., action: _Optional[str] = ..., checks: _Optional[_Iterable[_Union[GateCheck, _Mapping]]] = ..., manifest: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., message: _Optional[str] = ..., rollback: _Optional[int] = ...) -> None: ...

class GateRecord(_message.Message):
    __slots__ = ("job_id", "fence", "accepted_step", "rollbacks", "rollback_step", "reason", "held_versions")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_STEP_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HELD_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    fence: int
    accepted_step: int
    rollbacks: int
    rollback_step: int
    reason: str
    held_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job_id: _Optional[str] = ..., fence: _Optional[int] = ..., accepted_step: _Optional[int] = ..., rollbacks: _Optional[int] = ..., rollback_step: _Optional[int] = ..., reason: _Optional[str] = ..., held_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class JobProgress(_message.Message):
    __slots__ = ("phase", "phase_name", "step", "total_steps", "version", "groups_published", "groups_consumed", "groups_dropped", "groups_in_flight", "domain_reward", "domain_solved", "domain_groups", "staleness", "tokens_per_s", "episodes_per_s", "sandboxes_in_use", "trainer_idle", "rollout_idle", "eta_s", "activity", "wall_s", "eval_done", "eval_total", "diagnostics")
    class GroupsDroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DomainRewardEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class DomainSolvedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class DomainGroupsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DiagnosticsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_REWARD_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_SOLVED_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_GROUPS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    EPISODES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SANDBOXES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    TRAINER_IDLE_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_IDLE_FIELD_NUMBER: _ClassVar[int]
    ETA_S_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    EVAL_DONE_FIELD_NUMBER: _ClassVar[int]
    EVAL_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    phase: int
    phase_name: str
    step: int
    total_steps: int
    version: int
    groups_published: int
    groups_consumed: int
    groups_dropped: _containers.ScalarMap[str, int]
    groups_in_flight: int
    domain_reward: _containers.ScalarMap[str, float]
    domain_solved: _containers.ScalarMap[str, float]
    domain_groups: _containers.ScalarMap[str, int]
    staleness: float
    tokens_per_s: float
    episodes_per_s: float
    sandboxes_in_use: int
    trainer_idle: float
    rollout_idle: float
    eta_s: float
    activity: str
    wall_s: float
    eval_done: int
    eval_total: int
    diagnostics: _containers.ScalarMap[str, float]
    def __init__(self, phase: _Optional[int] = ..., phase_name: _Optional[str] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., version: _Optional[int] = ..., groups_published: _Optional[int] = ..., groups_consumed: _Optional[int] = ..., groups_dropped: _Optional[_Mapping[str, int]] = ..., groups_in_flight: _Optional[int] = ..., domain_reward: _Optional[_Mapping[str, float]] = ..., domain_solved: _Optional[_Mapping[str, float]] = ..., domain_groups: _Optional[_Mapping[str, int]] = ..., staleness: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., episodes_per_s: _Optional[float] = ..., sandboxes_in_use: _Optional[int] = ..., trainer_idle: _Optional[float] = ..., rollout_idle: _Optional[float] = ..., eta_s: _Optional[float] = ..., activity: _Optional[str] = ..., wall_s: _Optional[float] = ..., eval_done: _Optional[int] = ..., eval_total: _Optional[int] = ..., diagnostics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class EvalResult(_message.Message):
    __slots__ = ("point", "domain", "step", "min_version", "max_version", "n", "attempted", "solved", "pass_at_1", "low", "high", "mean_reward", "pass_at_k")
    class PassAtKEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    POINT_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTED_FIELD_NUMBER: _ClassVar[int]
    SOLVED_FIELD_NUMBER: _ClassVar[int]
    PASS_AT_1_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    MEAN_REWARD_FIELD_NUMBER: _ClassVar[int]
    PASS_AT_K_FIELD_NUMBER: _ClassVar[int]
    point: str
    domain: str
    step: int
    min_version: int
    max_version: int
    n: int
    attempted: int
    solved: int
    pass_at_1: float
    low: float
    high: float
    mean_reward: float
    pass_at_k: _containers.ScalarMap[int, float]
    def __init__(self, point: _Optional[str] = ..., domain: _Optional[str] = ..., step: _Optional[int] = ..., min_version: _Optional[int] = ..., max_version: _Optional[int] = ..., n: _Optional[int] = ..., attempted: _Optional[int] = ..., solved: _Optional[int] = ..., pass_at_1: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., mean_reward: _Optional[float] = ..., pass_at_k: _Optional[_Mapping[int, float]] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("job_id", "time", "state", "progress", "eval", "notice", "gate")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    EVAL_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    time: _timestamp_pb2.Timestamp
    state: StateChanged
    progress: JobProgress
    eval: EvalResult
    notice: Notice
    gate: GateVerdict
    def __init__(self, job_id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[StateChanged, _Mapping]] = ..., progress: _Optional[_Union[JobProgress, _Mapping]] = ..., eval: _Optional[_Union[EvalResult, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., gate: _Optional[_Union[GateVerdict, _Mapping]] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("state", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    reason: str
    def __init__(self, state: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("level", "code", "message")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    level: str
    code: str
    message: str
    def __init__(self, level: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("spec", "request_id", "validate_only")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    spec: _spec_pb2.JobSpec
    request_id: str
    validate_only: bool
    def __init__(self, spec: _Optional[_Union[_spec_pb2.JobSpec, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class CreateJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[JobState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[JobState, str]]] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateJobRequest(_message.Message):
    __slots__ = ("job", "update_mask")
    JOB_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    job: Job
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class PauseJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class PauseJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ResumeJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ResumeJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class RollBackJobRequest(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RollBackJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id", "cursor")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    cursor: str
    def __init__(self, job_id: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ("cursor", "snapshot", "event")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    snapshot: Job
    event: JobEvent
    def __init__(self, cursor: _Optional[str] = ..., snapshot: _Optional[_Union[Job, _Mapping]] = ..., event: _Optional[_Union[JobEvent, _Mapping]] = ...) -> None: ...

class JobLedger(_message.Message):
    __slots__ = ("next_index", "domain_issued", "domain_frontier", "settled", "log_token", "sampler_state_json", "eval_points", "unsettled")
    class DomainIssuedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DomainFrontierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UnsettledEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ISSUED_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FRONTIER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    LOG_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    EVAL_POINTS_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    next_index: int
    domain_issued: _containers.ScalarMap[str, int]
    domain_frontier: _containers.ScalarMap[str, int]
    settled: _containers.RepeatedCompositeFieldContainer[_common_pb2.IndexRange]
    log_token: str
    sampler_state_json: str
    eval_points: _containers.RepeatedScalarFieldContainer[str]
    unsettled: _containers.ScalarMap[int, bytes]
    def __init__(self, next_index: _Optional[int] = ..., domain_issued: _Optional[_Mapping[str, int]] = ..., domain_frontier: _Optional[_Mapping[str, int]] = ..., settled: _Optional[_Iterable[_Union[_common_pb2.IndexRange, _Mapping]]] = ..., log_token: _Optional[str] = ..., sampler_state_json: _Optional[str] = ..., eval_points: _Optional[_Iterable[str]] = ..., unsettled: _Optional[_Mapping[int, bytes]] = ...) -> None: ...
