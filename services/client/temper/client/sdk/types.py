"""What the SDK gives back: frozen values, free of protobuf and gRPC.

Times are seconds since the Unix epoch, durations seconds; None stands for "not yet" and "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

JobState = Literal[
    "unspecified", "pending", "starting", "running", "paused", "finishing", "succeeded", "failed", "cancelled"
]
STATES: tuple[JobState, ...] = get_args(JobState)
ENDED: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Bytes in the platform's object store. Example: `BlobRef("sha256/ab…", "ab…", 4096)`."""

    key: str
    """Key inside the store."""
    sha256: str
    """Checksum of the bytes, lower-case hex."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of a running job. Example: `Progress(step=12, total_steps=60, domain_reward={"calc": 0.4})`."""

    phase: int = 0
    """Index of the phase."""
    phase_name: str = ""
    """Its name."""
    step: int = 0
    """Optimizer steps taken, over all phases."""
    total_steps: int = 0
    """Optimizer steps of all phases."""
    version: int = 0
    """Published policy version."""
    groups_published: int = 0
    """Groups published so far."""
    groups_consumed: int = 0
    """Groups trained on."""
    groups_dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    """Groups dropped, by reason."""
    groups_in_flight: int = 0
    """Published and not settled."""
    domain_reward: Mapping[str, float] = field(default_factory=dict[str, float])
    """Running mean of recent rewards."""
    domain_solved: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share solved among recent samples."""
    domain_groups: Mapping[str, int] = field(default_factory=dict[str, int])
    """Groups issued."""
    staleness: float = 0.0
    """Mean age of recent samples, in versions."""
    tokens_per_s: float = 0.0
    """Tokens generated per second."""
    episodes_per_s: float = 0.0
    """Episodes finished per second."""
    sandboxes_in_use: int = 0
    """Over all hosts."""
    trainer_idle: float = 0.0
    """Share of time the trainer waited."""
    rollout_idle: float = 0.0
    """Share of time rollout slots were empty."""
    eta_s: float | None = None
    """Estimated seconds to the end."""
    activity: str = ""
    """What the job is doing, in words."""
    wall_s: float = 0.0
    """Seconds since the job was created."""
    eval_done: int = 0
    """Evaluation episodes done at the current point."""
    eval_total: int = 0
    """Evaluation episodes asked for at the current point."""
    diagnostics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the last step: `mismatch_k1`, `mismatch_k3`, `ess`, `masked_share`, `flat_share`, `staleness_max`, where known."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One domain at one evaluation point. Example: `Evaluation("after", "calc", 60, n=256, pass_at_1=0.95)`."""

    point: str
    """`before`, `step-20`, `after`."""
    domain: str
    """Domain."""
    step: int = 0
    """Optimizer step at which it was asked for."""
    min_version: int = 0
    """Oldest policy version that produced its tokens."""
    max_version: int = 0
    """Newest one."""
    n: int = 0
    """Valid samples."""
    attempted: int = 0
    """Samples asked for."""
    solved: int = 0
    """Solved samples."""
    pass_at_1: float = 0.0
    """Mean over tasks."""
    low: float = 0.0
    """95 % interval, low end."""
    high: float = 0.0
    """95 % interval, high end."""
    mean_reward: float = 0.0
    """Mean reward of valid samples."""
    pass_at_k: Mapping[int, float] = field(default_factory=dict[int, float])
    """pass@k for k > 1."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth knowing. Example: `Notice("warning", "trainer_recovered", "resumed from step 12")`."""

    level: str
    """`info`, `warning` or `error`."""
    code: str
    """Stable name."""
    message: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One bound on one domain. Example: `GateCheck("calc", "max_drop", "fail", value=-.31, limit=-.1)`."""

    domain: str
    """Domain."""
    bound: str
    """`min_pass`, `max_drop`, `samples` or `collapse`."""
    verdict: str
    """`pass`, `fail` or `insufficient_data`."""
    value: float = 0.0
    """pass@1, its change, or the recent success rate."""
    low: float = 0.0
    """Interval, low end."""
    high: float = 0.0
    """Interval, high end."""
    limit: float = 0.0
    """The bound."""
    n: int = 0
    """Tasks, or groups of a collapse."""
    reference: str = ""
    """Evaluation point that it was compared with."""
    message: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What a gate said. Example: `GateVerdict("step-40", 40, 40, "fail", action="rollback")`."""

    point: str
    """Evaluation point, `collapse-1` or `asked-1`."""
    step: int
    """Optimizer step."""
    version: int
    """Policy version that was judged."""
    verdict: str
    """`pass`, `fail` or `insufficient_data`."""
    action: str = ""
    """What follows: nothing, `alarm`, `hold`, `rollback` or `stop`."""
    message: str = ""
    """One sentence."""
    rollback: int = 0
    """Number of the rollback that it ordered; 0 for none."""
    checks: tuple[GateCheck, ...] = ()
    """Bounds; of a job's record those that did not pass."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A version that a name stood for. Example: `Promotion("job-7f3a", 40, "pass", "step-40")`."""

    job_id: str
    """Job."""
    version: int
    """Version."""
    verdict: str = ""
    """That it rests on; empty when nothing was judged."""
    point: str = ""
    """Evaluation point of that verdict."""
    forced: bool = False
    """Whether it was promoted without a passed verdict."""
    reason: str = ""
    """In the words of whoever asked."""
    promoted_at: float | None = None
    """When."""
    returns_to: int | None = None
    """Position in the history that it returned to."""
    manifest: BlobRef | None = None
    """List of its files."""


@dataclass(frozen=True, slots=True)
class PromotedPolicy:
    """A name and what it stands for. Example: `PromotedPolicy("tutor", (Promotion("job-7f3a", 40),))`."""

    name: str
    """Name."""
    history: tuple[Promotion, ...] = ()
    """Oldest first; the last one is current."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A job changed its state. Example: `StateChange("failed", "accept.min_pass: calc 0.71 < 0.9")`."""

    state: JobState
    """New state."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Example: `Job("job-7f3a", "quickstart", "running", spec={...})`."""

    id: str
    """Given by the server."""
    name: str
    """For people."""
    state: JobState
    """Where it is."""
    reason: str = ""
    """Why it is pending, paused or failed."""
    created_at: float | None = None
    """Creation."""
    started_at: float | None = None
    """Start of training."""
    ended_at: float | None = None
    """End."""
    progress: Progress = Progress()
    """Counters."""
    evals: tuple[Evaluation, ...] = ()
    """Evaluations so far."""
    gates: tuple[GateVerdict, ...] = ()
    """Verdicts of its gates so far."""
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Effective specification in JSON form, defaults filled in."""
    etag: str = ""
    """Changes with every write."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Update:
    """One message of a watch. Example: `Update("42", Progress(step=3))`."""

    cursor: str
    """Resumes the watch after this message."""
    payload: Job | Progress | Evaluation | GateVerdict | Notice | StateChange
    """A snapshot first, then what happens."""
    time: float | None = None
    """When it happened; None for a snapshot."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A live process of a service. Example: `Instance("rollout", "rollout-1", state="ready", pid=4711)`."""

    service: str
    """Service name."""
    instance: str
    """Instance id."""
    state: str = ""
    """`starting`, `ready`, `draining`."""
    version: str = ""
    """Build."""
    host: str = ""
    """Host name."""
    pid: int = 0
    """Process id."""
    started_at: float | None = None
    """Start."""
    seen_at: float | None = None
    """Last sign of life."""
    status: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the service says about itself."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed. Example: `DeadLetter(3, "temper.v1.cmd.rollout.j1", "crashed 3 times")`."""

    seq: int
    """Its number in the dead-letter stream."""
    subject: str
    """Where it came from."""
    reason: str
    """Why."""
    id: str = ""
    """Message id."""
    type: str = ""
    """Protobuf name."""
    time: float | None = None
    """When it was given up."""
    deliveries: int = 0
    """Deliveries before that."""
    body_json: str = ""
    """Body, where its type is known."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Last published policy of a job. Example: `Policy("job-7f3a", version=60, step=60, state="finished")`."""

    job_id: str
    """Job."""
    version: int
    """Version."""
    step: int
    """Optimizer step."""
    state: str
    """`running`, `finished`, `failed`."""
    manifest: BlobRef | None = None
    """List of its files."""
    published_at: float | None = None
    """When."""
    reward_model: BlobRef | None = None
    """List of the files of the job's reward model, if it has one."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person. Example: `Approval("9f…", "tool", "pending", '{"name":"shell",…}')`."""

    approval_id: str
    """Names it."""
    kind: str
    """`tool`, `exec` or `egress`."""
    state: str
    """`pending`, `granted`, `denied`, `expired`."""
    subject: str
    """What is asked for, as JSON: an answer holds for exactly this."""
    session_id: str = ""
    """Session that asks."""
    job_id: str = ""
    """Its job."""
    env: str = ""
    """Environment and version."""
    asked_at: float | None = None
    """When."""
    expires_at: float | None = None
    """When no answer becomes a no."""
    resolved_at: float | None = None
    """When it was answered."""
    resolved_by: str = ""
    """By whom."""
    reason: str = ""
    """Why."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one admission check. Example: `Check("semantic.oracle_max", "error", True, "64 of 64 scored 1.0")`."""

    id: str
    """Stable id."""
    severity: str
    """`error` blocks, `warning`, `info`."""
    passed: bool
    """Whether it passed."""
    evidence: str = ""
    """What was measured."""
    wall_s: float = 0.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A variant of an environment. Example: `Environment("rg/chain_sum", "0.1.25", "admitted")`."""

    name: str
    """Name."""
    version: str
    """Version."""
    state: str
    """`draft`, `checking`, `admitted`, `rejected`, `quarantined`."""
    digest: str = ""
    """Content digest of files and parameters."""
    params_json: str = ""
    """Effective parameters."""
    description: str = ""
    """One sentence."""
    domain: str = ""
    """Field of knowledge."""
    owner: str = ""
    """Team or person."""
    licence: str = ""
    """SPDX expression."""
    reason: str = ""
    """Of a rejection or quarantine."""
    checks: tuple[Check, ...] = ()
    """Newest report."""
    samples: int = 0
    """Valid samples seen in jobs."""
    solve_rate: float | None = None
    """Share solved of them."""

    @property
    def passed(self) -> bool:
        """Whether the newest report has no failed blocking check."""
        return bool(self.checks) and all(check.passed or check.severity != "error" for check in self.checks)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a query. Example: `Table(("n",), (("UInt64"),), ((3,),))`."""

    columns: tuple[str, ...]
    """Names."""
    types: tuple[str, ...]
    """ClickHouse types."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in column order."""
    truncated: bool = False
    """Rows were cut at the limit."""
    elapsed_s: float = 0.0
    """Seconds."""

    def records(self) -> list[dict[str, Any]]:
        """Rows as dictionaries."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """A named query of the contract. Example: `SavedQuery("reward_by_step", "…", "SELECT …", {"job": "String"})`."""

    name: str
    """Name."""
    description: str
    """What it answers."""
    sql: str
    """Text."""
    parameters: Mapping[str, str]
    """Parameter names with their types."""


@dataclass(frozen=True, slots=True)
class Ingestion:
    """How far ClickHouse is with one topic. Example: `Ingestion("steps", records=60, lag=0)`."""

    topic: str
    """Topic."""
    records: int
    """Stored since the service started."""
    lag: int
    """Not yet stored."""
