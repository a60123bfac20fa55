"""What goes into a job's state machine, and what comes out of it. Plain values; nothing here does anything.

in     Resolved, Refused, PolicySeen, GroupSeen, JobSeen, EnvironmentSeen, TrainerLost, Tick
out    Resolve, StartTrainer, Issue, Revoke, Order, Hold, Announce
"""

from __future__ import annotations

from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.job.v1.job_pb2 import EvalResult, GateVerdict, Job, Notice, StateChanged
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord


@dataclass(frozen=True, slots=True)
class Resolved:
    """qa admitted the job's environments. Example: `Resolved((EnvRef(name="calc", …),))`."""

    envs: tuple[EnvRef, ...]
    """In the order of the spec's domains."""


@dataclass(frozen=True, slots=True)
class Refused:
    """qa refused an environment for good. Example: `Refused("calc: oracle does not solve task 3")`."""

    reason: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True)
class PolicySeen:
    """The last value of KV `policies.<job>`, perhaps again."""

    record: PolicyRecord
    """As the trainer published it."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A record of topic `trajectories`, perhaps again. Example: `GroupSeen(record, "41")`."""

    record: GroupRecord
    """One group, run or dropped."""
    token: str
    """Its position in the log: what a restart reads behind."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """KV `jobs.<job>` changed: somebody paused, resumed, cancelled or edited the job, or we wrote it."""

    job: Job
    """Its value now."""


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """A value of KV `environments`. Example: `EnvironmentSeen("ab…", withdrawn=True, reason="leaks answers")`."""

    digest: str
    """The variant."""
    withdrawn: bool
    """Whether it is quarantined."""
    reason: str
    """Why, in one sentence."""


@dataclass(frozen=True, slots=True)
class TrainerLost:
    """The command to train is among the dead letters: no trainer will take it again."""

    reason: str
    """Reason of the dead letter."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened for a while. Example: `Tick()`."""


Signal = Resolved | Refused | PolicySeen | GroupSeen | JobSeen | EnvironmentSeen | TrainerLost | Tick


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask qa for the job's environments; answer with `Resolved` or `Refused`."""


@dataclass(frozen=True, slots=True)
class StartTrainer:
    """Publish the command to train (idempotent by its id)."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Publish groups. The ledger that holds them must be saved first. Example: `Issue((command,))`."""

    commands: tuple[GroupCommand, ...]
    """In the order of publication."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Settle groups that nobody has finished: their environment was withdrawn. Example: `Revoke((command,))`."""

    commands: tuple[GroupCommand, ...]
    """Published, and without a record."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell everybody. Example: `Announce("state/RUNNING", StateChanged(…))`."""

    key: str
    """Unique in the job: makes the event and the log record idempotent."""
    payload: StateChanged | EvalResult | Notice | GateVerdict
    """What happened."""


@dataclass(frozen=True, slots=True)
class Order:
    """Tell the trainer what the gates want of it (`JobFacts.gate_record`). The books must be saved first."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Pause the job until a person has looked. Example: `Hold("step-40", "held at step-40: calc fell")`."""

    key: str
    """The verdict that it follows from: it pauses once."""
    reason: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the job as failed; the machine itself acts on it. Example: `Stop("stopped at step-40: calc fell")`."""

    reason: str
    """One sentence for people."""


Effect = Resolve | StartTrainer | Issue | Revoke | Announce | Order | Hold
