"""The trainer's ledger: which groups are waiting, consumed or dropped, and which step, phase and version come next.

Pure and synchronous: no clock, no I/O, no protobuf. Two laws hold after every call:

    seen = consumed + dropped (by reason) + pending          no group is lost, none counts twice
    a group settles once                                      replays and duplicates change nothing

A group's life: ``arrive`` -> pending -> ``commit`` (consumed) or ``drop``. Groups are taken oldest first. A group whose oldest
token is further behind than ``max_staleness`` is dropped before anybody fetches its bytes, and so is one whose environment was
withdrawn. After a crash, ``redo`` names the groups of the steps that were already announced, so that the same steps are made again
from the same groups.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from temper.trainer.ranges import IndexSet


class Drop(StrEnum):
    """Why a group was settled without being trained on; values are the contract's DropReason names."""

    STALE = "DROP_REASON_STALE"
    POISON = "DROP_REASON_POISON"
    REVOKED = "DROP_REASON_REVOKED"
    INVALID = "DROP_REASON_INVALID"
    LATE = "DROP_REASON_LATE"
    CORRUPT = "DROP_REASON_CORRUPT"
    FLAT = "DROP_REASON_FLAT"
    ROLLED_BACK = "DROP_REASON_ROLLED_BACK"


class Verdict(StrEnum):
    """What became of an arrival."""

    PENDING = "pending"
    DROPPED = "dropped"
    DUPLICATE = "duplicate"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Phase:
    """What the ledger needs of one phase of the job."""

    steps: int
    groups_per_step: int
    max_staleness: int
    ages: bool
    """False for demonstrations: they come from no policy version and never get stale."""
    refills: int = 0
    """Groups without a difference that may be dropped while one step is collected, for others to come; 0: none is."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record of the log, as far as the ledger is concerned.

    Example: ``Arrival(token="17", index=4, group_id="job7-4", phase=0, min_version=2)``.
    """

    token: str
    """Position in the log."""
    index: int | None
    """Position in the job's stream of groups; None for records that are not trained on (evaluation)."""
    group_id: str = ""
    phase: int = 0
    min_version: int = 0
    """Oldest policy version over the action tokens of all samples."""
    dropped: Drop | None = None
    """Set when the record itself says that the group will not come, or that nothing in it can be used."""
    variant: str = ""
    """Content digest of its environment."""
    flat: bool = False
    """Whether all its samples earned the same."""


@dataclass(slots=True)
class Ledger:
    """State of one job's training. Mutable, owned by one session."""

    phases: Sequence[Phase]
    version: int = 0
    """Version of the published policy."""
    step: int = 0
    """Optimizer steps over all phases."""
    phase: int = 0
    phase_step: int = 0
    consumed: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    settled: IndexSet = field(default_factory=IndexSet)
    offset: str = ""
    """Everything up to this token of the log is settled: where a restart reads on."""
    pending: dict[int, Arrival] = field(default_factory=dict[int, Arrival])
    withdrawn: set[str] = field(default_factory=set[str])
    """Environments that are not trained on for now, by digest. Not in snapshots: whoever withdraws says so again."""
    rollbacks: int = 0
    """Times that training went back."""
    line_start: int = 0
    """Oldest version whose tokens are trained on: the first one after the last rollback."""
    refilled: int = 0
    """Groups dropped for want of a difference since the last step. Not in snapshots: a crash only allows for more."""
    _unsettled: deque[tuple[str, int | None]] = field(default_factory=deque[tuple[str, int | None]])
    _redo: deque[tuple[str, ...]] = field(default_factory=deque[tuple[str, ...]])
    _told: IndexSet = field(default_factory=IndexSet)
    _told_dropped: Counter[str] = field(default_factory=Counter[str])

    # ------------------------------------------------------------- arrivals

    def arrive(self, arrival: Arrival) -> Verdict:
        """Take note of a record. Idempotent by group index."""
        self._unsettled.append((arrival.token, arrival.index))
        verdict = self._judge(arrival)
        self._advance_offset()
        return verdict

    def _judge(self, arrival: Arrival) -> Verdict:
        index = arrival.index
        if index is None:
            return Verdict.IGNORED
        if index in self.settled or index in self.pending:
            return Verdict.DUPLICATE
        if index in self._told and not self._was_announced(arrival):
            return (
                Verdict.DROPPED
            )  # before the restart, for a reason that is counted when all steps are made again
        self.pending[index] = arrival
        if arrival.dropped is not None:
            return self.drop(index, arrival.dropped)
        if self.finished or arrival.phase < self.phase:
            return self.drop(index, Drop.LATE)
        if reason := self._unusable(arrival):
            return self.drop(index, reason)
        if (
            arrival.flat
            and self.refilled < self._phase_of(arrival).refills
            and not self._was_announced(arrival)
        ):
            self.refilled += 1
            return self.drop(index, Drop.FLAT)
        return Verdict.PENDING

    def withdraw(self, variant: str) -> None:
        """An environment was quarantined: its waiting groups are dropped at the next ``take``, later ones on arrival."""
        self.withdrawn.add(variant)

    def readmit(self, variant: str) -> None:
        """A quarantine was lifted; what was dropped under it stays dropped."""
        self.withdrawn.discard(variant)

    def drop(self, index: int, reason: Drop) -> Verdict:
        """Settle a pending group without training on it."""
        del self.pending[index]
        self.settled.add(index)
        self.dropped[reason] += 1
        self._advance_offset()
        return Verdict.DROPPED

    def _advance_offset(self) -> None:
        while self._unsettled:
            token, index = self._unsettled[0]
            if index is not None and index not in self.settled:
                return
            self.offset = token
            self._unsettled.popleft()

    # ------------------------------------------------------------- batches

    @property
    def current(self) -> Phase:
        """The phase that steps are taken in (the last one when all are done)."""
        return self.phases[min(self.phase, len(self.phases) - 1)]

    @property
    def finished(self) -> bool:
        """Whether every phase has had its steps."""
        return self.phase >= len(self.phases)

    def staleness(self, arrival: Arrival) -> int:
        """Versions between the published policy and the group's oldest token; 0 for demonstrations."""
        return max(0, self.version - arrival.min_version) if self._phase_of(arrival).ages else 0

    def _phase_of(self, arrival: Arrival) -> Phase:
        return self.phases[min(arrival.phase, len(self.phases) - 1)]

    def _unusable(self, arrival: Arrival) -> Drop | None:
        """Why a waiting group may not be trained on now; what was announced has been trained on already."""
        if self._was_announced(arrival):
            return None
        if arrival.variant in self.withdrawn:
            return Drop.REVOKED
        if self._phase_of(arrival).ages and arrival.min_version < self.line_start:
            return Drop.ROLLED_BACK
        stale = self.staleness(arrival) > self._phase_of(arrival).max_staleness
        return Drop.STALE if stale else None

    def _was_announced(self, arrival: Arrival) -> bool:
        return any(arrival.group_id in step for step in self._redo)

    def take(self) -> list[Arrival]:
        """The groups of the next step, oldest first, or nothing while too few are there. They stay pending until ``commit``."""
        for index, arrival in list(self.pending.items()):
            if reason := self._unusable(arrival):
                self.drop(index, reason)
        if self.finished:
            return []
        if self._redo:
            return self._take_announced(self._redo[0])
        ready = sorted(i for i, arrival in self.pending.items() if arrival.phase == self.phase)
        size = self.current.groups_per_step
        return [self.pending[i] for i in ready[:size]] if len(ready) >= size else []

    def _take_announced(self, group_ids: Sequence[str]) -> list[Arrival]:
        by_id = {arrival.group_id: arrival for arrival in self.pending.values()}
        if any(group_id not in by_id for group_id in group_ids):
            return []
        return [by_id[group_id] for group_id in group_ids]

    def upcoming(self, taken: Sequence[Arrival]) -> list[Arrival]:
        """Groups that the step after the one of ``taken`` will be made of, as far as can be told."""
        if self._redo:
            following = self._redo[1] if len(self._redo) > 1 else ()
            return [arrival for arrival in self.pending.values() if arrival.group_id in following]
        busy = {arrival.index for arrival in taken}
        phase = self.phase + (self.phase_step + 1 >= self.current.steps)
        ready = sorted(
            index
            for index, arrival in self.pending.items()
            if index not in busy
            and arrival.phase == phase < len(self.phases)
            and self._will_be_fresh(arrival)
        )
        return [self.pending[index] for index in ready[: self.phases[phase].groups_per_step]] if ready else []

    def _will_be_fresh(self, arrival: Arrival) -> bool:
        """Whether it may still be trained on when there is one version more."""
        phase = self._phase_of(arrival)
        return not phase.ages or self.staleness(arrival) < phase.max_staleness

    def commit(self, taken: Iterable[Arrival], *, published: bool) -> None:
        """One optimizer step was made of these groups; ``published`` when it gave a new policy version."""
        for arrival in taken:
            assert arrival.index is not None
            del self.pending[arrival.index]
            self.settled.add(arrival.index)
            self.consumed += 1
        self._advance(published=published)

    def roll_back(self, rollbacks: int) -> None:
        """Training went back, in the place of a step: the next version holds an earlier state, and groups of those before it are of no use."""
        self.rollbacks, self.line_start = rollbacks, self.version + 1
        self._advance(published=True)

    def _advance(self, *, published: bool) -> None:
        if self._redo:
            self._redo.popleft()
            self._settle_told()
        self.refilled = 0
        self.step += 1
        self.phase_step += 1
        self.version += published
        if self.phase_step >= self.current.steps:
            self._next_phase()
        self._advance_offset()

    def _next_phase(self) -> None:
        self.phase += 1
        self.phase_step = 0
        for index in [
            i for i, arrival in self.pending.items() if arrival.phase < self.phase or self.finished
        ]:
            self.drop(index, Drop.LATE)

    # ------------------------------------------------------------- recovery

    def redo(self, steps: Iterable[Sequence[str]]) -> None:
        """The next steps were announced before the crash, with these group ids each: make them again."""
        self._redo = deque(tuple(step) for step in steps)

    def recall(self, settled: Iterable[tuple[int, int]], dropped: Mapping[str, int]) -> None:
        """What was told before the crash stays true: these groups are settled, so many of them dropped. After ``redo``."""
        self._told = IndexSet(settled)
        self._told_dropped = Counter(dict(dropped)) - self.dropped
        self._settle_told()

    def _settle_told(self) -> None:
        """Once all announced steps are made, whatever else was told as settled had been dropped."""
        if self._redo:
            return
        for first, last in self._told:
            for index in range(first, last + 1):
                self.pending.pop(index, None)
                self.settled.add(index)
        self.dropped += self._told_dropped
        self._told, self._told_dropped = IndexSet(), Counter()
        self._advance_offset()

    @property
    def balanced(self) -> bool:
        """Whether every settled group was either trained on or dropped, once."""
        return len(self.settled) == self.consumed + self.dropped.total()

    @property
    def redoing(self) -> int:
        """Announced steps still to be made again."""
        return len(self._redo)

    def facts(self) -> dict[str, Any]:
        """JSON values for a snapshot. Pending groups are not among them: they are read again from ``offset`` on."""
        return {
            "version": self.version,
            "step": self.step,
            "phase": self.phase,
            "phase_step": self.phase_step,
            "consumed": self.consumed,
            "dropped": dict(self.dropped),
            "settled": [list(span) for span in self.settled],
            "offset": self.offset,
            "rollbacks": self.rollbacks,
            "line_start": self.line_start,
        }

    @classmethod
    def from_facts(cls, phases: Sequence[Phase], facts: Mapping[str, Any]) -> "Ledger":
        """The ledger at a snapshot."""
        return cls(
            phases=phases,
            version=int(facts["version"]),
            step=int(facts["step"]),
            phase=int(facts["phase"]),
            phase_step=int(facts["phase_step"]),
            consumed=int(facts["consumed"]),
            dropped=Counter({str(k): int(v) for k, v in facts["dropped"].items()}),
            settled=IndexSet((int(first), int(last)) for first, last in facts["settled"]),
            offset=str(facts["offset"]),
            rollbacks=int(facts.get("rollbacks", 0)),
            line_start=int(facts.get("line_start", 0)),
        )
