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

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "max_tokens_per_turn")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_TURN_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    max_tokens_per_turn: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., max_tokens_per_turn: _Optional[int] = ...) -> None: ...

class EpisodeLimits(_message.Message):
    __slots__ = ("max_turns", "max_tokens", "max_observation_bytes", "group_deadline_s")
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OBSERVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    max_turns: int
    max_tokens: int
    max_observation_bytes: int
    group_deadline_s: float
    def __init__(self, max_turns: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_observation_bytes: _Optional[int] = ..., group_deadline_s: _Optional[float] = ...) -> None: ...

class GroupCommand(_message.Message):
    __slots__ = ("job_id", "group_id", "index", "purpose", "phase", "domain", "env", "split", "task_indices", "samples_per_task", "seed", "min_version", "sampling", "limits", "oracle_styles", "fence", "published_at", "eval_point")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    TASK_INDICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_TASK_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ORACLE_STYLES_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    EVAL_POINT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    group_id: str
    index: int
    purpose: _common_pb2.Purpose
    phase: int
    domain: str
    env: _common_pb2.EnvRef
    split: str
    task_indices: _containers.RepeatedScalarFieldContainer[int]
    samples_per_task: int
    seed: int
    min_version: int
    sampling: SamplingParams
    limits: EpisodeLimits
    oracle_styles: _containers.RepeatedScalarFieldContainer[str]
    fence: int
    published_at: _timestamp_pb2.Timestamp
    eval_point: str
    def __init__(self, job_id: _Optional[str] = ..., group_id: _Optional[str] = ..., index: _Optional[int] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., phase: _Optional[int] = ..., domain: _Optional[str] = ..., env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., task_indices: _Optional[_Iterable[int]] = ..., samples_per_task: _Optional[int] = ..., seed: _Optional[int] = ..., min_version: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., limits: _Optional[_Union[EpisodeLimits, _Mapping]] = ..., oracle_styles: _Optional[_Iterable[str]] = ..., fence: _Optional[int] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., eval_point: _Optional[str] = ...) -> None: ...

class ToolUse(_message.Message):
    __slots__ = ("name", "outcome", "wall_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    outcome: str
    wall_s: float
    def __init__(self, name: _Optional[str] = ..., outcome: _Optional[str] = ..., wall_s: _Optional[float] = ...) -> None: ...

class SampleSummary(_message.Message):
    __slots__ = ("task_index", "sample_index", "sample_class", "reward", "solved", "prompt_tokens", "action_tokens", "total_tokens", "turns", "tools", "finish_reason", "min_version", "max_version", "wall_s", "sandbox_s", "sandbox_host", "detail")
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_CLASS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    SOLVED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_S_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_HOST_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    task_index: int
    sample_index: int
    sample_class: _common_pb2.SampleClass
    reward: float
    solved: bool
    prompt_tokens: int
    action_tokens: int
    total_tokens: int
    turns: int
    tools: _containers.RepeatedCompositeFieldContainer[ToolUse]
    finish_reason: _common_pb2.FinishReason
    min_version: int
    max_version: int
    wall_s: float
    sandbox_s: float
    sandbox_host: str
    detail: str
    def __init__(self, task_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., sample_class: _Optional[_Union[_common_pb2.SampleClass, str]] = ..., reward: _Optional[float] = ..., solved: bool = ..., prompt_tokens: _Optional[int] = ..., action_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., turns: _Optional[int] = ..., tools: _Optional[_Iterable[_Union[ToolUse, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., min_version: _Optional[int] = ..., max_version: _Optional[int] = ..., wall_s: _Optional[float] = ..., sandbox_s: _Optional[float] = ..., sandbox_host: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class GroupRecord(_message.Message):
    __slots__ = ("job_id", "group_id", "index", "purpose", "phase", "domain", "env", "split", "samples", "table", "drop_reason", "worker", "engine", "published_at", "started_at", "finished_at", "attempt", "eval_point", "seed", "samples_per_task")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DROP_REASON_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EVAL_POINT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_TASK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    group_id: str
    index: int
    purpose: _common_pb2.Purpose
    phase: int
    domain: str
    env: _common_pb2.EnvRef
    split: str
    samples: _containers.RepeatedCompositeFieldContainer[SampleSummary]
    table: _common_pb2.BlobRef
    drop_reason: _common_pb2.DropReason
    worker: str
    engine: str
    published_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    attempt: int
    eval_point: str
    seed: int
    samples_per_task: int
    def __init__(self, job_id: _Optional[str] = ..., group_id: _Optional[str] = ..., index: _Optional[int] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., phase: _Optional[int] = ..., domain: _Optional[str] = ..., env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[SampleSummary, _Mapping]]] = ..., table: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., drop_reason: _Optional[_Union[_common_pb2.DropReason, str]] = ..., worker: _Optional[str] = ..., engine: _Optional[str] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., eval_point: _Optional[str] = ..., seed: _Optional[int] = ..., samples_per_task: _Optional[int] = ...) -> None: ...

class SampleTokens(_message.Message):
    __slots__ = ("task_index", "sample_index", "token_ids", "mask", "logprob_raw", "logprob_processed", "log_surviving_mass", "versions", "prompt_tokens")
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_RAW_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    LOG_SURVIVING_MASS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    task_index: int
    sample_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    mask: bytes
    logprob_raw: _containers.RepeatedScalarFieldContainer[float]
    logprob_processed: _containers.RepeatedScalarFieldContainer[float]
    log_surviving_mass: _containers.RepeatedScalarFieldContainer[float]
    versions: _containers.RepeatedCompositeFieldContainer[_common_pb2.VersionSpan]
    prompt_tokens: int
    def __init__(self, task_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., mask: _Optional[bytes] = ..., logprob_raw: _Optional[_Iterable[float]] = ..., logprob_processed: _Optional[_Iterable[float]] = ..., log_surviving_mass: _Optional[_Iterable[float]] = ..., versions: _Optional[_Iterable[_Union[_common_pb2.VersionSpan, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class GroupTable(_message.Message):
    __slots__ = ("group_id", "samples")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    samples: _containers.RepeatedCompositeFieldContainer[SampleTokens]
    def __init__(self, group_id: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[SampleTokens, _Mapping]]] = ...) -> None: ...

class PolicyLoaded(_message.Message):
    __slots__ = ("worker", "job_id", "version", "load_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    worker: str
    job_id: str
    version: int
    load_s: float
    def __init__(self, worker: _Optional[str] = ..., job_id: _Optional[str] = ..., version: _Optional[int] = ..., load_s: _Optional[float] = ...) -> None: ...
