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
    __slots__ = ("job_id", "group_id", "index", "purpose", "phase", "domain", "env", "split", "task_indices", "samples_per_task", "seed", "min_version", "sampling", "limits", "oracle_styles", "fence", "published_at", "eval_point", "max_staleness")
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
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
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
    max_staleness: int
    def __init__(self, job_id: _Optional[str] = ..., group_id: _Optional[str] = ..., index: _Optional[int] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., phase: _Optional[int] = ..., domain: _Optional[str] = ..., env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., task_indices: _Optional[_Iterable[int]] = ..., samples_per_task: _Optional[int] = ..., seed: _Optional[int] = ..., min_version: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., limits: _Optional[_Union[EpisodeLimits, _Mapping]] = ..., oracle_styles: _Optional[_Iterable[str]] = ..., fence: _Optional[int] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., eval_point: _Optional[str] = ..., max_staleness: _Optional[int] = ...) -> None: ...

class EngineIdentity(_message.Message):
    __slots__ = ("name", "build", "numeric", "batch_invariant")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    name: str
    build: str
    numeric: str
    batch_invariant: bool
    def __init__(self, name: _Optional[str] = ..., build: _Optional[str] = ..., numeric: _Optional[str] = ..., batch_invariant: bool = ...) -> None: ...

class TurnEnd(_message.Message):
    __slots__ = ("start", "end", "finish_reason", "stop_token", "cached_tokens", "drafts_accepted", "attempt")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    finish_reason: _common_pb2.FinishReason
    stop_token: int
    cached_tokens: int
    drafts_accepted: int
    attempt: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., drafts_accepted: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("task_index", "sample_index", "sample_class", "reward", "solved", "prompt_tokens", "action_tokens", "total_tokens", "turns", "tools", "finish_reason", "min_version", "max_version", "wall_s", "sandbox_s", "sandbox_host", "detail", "kv_origin_lag", "cached_tokens", "stop_token", "attention", "for_training", "resumed_tokens", "restarts", "components")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.RewardComponent
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.RewardComponent, _Mapping]] = ...) -> None: ...
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
    KV_ORIGIN_LAG_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    FOR_TRAINING_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
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
    kv_origin_lag: int
    cached_tokens: int
    stop_token: int
    attention: str
    for_training: bool
    resumed_tokens: int
    restarts: int
    components: _containers.MessageMap[str, _common_pb2.RewardComponent]
    def __init__(self, task_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., sample_class: _Optional[_Union[_common_pb2.SampleClass, str]] = ..., reward: _Optional[float] = ..., solved: bool = ..., prompt_tokens: _Optional[int] = ..., action_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., turns: _Optional[int] = ..., tools: _Optional[_Iterable[_Union[ToolUse, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., min_version: _Optional[int] = ..., max_version: _Optional[int] = ..., wall_s: _Optional[float] = ..., sandbox_s: _Optional[float] = ..., sandbox_host: _Optional[str] = ..., detail: _Optional[str] = ..., kv_origin_lag: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., stop_token: _Optional[int] = ..., attention: _Optional[str] = ..., for_training: bool = ..., resumed_tokens: _Optional[int] = ..., restarts: _Optional[int] = ..., components: _Optional[_Mapping[str, _common_pb2.RewardComponent]] = ...) -> None: ...

class GroupRecord(_message.Message):
    __slots__ = ("job_id", "group_id", "index", "purpose", "phase", "domain", "env", "split", "samples", "table", "drop_reason", "worker", "engine", "published_at", "started_at", "finished_at", "attempt", "eval_point", "seed", "samples_per_task", "engine_identity", "swap_policy", "reward_min", "reward_max")
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
    ENGINE_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SWAP_POLICY_FIELD_NUMBER: _ClassVar[int]
    REWARD_MIN_FIELD_NUMBER: _ClassVar[int]
    REWARD_MAX_FIELD_NUMBER: _ClassVar[int]
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
    engine_identity: EngineIdentity
    swap_policy: str
    reward_min: float
    reward_max: float
    def __init__(self, job_id: _Optional[str] = ..., group_id: _Optional[str] = ..., index: _Optional[int] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., phase: _Optional[int] = ..., domain: _Optional[str] = ..., env: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ..., split: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[SampleSummary, _Mapping]]] = ..., table: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., drop_reason: _Optional[_Union[_common_pb2.DropReason, str]] = ..., worker: _Optional[str] = ..., engine: _Optional[str] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., eval_point: _Optional[str] = ..., seed: _Optional[int] = ..., samples_per_task: _Optional[int] = ..., engine_identity: _Optional[_Union[EngineIdentity, _Mapping]] = ..., swap_policy: _Optional[str] = ..., reward_min: _Optional[float] = ..., reward_max: _Optional[float] = ...) -> None: ...

class SampleTokens(_message.Message):
    __slots__ = ("task_index", "sample_index", "token_ids", "mask", "logprob_raw", "logprob_processed", "log_surviving_mass", "versions", "prompt_tokens", "weight_versions", "prefill_weight_versions", "kv_origin_versions", "turns", "seed", "stream", "attempt", "attention", "for_training")
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_RAW_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    LOG_SURVIVING_MASS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WEIGHT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    KV_ORIGIN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    FOR_TRAINING_FIELD_NUMBER: _ClassVar[int]
    task_index: int
    sample_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    mask: bytes
    logprob_raw: _containers.RepeatedScalarFieldContainer[float]
    logprob_processed: _containers.RepeatedScalarFieldContainer[float]
    log_surviving_mass: _containers.RepeatedScalarFieldContainer[float]
    versions: _containers.RepeatedCompositeFieldContainer[_common_pb2.VersionSpan]
    prompt_tokens: int
    weight_versions: _containers.RepeatedCompositeFieldContainer[_common_pb2.VersionSpan]
    prefill_weight_versions: _containers.RepeatedCompositeFieldContainer[_common_pb2.VersionSpan]
    kv_origin_versions: _containers.RepeatedCompositeFieldContainer[_common_pb2.VersionSpan]
    turns: _containers.RepeatedCompositeFieldContainer[TurnEnd]
    seed: int
    stream: int
    attempt: int
    attention: str
    for_training: bool
    def __init__(self, task_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., mask: _Optional[bytes] = ..., logprob_raw: _Optional[_Iterable[float]] = ..., logprob_processed: _Optional[_Iterable[float]] = ..., log_surviving_mass: _Optional[_Iterable[float]] = ..., versions: _Optional[_Iterable[_Union[_common_pb2.VersionSpan, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., weight_versions: _Optional[_Iterable[_Union[_common_pb2.VersionSpan, _Mapping]]] = ..., prefill_weight_versions: _Optional[_Iterable[_Union[_common_pb2.VersionSpan, _Mapping]]] = ..., kv_origin_versions: _Optional[_Iterable[_Union[_common_pb2.VersionSpan, _Mapping]]] = ..., turns: _Optional[_Iterable[_Union[TurnEnd, _Mapping]]] = ..., seed: _Optional[int] = ..., stream: _Optional[int] = ..., attempt: _Optional[int] = ..., attention: _Optional[str] = ..., for_training: bool = ...) -> None: ...

class UsedSampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens_per_turn", "stop_token_ids")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_TURN_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens_per_turn: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., max_tokens_per_turn: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupTable(_message.Message):
    __slots__ = ("group_id", "samples", "sampling", "engine")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    samples: _containers.RepeatedCompositeFieldContainer[SampleTokens]
    sampling: UsedSampling
    engine: EngineIdentity
    def __init__(self, group_id: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[SampleTokens, _Mapping]]] = ..., sampling: _Optional[_Union[UsedSampling, _Mapping]] = ..., engine: _Optional[_Union[EngineIdentity, _Mapping]] = ...) -> None: ...

class PartialSample(_message.Message):
    __slots__ = ("group_id", "task_number", "tokens", "min_version")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    task_number: int
    tokens: SampleTokens
    min_version: int
    def __init__(self, group_id: _Optional[str] = ..., task_number: _Optional[int] = ..., tokens: _Optional[_Union[SampleTokens, _Mapping]] = ..., min_version: _Optional[int] = ...) -> None: ...

class PolicyLoaded(_message.Message):
    __slots__ = ("worker", "job_id", "version", "load_s", "swap_policy", "running", "swap_s", "fetched_bytes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    SWAP_POLICY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SWAP_S_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    job_id: str
    version: int
    load_s: float
    swap_policy: str
    running: int
    swap_s: float
    fetched_bytes: int
    def __init__(self, worker: _Optional[str] = ..., job_id: _Optional[str] = ..., version: _Optional[int] = ..., load_s: _Optional[float] = ..., swap_policy: _Optional[str] = ..., running: _Optional[int] = ..., swap_s: _Optional[float] = ..., fetched_bytes: _Optional[int] = ...) -> None: ...
