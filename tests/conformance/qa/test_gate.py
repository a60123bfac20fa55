"""The gate as others see it: a qa process and a sandbox process on a real broker, spoken to by messages only."""

import pytest
from tests.conformance.processes import Service, running

from temper.api.qa.v1 import qa_pb2 as qa
from temper.api.qa.v1 import qa_pb2_grpc
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.rpc import channel, rpc_errors
from temper.runtime.testing import eventually
from temper.runtime.topology import rpc

QUICK = [
    ("calc", ""),
    ("rg/chain_sum", '{"min_terms":2,"max_terms":3,"min_digits":2,"max_digits":3,"binary":true}'),
    ("rg/products", '{"min_terms":2,"max_terms":2,"min_digits":2,"max_digits":3,"binary":true}'),
]


async def resolve(bus, *wishes):
    """Ask as the scheduler does; a service that is still starting is waited for."""
    request = qa.ResolveEnvironmentsRequest(
        wishes=[qa.EnvironmentWish(name=name, params_json=params) for name, params in wishes]
    )

    async def ask():
        try:
            return await bus.request(
                rpc("qa", "ResolveEnvironments"), request, qa.ResolveEnvironmentsResponse, timeout_s=120
            )
        except Unavailable:
            return None

    answer = await eventually(ask, within_s=120, what="an answer of qa")
    assert answer is not None
    return answer.envs


async def verdict_of(bus, name):
    bucket = await bus.kv("environments")
    entries = [await bucket.get(key) for key in await bucket.keys()]
    found = (qa.EnvironmentRecord.FromString(entry.value) for entry in entries)
    return next(record for record in found if record.env.name == name)


async def test_the_gate_end_to_end(nats_server, nats_bus, free_port, tmp_path):
    gate = Service("qa", nats_server, tmp_path, grpc__port=free_port)
    host = Service("sandbox", nats_server, tmp_path, state_dir=tmp_path / "sandbox", grpc__port=0)
    async with running(gate, host), channel(f"127.0.0.1:{free_port}") as connection:
        admitted = await resolve(nats_bus, *QUICK)
        assert [env.name for env in admitted] == [name for name, _ in QUICK]
        assert len({env.digest for env in admitted}) == 3
        own = await verdict_of(nats_bus, "calc")
        assert own.state == qa.ENVIRONMENT_STATE_ADMITTED
        assert own.report.backend
        assert len(own.report.results) >= 14

        with pytest.raises(Rejected, match=r"semantic\.floor_gap"):
            await resolve(nats_bus, ("rg/sentence_reordering", ""))
        with pytest.raises(Rejected, match=r"runtime\.startup"):
            await resolve(nats_bus, ("rg/composite", ""))
        with pytest.raises(Rejected, match="did you mean"):
            await resolve(nats_bus, ("rg/chain_sun", ""))

        stub = qa_pb2_grpc.EnvironmentServiceStub(connection)
        with rpc_errors():
            listed = await stub.ListEnvironments(qa.ListEnvironmentsRequest(prefix="rg/", page_size=1000))
            assert len({record.env.name for record in listed.environments}) == 106
            await stub.QuarantineEnvironment(
                qa.QuarantineEnvironmentRequest(name="calc@1.0.0", reason="test")
            )
        with pytest.raises(Rejected, match="quarantined: test"):
            await resolve(nats_bus, ("calc", ""))

        gate.kill()
        gate.start()  # the registry and its verdicts are not in the process
        with pytest.raises(Rejected, match="quarantined: test"):
            await resolve(nats_bus, ("calc", ""))
        assert await resolve(nats_bus, QUICK[1]) == [admitted[1]]
    assert (await verdict_of(nats_bus, "calc")).state == qa.ENVIRONMENT_STATE_QUARANTINED
