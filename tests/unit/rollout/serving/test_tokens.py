"""Ids in, ids out: every array of the wire contract over HTTP."""

import json
from pathlib import Path

from tests.unit.rollout.serving.world import ScriptedEngine, served, write_directory

SAMPLING = {"max_tokens": 6}


async def test_generate_returns_every_aligned_array(directory: Path) -> None:
    async with served(directory) as server:
        answer = await server.post(
            "/v1/generate",
            {
                "tokens": [1, 2, 3],
                "sampling": {"max_tokens": 6, "top_k": 8, "top_logprobs": 2},
                "seed": 4,
                "sample_index": 1,
                "request_id": "r1",
                "attempt": 3,
                "prompt_logprobs": True,
            },
        )
    assert answer.status_code == 200, answer.text
    record = answer.json()
    length = len(record["tokens"])
    assert length == 6
    for name in ("logprobs_raw", "logprobs", "log_surviving_mass", "mask", "top_logprobs"):
        assert len(record[name]) == length, name
    assert len(record["prompt_logprobs"]) == 3
    assert record["prompt_logprobs"][0] is None
    assert record["weight_versions"] == [{"start": 0, "end": 6, "version": 0}]
    assert record["prefill_weight_versions"] == [{"start": 0, "end": 3, "version": 0}]
    assert record["kv_origin_versions"] == [{"start": 0, "end": 6, "version": 0}]
    assert (record["request_id"], record["attempt"], record["seed"], record["sample_index"]) == (
        "r1",
        3,
        4,
        1,
    )
    assert record["finish_reason"] == "length"
    assert record["for_training"] is True
    assert record["sampling"]["top_k"] == 8
    assert record["engine"]["name"] == "fake"


async def test_the_same_seed_gives_the_same_tokens_streamed_or_whole(directory: Path) -> None:
    body = {"tokens": [5, 6], "sampling": SAMPLING, "seed": 9}
    async with served(directory) as server:
        whole = (await server.post("/v1/generate", body)).json()
        streamed = await server.post("/v1/generate", body | {"stream": True})
    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert [token for chunk in chunks[:-1] for token in chunk["tokens"]] == whole["tokens"]
    last = chunks[-1]
    assert last.pop("done") is True
    assert {key: last[key] for key in ("tokens", "logprobs")} == {
        key: whole[key] for key in ("tokens", "logprobs")
    }


async def test_vllm_47616_a_stop_string_cuts_ids_logprobs_and_versions_together(directory: Path) -> None:
    engine = ScriptedEngine(chunk=16)
    async with served(directory, lambda: engine) as server:
        engine.script = server.ids("go STOP and more")
        body = {"tokens": [1], "sampling": {"max_tokens": 40}, "stop": ["STOP"]}
        record = (await server.post("/v1/generate", body)).json()
        assert record["tokens"] == server.ids("go ")
    assert len(record["logprobs"]) == len(record["logprobs_raw"]) == len(record["mask"]) == 3
    assert record["weight_versions"] == [{"start": 0, "end": 3, "version": 0}]
    assert (record["finish_reason"], record["stopped_by"]) == ("stop", "STOP")


async def test_score_gives_prompt_logprobs_and_agrees_with_generate(directory: Path) -> None:
    async with served(directory) as server:
        made = (await server.post("/v1/generate", {"tokens": [1, 2], "sampling": SAMPLING, "seed": 1})).json()
        sequence = [1, 2, *made["tokens"]]
        scored = (await server.post("/v1/score", {"sequences": [sequence, [7]]})).json()
    first, second = scored["scores"]
    assert first["logprobs"][0] is None
    assert second["logprobs"] == [None]
    for mine, theirs in zip(first["logprobs"][2:], made["logprobs_raw"], strict=True):
        assert abs(mine - theirs) < 1e-6


async def test_new_weights_are_loaded_probed_and_answer_under_their_version(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=7)
    body = {"tokens": [1, 2], "sampling": SAMPLING, "seed": 1}
    async with served(directory, replicas=2) as server:
        before = (await server.post("/v1/generate", body)).json()
        loaded = await server.post("/v1/weights", {"directory": "next", "version": 5, "policy": "requeue"})
        after = (await server.post("/v1/generate", body)).json()
        again = await server.post("/v1/weights", {"directory": "next", "version": 5})
    assert loaded.status_code == 200, loaded.text
    said = loaded.json()
    assert (said["version"], said["policy"], said["replicas_agree"]) == (5, "requeue", True)
    assert len(said["probe"]) == 64
    assert after["version"] == 5
    assert after["tokens"] != before["tokens"]
    assert again.status_code == 400
    assert again.json()["error"]["param"] == "version"


async def test_weights_come_only_from_below_the_root(directory: Path) -> None:
    async with served(directory) as server:
        answer = await server.post("/v1/weights", {"directory": "../../etc"})
        absent = await server.post("/v1/weights", {"directory": "absent"})
    assert answer.status_code == 400
    assert "does not lie below" in answer.json()["error"]["message"]
    assert absent.status_code == 400


async def test_while_paused_clients_are_told_to_come_back(directory: Path) -> None:
    async with served(directory) as server:
        await server.post("/v1/pause", {})
        refused = await server.post("/v1/generate", {"tokens": [1], "sampling": SAMPLING})
        health = await server.http.get("/health")
        await server.post("/v1/resume", {})
        answered = await server.post("/v1/generate", {"tokens": [1], "sampling": SAMPLING})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert health.status_code == 503
    assert health.json()["status"] == "paused"
    assert answered.status_code == 200


async def test_the_description_names_every_route_and_its_fields(directory: Path) -> None:
    async with served(directory) as server:
        described = (await server.http.get("/openapi.json")).json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/generate", "/v1/score", "/v1/weights"} <= set(
        described["paths"]
    )
    assert "top_p" in described["components"]["schemas"]["ChatBody"]["properties"]
