"""Key, size, number, and clients that leave."""

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from tests.unit.rollout.serving.world import ScriptedEngine, served

from temper.runtime.testing import eventually

BODY: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 200}


async def test_without_the_key_only_health_and_metrics_answer(directory: Path) -> None:
    async with served(directory, token="s3cret") as server:
        for key in ("", "Bearer wrong", "Basic s3cret"):
            refused = await server.http.get("/v1/models", headers={"Authorization": key})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await server.http.get("/v1/models")).status_code == 200
        for path in ("/health", "/metrics"):
            assert (await server.http.get(path, headers={"Authorization": ""})).status_code == 200


async def test_a_body_over_the_limit_is_refused_however_it_is_sent(directory: Path) -> None:
    async def pieces():
        for _ in range(8):
            yield b"x" * 512

    async with served(directory, max_body_bytes=2048) as server:
        declared = await server.http.post("/v1/completions", content=b"x" * 4096)
        chunked = await server.http.post("/v1/completions", content=pieces())
    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert declared.json()["error"]["code"] == "body_too_large"


async def test_one_request_too_many_is_told_to_come_back(directory: Path) -> None:
    engine = ScriptedEngine([1] * 4)
    engine.gate.clear()
    async with served(directory, lambda: engine, max_requests=1) as server:
        first = asyncio.create_task(server.post("/v1/completions", BODY))
        await eventually(lambda: engine.requests)
        second = await server.post("/v1/completions", BODY)
        engine.gate.set()
        assert (await first).status_code == 200
        third = await server.post("/v1/completions", BODY)
    assert second.status_code == 429
    assert second.headers["retry-after"] == "1"
    assert third.status_code == 200


async def test_a_failure_of_the_server_is_counted_as_one(directory: Path) -> None:
    engine = ScriptedEngine([1])

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    engine.submit = broken  # pyright: ignore[reportAttributeAccessIssue] - a bug on purpose
    async with served(directory, lambda: engine) as server:
        failed = await server.post("/v1/completions", BODY)
        said = generate_latest(server.front.metrics.registry).decode()
    assert failed.status_code == 500
    assert 'requests_total{path="/v1/completions",status="500"} 1.0' in said


async def test_a_client_that_leaves_a_stream_cancels_its_request(directory: Path) -> None:
    engine = ScriptedEngine([1] * 100)
    async with served(directory, lambda: engine) as server:
        async with server.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                if line:
                    engine.gate.clear()
                    break
        await eventually(lambda: engine.cancelled)
        await eventually(lambda: not engine.stats().running)
        await eventually(lambda: server.front.metrics.running._value.get() == 0)


async def test_a_client_that_leaves_before_the_answer_cancels_all_its_choices(directory: Path) -> None:
    engine = ScriptedEngine([1] * 4)
    engine.gate.clear()
    async with served(directory, lambda: engine) as server:
        for stream in (False, True):
            engine.requests.clear()
            engine.cancelled.clear()
            asking = asyncio.create_task(server.post("/v1/completions", BODY | {"n": 3, "stream": stream}))
            await eventually(lambda: len(engine.requests) == 3)
            asking.cancel()
            await eventually(lambda: len(engine.cancelled) == 3)
        left = 'temper_serving_requests_total{path="/v1/completions",status="499"} 2.0'
        await eventually(lambda: left in generate_latest(server.front.metrics.registry).decode())


async def test_metrics_count_requests_outputs_and_engine_tokens(directory: Path) -> None:
    async with served(directory) as server:
        await server.post("/v1/completions", BODY | {"max_tokens": 3})
        await server.http.get("/nowhere")
        text = (await server.http.get("/metrics")).text
    assert 'temper_serving_requests_total{path="/v1/completions",status="200"} 1.0' in text
    assert 'temper_serving_requests_total{path="other",status="404"} 1.0' in text
    assert "temper_serving_engine_generated_tokens" in text
    assert "temper_serving_outputs_total{ending=" in text


async def test_a_deadline_that_passes_is_said_and_not_retried(directory: Path) -> None:
    async with served(directory, request_timeout_s=1e-6) as server:
        answer = await server.post("/v1/completions", BODY)
        record = await server.post("/v1/generate", {"tokens": [1], "sampling": {"max_tokens": 4}})
    assert answer.status_code == 504
    assert answer.headers["x-should-retry"] == "false"
    assert record.json()["finish_reason"] == "deadline"
