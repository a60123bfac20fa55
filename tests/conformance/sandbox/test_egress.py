"""Networks by name, from inside real sandboxes to real servers on this machine, on every backend that declares them."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
import pytest_asyncio
from tests.conformance.sandbox.attacks import code, said
from tests.conformance.sandbox.conftest import LIMITS
from tests.unit.sandbox.test_egress_proxy import Origin

from temper.api.sandbox.v1 import egress_pb2 as pb
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Conflict, Rejected, Stale
from temper.runtime.testing import eventually
from temper.sandbox.egress import Settings
from temper.sandbox.egress.desk import EgressDesk, Guest
from temper.sandbox.engine.base import Backend, Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

FETCH = """
import urllib.request, urllib.error
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=20).read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)
    except Exception as error:
        return type(error).__name__
"""


class World:
    """A server of this machine under two names, a desk, and what it refused."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.looked_up: list[str] = []
        self.refused: list[pb.EgressAttempt] = []
        self.step = 7
        self.desk = EgressDesk(
            "host-1",
            Settings(internal=(ipaddress.ip_network("127.0.0.0/8"),)),
            open_approved=False,
            gatekeeper=None,
            clock=SystemClock(),
            tell=self.refused.append,
            resolve=self._resolve,
        )

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append(host)
        return ["127.0.0.1"]

    def policy(self, *hosts: str) -> pb.EgressPolicy:
        rules = [pb.EgressRule(host=host, ports=[self.origin.port]) for host in hosts]
        return pb.EgressPolicy(mode="allow", rules=rules)

    async def let_out(self, sandbox: Sandbox, *hosts: str) -> Sandbox:
        guest = Guest("s", "job-1", lambda: self.step)
        return await self.desk.attach(guest, sandbox, self.desk.read(self.policy(*hosts)))

    def url(self, host: str) -> str:
        return f"http://{host}:{self.origin.port}/"


@pytest_asyncio.fixture(loop_scope="module")
async def world() -> AsyncIterator[World]:
    origin = Origin()
    await origin.start()
    made = World(origin)
    yield made
    await made.desk.detach("s")
    await origin.stop()


@pytest.fixture
def by_name(backend: Backend) -> None:
    if "allow" not in backend.capabilities.network_modes:
        pytest.skip("this backend does not declare a network by name")


@pytest_asyncio.fixture(loop_scope="module")
async def guest(backend: Backend, by_name: None) -> AsyncIterator[Sandbox]:
    made = await backend.create("guest", replace(LIMITS, pids=64), "allow")
    yield made
    await made.destroy()


async def test_an_allowed_name_is_reached_by_the_tools_and_no_other(guest: Sandbox, world: World) -> None:
    sandbox = await world.let_out(guest, "good.example")
    assert await code(sandbox, f"{FETCH}print(fetch('{world.url('good.example')}'))") == "hi"
    assert await code(sandbox, f"print(fetch('{world.url('evil.example')}'))") == "403"
    line = (
        f"python3 -c \"import urllib.request as u; print(u.urlopen('{world.url('good.example')}').read())\""
    )
    assert await said(sandbox, line) == "b'hi'"
    assert world.looked_up == ["good.example"] * 2
    (attempt,) = world.refused
    assert (attempt.target, attempt.port, attempt.reason) == (
        "evil.example",
        world.origin.port,
        "not_allowed",
    )
    assert (attempt.session_id, attempt.job_id, attempt.host, attempt.step) == ("s", "job-1", "host-1", 7)
    assert attempt.policy_version == 1
    assert attempt.at.seconds > 0


async def test_no_name_is_answered_inside_and_nothing_but_the_proxy_is_there(
    guest: Sandbox, world: World
) -> None:
    sandbox = await world.let_out(guest, "good.example")
    text = f"""
import socket
for action in (
    lambda: socket.getaddrinfo("good.example", 80),
    lambda: socket.create_connection(("93.184.216.34", 80), 5),
    lambda: socket.create_connection(("127.0.0.1", {world.origin.port}), 5),
):
    try: print("reached", action())
    except OSError as error: print(type(error).__name__)
print(open("/proc/net/dev").read().count(":"))
"""
    assert await code(sandbox, text) == "gaierror\nOSError\nConnectionRefusedError\n1"
    assert world.looked_up == []


async def test_no_other_sandbox_reaches_the_proxy(backend: Backend, guest: Sandbox, world: World) -> None:
    await world.let_out(guest, "good.example")
    other = await backend.create("other", LIMITS)
    try:
        text = "import socket\nprint(attempt(lambda: socket.create_connection(('127.0.0.1', 3128), 5)))"
        assert await code(other, text) == "ECONNREFUSED"
        assert "PROXY" not in (await said(other, "env")).upper()
    finally:
        await other.destroy()


async def test_a_policy_is_changed_live_with_a_version(guest: Sandbox, world: World) -> None:
    sandbox = await world.let_out(guest, "good.example")
    with pytest.raises(Conflict, match="version 1"):
        world.desk.change("s", world.policy("next.example"), 5)
    assert world.desk.change("s", world.policy("next.example"), 1) == 2
    assert await code(sandbox, f"{FETCH}print(fetch('{world.url('next.example')}'))") == "hi"
    assert await code(sandbox, f"print(fetch('{world.url('good.example')}'))") == "403"
    assert world.refused[-1].policy_version == 2
    with pytest.raises(Stale):
        world.desk.change("unknown", world.policy(), 1)
    with pytest.raises(Rejected, match="not approved"):
        world.desk.change("s", pb.EgressPolicy(mode="open"), 2)


async def test_the_door_leads_to_the_sandbox_after_a_reset_too(guest: Sandbox, world: World) -> None:
    sandbox = await world.let_out(guest, "good.example")
    await sandbox.python("1", LIMITS)
    await sandbox.reset()
    assert await code(sandbox, f"{FETCH}print(fetch('{world.url('good.example')}'))") == "hi"


async def test_a_closed_door_leaves_nothing_open(guest: Sandbox, world: World) -> None:
    sandbox = await world.let_out(guest, "good.example")
    text = f"{FETCH}import socket\ns = socket.create_connection(('127.0.0.1', 3128)); print('in')"
    assert await code(sandbox, text) == "in"
    await world.desk.detach("s")
    assert await code(guest, f"print(fetch('{world.url('good.example')}'))") == "URLError"
    await eventually(lambda: not [task for task in asyncio.all_tasks() if "Proxy" in repr(task.get_coro())])


async def test_a_flood_of_connections_is_bounded(guest: Sandbox, world: World) -> None:
    sandbox = await world.let_out(guest, "good.example")
    text = """
import socket
held, refused = [], 0
for _ in range(50):
    s = socket.create_connection(("127.0.0.1", 3128), 5)
    s.sendall(b"X")
    held.append(s)
print(len(held))
"""
    assert await code(sandbox, text) == "50"
    assert await said(sandbox, "echo on") == "on"


async def test_a_backend_without_it_refuses_before_anything_is_made(backend: Backend) -> None:
    if "allow" in backend.capabilities.network_modes:
        pytest.skip("this backend has networks by name")
    with pytest.raises(Rejected, match="network"):
        await backend.create("x", LIMITS, "allow")
