"""What a job file may say, with every default.

Keys are those of `JobSpec` in the contract, so that an error of the server names the same path, with these
differences for the reader's sake: tables repeat in the singular (`[[domain]]`, `[[phase]]`), `params` of a domain is
a table, and `params` of a phase holds the algorithm's numbers and choices together.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

Count = Annotated[int, Field(ge=1, le=2**31)]
Whole = Annotated[int, Field(ge=0, le=2**31)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e9)]  # what is larger is a slip, and overflows where it is used
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


def _number_or_text(value: object) -> float | str:
    """One validator instead of a union, whose every branch would complain about one mistake."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"must be a finite number or text in quotes, not {value!r:.60}")
    return float(value)


NumberOrText = Annotated[float | str, PlainValidator(_number_or_text)]


class Table(BaseModel):
    """A table of the file: no unknown keys, no silent conversion, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RandomPolicy(Table):
    """`[policy.random]`: weights drawn from the job's seed, in this shape."""

    family: Literal["llama", "qwen2", "qwen3"]
    """Architecture."""
    hidden_size: Annotated[int, Field(ge=8, le=2**16)]
    """Width."""
    layers: Annotated[int, Field(ge=1, le=512)]
    """Decoder layers."""
    heads: Annotated[int, Field(ge=1, le=1024)]
    """Query heads."""
    kv_heads: Annotated[int, Field(ge=1, le=1024)]
    """Key/value heads."""
    intermediate_size: Annotated[int, Field(ge=8, le=2**20)]
    """Width of the SwiGLU."""
    max_positions: Annotated[int, Field(ge=16, le=2**24)] = 1024
    """Longest sequence, tokens."""
    vocab_size: Annotated[int, Field(ge=2, le=2**24)] = 264
    """Tokens of the vocabulary."""
    tie_embeddings: bool = False
    """One matrix for input and output."""
    rope_theta: Positive = 10000.0
    """Base of the rotary positions."""
    files: str = "policies/byte"
    """Directory with tokenizer.json and temper_chat.json, relative to the job file."""


class Policy(Table):
    """`[policy]`: exactly one of the keys."""

    checkpoint: str | None = None
    """Hugging Face directory, relative to the job file."""
    from_job: str | None = None
    """Id of a job on the same platform: start from its last published policy."""
    random: RandomPolicy | None = None
    """Random weights."""


class Domain(Table):
    """`[[domain]]`: an environment and its share of the groups."""

    name: Name
    """Unique in the job."""
    env: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)?(@[0-9]+\.[0-9]+\.[0-9]+)?$")
    ]
    """`name` for the newest admitted version, or `name@1.2.3`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters that differ from the environment's own."""
    share: Positive = 1.0
    """Relative to the other domains."""
    curriculum: Literal[
        "uniform",
        "success_window",
        "difficulty_pool",
        "balanced_online",
        "bandit",
        "adaptive_target",
        "gate",
    ] = "uniform"
    """Order of the tasks."""
    train_tasks: Whole = 0
    """Training tasks cycled through; 0: unbounded."""


class Optimizer(Table):
    """`optimizer` of a phase: AdamW with a schedule."""

    lr: Annotated[float, Field(gt=0.0, le=100.0)]
    """Peak learning rate."""
    warmup_steps: Whole = 0
    """Linear warm-up."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """After the warm-up."""
    min_lr_ratio: Share = 0.0
    """Final learning rate as a fraction of `lr`."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Decoupled."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Adam's first moment."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Adam's second moment."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""


class OracleMix(Table):
    """One entry of `oracle_mix`: styles of demonstrations until a fraction of the phase."""

    until: Annotated[float, Field(gt=0.0, le=1.0)]
    """Fraction of the phase's steps at which the mix ends."""
    styles: Annotated[dict[str, Annotated[float, Field(ge=0.0, le=1e9)]], Field(min_length=1)]
    """Weight per style."""


class Phase(Table):
    """`[[phase]]`: one stretch of training."""

    name: Name
    """Unique in the job."""
    algorithm: Annotated[str, Field(min_length=1)]
    """`sft`, `grpo`, or another algorithm of the trainer."""
    source: Literal["policy", "demo"] | None = None
    """Who acts in the samples; left out: `demo` for sft, else `policy`."""
    steps: Count
    """Optimizer steps."""
    groups_per_step: Count = 16
    """Groups in one step."""
    tasks_per_group: Annotated[int, Field(ge=1, le=4096)] = 1
    """Tasks in one group; 1 unless `source` is `demo`."""
    samples_per_task: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Samples of each task; left out: 1 for demonstrations, else 8."""
    max_staleness: Annotated[int, Field(ge=0, le=8)] = 1
    """Versions a sample may be behind; 0 is synchronous."""
    optimizer: Optimizer
    """Learning rate and the rest."""
    params: dict[str, NumberOrText] = Field(default_factory=dict)
    """The algorithm's own numbers and choices."""
    oracle_mix: tuple[OracleMix, ...] = ()
    """Styles of demonstrations over the phase."""
    publish_every: Whole | None = None
    """Steps between publications; left out: only at the end for demonstrations, else 1."""
    snapshot_every: Count = 5
    """Steps between snapshots in the object store; nearer levels have their own pace (`trainer.toml`)."""
    teacher: str | None = None
    """Directory of a policy of the same vocabulary to learn from, for `distill`; relative to the job file."""

    @property
    def demo(self) -> bool:
        """Whether the environments' oracles act."""
        return self.source == "demo" or (self.source is None and self.algorithm == "sft")


class Eval(Table):
    """`[eval]`: evaluation on held-out tasks, as a part of the job."""

    tasks_per_domain: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Tasks per domain before and after."""
    every: Whole = 0
    """Steps between evaluations during training; 0: none."""
    during_tasks: Whole = 0
    """Tasks per domain of those; 0: as many as before and after."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """0 is greedy."""
    before: bool = True
    """Evaluate the initial policy."""
    after: bool = True
    """Evaluate the final policy."""
    samples_per_task: Annotated[int, Field(ge=1, le=1024)] = 1
    """More than 1 gives pass@k."""


class Rollout(Table):
    """`[rollout]`: budgets of an episode and how tokens are drawn in training."""

    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus mass; 1: everything."""
    top_k: Whole = 0
    """0: everything."""
    max_tokens_per_turn: Count = 64
    """Tokens of one turn."""
    max_turns: Count = 4
    """Model turns, the answer included."""
    max_tokens: Count = 512
    """Tokens of an episode, prompt and observations included."""
    max_observation_bytes: Annotated[int, Field(ge=16, le=2**24)] = 256
    """Bytes of one observation."""
    group_deadline_s: Positive = 60.0
    """Wall-clock seconds of each episode of a group, from when the worker begins to play it."""
    swap_policy: Literal["keep", "recompute", "requeue", "abort", "wait"] = "keep"
    """What a weight update does to sequences that run."""


class Mix(Table):
    """`[mix]`: how the shares of domains move."""

    controller: Literal["fixed", "learnability"] = "fixed"
    """`learnability`: after each evaluation on the way, domains that teach or are being forgotten grow; needs `eval.every`."""
    kappa: Annotated[float, Field(ge=0.0, le=100.0)] = 2.0
    """How much a domain that fell from its best grows."""
    max_change: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Largest relative change of a share at once."""
    floor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Least share, as a multiple of the domain's own."""
    ceiling: Annotated[float, Field(ge=1.0, le=1000.0)] = 4.0
    """Largest share, as a multiple of the domain's own."""
    seesaw_margin: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    """Loss of pass@1 from which a domain that falls while another rises is told."""


class Accept(Table):
    """`[accept]`: what the evaluation after training must show for the job to count as succeeded."""

    min_pass: dict[str, Share] = Field(default_factory=dict)
    """Lowest pass@1 per domain."""
    min_mean_pass: Share = 0.0
    """Lowest mean over domains; 0: not checked."""
    max_drop: Share = 0.0
    """Largest fall of a domain below its start; 0: not checked."""


class Gates(Table):
    """`[gates]`: what evaluations on the way must show, and what happens when they do not, or when a domain collapses."""

    action: Literal["alarm", "hold", "rollback", "stop"] = "alarm"
    """What a failed verdict leads to."""
    min_pass: dict[str, Share] = Field(default_factory=dict)
    """Lowest pass@1 per domain."""
    max_drop: Share | None = None
    """Largest fall of a domain below its reference; left out: not checked."""
    against: Literal["accepted", "best", "before"] = "accepted"
    """The reference: the last accepted evaluation, the domain's best accepted one, or the one before training."""
    min_samples: Count = 16
    """Tasks that an evaluation of a domain needs to be judged."""
    on_collapse: Literal["off", "alarm", "hold", "rollback", "stop"] = "alarm"
    """What follows when a domain loses all success in training."""
    collapse_groups: Count = 8
    """Groups in a row without any success that a collapse takes at least."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Learning rates are multiplied by it at each rollback."""
    max_rollbacks: Annotated[int, Field(ge=1, le=100)] = 3
    """Rollbacks after which the next one stops the job instead."""


class Megatron(Table):
    """`[trainer.megatron]`: how the engine `megatron` lays a model over processes."""

    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that share every matrix."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that share the layers."""
    data_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """Copies of the model, each with its part of a batch."""
    context_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that share a sequence."""
    sequence_parallel: bool = False
    """Whether the processes of tensor_parallel share the sequence where they do not share matrices."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: weights and activations; masters, gradients and moments stay fp32."""
    recompute: Literal["none", "full"] = "none"
    """full: activations of a layer are made again in the backward pass."""
    distributed_optimizer: bool = False
    """Whether masters and moments are spread over the copies."""


class Trainer(Table):
    """`[trainer]`: engine."""

    engine: Annotated[str, Field(min_length=1)] = "torch"
    """Name of an engine of the trainer."""
    micro_batch_tokens: Whole = 0
    """0: the trainer's default."""
    megatron: Megatron | None = None
    """Layout of the engine `megatron`; refused with any other."""


class JobFile(Table):
    """A whole job file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """For people."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of everything random."""
    policy: Policy
    """Where the weights come from."""
    domain: Annotated[tuple[Domain, ...], Field(min_length=1, max_length=1024)]
    """The mix."""
    phase: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=64)]
    """Run one after another."""
    eval: Eval = Eval()
    """Evaluation."""
    rollout: Rollout = Rollout()
    """Budgets."""
    mix: Mix = Mix()
    """How shares move."""
    accept: Accept = Accept()
    """Conditions of success."""
    gates: Gates = Gates()
    """Conditions on the way."""
    trainer: Trainer = Trainer()
    """Engine."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free."""
