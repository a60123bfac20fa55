import datetime

from buf.validate import validate_pb2 as _validate_pb2
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

class TrainingState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINING_STATE_UNSPECIFIED: _ClassVar[TrainingState]
    TRAINING_STATE_RUNNING: _ClassVar[TrainingState]
    TRAINING_STATE_FINISHED: _ClassVar[TrainingState]
    TRAINING_STATE_FAILED: _ClassVar[TrainingState]
TRAINING_STATE_UNSPECIFIED: TrainingState
TRAINING_STATE_RUNNING: TrainingState
TRAINING_STATE_FINISHED: TrainingState
TRAINING_STATE_FAILED: TrainingState

class StartTraining(_message.Message):
    __slots__ = ("job_id", "spec", "fence")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    spec: _spec_pb2.JobSpec
    fence: int
    def __init__(self, job_id: _Optional[str] = ..., spec: _Optional[_Union[_spec_pb2.JobSpec, _Mapping]] = ..., fence: _Optional[int] = ...) -> None: ...

class PolicyRecord(_message.Message):
    __slots__ = ("job_id", "version", "step", "phase", "phase_step", "manifest", "settled", "consumed_groups", "dropped_groups", "step_group_ids", "state", "message", "idle_share", "published_at", "fence", "trained_tokens", "trainer", "recoveries", "swap_policy", "reward_model", "rollbacks", "line_start", "restored_step", "diagnostics")
    class DroppedGroupsEntry(_message.Message):
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
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_STEP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    STEP_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IDLE_SHARE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    SWAP_POLICY_FIELD_NUMBER: _ClassVar[int]
    REWARD_MODEL_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    LINE_START_FIELD_NUMBER: _ClassVar[int]
    RESTORED_STEP_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: int
    step: int
    phase: int
    phase_step: int
    manifest: _common_pb2.BlobRef
    settled: _containers.RepeatedCompositeFieldContainer[_common_pb2.IndexRange]
    consumed_groups: int
    dropped_groups: _containers.ScalarMap[str, int]
    step_group_ids: _containers.RepeatedScalarFieldContainer[str]
    state: TrainingState
    message: str
    idle_share: float
    published_at: _timestamp_pb2.Timestamp
    fence: int
    trained_tokens: int
    trainer: str
    recoveries: int
    swap_policy: str
    reward_model: _common_pb2.BlobRef
    rollbacks: int
    line_start: int
    restored_step: int
    diagnostics: _containers.ScalarMap[str, float]
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[int] = ..., phase_step: _Optional[int] = ..., manifest: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., settled: _Optional[_Iterable[_Union[_common_pb2.IndexRange, _Mapping]]] = ..., consumed_groups: _Optional[int] = ..., dropped_groups: _Optional[_Mapping[str, int]] = ..., step_group_ids: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[TrainingState, str]] = ..., message: _Optional[str] = ..., idle_share: _Optional[float] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fence: _Optional[int] = ..., trained_tokens: _Optional[int] = ..., trainer: _Optional[str] = ..., recoveries: _Optional[int] = ..., swap_policy: _Optional[str] = ..., reward_model: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., rollbacks: _Optional[int] = ..., line_start: _Optional[int] = ..., restored_step: _Optional[int] = ..., diagnostics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TensorEntry(_message.Message):
    __slots__ = ("name", "dtype", "shape", "sha256", "shard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    sha256: str
    shard: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., sha256: _Optional[str] = ..., shard: _Optional[int] = ...) -> None: ...

class WeightManifest(_message.Message):
    __slots__ = ("job_id", "version", "base_version", "shards", "tensors", "files", "created_at", "delta", "base_manifest")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.BlobRef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BASE_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    version: int
    base_version: int
    shards: _containers.RepeatedCompositeFieldContainer[_common_pb2.BlobRef]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorEntry]
    files: _containers.MessageMap[str, _common_pb2.BlobRef]
    created_at: _timestamp_pb2.Timestamp
    delta: str
    base_manifest: _common_pb2.BlobRef
    def __init__(self, job_id: _Optional[str] = ..., version: _Optional[int] = ..., base_version: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[_common_pb2.BlobRef, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[TensorEntry, _Mapping]]] = ..., files: _Optional[_Mapping[str, _common_pb2.BlobRef]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delta: _Optional[str] = ..., base_manifest: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("job_id", "step", "phase", "phase_name", "algorithm", "version", "group_ids", "samples", "masked", "action_tokens", "total_tokens", "metrics", "domain_reward", "domain_solved", "domain_samples", "staleness", "wait_s", "data_s", "compute_s", "publish_s", "finished_at", "skipped", "skip_reason", "trainer", "restored_step", "rollbacks", "domain_masked", "domain_flat", "domain_staleness")
    class MaskedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
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
    class DomainSamplesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StalenessEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class DomainMaskedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class DomainFlatEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class DomainStalenessEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_NAME_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    ACTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_REWARD_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_SOLVED_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DATA_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_S_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SKIP_REASON_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    RESTORED_STEP_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_MASKED_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FLAT_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_STALENESS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    phase: int
    phase_name: str
    algorithm: str
    version: int
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    samples: int
    masked: _containers.ScalarMap[str, int]
    action_tokens: int
    total_tokens: int
    metrics: _containers.ScalarMap[str, float]
    domain_reward: _containers.ScalarMap[str, float]
    domain_solved: _containers.ScalarMap[str, float]
    domain_samples: _containers.ScalarMap[str, int]
    staleness: _containers.ScalarMap[int, int]
    wait_s: float
    data_s: float
    compute_s: float
    publish_s: float
    finished_at: _timestamp_pb2.Timestamp
    skipped: bool
    skip_reason: str
    trainer: str
    restored_step: int
    rollbacks: int
    domain_masked: _containers.ScalarMap[str, float]
    domain_flat: _containers.ScalarMap[str, float]
    domain_staleness: _containers.ScalarMap[str, float]
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., phase: _Optional[int] = ..., phase_name: _Optional[str] = ..., algorithm: _Optional[str] = ..., version: _Optional[int] = ..., group_ids: _Optional[_Iterable[str]] = ..., samples: _Optional[int] = ..., masked: _Optional[_Mapping[str, int]] = ..., action_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., domain_reward: _Optional[_Mapping[str, float]] = ..., domain_solved: _Optional[_Mapping[str, float]] = ..., domain_samples: _Optional[_Mapping[str, int]] = ..., staleness: _Optional[_Mapping[int, int]] = ..., wait_s: _Optional[float] = ..., data_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., publish_s: _Optional[float] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., skipped: bool = ..., skip_reason: _Optional[str] = ..., trainer: _Optional[str] = ..., restored_step: _Optional[int] = ..., rollbacks: _Optional[int] = ..., domain_masked: _Optional[_Mapping[str, float]] = ..., domain_flat: _Optional[_Mapping[str, float]] = ..., domain_staleness: _Optional[_Mapping[str, float]] = ...) -> None: ...
