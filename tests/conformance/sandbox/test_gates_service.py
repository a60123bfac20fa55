"""Approvals and egress of the service as a black box: a real process over a real broker, killed while it waits."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.conformance.sandbox import test_service as served
from tests.conformance.sandbox.test_service import ANY, Service, step
from tests.unit.sandbox.test_egress_proxy import Origin

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import approval_pb2, egress_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.api.sandbox.v1.approval_pb2 import Approval
from temper.runtime import topology
from temper.runtime.bus.base import KeyValue
from temper.runtime.bus.nats import NatsBus
from temper.runtime.errors import Conflict, Exhausted, Rejected

env, start = served.env, served.start  # the fixtures

Start = Callable[[], Service]
DIRECT = {"no_proxy": "", "NO_PROXY": ""}
"""The server of this test is called localhost, which programs would look for inside."""


def having(start: Start, settings: dict[str, Any]) -> Service:
    """A service with more settings, not yet started."""
    service = start()
    service._settings.update(settings)
    return service


async def waiting(bucket: KeyValue) -> Approval:
    """The one question that lies there."""
    (key,) = await bucket.keys()
    entry = await bucket.get(key)
    assert entry is not None
    return Approval.FromString(entry.value)


async def answer(bucket: KeyValue, *, grant: bool) -> None:
    """A person's word, as the scheduler writes it."""
    (key,) = await bucket.keys()
    entry = await bucket.get(key)
    assert entry is not None
    record = Approval.FromString(entry.value)
    record.state = approval_pb2.APPROVAL_STATE_GRANTED if grant else approval_pb2.APPROVAL_STATE_DENIED
    record.reason = "looked at it"
    await bucket.update(key, record.SerializeToString(), entry.revision)


async def test_a_call_waits_for_a_person_over_the_death_of_the_service(
    start: Start,
    env: common_pb2.EnvRef,
    nats_bus: NatsBus,
) -> None:
    service = having(start, {"approvals.tools": '["pyth*"]', "approvals.hold_s": 0.2})
    await service.start()
    with pytest.raises(Exhausted, match="waits for approval"):
        await service.ask(ANY, "Step", step(env, "s", 0, "40 + 2"))
    bucket = await nats_bus.kv("approvals")
    asked = await waiting(bucket)
    assert json.loads(asked.subject_json)["arguments"] == {"code": "40 + 2"}
    assert (asked.kind, asked.session_id, asked.job_id) == ("tool", "s", "job-1")
    await service.stop(signal.SIGKILL)
    await answer(bucket, grant=True)
    await service.start()
    reply = await service.ask(ANY, "Step", step(env, "s", 0, "40 + 2"))
    assert reply.observation == "42"
    with pytest.raises(Exhausted):  # the same arguments in another call are another question
        await service.ask(ANY, "Step", step(env, "s", 1, "40 + 2"))


async def test_a_no_is_something_the_policy_reads_and_nothing_runs(
    start: Start,
    env: common_pb2.EnvRef,
    nats_bus: NatsBus,
) -> None:
    service = having(start, {"approvals.tools": '["*"]', "approvals.hold_s": 0.2})
    await service.start()
    with pytest.raises(Exhausted):
        await service.ask(ANY, "Step", step(env, "s", 0, "open('/work/ran', 'w')"))
    await answer(await nats_bus.kv("approvals"), grant=False)
    reply = await service.ask(ANY, "Step", step(env, "s", 0, "open('/work/ran', 'w')"))
    assert (reply.refused, reply.observation) == ("not_approved", "error: not approved: looked at it")


async def test_bare_commands_ask_too_and_silence_is_a_no(
    start: Start,
) -> None:
    service = having(
        start,
        {
            "approvals.commands": "true",
            "approvals.hold_s": 5.0,
            "approvals.expires_s": 0.3,
        },
    )
    await service.start()
    await service.ask(ANY, "Acquire", pb.AcquireRequest(session_id="s", lease_s=60))
    request = pb.ExecRequest(session_id="s", command_id="c", argv=["echo", "1"])
    with pytest.raises(Rejected, match="nobody answered"):
        await service.ask(service.host, "Exec", request)


async def test_a_session_gets_a_network_by_name_and_what_it_is_refused_is_an_event(
    start: Start,
    nats_bus: NatsBus,
) -> None:
    service = having(start, {"egress.internal": '["127.0.0.0/8", "::1/128"]'})
    await service.start()
    offered = await service.ask(ANY, "GetCapabilities", pb.GetCapabilitiesRequest())
    if "allow" not in offered.network_modes:
        pytest.skip("this host gives no network by name")
    origin = Origin()
    await origin.start()
    try:
        rules = [egress_pb2.EgressRule(host="localhost", ports=[origin.port])]
        policy = egress_pb2.EgressPolicy(mode="allow", rules=rules)
        await service.ask(ANY, "Acquire", pb.AcquireRequest(session_id="s", lease_s=60, egress=policy))
        fetch = "import sys, urllib.request as u; print(u.build_opener(u.ProxyHandler({'http': 'http://127.0.0.1:3128'})).open(sys.argv[1]).read().decode())"

        async def get(url: str, command_id: str) -> bytes:
            argv = ["python3", "-c", fetch, url]
            command = pb.ExecRequest(session_id="s", command_id=command_id, argv=argv, env=DIRECT)
            return (await service.ask(service.host, "Exec", command)).result.stdout

        assert await get(f"http://localhost:{origin.port}/", "c1") == b"hi\n"
        assert await get("http://evil.example/", "c2") == b""
        subject = topology.evt("sandbox", "egress", "none")
        events = nats_bus.events(subject, after=0)
        attempt = (await anext(events)).message(egress_pb2.EgressAttempt)
        await events.aclose()
        assert (attempt.session_id, attempt.target, attempt.reason) == ("s", "evil.example", "not_allowed")
        assert attempt.step == 2
        await changed_live(nats_bus, service.host)
        assert await get(f"http://localhost:{origin.port}/", "c3") == b""
    finally:
        await origin.stop()


async def changed_live(bus: NatsBus, host: str) -> None:
    """Take the network away, by version."""
    subject = topology.rpc("sandbox", host, "SetEgress")
    request = egress_pb2.SetEgressRequest(
        session_id="s", policy=egress_pb2.EgressPolicy(mode="none"), expected_version=9
    )
    with pytest.raises(Conflict):
        await bus.request(subject, request, egress_pb2.SetEgressResponse, timeout_s=30)
    request.expected_version = 1
    reply = await bus.request(subject, request, egress_pb2.SetEgressResponse, timeout_s=30)
    assert reply.version == 2
    seen = await bus.request(
        topology.rpc("sandbox", host, "GetEgress"),
        egress_pb2.GetEgressRequest(session_id="s"),
        egress_pb2.GetEgressResponse,
        timeout_s=30,
    )
    assert (seen.version, seen.policy.mode) == (2, "none")


async def test_an_open_network_is_refused_where_nobody_approved_it(
    start: Start,
) -> None:
    service = start()
    await service.start()
    policy = egress_pb2.EgressPolicy(mode="open")
    with pytest.raises(Rejected, match=r"egress\.mode"):
        await service.ask(ANY, "Acquire", pb.AcquireRequest(session_id="s", lease_s=60, egress=policy))
