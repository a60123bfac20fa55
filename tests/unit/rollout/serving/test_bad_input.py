"""A clear refusal for every kind of bad input, by name; the engine lives and its pool's book balances."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rollout.serving.world import (
    CONTEXT,
    ScriptedEngine,
    Served,
    served,
    tokenizer,
    write_directory,
)

from temper.rollout.serving.directory import read_model
from temper.runtime.errors import Rejected

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "x"}
IDS: dict[str, Any] = {"tokens": [1], "sampling": {"max_tokens": 2}}

BAD: list[tuple[str, dict[str, Any], str | None]] = [
    ("/v1/completions", TEXT | {"prompt": ""}, "prompt"),
    ("/v1/completions", TEXT | {"prompt": []}, "prompt"),
    ("/v1/completions", TEXT | {"prompt": [[]]}, "prompt"),
    ("/v1/completions", TEXT | {"prompt": [1, "a"]}, "prompt[0]"),
    ("/v1/completions", TEXT | {"prompt": [-1]}, "prompt[0]"),
    ("/v1/completions", TEXT | {"prompt": [10**9]}, "prompt"),
    ("/v1/completions", TEXT | {"prompt": "a" * CONTEXT}, "prompt"),
    ("/v1/completions", TEXT | {"prompt": ["a", ""]}, "prompt[1]"),
    ("/v1/completions", TEXT | {"best_of": 2}, "best_of"),
    ("/v1/completions", TEXT | {"echo": True}, "echo"),
    ("/v1/completions", TEXT | {"stop": [""]}, "stop[0]"),
    ("/v1/completions", TEXT | {"stop": ["x"] * 17}, "stop"),
    ("/v1/completions", TEXT | {"stream_options": {"include_usage": True}}, None),
    ("/v1/completions", TEXT | {"temperature": "warm"}, "temperature"),
    ("/v1/completions", TEXT | {"temperature": True}, "temperature"),
    ("/v1/completions", TEXT | {"logit_bias": {"nine": 1}}, "logit_bias"),
    ("/v1/completions", TEXT | {"logit_bias": {"99999": 1}}, "logit_bias"),
    ("/v1/completions", TEXT | {"n": 0}, "n"),
    ("/v1/completions", TEXT | {"max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {"model": "tiny"}, "prompt"),
    ("/v1/chat/completions", CHAT | {"messages": []}, "messages"),
    (
        "/v1/chat/completions",
        CHAT | {"messages": [{"role": "user", "content": "a" * CONTEXT}]},
        "messages",
    ),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user"}]}, "messages[0].content"),
    (
        "/v1/chat/completions",
        CHAT
        | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    (
        "/v1/chat/completions",
        CHAT | {"messages": [{"role": "tool", "content": "x"}]},
        "messages[0].tool_call_id",
    ),
    ("/v1/chat/completions", CHAT | {"top_logprobs": 2}, None),
    ("/v1/chat/completions", CHAT | {"tool_choice": "auto"}, None),
    ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}, "response_format.type"),
    ("/v1/chat/completions", CHAT | {"top_a": 0.1}, "top_a"),
    ("/v1/chat/completions", CHAT | {"max_tokens": 1, "max_completion_tokens": 1}, None),
    ("/v1/chat/completions", CHAT | {"variant": "fast"}, "variant"),
    ("/v1/completions", TEXT | {"prompt": ["x"] * 100, "n": 100}, "n"),
    ("/v1/generate", IDS | {"tokens": []}, "tokens"),
    ("/v1/generate", IDS | {"tokens": [1] * CONTEXT}, "tokens"),
    ("/v1/generate", IDS | {"tokens": [10**9]}, "tokens"),
    ("/v1/generate", IDS | {"sampling": {"max_tokens": 2, "beam": 4}}, "sampling.beam"),
    ("/v1/generate", IDS | {"sampling": {"max_tokens": 2, "top_p": 0}}, "sampling.top_p"),
    (
        "/v1/generate",
        IDS | {"sampling": {"max_tokens": 2, "logit_bias": [[1, 2, 3]]}},
        "sampling.logit_bias[0]",
    ),
    ("/v1/score", {"sequences": [[]]}, "sequences[0]"),
    ("/v1/score", {"sequences": [[1], [1] * CONTEXT]}, "sequences[1]"),
    ("/v1/feedback", {"trajectory": "t", "success": "yes"}, "success"),
]


async def still_works(server: Served) -> None:
    answer = await server.post("/v1/generate", IDS)
    assert answer.status_code == 200, answer.text
    for stats in server.front.fleet.stats().values():
        assert stats.running + stats.waiting == 0
        if stats.blocks is not None:
            assert stats.blocks.free + stats.blocks.evictable + stats.blocks.held == stats.blocks.total


async def test_vllm_7283_every_bad_request_is_refused_by_name_and_the_engine_lives(directory: Path) -> None:
    async with served(directory) as server:
        for path, body, param in BAD:
            answer = await server.post(path, body)
            said = answer.json()["error"]
            assert answer.status_code == 400, (path, body, answer.text)
            assert said["type"] == "invalid_request_error"
            assert said["message"]
            if param is not None:
                assert said["param"] == param, (path, body, said)
            streamed = (
                await server.post(path, body | {"stream": True}) if "stream_options" not in body else answer
            )
            assert streamed.status_code == 400, (path, body, "the refusal must not be inside a stream")
        await still_works(server)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'{"prompt": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"prompt": "\\ud800"}'],
)
async def test_a_body_that_is_no_object_is_refused(directory: Path, raw: bytes) -> None:
    async with served(directory) as server:
        answer = await server.http.post("/v1/completions", content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


async def test_unknown_routes_and_methods_are_told_what_there_is(directory: Path) -> None:
    async with served(directory) as server:
        method = await server.http.get("/v1/completions")
        route = await server.http.get("/v2")
    assert (method.status_code, route.status_code) == (405, 404)
    assert method.json()["error"]["message"] == "/v1/completions takes POST, not GET"
    assert route.json()["error"]["type"] == "not_found_error"
    assert "/v2; GET /openapi.json" in route.json()["error"]["message"]


async def test_a_prompt_over_the_limit_has_openais_code_and_an_unknown_null_asks_for_nothing(
    directory: Path,
) -> None:
    async with served(directory) as server:
        long = await server.post("/v1/completions", TEXT | {"prompt": "a" * CONTEXT})
        null = await server.post("/v1/completions", TEXT | {"max_tokens": 1, "prediction": None})
        known = await server.post("/v1/completions", TEXT | {"model": None})
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert null.status_code == 200
    assert known.json()["error"]["param"] == "model"


async def test_a_duplicate_id_is_a_conflict_for_the_same_and_for_another_attempt(directory: Path) -> None:
    import asyncio

    from temper.rollout.engine.fake import FakeEngine
    from temper.runtime.clock import FakeClock
    from temper.runtime.testing import eventually

    clock = FakeClock()
    engine = FakeEngine(clock, slots=2, max_context=CONTEXT, step_seconds=1.0)
    async with served(directory, lambda: engine) as server:
        body = IDS | {"request_id": "same"}
        first = asyncio.create_task(server.post("/v1/generate", body))
        await eventually(lambda: engine.stats().running + engine.stats().waiting)
        second = await server.post("/v1/generate", body)
        third = await server.post("/v1/generate", body | {"attempt": 2})
        for _ in range(10):
            await clock.advance(1.0)
        assert (await first).status_code == 200
    assert (second.status_code, third.status_code) == (409, 409)
    assert "same" in second.json()["error"]["message"]


def truncate(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def test_a_checkpoint_that_is_cut_short_names_the_tensor(directory: Path) -> None:
    truncate(directory / "model.safetensors", 8)
    with pytest.raises(Rejected, match=r"tensor model\.norm\.weight is cut short, 8 bytes"):
        read_model(directory)


def test_a_shard_that_is_missing_or_lacks_a_tensor_is_named(directory: Path) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "absent.safetensors"}}))
    with pytest.raises(Rejected, match=r"absent\.safetensors is missing; tensor model\.norm\.weight"):
        read_model(directory)
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "model.safetensors"}}))
    with pytest.raises(Rejected, match=r"tensor lm_head\.weight is missing"):
        read_model(directory)


@pytest.mark.parametrize(
    "raw", [b"", b"abc", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"[]"]
)
def test_a_file_that_is_no_safetensors_is_named(directory: Path, raw: bytes) -> None:
    (directory / "model.safetensors").write_bytes(raw)
    with pytest.raises(Rejected, match=r"model\.safetensors is not a safetensors file"):
        read_model(directory)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"ids up to 260, but config\.json says vocab_size 260"):
        read_model(write_directory(tmp_path / "small", vocab_size=260))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(
        Rejected, match=name.replace("model.", r"\*\.").replace(".", r"\.").replace(r"\*\\.", r"\*\.")
    ):
        read_model(directory)


def test_pickled_weights_are_refused_with_the_way_out(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(Rejected, match="convert them to safetensors"):
        read_model(directory)


def test_json_that_is_broken_is_named(directory: Path) -> None:
    (directory / "generation_config.json").write_text("{")
    with pytest.raises(Rejected, match=r"generation_config\.json is not JSON"):
        read_model(directory)


def test_a_chat_template_that_does_not_compile_is_refused(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(Rejected, match="does not compile"):
        read_model(directory)


async def test_corrupt_new_weights_are_refused_and_the_old_ones_serve_on(directory: Path) -> None:
    other = write_directory(directory.parent / "next", seed=2)
    truncate(other / "model.safetensors", 8)
    async with served(directory) as server:
        answer = await server.post("/v1/weights", {"directory": "next"})
        assert answer.status_code == 400
        assert "model.norm.weight" in answer.json()["error"]["message"]
        assert (await server.http.get("/health")).json()["version"] == 0
        await still_works(server)


async def test_new_weights_with_another_tokenizer_are_refused(directory: Path) -> None:
    other = write_directory(directory.parent / "next")
    made = tokenizer()
    made.add_tokens(["<new>"])
    made.save(str(other / "tokenizer.json"))
    async with served(directory) as server:
        answer = await server.post("/v1/weights", {"directory": "next"})
    assert answer.status_code == 400
    assert "tokenizer" in answer.json()["error"]["message"]


async def test_a_model_without_a_chat_template_says_so(directory: Path) -> None:
    (directory / "tokenizer_config.json").unlink()
    engine = ScriptedEngine([1])
    async with served(directory, lambda: engine) as server:
        answer = await server.post("/v1/chat/completions", CHAT)
        assert answer.status_code == 400
        assert "no chat template" in answer.json()["error"]["message"]
        assert (await server.post("/v1/completions", TEXT)).status_code == 200
