"""The words of the session machine: phases, ends, verdicts, askers, and a session itself. Pure."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

R = TypeVar("R")
"""What is remembered of a command: the host stores its reply."""


class Phase(StrEnum):
    """Where a session is."""

    CREATING = "creating"
    LIVE = "live"


class End(StrEnum):
    """How a session ended."""

    FINISHED = "finished"
    RELEASED = "released"
    REAPED = "reaped"
    DRAINED = "drained"
    FAILED = "failed"
    ABANDONED = "abandoned"


ENDS: Final = {
    End.FINISHED: "finished",
    End.RELEASED: "released",
    End.REAPED: "reaped: unused for longer than its lease",
    End.DRAINED: "drained: its host is stopping",
    End.FAILED: "failed",
    End.ABANDONED: "abandoned: whoever asked for it had given up before it was ready",
}
"""In words, for who comes after."""


class Verdict(StrEnum):
    """What the asker has to do."""

    CREATE = "create"
    JOIN = "join"
    USE = "use"
    RUN = "run"
    CACHED = "cached"


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for a session. Example: `Asker("cli-4f2a", 61.5)`."""

    id: str = ""
    """Of the request; by it the request can be withdrawn."""
    until: float = math.inf
    """Monotonic seconds after which nobody waits for the answer."""


ANYONE: Final = Asker()
"""Whose answer does not go out of date."""


@dataclass(slots=True)
class Session(Generic[R]):
    """One session. Mutable, and only ever changed by `Sessions`."""

    name: str
    """Chosen by the caller."""
    epoch: int
    """Grows with every session of this host; an older one is stale."""
    lease_s: float
    """Seconds that the lease is extended by with every use."""
    expires_at: float
    """Monotonic seconds; over it may be reaped, unless a command runs."""
    acquired_at: float
    """Monotonic seconds."""
    phase: Phase = Phase.CREATING
    """Where it is."""
    running: set[str] = field(default_factory=set[str])
    """Ids of commands that have begun and not ended."""
    results: "OrderedDict[str, R]" = field(default_factory=OrderedDict[str, Any])
    """Replies of the last commands, by id."""
    commands: int = 0
    """Commands begun."""
    begun: dict[str, int] = field(default_factory=dict[str, int])
    """Which one it was, by id, counted from 1: an id is known much longer than its reply, so it never runs twice."""
    askers: dict[str, float] = field(default_factory=dict[str, float])
    """Until when each of those waits who asked while it was being made; empty once somebody was given it ready."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """An answer of the machine. Example: `Decision(Verdict.CACHED, 4, result)`."""

    verdict: Verdict
    """What to do."""
    epoch: int
    """Epoch of the session concerned."""
    result: R | None = None
    """With CACHED."""
