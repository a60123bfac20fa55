import datetime

from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from temper.api.common.v1 import common_pb2 as _common_pb2
from temper.api.sandbox.v1 import egress_pb2 as _egress_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_OK: _ClassVar[Outcome]
    OUTCOME_TIMED_OUT: _ClassVar[Outcome]
    OUTCOME_CPU_EXCEEDED: _ClassVar[Outcome]
    OUTCOME_OOM_KILLED: _ClassVar[Outcome]
    OUTCOME_PIDS_EXCEEDED: _ClassVar[Outcome]
    OUTCOME_DISK_FULL: _ClassVar[Outcome]
    OUTCOME_SANDBOX_DIED: _ClassVar[Outcome]
    OUTCOME_OUTPUT_TRUNCATED: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_OK: Outcome
OUTCOME_TIMED_OUT: Outcome
OUTCOME_CPU_EXCEEDED: Outcome
OUTCOME_OOM_KILLED: Outcome
OUTCOME_PIDS_EXCEEDED: Outcome
OUTCOME_DISK_FULL: Outcome
OUTCOME_SANDBOX_DIED: Outcome
OUTCOME_OUTPUT_TRUNCATED: Outcome

class ToolSpec(_message.Message):
    __slots__ = ("name", "description", "parameters_schema_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_schema_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_schema_json: _Optional[str] = ...) -> None: ...

class MaterializeRequest(_message.Message):
    __slots__ = ("env", "split", "task_indices", "oracle_styles")
    ENV_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    TASK_INDICES_FIELD_NUMBER: _ClassVar[int]
    ORACLE_STYLES_FIELD_NUMBER: _ClassVar[int]
    env: _common_pb2.EnvRef
    split: str
    task_indices: _containers.RepeatedScalarFieldContainer[int]
    oracle_styles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., task_indices: _Optional[_Iterable[int]] = ..., oracle_styles: _Optional[_Iterable[str]] = ...) -> None: ...

class OracleAction(_message.Message):
    __slots__ = ("call", "answer")
    CALL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    call: ToolCall
    answer: str
    def __init__(self, call: _Optional[_Union[ToolCall, _Mapping]] = ..., answer: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("name", "arguments_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments_json: str
    def __init__(self, name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class TaskView(_message.Message):
    __slots__ = ("task_index", "prompt", "oracle", "tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ORACLE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    task_index: int
    prompt: str
    oracle: _containers.RepeatedCompositeFieldContainer[OracleAction]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, task_index: _Optional[int] = ..., prompt: _Optional[str] = ..., oracle: _Optional[_Iterable[_Union[OracleAction, _Mapping]]] = ..., tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class MaterializeResponse(_message.Message):
    __slots__ = ("tasks", "tools", "reward_min", "reward_max", "host")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    REWARD_MIN_FIELD_NUMBER: _ClassVar[int]
    REWARD_MAX_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskView]
    tools: _containers.RepeatedCompositeFieldContainer[ToolSpec]
    reward_min: float
    reward_max: float
    host: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskView, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ToolSpec, _Mapping]]] = ..., reward_min: _Optional[float] = ..., reward_max: _Optional[float] = ..., host: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("memory_bytes", "cpu_milli", "pids", "wall_s", "cpu_s", "output_bytes", "disk_bytes", "inodes", "guarantee")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    INODES_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    cpu_milli: int
    pids: int
    wall_s: float
    cpu_s: float
    output_bytes: int
    disk_bytes: int
    inodes: int
    guarantee: Guarantee
    def __init__(self, memory_bytes: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., pids: _Optional[int] = ..., wall_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., output_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., inodes: _Optional[int] = ..., guarantee: _Optional[_Union[Guarantee, _Mapping]] = ...) -> None: ...

class Guarantee(_message.Message):
    __slots__ = ("memory_bytes", "cpu_milli", "pids", "disk_bytes")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    cpu_milli: int
    pids: int
    disk_bytes: int
    def __init__(self, memory_bytes: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., pids: _Optional[int] = ..., disk_bytes: _Optional[int] = ...) -> None: ...

class CommandResult(_message.Message):
    __slots__ = ("outcome", "exit_code", "signal", "stdout", "stderr", "output_truncated", "wall_s", "cpu_s", "peak_memory_bytes", "cgroup_mode", "error")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CGROUP_MODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    exit_code: int
    signal: int
    stdout: bytes
    stderr: bytes
    output_truncated: bool
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    cgroup_mode: str
    error: str
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., output_truncated: bool = ..., wall_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., cgroup_mode: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("session_id", "command_id", "env", "split", "task_index", "call", "limits", "lease_s", "job_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    command_id: str
    env: _common_pb2.EnvRef
    split: str
    task_index: int
    call: ToolCall
    limits: Limits
    lease_s: float
    job_id: str
    def __init__(self, session_id: _Optional[str] = ..., command_id: _Optional[str] = ..., env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., task_index: _Optional[int] = ..., call: _Optional[_Union[ToolCall, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., lease_s: _Optional[float] = ..., job_id: _Optional[str] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("host", "observation", "result", "is_error", "repairs", "refused", "submitted")
    HOST_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    host: str
    observation: str
    result: CommandResult
    is_error: bool
    repairs: _containers.RepeatedScalarFieldContainer[str]
    refused: str
    submitted: bool
    def __init__(self, host: _Optional[str] = ..., observation: _Optional[str] = ..., result: _Optional[_Union[CommandResult, _Mapping]] = ..., is_error: bool = ..., repairs: _Optional[_Iterable[str]] = ..., refused: _Optional[str] = ..., submitted: bool = ...) -> None: ...

class TranscriptEntry(_message.Message):
    __slots__ = ("call", "observation")
    CALL_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    call: ToolCall
    observation: str
    def __init__(self, call: _Optional[_Union[ToolCall, _Mapping]] = ..., observation: _Optional[str] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("session_id", "env", "split", "task_index", "answer", "transcript", "abandon", "job_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    env: _common_pb2.EnvRef
    split: str
    task_index: int
    answer: str
    transcript: _containers.RepeatedCompositeFieldContainer[TranscriptEntry]
    abandon: bool
    job_id: str
    def __init__(self, session_id: _Optional[str] = ..., env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., task_index: _Optional[int] = ..., answer: _Optional[str] = ..., transcript: _Optional[_Iterable[_Union[TranscriptEntry, _Mapping]]] = ..., abandon: bool = ..., job_id: _Optional[str] = ...) -> None: ...

class FinishResponse(_message.Message):
    __slots__ = ("reward", "solved", "infra_error", "host", "verify_s", "components")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.RewardComponent
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.RewardComponent, _Mapping]] = ...) -> None: ...
    REWARD_FIELD_NUMBER: _ClassVar[int]
    SOLVED_FIELD_NUMBER: _ClassVar[int]
    INFRA_ERROR_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    reward: float
    solved: bool
    infra_error: str
    host: str
    verify_s: float
    components: _containers.MessageMap[str, _common_pb2.RewardComponent]
    def __init__(self, reward: _Optional[float] = ..., solved: bool = ..., infra_error: _Optional[str] = ..., host: _Optional[str] = ..., verify_s: _Optional[float] = ..., components: _Optional[_Mapping[str, _common_pb2.RewardComponent]] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("session_id", "limits", "lease_s", "min_isolation", "needs", "egress")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MIN_ISOLATION_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    EGRESS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    limits: Limits
    lease_s: float
    min_isolation: str
    needs: _containers.RepeatedScalarFieldContainer[str]
    egress: _egress_pb2.EgressPolicy
    def __init__(self, session_id: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., lease_s: _Optional[float] = ..., min_isolation: _Optional[str] = ..., needs: _Optional[_Iterable[str]] = ..., egress: _Optional[_Union[_egress_pb2.EgressPolicy, _Mapping]] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("host", "epoch")
    HOST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    host: str
    epoch: int
    def __init__(self, host: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("session_id", "command_id", "argv", "stdin", "env", "cwd", "limits", "stream")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    command_id: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    stdin: bytes
    env: _containers.ScalarMap[str, str]
    cwd: str
    limits: Limits
    stream: bool
    def __init__(self, session_id: _Optional[str] = ..., command_id: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., stdin: _Optional[bytes] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., stream: bool = ...) -> None: ...

class ExecResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: CommandResult
    def __init__(self, result: _Optional[_Union[CommandResult, _Mapping]] = ...) -> None: ...

class PutFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "content", "mode")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    content: bytes
    mode: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., content: _Optional[bytes] = ..., mode: _Optional[int] = ...) -> None: ...

class PutFileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFileRequest(_message.Message):
    __slots__ = ("session_id", "path")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class GetFileResponse(_message.Message):
    __slots__ = ("content", "truncated")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    truncated: bool
    def __init__(self, content: _Optional[bytes] = ..., truncated: bool = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("session_id", "epoch", "lease_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    lease_s: float
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., lease_s: _Optional[float] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session_id", "acquire_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    acquire_id: str
    def __init__(self, session_id: _Optional[str] = ..., acquire_id: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: bool = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Session(_message.Message):
    __slots__ = ("session_id", "job_id", "acquired_at", "lease_until", "commands")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    job_id: str
    acquired_at: _timestamp_pb2.Timestamp
    lease_until: _timestamp_pb2.Timestamp
    commands: int
    def __init__(self, session_id: _Optional[str] = ..., job_id: _Optional[str] = ..., acquired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lease_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., commands: _Optional[int] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("host", "sessions")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    host: str
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    def __init__(self, host: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("host", "backend", "isolation", "enforced", "advisory", "network_modes", "slots", "cgroup_mode", "snapshots", "max_fork", "features", "guarantees", "start_cost")
    HOST_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    ADVISORY_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MODES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CGROUP_MODE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_FORK_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    GUARANTEES_FIELD_NUMBER: _ClassVar[int]
    START_COST_FIELD_NUMBER: _ClassVar[int]
    host: str
    backend: str
    isolation: str
    enforced: _containers.RepeatedScalarFieldContainer[str]
    advisory: _containers.RepeatedScalarFieldContainer[str]
    network_modes: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    cgroup_mode: str
    snapshots: _containers.RepeatedScalarFieldContainer[str]
    max_fork: int
    features: _containers.RepeatedScalarFieldContainer[str]
    guarantees: _containers.RepeatedScalarFieldContainer[str]
    start_cost: str
    def __init__(self, host: _Optional[str] = ..., backend: _Optional[str] = ..., isolation: _Optional[str] = ..., enforced: _Optional[_Iterable[str]] = ..., advisory: _Optional[_Iterable[str]] = ..., network_modes: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., cgroup_mode: _Optional[str] = ..., snapshots: _Optional[_Iterable[str]] = ..., max_fork: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., guarantees: _Optional[_Iterable[str]] = ..., start_cost: _Optional[str] = ...) -> None: ...

class SessionRecord(_message.Message):
    __slots__ = ("session_id", "job_id", "host", "backend", "env", "acquired_at", "released_at", "commands", "cpu_s", "peak_memory_bytes", "limit_hits", "end", "create_s", "slowest_s")
    class LimitHitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_AT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_HITS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CREATE_S_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    job_id: str
    host: str
    backend: str
    env: str
    acquired_at: _timestamp_pb2.Timestamp
    released_at: _timestamp_pb2.Timestamp
    commands: int
    cpu_s: float
    peak_memory_bytes: int
    limit_hits: _containers.ScalarMap[str, int]
    end: str
    create_s: float
    slowest_s: float
    def __init__(self, session_id: _Optional[str] = ..., job_id: _Optional[str] = ..., host: _Optional[str] = ..., backend: _Optional[str] = ..., env: _Optional[str] = ..., acquired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., released_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., commands: _Optional[int] = ..., cpu_s: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., limit_hits: _Optional[_Mapping[str, int]] = ..., end: _Optional[str] = ..., create_s: _Optional[float] = ..., slowest_s: _Optional[float] = ...) -> None: ...
