r"""Sessions of one host as a state machine: pure, synchronous, no clock of its own.

    (absent) --begin--> CREATING --created--> LIVE --end--> (tombstone) --forget--> (absent)
                  \--failed--> (absent)        |
                  \--nobody waits any more--> end(abandoned)
                                               \--lease over, nothing running--> end(reaped)

The machine decides; whoever asks does the I/O and reports back. Intent comes first: a session exists from `begin` on,
so a sandbox that surfaces late, after its session has ended, is known to be unwanted (`created` says no).
A command id is run once: its result is kept and given again. A finished session leaves a tombstone with its final
reply, so that a repeated Finish is answered and a late Step is refused as stale.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic

from temper.runtime.errors import Conflict, Exhausted, Rejected, Stale
from temper.sandbox.phases import ANYONE, ENDS, Asker, Decision, End, Phase, R, Session, Verdict

MOST_LEASE_S: Final = 30 * 86_400.0
"""A lease that never ends is none."""


class Sessions(Generic[R]):
    """All sessions of one host. Times are monotonic seconds given by the caller; no method waits or does I/O."""

    def __init__(
        self, *, capacity: int, tombstones: int = 4096, kept_results: int = 64, kept_ids: int = 65_536
    ) -> None:
        self._capacity = capacity
        self._kept_tombstones = tombstones
        self._kept_results = kept_results
        self._kept_ids = kept_ids
        self._live: dict[str, Session[R]] = {}
        self._ended: OrderedDict[str, tuple[int, End, R | None]] = OrderedDict()
        self._withdrawn: OrderedDict[str, None] = OrderedDict()
        self._epoch = 0
        self._draining = False

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Session[R]]:
        return iter(list(self._live.values()))

    def find(self, name: str) -> Session[R] | None:
        """The session, creating or live."""
        return self._live.get(name)

    def begin(self, name: str, *, now: float, lease_s: float, asker: Asker = ANYONE) -> Decision[R]:
        """Ask for a session by name: CREATE it, JOIN a creation under way, or USE the live one.

        Raises Stale for one that has ended or a request that was withdrawn, Exhausted when the host is full or draining,
        Rejected for a bad lease.
        """
        _require_lease(lease_s)
        if asker.id in self._withdrawn:
            raise Stale("this request was withdrawn by its caller", field="session_id", hint="ask anew")
        known = self._live.get(name)
        if known is not None:
            return self._joined(known, now, asker)
        if name in self._ended:
            raise self._missing(name)
        if self._draining:
            raise Exhausted("this host is draining", hint="another host takes new sessions")
        if len(self._live) >= self._capacity:
            raise Exhausted(f"all {self._capacity} sandboxes are taken", hint="retry when one is released")
        self._epoch += 1
        session: Session[R] = Session(name, self._epoch, lease_s, now + lease_s, now)
        session.askers[asker.id] = asker.until
        self._live[name] = session
        return Decision(Verdict.CREATE, self._epoch)

    def _joined(self, known: Session[R], now: float, asker: Asker) -> Decision[R]:
        known.expires_at = max(known.expires_at, now + known.lease_s)
        if known.phase is Phase.LIVE:
            known.askers.clear()  # from now on it is not only theirs to give back
            return Decision(Verdict.USE, known.epoch)
        known.askers[asker.id] = max(asker.until, known.askers.get(asker.id, asker.until))
        return Decision(Verdict.JOIN, known.epoch)

    def unwanted(self, name: str, epoch: int, *, now: float) -> bool:
        """Whether nobody waits any more for a session that is being made; the asker ends it as ABANDONED."""
        session = self._live.get(name)
        if session is None or session.epoch != epoch or session.phase is not Phase.CREATING:
            return False
        return all(until < now for until in session.askers.values())

    def withdraw(self, name: str, asker: str) -> bool:
        """A request for a session is taken back, whether it has come yet or not.

        True if it was the last one, so that nobody has the session: the asker of this ends it as ABANDONED.
        """
        self._withdrawn[asker] = None
        while len(self._withdrawn) > self._kept_tombstones:
            self._withdrawn.popitem(last=False)
        session = self._live.get(name)
        if session is None or asker not in session.askers:
            return False
        del session.askers[asker]
        return not session.askers

    def created(self, name: str, epoch: int) -> bool:
        """The sandbox is there. False if its session has ended meanwhile: destroy it."""
        session = self._live.get(name)
        if session is None or session.epoch != epoch:
            return False
        session.phase = Phase.LIVE
        return True

    def failed(self, name: str, epoch: int) -> None:
        """The sandbox could not be made: as if never asked, so a retry may succeed."""
        session = self._live.get(name)
        if session is not None and session.epoch == epoch:
            del self._live[name]

    def start(self, name: str, command: str, *, now: float) -> Decision[R]:
        """Begin a command in a live session: RUN it, or give its CACHED result.

        Raises Stale when the session is gone or the result no longer kept, Conflict while the same command is running.
        """
        session = self._require(name)
        session.expires_at = max(session.expires_at, now + session.lease_s)
        if command in session.results:
            return Decision(Verdict.CACHED, session.epoch, session.results[command])
        if command in session.running:
            raise Conflict(f"command {command!r} is running", field="command_id", hint="wait for its reply")
        if command in session.begun:
            raise Stale(
                f"command {command!r} has run, and its result is no longer kept",
                field="command_id",
                hint="send a new command under a new id",
            )
        session.running.add(command)
        session.commands += 1
        session.begun[command] = session.commands
        return Decision(Verdict.RUN, session.epoch)

    def complete(self, name: str, epoch: int, command: str, result: R | None, *, now: float) -> None:
        """A command has ended. Without a result (the host failed it), the same id may run again."""
        session = self._live.get(name)
        if session is None or session.epoch != epoch:
            return
        session.running.discard(command)
        session.expires_at = max(session.expires_at, now + session.lease_s)
        if result is None:
            session.begun.pop(command, None)
            return
        session.results[command] = result
        while len(session.results) > self._kept_results:
            session.results.popitem(last=False)
        while len(session.begun) > self._kept_ids:
            del session.begun[next(iter(session.begun))]

    def rewind(self, name: str, commands: int) -> int:
        """Forget the replies of all but the first `commands` commands: their ids run anew. Returns how many.

        Raises Stale when the session is gone, Conflict while a command runs.
        """
        session = self._require(name)
        if session.running:
            raise Conflict("a command is running", field="session_id", hint="wait for its reply")
        late = [command for command, ordinal in session.begun.items() if ordinal > commands]
        for command in late:
            del session.begun[command]
            session.results.pop(command, None)
        return len(late)

    def touch(self, name: str, *, now: float) -> None:
        """Any use of a session extends its lease; one that is gone is passed over."""
        session = self._live.get(name)
        if session is not None:
            session.expires_at = max(session.expires_at, now + session.lease_s)

    def begun(self, name: str) -> int:
        """As `commands`, but 0 for a session that is not there."""
        session = self._live.get(name)
        return session.commands if session is not None else 0

    def commands(self, name: str) -> int:
        """How many commands a live session has begun. Raises Stale."""
        return self._require(name).commands

    def renew(self, name: str, epoch: int, *, now: float, lease_s: float) -> None:
        """Set the lease. Raises Stale for an ended session or an older epoch, Rejected for a bad lease."""
        _require_lease(lease_s)
        session = self._require(name)
        if session.epoch != epoch:
            raise Stale(
                f"epoch {epoch} of session {name!r} is over", field="epoch", hint=f"now {session.epoch}"
            )
        session.expires_at = now + lease_s

    def end(self, name: str, how: End, result: R | None = None) -> Session[R] | None:
        """End a session; a tombstone with `result` stays. Returns what it was, None if it was not there."""
        session = self._live.pop(name, None)
        if session is not None or result is not None:
            epoch = session.epoch if session is not None else 0
            self._ended[name] = (epoch, how, result)
            self._ended.move_to_end(name)
            while len(self._ended) > self._kept_tombstones:
                self._ended.popitem(last=False)
        return session

    def farewell(self, name: str) -> R | None:
        """The final reply of an ended session, if there was one and it is remembered."""
        return self._ended[name][2] if name in self._ended else None

    def overdue(self, now: float) -> list[str]:
        """Live sessions whose lease is over and that run nothing; the asker ends them as REAPED."""
        return [
            session.name
            for session in self._live.values()
            if session.phase is Phase.LIVE and session.expires_at <= now and not session.running
        ]

    @property
    def draining(self) -> bool:
        """Whether new sessions are refused for good."""
        return self._draining

    def drain(self) -> None:
        """Take no new session."""
        self._draining = True

    def _require(self, name: str) -> Session[R]:
        session = self._live.get(name)
        if session is None or session.phase is not Phase.LIVE:
            raise self._missing(name)
        return session

    def require(self, name: str) -> None:
        """Raises Stale, with the reason, for a session that is not live."""
        self._require(name)

    def _missing(self, name: str) -> Stale:
        """Why a session is not here, as far as this host remembers."""
        if name in self._live:
            how = "is still being made"
            hint = "wait for the reply to Acquire"
        elif name in self._ended:
            how = f"has ended ({ENDS[self._ended[name][1]]})"
            hint = "start another session"
        else:
            how = "is not here: it never was, or it ended when this host was restarted"
            hint = "start another session, and run there again what is still needed: what ran before is lost"
        return Stale(f"session {name!r} {how}", field="session_id", hint=hint)


def _require_lease(lease_s: float) -> None:
    if not 0 < lease_s <= MOST_LEASE_S:
        hint = f"at most {MOST_LEASE_S:.0f}; use and RenewLease extend it"
        raise Rejected(f"must be a positive number of seconds, got {lease_s}", field="lease_s", hint=hint)
