"""What the host keeps about a live session, and what goes into its record."""

from dataclasses import dataclass, field

from google.protobuf.timestamp_pb2 import Timestamp

from temper.sandbox.desk import Desk
from temper.sandbox.egress.policy import NOTHING, Policy
from temper.sandbox.engine.base import CommandResult, Limits, Outcome, Sandbox


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decides. Example: `Settings(slots=64)`."""

    slots: int
    """Most sessions at once."""
    lease_s: float = 300.0
    """Lease where the caller names none."""
    admission_wait_s: float = 10.0
    """Seconds a new session waits for a slot."""
    reap_every_s: float = 1.0
    """Seconds between two looks for overdue leases."""
    drain_s: float = 10.0
    """Seconds that running commands get when the host drains."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a session is for; goes into its record. Example: `Purpose("job-7", "calc@1.0.0")`."""

    job_id: str = ""
    """Job."""
    env: str = ""
    """Environment and version."""
    egress: Policy = NOTHING
    """What its sandbox may reach."""


@dataclass(slots=True)
class Tenancy:
    """A live sandbox with what its record will say."""

    sandbox: Sandbox
    limits: Limits
    purpose: Purpose
    desk: Desk
    acquired_at: float
    create_s: float
    cpu_s: float = 0.0
    peak: int = 0
    slowest_s: float = 0.0
    origin: str = ""
    """Snapshot it began with, where it is a fork."""
    hits: dict[str, int] = field(default_factory=dict[str, int])

    def saw(self, result: CommandResult) -> None:
        """Count a command."""
        self.cpu_s += result.evidence.cpu_s
        self.peak = max(self.peak, result.evidence.peak_memory_bytes)
        self.slowest_s = max(self.slowest_s, result.evidence.wall_s)
        if result.outcome is not Outcome.OK:
            self.hits[result.outcome.value] = self.hits.get(result.outcome.value, 0) + 1


def stamp(seconds: float) -> Timestamp:
    """Unix seconds as a protobuf timestamp."""
    value = Timestamp()
    value.FromNanoseconds(int(seconds * 1e9))
    return value
