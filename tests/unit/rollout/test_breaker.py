"""An outage of the sandbox service is not answered by a storm of calls."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.rollout.test_sandbox_client import task
from tests.unit.rollout.world import ENV

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.sandbox.v1 import sandbox_pb2 as sandbox
from temper.rollout.breaker import LONGEST_REST_S, PROBE_S, TRIPS, Breaker
from temper.rollout.sandbox import Sandboxes
from temper.runtime import topology
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import MemoryPlatform

OTHER = EnvRef(name="other", version="1.0.0", digest="b" * 64)


def tripped(now: float = 0.0) -> Breaker:
    made = Breaker()
    for _ in range(TRIPS):
        assert made.wait(now) == 0
        made.failed(now)
    return made


def test_callers_wait_after_so_many_failures_in_a_row():
    made = tripped()
    assert made.wait(0.0) == pytest.approx(0.5)
    assert made.wait(0.5) == 0.0


def test_one_caller_asks_and_the_others_wait_for_its_answer():
    made = tripped()
    assert [made.wait(1.0) for _ in range(3)] == [0.0, PROBE_S, PROBE_S]
    made.answered()
    assert [made.wait(1.0) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_a_caller_that_leaves_without_an_answer_lets_the_next_one_ask():
    made = tripped()
    assert made.wait(1.0) == 0.0
    made.left()
    assert made.wait(1.0) == 0.0


@given(st.lists(st.sampled_from(["fail", "answer"]), max_size=40))
def test_a_rest_is_bounded_and_an_answer_ends_it(outcomes):
    made, now = Breaker(), 0.0
    for outcome in outcomes:
        assert 0.0 <= made.wait(now) <= LONGEST_REST_S
        now = max(now, made.rests_until)
        if outcome == "fail":
            made.failed(now)
        else:
            made.answered()
            assert made.wait(now) == 0.0


async def test_prime_rl_2835_an_outage_is_asked_about_by_one_caller_per_environment(
    memory_platform: MemoryPlatform,
):
    calls: Counter[str] = Counter()
    up = False

    async def serve(request: sandbox.MaterializeRequest, _: object) -> sandbox.MaterializeResponse:
        calls[request.env.digest] += 1
        if request.env.digest == OTHER.digest or up:
            return sandbox.MaterializeResponse(tasks=[sandbox.TaskView(task_index=1, prompt="1+1=")])
        raise Unavailable("the backend of this environment is away")

    await memory_platform.bus.serve(
        topology.rpc("sandbox", "any", "Materialize"), sandbox.MaterializeRequest, serve
    )
    clock = memory_platform.clock
    sandboxes = Sandboxes(memory_platform.bus, clock, call_timeout_s=5, lease_s=30, host_wait_s=300)
    asked = [asyncio.ensure_future(sandboxes.materialize(ENV, "train", [1], [], 1000)) for _ in range(100)]
    await clock.advance(1)
    first = calls[ENV.digest]
    await clock.advance(59)
    # without a breaker each of a hundred callers asks once a second
    assert calls[ENV.digest] - first <= 60 / LONGEST_REST_S + 10
    found = await sandboxes.materialize(OTHER, "train", [1], [], 1000)  # another environment feels nothing
    assert found.tasks[0].prompt == "1+1="
    up = True
    await clock.advance(2 * LONGEST_REST_S)
    assert all(each.done() and each.result().tasks for each in asked)


async def test_a_refusal_is_an_answer(memory_platform: MemoryPlatform):
    async def refuse(_: sandbox.MaterializeRequest, __: object) -> sandbox.MaterializeResponse:
        raise Rejected("no such task", field="task_indices")

    await memory_platform.bus.serve(
        topology.rpc("sandbox", "any", "Materialize"), sandbox.MaterializeRequest, refuse
    )
    sandboxes = Sandboxes(
        memory_platform.bus, memory_platform.clock, call_timeout_s=5, lease_s=30, host_wait_s=9
    )
    for _ in range(2 * TRIPS):
        with pytest.raises(Rejected):
            await sandboxes.materialize(task().env, "train", [1], [], 1000)


async def test_callers_whose_own_time_is_up_say_nothing_of_a_busy_host(memory_platform: MemoryPlatform):
    calls: list[float] = []
    clock = memory_platform.clock

    async def serve(_: sandbox.MaterializeRequest, __: object) -> sandbox.MaterializeResponse:
        calls.append(clock.monotonic())
        await clock.sleep(4)
        return sandbox.MaterializeResponse(tasks=[sandbox.TaskView(task_index=1, prompt="1+1=")])

    await memory_platform.bus.serve(
        topology.rpc("sandbox", "any", "Materialize"), sandbox.MaterializeRequest, serve
    )
    sandboxes = Sandboxes(memory_platform.bus, clock, call_timeout_s=5, lease_s=30, host_wait_s=9)
    hasty = clock.monotonic() + 1
    lost = [
        asyncio.ensure_future(sandboxes.materialize(ENV, "train", [1], [], hasty)) for _ in range(2 * TRIPS)
    ]
    await clock.advance(2)
    assert all(isinstance(each.exception(), Unavailable) for each in lost)
    begun = clock.monotonic()
    patient = asyncio.ensure_future(sandboxes.materialize(ENV, "train", [1], [], begun + 100))
    await clock.advance(5)
    assert patient.done()
    assert patient.result().tasks[0].prompt == "1+1="
    assert calls[2 * TRIPS :] == [begun]  # asked at once, not after a rest
