"""Life of an environment variant, and its live solve rate: pure functions of records.

    draft ──> checking ──> admitted ──> quarantined ──lift──> draft
                 │  └────> rejected ──(forced, or a newer checker)──> checking
                 └────────> draft (the backend went away: no verdict)

A quarantine outlasts every verdict: a report that comes in later is kept, the state stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from temper.api.common.v1 import common_pb2 as common
from temper.api.qa.v1 import qa_pb2 as qa
from temper.api.rollout.v1.rollout_pb2 import GroupRecord

DRAFT = qa.ENVIRONMENT_STATE_DRAFT
CHECKING = qa.ENVIRONMENT_STATE_CHECKING
ADMITTED = qa.ENVIRONMENT_STATE_ADMITTED
REJECTED = qa.ENVIRONMENT_STATE_REJECTED
QUARANTINED = qa.ENVIRONMENT_STATE_QUARANTINED

Change = Callable[[qa.EnvironmentRecord], None]
"""A change of a record, applied again to whatever is there when somebody else wrote first."""

RECENT = 0.02  # weight of the newest sample in the recent rate: a memory of about 50 samples
REMEMBERED = 4096  # group ids kept against repeats; the log itself drops repeats within its window
COUNTED = frozenset(
    {common.PURPOSE_TRAIN, common.PURPOSE_EVAL}
)  # demonstrations are the oracle's, not the policy's
VALID = frozenset({common.SAMPLE_CLASS_SCORED, common.SAMPLE_CLASS_AGENT_FAILED})


# ---------------------------------------------------------------- life cycle
def has_verdict(record: qa.EnvironmentRecord, checker: str, backend: str) -> bool:
    """Whether the newest report answers for this digest, checker and backend."""
    report = record.report
    return (report.digest, report.checker, report.backend) == (record.env.digest, checker, backend)


def begin(record: qa.EnvironmentRecord) -> None:
    """Checks start."""
    if record.state != QUARANTINED:
        record.state = CHECKING


def give_up(record: qa.EnvironmentRecord) -> None:
    """Checks ended without a verdict."""
    if record.state == CHECKING:
        record.state = DRAFT


def judge(report: qa.CheckReport, reason: str) -> Change:
    """Checks ended with `report`; `reason` says why if it failed."""

    def change(record: qa.EnvironmentRecord) -> None:
        record.report.CopyFrom(report)
        if record.state == QUARANTINED:
            return
        record.state = ADMITTED if report.passed else REJECTED
        record.reason = "" if report.passed else reason

    return change


def quarantine(reason: str) -> Change:
    """Withdrawn for `reason`."""

    def change(record: qa.EnvironmentRecord) -> None:
        record.state = QUARANTINED
        record.reason = reason

    return change


def lift(record: qa.EnvironmentRecord) -> None:
    """A quarantine ends: the checks run again before anything is mixed."""
    if record.state == QUARANTINED:
        record.state = DRAFT
        record.reason = ""
        record.ClearField("report")


def show_rate(rate: Rate) -> Change:
    """The live solve rate is now `rate`."""

    def change(record: qa.EnvironmentRecord) -> None:
        record.live.CopyFrom(rate.message())

    return change


# ---------------------------------------------------------------- live solve rate
@dataclass(slots=True)
class Rate:
    """What a policy achieves on one variant."""

    n: int = 0
    """Valid samples."""
    solved: int = 0
    """Solved samples."""
    infra_failed: int = 0
    """Samples lost to infrastructure: never counted as failures of the policy."""
    reward_sum: float = 0.0
    """Sum of valid rewards."""
    recent: float = 0.0
    """Exponentially weighted solve rate; the plain mean while there are few samples."""

    def add(self, *, solved: bool, reward: float) -> None:
        """One valid sample."""
        self.n += 1
        self.solved += solved
        self.reward_sum += reward
        self.recent += (float(solved) - self.recent) * max(RECENT, 1 / self.n)

    def message(self) -> qa.LiveRate:
        """Form of the contract."""
        mean = self.reward_sum / self.n if self.n else 0.0
        return qa.LiveRate(
            n=self.n,
            solved=self.solved,
            infra_failed=self.infra_failed,
            mean_reward=mean,
            recent=min(max(self.recent, 0.0), 1.0),
        )


@dataclass(slots=True)
class LiveRates:
    """Rates by variant digest, with the position in the log that they stand for: one is never saved without the other."""

    token: str | None = None
    """Position of the last record counted."""
    rates: dict[str, Rate] = field(default_factory=dict[str, Rate])
    """By variant digest."""
    seen: dict[str, None] = field(default_factory=dict[str, None])
    """Newest group ids, oldest first."""
    changed: set[str] = field(default_factory=set[str])
    """Digests that changed since `take_changed`."""

    def observe(self, group: GroupRecord, token: str) -> None:
        """Count one record of the log; a repeat changes nothing but the position."""
        self.token = token
        if group.group_id in self.seen or group.purpose not in COUNTED:
            return
        self._remember(group.group_id)
        rate = self.rates.setdefault(group.env.digest, Rate())
        self.changed.add(group.env.digest)
        for sample in group.samples:
            if sample.sample_class in VALID and sample.HasField("reward"):
                rate.add(solved=sample.solved, reward=sample.reward)
            elif sample.sample_class == common.SAMPLE_CLASS_INFRA_FAILED:
                rate.infra_failed += 1

    def take_changed(self) -> dict[str, Rate]:
        """Rates that changed since the last call."""
        changed = {digest: self.rates[digest] for digest in sorted(self.changed)}
        self.changed.clear()
        return changed

    def to_json(self) -> dict[str, Any]:
        """Everything but `changed`, for a file."""
        rates = {
            digest: [rate.n, rate.solved, rate.infra_failed, rate.reward_sum, rate.recent]
            for digest, rate in self.rates.items()
        }
        return {"token": self.token, "rates": rates, "seen": list(self.seen)}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> LiveRates:
        """What `to_json` gave."""
        rates = {digest: Rate(*values) for digest, values in saved["rates"].items()}
        return cls(token=saved["token"], rates=rates, seen=dict.fromkeys(saved["seen"]), changed=set(rates))

    def _remember(self, group_id: str) -> None:
        self.seen[group_id] = None
        while len(self.seen) > REMEMBERED:
            del self.seen[next(iter(self.seen))]
