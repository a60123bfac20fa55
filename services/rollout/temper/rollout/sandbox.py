"""The sandbox service as the rollout service sees it: tasks in, observations and verdicts out.

The first call of a session goes to any host, its reply names the host, later calls go there. A host that is full is
asked again until the deadline. A session's own host that is gone is ``Unavailable`` at once, and the episode decides what
to do; where any host will do, one is waited for. While an environment finds no host, one caller asks for all (``breaker``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.sandbox.v1.sandbox_pb2 import (
    FinishRequest,
    FinishResponse,
    MaterializeRequest,
    MaterializeResponse,
    StepRequest,
    StepResponse,
    ToolCall,
    TranscriptEntry,
)
from temper.rollout.breaker import Breaker
from temper.rollout.calls import Said
from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.errors import Exhausted, TemperError, Unavailable
from temper.runtime.telemetry import get_logger

ANY = "any"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_ABANDON_TIMEOUT_S = 5.0
_KEPT_BREAKERS = 1024
"""Environments whose outcomes are remembered."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class TaskRef:
    """One task of an environment."""

    env: EnvRef
    """Environment variant."""
    split: str
    """``train``, ``heldout`` or ``eval``."""
    index: int
    """Number in the split."""
    job_id: str
    """For the sandbox's own records."""


class Session(Protocol):
    """One attempt of one episode in a sandbox."""

    @property
    def host(self) -> str:
        """Who serves it; empty before the first call."""
        ...

    async def step(self, turn: int, call: Said, deadline: float) -> StepResponse:
        """Execute a call. Raises ``Unavailable`` when the sandbox is lost."""
        ...

    async def finish(
        self, answer: str | None, transcript: Sequence[TranscriptEntry], deadline: float
    ) -> FinishResponse:
        """Verify, score and release; no answer means the one that a call has given. Raises ``Unavailable`` when the sandbox is lost."""
        ...

    async def abandon(self) -> None:
        """Release without a verdict, as well as can be; the lease does the rest."""
        ...


class Sandboxes:
    """Client of the sandbox service over the bus. Deadlines are on ``clock.monotonic()``."""

    def __init__(
        self, bus: Bus, clock: Clock, *, call_timeout_s: float, lease_s: float, host_wait_s: float
    ) -> None:
        self.clock = clock
        self._bus = bus
        self._call_timeout_s, self._lease_s, self._host_wait_s = call_timeout_s, lease_s, host_wait_s
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()

    async def materialize(
        self, env: EnvRef, split: str, indices: Sequence[int], oracle_styles: Sequence[str], deadline: float
    ) -> MaterializeResponse:
        """Prompts, tools and, when styles are given, oracle actions."""
        request = MaterializeRequest(env=env, split=split, task_indices=indices, oracle_styles=oracle_styles)
        return await self.ask(ANY, env.digest, "Materialize", request, MaterializeResponse, deadline)

    def session(self, session_id: str, task: TaskRef) -> RemoteSession:
        """A session that acquires its sandbox on first use."""
        return RemoteSession(self, session_id, task, self._lease_s)

    async def ask(
        self, host: str, env: str, method: str, request: Message, reply: type[M], deadline: float
    ) -> M:
        """One call; repeated while hosts are full, or while there is none and any would do. ``env`` is the variant's digest."""
        subject = topology.rpc("sandbox", host, method)
        begun = self.clock.monotonic()
        pause = _FIRST_PAUSE_S
        while True:
            left = deadline - self.clock.monotonic()
            if left <= 0:
                raise Unavailable(f"sandbox: no time is left for {method}")
            if host == ANY and (rest := self._breaker(env).wait(self.clock.monotonic())) > 0:
                if self.clock.monotonic() - begun > self._host_wait_s:
                    raise Unavailable(f"sandbox: nobody has served environment {env[:12]} for a while")
                await self.clock.sleep(min(rest, left))
                continue
            call = self._bus.request(subject, request, reply, timeout_s=min(left, self._call_timeout_s))
            try:
                return await (self._counted(env, call, deadline) if host == ANY else call)
            except Exhausted:
                pass
            except Unavailable:
                if host != ANY or self.clock.monotonic() - begun > self._host_wait_s:
                    raise
                if pause == _FIRST_PAUSE_S:
                    get_logger().warning("sandbox.no_host", method=method, wait_s=self._host_wait_s)
            await self.clock.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _counted(self, env: str, call: Awaitable[M], deadline: float) -> M:
        """The call, and what its outcome says of the environment: nothing when the caller's own time was up."""
        breaker = self._breaker(env)
        try:
            found = await call
        except Unavailable:
            now = self.clock.monotonic()
            if now < deadline and breaker.failed(now):
                get_logger().warning("sandbox.environment_rests", env=env, failures=breaker.failures)
            raise
        except TemperError:
            breaker.answered()
            raise
        finally:
            breaker.left()
        breaker.answered()
        return found

    def _breaker(self, env: str) -> Breaker:
        found = self._breakers.setdefault(env, Breaker())
        self._breakers.move_to_end(env)
        while len(self._breakers) > _KEPT_BREAKERS:
            self._breakers.popitem(last=False)
        return found


class RemoteSession:
    """A session on a host of the sandbox service."""

    def __init__(self, sandboxes: Sandboxes, session_id: str, task: TaskRef, lease_s: float) -> None:
        self._sandboxes, self._id, self._task, self._lease_s = sandboxes, session_id, task, lease_s
        self.host = ""

    async def step(self, turn: int, call: Said, deadline: float) -> StepResponse:
        """Execute a call; repeating a turn is answered from the host's log."""
        request = StepRequest(
            session_id=self._id,
            command_id=f"{self._id}#{turn}",
            env=self._task.env,
            split=self._task.split,
            task_index=self._task.index,
            call=ToolCall(name=call.name, arguments_json=call.arguments_json),
            lease_s=self._lease_s,
            job_id=self._task.job_id,
        )
        response = await self._sandboxes.ask(
            self.host or ANY, self._task.env.digest, "Step", request, StepResponse, deadline
        )
        self.host = response.host
        return response

    async def finish(
        self, answer: str | None, transcript: Sequence[TranscriptEntry], deadline: float
    ) -> FinishResponse:
        """Score the answer."""
        request = self._finish_request()
        if answer is not None:
            request.answer = answer
        request.transcript.extend(transcript)
        response = await self._sandboxes.ask(
            self.host or ANY, self._task.env.digest, "Finish", request, FinishResponse, deadline
        )
        self.host = response.host
        return response

    async def abandon(self) -> None:
        """Release, if anything was acquired."""
        if not self.host:
            return
        request = self._finish_request()
        request.abandon = True
        deadline = self._sandboxes.clock.monotonic() + _ABANDON_TIMEOUT_S
        with suppress(TemperError):  # a lost release is what the lease is for
            await self._sandboxes.ask(
                self.host, self._task.env.digest, "Finish", request, FinishResponse, deadline
            )

    def _finish_request(self) -> FinishRequest:
        return FinishRequest(
            session_id=self._id,
            env=self._task.env,
            split=self._task.split,
            task_index=self._task.index,
            job_id=self._task.job_id,
        )
