"""How far ingestion is: pure bookkeeping of positions and of those who wait for freshness.

A question that wants fresh data takes a ticket. A pass over the log that *begins* after that, and reaches the end of every
topic as it was then, has everything that was in the log when the question came; it serves every ticket taken before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Topic:
    """One topic. Example: `Topic(token="41", records=41)`."""

    token: str | None = None
    """Position of the last record stored; None before the first."""
    end: str | None = None
    """Position of the last record in the log when it was last asked for."""
    records: int = 0
    """Records stored since the service started."""
    pending: int = 0
    """Records read and not stored yet."""

    @property
    def behind(self) -> bool:
        """Whether the log is known to hold more."""
        return self.end is not None and self.end != self.token

    @property
    def lag(self) -> int:
        """Records not stored yet, as far as known: positions are opaque, so one at least while behind."""
        return self.pending or int(self.behind)


class Progress:
    """All topics, and the tickets."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = {topic: Topic() for topic in topics}
        self._taken = 0
        self._served = 0
        self._begun = 0
        self._moved: dict[str, str] = {}

    def restore(self, positions: dict[str, str]) -> None:
        """Go on from where rows were stored before."""
        for name, token in positions.items():
            if name in self.topics:
                self.topics[name].token = token

    def take_ticket(self) -> int:
        """Ask for everything that is in the log now."""
        self._taken += 1
        return self._taken

    def served(self, ticket: int) -> bool:
        """Whether everything the ticket asked for is stored."""
        return ticket <= self._served

    @property
    def wanted(self) -> bool:
        """Whether somebody waits."""
        return self._taken > self._served

    def begin(self) -> None:
        """A pass begins: it will serve the tickets taken so far."""
        self._begun = self._taken

    def finish(self) -> None:
        """The pass reached every end."""
        self._served = self._begun

    def read(self, topic: str, count: int) -> None:
        """Records were read, and are about to be stored."""
        self.topics[topic].pending = count

    def stored(self, topic: str, token: str, count: int) -> None:
        """Records up to `token` are stored."""
        entry = self.topics[topic]
        entry.token, entry.pending = token, 0
        entry.records += count
        self._moved[topic] = token

    @property
    def moved(self) -> dict[str, str]:
        """Positions that are not written down yet."""
        return dict(self._moved)

    def noted(self, positions: dict[str, str]) -> None:
        """Positions were written down."""
        for topic, token in positions.items():
            if self._moved.get(topic) == token:
                del self._moved[topic]
