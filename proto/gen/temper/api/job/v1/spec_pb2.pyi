from buf.validate import validate_pb2 as _validate_pb2
from temper.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobSpec(_message.Message):
    __slots__ = ("name", "seed", "policy", "domains", "phases", "eval", "rollout", "labels", "accept", "trainer", "mix", "gates")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    EVAL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    MIX_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    name: str
    seed: int
    policy: PolicySpec
    domains: _containers.RepeatedCompositeFieldContainer[DomainSpec]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseSpec]
    eval: EvalSpec
    rollout: RolloutSpec
    labels: _containers.ScalarMap[str, str]
    accept: AcceptSpec
    trainer: TrainerSpec
    mix: MixSpec
    gates: GateSpec
    def __init__(self, name: _Optional[str] = ..., seed: _Optional[int] = ..., policy: _Optional[_Union[PolicySpec, _Mapping]] = ..., domains: _Optional[_Iterable[_Union[DomainSpec, _Mapping]]] = ..., phases: _Optional[_Iterable[_Union[PhaseSpec, _Mapping]]] = ..., eval: _Optional[_Union[EvalSpec, _Mapping]] = ..., rollout: _Optional[_Union[RolloutSpec, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., accept: _Optional[_Union[AcceptSpec, _Mapping]] = ..., trainer: _Optional[_Union[TrainerSpec, _Mapping]] = ..., mix: _Optional[_Union[MixSpec, _Mapping]] = ..., gates: _Optional[_Union[GateSpec, _Mapping]] = ...) -> None: ...

class GateSpec(_message.Message):
    __slots__ = ("action", "min_pass", "max_drop", "against", "min_samples", "on_collapse", "collapse_groups", "lr_factor", "max_rollbacks")
    class MinPassEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MIN_PASS_FIELD_NUMBER: _ClassVar[int]
    MAX_DROP_FIELD_NUMBER: _ClassVar[int]
    AGAINST_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ON_COLLAPSE_FIELD_NUMBER: _ClassVar[int]
    COLLAPSE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LR_FACTOR_FIELD_NUMBER: _ClassVar[int]
    MAX_ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    action: str
    min_pass: _containers.ScalarMap[str, float]
    max_drop: float
    against: str
    min_samples: int
    on_collapse: str
    collapse_groups: int
    lr_factor: float
    max_rollbacks: int
    def __init__(self, action: _Optional[str] = ..., min_pass: _Optional[_Mapping[str, float]] = ..., max_drop: _Optional[float] = ..., against: _Optional[str] = ..., min_samples: _Optional[int] = ..., on_collapse: _Optional[str] = ..., collapse_groups: _Optional[int] = ..., lr_factor: _Optional[float] = ..., max_rollbacks: _Optional[int] = ...) -> None: ...

class MixSpec(_message.Message):
    __slots__ = ("controller", "kappa", "max_change", "floor", "ceiling", "seesaw_margin")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    KAPPA_FIELD_NUMBER: _ClassVar[int]
    MAX_CHANGE_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    SEESAW_MARGIN_FIELD_NUMBER: _ClassVar[int]
    controller: str
    kappa: float
    max_change: float
    floor: float
    ceiling: float
    seesaw_margin: float
    def __init__(self, controller: _Optional[str] = ..., kappa: _Optional[float] = ..., max_change: _Optional[float] = ..., floor: _Optional[float] = ..., ceiling: _Optional[float] = ..., seesaw_margin: _Optional[float] = ...) -> None: ...

class PolicySpec(_message.Message):
    __slots__ = ("checkpoint", "random")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    RANDOM_FIELD_NUMBER: _ClassVar[int]
    checkpoint: CheckpointRef
    random: ModelSpec
    def __init__(self, checkpoint: _Optional[_Union[CheckpointRef, _Mapping]] = ..., random: _Optional[_Union[ModelSpec, _Mapping]] = ...) -> None: ...

class CheckpointRef(_message.Message):
    __slots__ = ("files", "source")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.BlobRef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    files: _containers.MessageMap[str, _common_pb2.BlobRef]
    source: str
    def __init__(self, files: _Optional[_Mapping[str, _common_pb2.BlobRef]] = ..., source: _Optional[str] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("family", "hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "max_positions", "vocab_size", "tie_embeddings", "rope_theta", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.BlobRef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TIE_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ROPE_THETA_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    family: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    max_positions: int
    vocab_size: int
    tie_embeddings: bool
    rope_theta: float
    files: _containers.MessageMap[str, _common_pb2.BlobRef]
    def __init__(self, family: _Optional[str] = ..., hidden_size: _Optional[int] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., intermediate_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., vocab_size: _Optional[int] = ..., tie_embeddings: bool = ..., rope_theta: _Optional[float] = ..., files: _Optional[_Mapping[str, _common_pb2.BlobRef]] = ...) -> None: ...

class DomainSpec(_message.Message):
    __slots__ = ("name", "env", "params_json", "share", "curriculum", "train_tasks", "resolved")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CURRICULUM_FIELD_NUMBER: _ClassVar[int]
    TRAIN_TASKS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    name: str
    env: str
    params_json: str
    share: float
    curriculum: str
    train_tasks: int
    resolved: _common_pb2.EnvRef
    def __init__(self, name: _Optional[str] = ..., env: _Optional[str] = ..., params_json: _Optional[str] = ..., share: _Optional[float] = ..., curriculum: _Optional[str] = ..., train_tasks: _Optional[int] = ..., resolved: _Optional[_Union[_common_pb2.EnvRef, _Mapping]] = ...) -> None: ...

class PhaseSpec(_message.Message):
    __slots__ = ("name", "algorithm", "source", "steps", "groups_per_step", "tasks_per_group", "samples_per_task", "max_staleness", "optimizer", "algorithm_params", "algorithm_choices", "oracle_mix", "publish_every", "snapshot_every", "teacher")
    class AlgorithmParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class AlgorithmChoicesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TASKS_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_TASK_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_PARAMS_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    ORACLE_MIX_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_EVERY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EVERY_FIELD_NUMBER: _ClassVar[int]
    TEACHER_FIELD_NUMBER: _ClassVar[int]
    name: str
    algorithm: str
    source: _common_pb2.Purpose
    steps: int
    groups_per_step: int
    tasks_per_group: int
    samples_per_task: int
    max_staleness: int
    optimizer: OptimizerSpec
    algorithm_params: _containers.ScalarMap[str, float]
    algorithm_choices: _containers.ScalarMap[str, str]
    oracle_mix: _containers.RepeatedCompositeFieldContainer[OracleMix]
    publish_every: int
    snapshot_every: int
    teacher: CheckpointRef
    def __init__(self, name: _Optional[str] = ..., algorithm: _Optional[str] = ..., source: _Optional[_Union[_common_pb2.Purpose, str]] = ..., steps: _Optional[int] = ..., groups_per_step: _Optional[int] = ..., tasks_per_group: _Optional[int] = ..., samples_per_task: _Optional[int] = ..., max_staleness: _Optional[int] = ..., optimizer: _Optional[_Union[OptimizerSpec, _Mapping]] = ..., algorithm_params: _Optional[_Mapping[str, float]] = ..., algorithm_choices: _Optional[_Mapping[str, str]] = ..., oracle_mix: _Optional[_Iterable[_Union[OracleMix, _Mapping]]] = ..., publish_every: _Optional[int] = ..., snapshot_every: _Optional[int] = ..., teacher: _Optional[_Union[CheckpointRef, _Mapping]] = ...) -> None: ...

class OracleMix(_message.Message):
    __slots__ = ("until", "styles")
    class StylesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STYLES_FIELD_NUMBER: _ClassVar[int]
    until: float
    styles: _containers.ScalarMap[str, float]
    def __init__(self, until: _Optional[float] = ..., styles: _Optional[_Mapping[str, float]] = ...) -> None: ...

class OptimizerSpec(_message.Message):
    __slots__ = ("lr", "warmup_steps", "schedule", "min_lr_ratio", "weight_decay", "beta1", "beta2", "max_grad_norm")
    LR_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    MIN_LR_RATIO_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    MAX_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    lr: float
    warmup_steps: int
    schedule: str
    min_lr_ratio: float
    weight_decay: float
    beta1: float
    beta2: float
    max_grad_norm: float
    def __init__(self, lr: _Optional[float] = ..., warmup_steps: _Optional[int] = ..., schedule: _Optional[str] = ..., min_lr_ratio: _Optional[float] = ..., weight_decay: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., max_grad_norm: _Optional[float] = ...) -> None: ...

class EvalSpec(_message.Message):
    __slots__ = ("tasks_per_domain", "every", "during_tasks", "temperature", "before", "after", "samples_per_task")
    TASKS_PER_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    DURING_TASKS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_TASK_FIELD_NUMBER: _ClassVar[int]
    tasks_per_domain: int
    every: int
    during_tasks: int
    temperature: float
    before: bool
    after: bool
    samples_per_task: int
    def __init__(self, tasks_per_domain: _Optional[int] = ..., every: _Optional[int] = ..., during_tasks: _Optional[int] = ..., temperature: _Optional[float] = ..., before: bool = ..., after: bool = ..., samples_per_task: _Optional[int] = ...) -> None: ...

class RolloutSpec(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "max_tokens_per_turn", "max_turns", "max_tokens", "max_observation_bytes", "group_deadline_s", "swap_policy")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_TURN_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OBSERVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SWAP_POLICY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    max_tokens_per_turn: int
    max_turns: int
    max_tokens: int
    max_observation_bytes: int
    group_deadline_s: float
    swap_policy: str
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., max_tokens_per_turn: _Optional[int] = ..., max_turns: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_observation_bytes: _Optional[int] = ..., group_deadline_s: _Optional[float] = ..., swap_policy: _Optional[str] = ...) -> None: ...

class AcceptSpec(_message.Message):
    __slots__ = ("min_pass", "min_mean_pass", "max_drop")
    class MinPassEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MIN_PASS_FIELD_NUMBER: _ClassVar[int]
    MIN_MEAN_PASS_FIELD_NUMBER: _ClassVar[int]
    MAX_DROP_FIELD_NUMBER: _ClassVar[int]
    min_pass: _containers.ScalarMap[str, float]
    min_mean_pass: float
    max_drop: float
    def __init__(self, min_pass: _Optional[_Mapping[str, float]] = ..., min_mean_pass: _Optional[float] = ..., max_drop: _Optional[float] = ...) -> None: ...

class TrainerSpec(_message.Message):
    __slots__ = ("engine", "micro_batch_tokens", "megatron")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEGATRON_FIELD_NUMBER: _ClassVar[int]
    engine: str
    micro_batch_tokens: int
    megatron: MegatronSpec
    def __init__(self, engine: _Optional[str] = ..., micro_batch_tokens: _Optional[int] = ..., megatron: _Optional[_Union[MegatronSpec, _Mapping]] = ...) -> None: ...

class MegatronSpec(_message.Message):
    __slots__ = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel", "precision", "recompute", "distributed_optimizer", "sequence_parallel")
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTED_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    context_parallel: int
    precision: str
    recompute: str
    distributed_optimizer: bool
    sequence_parallel: bool
    def __init__(self, tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., data_parallel: _Optional[int] = ..., context_parallel: _Optional[int] = ..., precision: _Optional[str] = ..., recompute: _Optional[str] = ..., distributed_optimizer: bool = ..., sequence_parallel: bool = ...) -> None: ...
