"""The rank processes of one engine: started together, asked together, ended together.

A rank that dies, hangs or breaks the protocol takes the group down: whoever asked gets ``RankLost``, which names the rank at fault, and may
start another group. Ranks find each other by a file in the group's own folder and talk over the loopback interface.
"""

from __future__ import annotations

import selectors
import socket
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from temper.runtime.errors import Rejected, Unavailable
from temper.trainer.engine.megatron.culprit import culprit
from temper.trainer.engine.megatron.nursery import Nursery, NurseryLost
from temper.trainer.engine.megatron.pulse import Pulse
from temper.trainer.engine.megatron.wire import Frame, receive, send

STALL_S = 600.0
"""Longest time in which no rank comes a step further."""
COLLECTIVE_S = 1800.0
"""Longest wait of a rank for another: later than ``STALL_S``, so that there is somebody left to ask who is at fault."""
POLL_S = 1.0
"""How often it is looked whether ranks move."""


class RankLost(Unavailable):
    """A rank ended or stands still; the group is gone."""


class Group:
    """Processes that hold what one engine trains."""

    def __init__(
        self, ranks: int, *, threads: int, nursery: Nursery | None = None, stall_s: float = STALL_S
    ) -> None:
        """``nursery`` outlives the group; without one it has its own."""
        self.ranks, self._stall_s = ranks, stall_s
        self._folder = tempfile.TemporaryDirectory(prefix="temper-megatron-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._pulse = Pulse(self.folder / "pulse", ranks)
        self._nursery = nursery or Nursery(threads=threads)
        self._pids: list[int] = []
        self._lines: list[socket.socket] = []
        own = nursery is None
        self.close = weakref.finalize(
            self, _end, self._nursery, self._pids, self._lines, self._pulse, self._folder, own
        )
        """Ends all ranks; also when the group is forgotten or the service exits."""
        try:
            for rank in range(ranks):
                self._start(rank)
        except NurseryLost as error:
            self.close()
            raise RankLost(str(error)) from error
        self._answers()

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return list(self._pids)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.close.alive and self._nursery.alive and not self._nursery.ended(self._pids)

    def _start(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        self._lines.append(ours)
        said = {"rank": rank, "ranks": self.ranks, "folder": str(self.folder), "deadline_s": COLLECTIVE_S}
        with theirs:
            self._pids.append(self._nursery.born(said, theirs))

    def ask(self, frame: Frame) -> list[Frame]:
        """The answers of all ranks, by rank. Raises Rejected for what a rank refuses, RankLost for a rank that is gone."""
        try:
            for line in self._lines:
                line.settimeout(self._stall_s)
                send(line, frame)
        except OSError as error:
            raise self._lost(f"a question was not taken: {error}") from error
        return self._answers()

    def _answers(self) -> list[Frame]:
        found: dict[int, Frame] = {}
        seen, since = self._pulse.counts(), time.monotonic()
        with selectors.DefaultSelector() as waiting:
            for rank, line in enumerate(self._lines):
                waiting.register(line, selectors.EVENT_READ, rank)
            while len(found) < self.ranks:
                for key, _ in waiting.select(POLL_S):
                    found[key.data] = self._answer(key.data)
                    waiting.unregister(key.fileobj)
                if (now := self._pulse.counts()) != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > self._stall_s:
                    raise self._lost(f"no rank has moved for {self._stall_s:g} s")
        answers = [found[rank] for rank in range(self.ranks)]
        for head in (answer.head for answer in answers):
            if "rejected" in head:
                raise Rejected(head["rejected"], field=head["field"], hint=head["hint"])
        return answers

    def _answer(self, rank: int) -> Frame:
        try:
            self._lines[rank].settimeout(self._stall_s)
            return receive(self._lines[rank])
        except OSError as error:
            raise self._lost(f"rank {rank} does not answer: {error}") from error

    def _lost(self, why: str) -> RankLost:
        """The error that names who is at fault; the group is gone."""
        try:
            found = culprit(self._nursery, self._pids, self.folder)
        except NurseryLost as error:
            found = str(error)
        self.close()
        return RankLost(f"{found} ({why})" if found else why)


def _end(
    nursery: Nursery,
    pids: Sequence[int],
    lines: Sequence[socket.socket],
    pulse: Pulse,
    folder: tempfile.TemporaryDirectory[str],
    own: bool,
) -> None:
    for line in lines:
        line.close()
    if own:
        nursery.close()  # which ends its ranks
    else:
        with suppress(NurseryLost):
            nursery.end(pids)
    pulse.close()
    folder.cleanup()
