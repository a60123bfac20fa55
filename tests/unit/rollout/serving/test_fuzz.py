"""Whatever a client sends: an answer or a refusal, never a failure of the server."""

import random
from pathlib import Path
from typing import Any

from tests.unit.rollout.serving.world import served

from temper.rollout.serving.app import ROUTES

GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": "tiny",
        "prompt": "x",
        "max_tokens": 2,
        "n": 2,
        "stop": ["a"],
        "logprobs": 1,
    },
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": "z"},
        ],
        "max_tokens": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
    },
    "/v1/generate": {"tokens": [1, 2], "sampling": {"max_tokens": 2, "top_k": 3}, "seed": 1, "stop": ["a"]},
    "/v1/score": {"sequences": [[1, 2, 3]]},
    "/v1/weights": {"directory": "tiny", "version": 3, "policy": "keep"},
    "/v1/canary": {"directory": "tiny", "steps": [0.5]},
    "/v1/feedback": {"trajectory": "t", "success": True, "cost": 1.0},
    "/v1/canary/abort": {"reason": "x"},
}
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, -(10**30), 1e308, "", "x", "\x00", "\ud7ff", "a" * 400, [], [[]], [None], {}, {"a": {}},
    "../..", "keep", ["x", 1], [1] * 600, [[1] * 600], {"type": "object", "properties": 3},
]  # fmt: skip


def bent(source: random.Random, value: Any) -> Any:
    """A copy with one place replaced by something odd."""
    if isinstance(value, dict) and value and source.random() < 0.8:
        key = source.choice(sorted(value))
        return value | {key: bent(source, value[key])}
    if isinstance(value, list) and value and source.random() < 0.7:
        place = source.randrange(len(value))
        return [*value[:place], bent(source, value[place]), *value[place + 1 :]]
    return source.choice(ODD)


async def test_bent_bodies_are_answered_or_refused(directory: Path) -> None:
    source = random.Random(7)
    async with served(directory) as server:
        for _ in range(300):
            path = source.choice(sorted(GOOD))
            body = bent(source, GOOD[path])
            if isinstance(body, dict) and source.random() < 0.2 and path != "/v1/weights":
                body = body | {"stream": True}
            answer = await server.post(path, body)
            assert answer.status_code in (200, 400, 404, 409), (path, body, answer.status_code, answer.text)
            if answer.status_code != 200:
                assert answer.json()["error"]["message"], (path, body)
        answer = await server.post("/v1/generate", GOOD["/v1/generate"])
        assert answer.status_code == 200
        assert all(not stats.running + stats.waiting for stats in server.front.fleet.stats().values())
        assert set(GOOD) <= {route for _, route, _, _ in ROUTES}
