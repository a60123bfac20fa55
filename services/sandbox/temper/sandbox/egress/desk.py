"""The proxies of a host's sessions: opened with a session, changed while it lives, closed with it."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.sandbox.v1 import approval_pb2, egress_pb2
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Rejected, Stale, TemperError
from temper.sandbox.egress.policy import Mode, Policy, Rule, checked
from temper.sandbox.egress.proxy import Proxy, Refusal, Resolve, Settings, look_up
from temper.sandbox.egress.secrets import require_known
from temper.sandbox.engine.base import Command, CommandResult, Limits, Sandbox, Session, SessionSpec, Sink
from temper.sandbox.engine.door import PORT, Doored
from temper.sandbox.gatekeeper import Gatekeeper

_URL: Final = f"http://127.0.0.1:{PORT}"
ENVIRONMENT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _URL),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    "TEMPER_TLS_PROXY": f"{_URL}/tls",
}
"""Variables by which programs find the proxy. `$TEMPER_TLS_PROXY/api.example.com/v1` is a base URL with TLS outside."""

_PRELUDE: Final = f"import os as _os; _os.environ.update({dict(ENVIRONMENT)!r}); del _os"

Tell = Callable[[egress_pb2.EgressAttempt], None]


@dataclass(frozen=True, slots=True)
class Guest:
    """Whose proxy it is. Example: `Guest("s", "job-7", lambda: 3)`."""

    session: str
    """Session."""
    job: str
    """Job."""
    step: Callable[[], int]
    """Commands begun so far."""


@dataclass(slots=True)
class _Line:
    """One session's proxy, and the place its door leads to. Mutable."""

    guest: Guest
    sandbox: Doored
    proxy: Proxy
    place: object


class EgressDesk:
    """One per host. `tell` takes every refused attempt."""

    def __init__(
        self,
        host: str,
        settings: Settings,
        *,
        open_approved: bool,
        gatekeeper: Gatekeeper | None,
        clock: Clock,
        tell: Tell,
        resolve: Resolve = look_up,
    ) -> None:
        self._host = host
        self._settings = settings
        self._open_approved = open_approved
        self._gatekeeper = gatekeeper
        self._clock = clock
        self._tell = tell
        self._resolve = resolve
        self._lines: dict[str, _Line] = {}

    def read(self, asked: egress_pb2.EgressPolicy, *, version: int = 1) -> Policy:
        """A policy from the wire. Raises Rejected."""
        rules = [Rule(rule.host, tuple(rule.ports), rule.secret, rule.approve) for rule in asked.rules]
        policy = checked(asked.mode, rules, open_approved=self._open_approved, version=version)
        require_known(policy, self._settings.secrets)
        if self._gatekeeper is None and any(rule.approve for rule in policy.rules):
            raise Rejected("this host asks nobody", field="egress.rules.approve")
        return policy

    async def attach(self, guest: Guest, sandbox: Sandbox, policy: Policy) -> Sandbox:
        """Open a session's door; the sandbox comes back with the variables that lead to it. Raises Rejected, Unavailable."""
        if policy.mode is Mode.NONE:
            return sandbox
        if not isinstance(sandbox, Doored):
            raise Rejected(
                "this backend gives no network by name", field="egress", hint="needs network:allow"
            )
        proxy = Proxy(
            policy,
            self._settings,
            refused=lambda refusal: self._tell(self._attempt(guest, refusal)),
            approve=lambda host, port: self._approved(guest, host, port),
            resolve=self._resolve,
        )
        line = _Line(guest, sandbox, proxy, None)
        await self._open(line)
        self._lines[guest.session] = line
        return cast("Sandbox", Proxied(sandbox, lambda: self._open(line)))

    async def _open(self, line: _Line) -> None:
        """Have the door lead to where the sandbox is now: a reset or a restore gives it another network."""
        if line.place is not line.sandbox.place:
            await line.proxy.close()
            await line.proxy.start(await line.sandbox.listen(PORT))
            line.place = line.sandbox.place

    async def _approved(self, guest: Guest, host: str, port: int) -> bool:
        if self._gatekeeper is None:
            return False
        try:
            subject = {"host": host, "port": port}
            record = await self._gatekeeper.settled("egress", subject, session=guest.session, job=guest.job)
        except TemperError:  # nobody could be asked: that is a no
            return False
        return record.state == approval_pb2.APPROVAL_STATE_GRANTED

    def change(self, session: str, asked: egress_pb2.EgressPolicy, expected: int) -> int:
        """Replace a live session's policy; returns its version. Raises Stale, Conflict, Rejected."""
        proxy = self._line(session).proxy
        if proxy.policy.version != expected:
            raise Conflict(
                f"the policy is at version {proxy.policy.version}, not {expected}",
                field="expected_version",
                hint="read it again, then decide",
            )
        policy = self.read(asked, version=expected + 1)
        proxy.change(policy)
        return policy.version

    def policy(self, session: str) -> Policy:
        """A live session's policy. Raises Stale."""
        return self._line(session).proxy.policy

    def _line(self, session: str) -> _Line:
        line = self._lines.get(session)
        if line is None:
            raise Stale(
                f"session {session!r} has no network", field="session_id", hint="acquire it with a policy"
            )
        return line

    async def detach(self, session: str) -> None:
        """Close a session's proxy, if it has one."""
        line = self._lines.pop(session, None)
        if line is not None:
            await line.proxy.close()

    def _attempt(self, guest: Guest, refusal: Refusal) -> egress_pb2.EgressAttempt:
        now = Timestamp()
        now.FromNanoseconds(int(self._clock.now() * 1e9))
        return egress_pb2.EgressAttempt(
            session_id=guest.session,
            job_id=guest.job,
            host=self._host,
            step=guest.step(),
            target=refusal.host,
            port=min(refusal.port, 65535),
            reason=refusal.reason,
            policy_version=refusal.version,
            at=now,
        )


def message(policy: Policy) -> egress_pb2.EgressPolicy:
    """A policy as it goes over the wire."""
    rules = [
        egress_pb2.EgressRule(host=rule.host, ports=rule.ports, secret=rule.secret, approve=rule.approve)
        for rule in policy.rules
    ]
    return egress_pb2.EgressPolicy(mode=policy.mode.value, rules=rules)


def bare(sandbox: Sandbox) -> Sandbox:
    """The sandbox itself, without the variables that led to a proxy which is closed."""
    return sandbox.inner if isinstance(sandbox, Proxied) else sandbox


class Proxied:
    """A sandbox whose programs are told where their proxy is. Everything else is the sandbox's own."""

    def __init__(self, sandbox: Sandbox, opened: Callable[[], Any]) -> None:
        self.inner = sandbox
        """The sandbox itself."""
        self._opened = opened
        self._primed: object = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """As `Sandbox.execute`."""
        await self._opened()
        named = dataclasses.replace(command, env={**ENVIRONMENT, **command.env})
        return await self.inner.execute(named, limits, sink)

    async def open_session(self, spec: SessionSpec, sink: Sink | None = None) -> Session:
        """As `Sandbox.open_session`."""
        await self._opened()
        return await self.inner.open_session(dataclasses.replace(spec, env={**ENVIRONMENT, **spec.env}), sink)

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """As `Sandbox.python`; a fresh interpreter is told first."""
        await self._opened()
        place = cast("Doored", self.inner).place
        if self._primed is not place:
            await self.inner.python(_PRELUDE, limits)
            self._primed = place
        result = await self.inner.python(code, limits)
        if result.interpreter_lost:
            self._primed = None
        return result
