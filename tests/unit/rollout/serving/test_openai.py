"""The real ``openai`` client, unmodified, against the front over a socket."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.unit.rollout.serving.world import CONTEXT, ScriptedEngine, Served, served

from temper.runtime.testing import eventually

HI: list[Any] = [{"role": "user", "content": "hi é"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_models_are_listed_and_found(directory: Path) -> None:
    async with served(directory) as server:
        assert [each.id for each in (await server.client.models.list()).data] == ["tiny"]
        assert (await server.client.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await server.client.models.retrieve("huge")


async def test_a_completion_has_text_logprobs_and_usage(directory: Path) -> None:
    async with served(directory) as server:
        done = await server.client.completions.create(
            model="tiny", prompt="Hello", max_tokens=8, n=2, seed=3, logprobs=2
        )
    assert [each.index for each in done.choices] == [0, 1]
    assert done.choices[0].text != done.choices[1].text, "sample i draws from stream (seed, i)"
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs)
    assert done.usage is not None
    assert done.usage.prompt_tokens == 5
    assert done.usage.completion_tokens <= 16


async def test_vllm_10852_n_choices_are_n_requests_with_derived_streams(directory: Path) -> None:
    async with served(directory) as server:
        create = server.client.completions.create
        many = await create(model="tiny", prompt="Hello", max_tokens=6, n=3, seed=5)
        again = await create(model="tiny", prompt="Hello", max_tokens=6, n=3, seed=5)
        one = await create(model="tiny", prompt="Hello", max_tokens=6, seed=5)
    assert [each.text for each in many.choices] == [each.text for each in again.choices]
    assert one.choices[0].text == many.choices[0].text


async def test_several_prompts_as_text_or_ids_are_answered_in_order(directory: Path) -> None:
    async with served(directory) as server:
        create = server.client.completions.create
        text = await create(model="tiny", prompt=["ab", "cd"], max_tokens=4, seed=1)
        ids = await create(model="tiny", prompt=[server.ids("ab"), server.ids("cd")], max_tokens=4, seed=1)
        flat = await create(model="tiny", prompt=server.ids("ab"), max_tokens=4, seed=1)
    assert [each.text for each in text.choices] == [each.text for each in ids.choices]
    assert flat.choices[0].text == text.choices[0].text
    assert text.usage is not None
    assert text.usage.prompt_tokens == 4


async def test_a_stream_of_completions_says_what_the_whole_says(directory: Path) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "prompt": "Hello",
        "max_tokens": 12,
        "n": 2,
        "seed": 3,
        "logprobs": 1,
    }
    async with served(directory) as server:
        whole = await server.client.completions.create(**options)
        stream = await server.client.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    for index in range(2):
        parts = [each for chunk in chunks for each in chunk.choices if each.index == index]
        assert "".join(each.text for each in parts) == whole.choices[index].text
        assert parts[-1].finish_reason == whole.choices[index].finish_reason
        logprobs = [raw for each in parts if each.logprobs for raw in each.logprobs.token_logprobs or ()]
        expected = whole.choices[index].logprobs
        assert expected is not None
        assert logprobs == expected.token_logprobs
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_a_chat_streams_what_it_says_whole(directory: Path) -> None:
    options: dict[str, Any] = {
        "model": "tiny", "messages": HI, "max_tokens": 12, "seed": 3, "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    async with served(directory) as server:
        whole = await server.client.chat.completions.create(**options)
        stream = await server.client.chat.completions.create(**options, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    assert chunks[0].delta.role == "assistant"
    assert "".join(each.delta.content or "" for each in chunks) == whole.choices[0].message.content
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content
    assert content is not None
    assert all(len(each.top_logprobs) == 2 for each in content)
    assert [each.logprob for each in content] == [
        one.logprob for each in chunks if each.logprobs for one in each.logprobs.content or ()
    ]
    assert chunks[-1].finish_reason == whole.choices[0].finish_reason
    assert whole.system_fingerprint is not None
    assert whole.system_fingerprint.startswith("standard-v0-")


def scripted(server_text: str, directory: Path, **options: Any) -> ScriptedEngine:
    from temper.rollout.serving.directory import read_model

    model = read_model(directory)
    return ScriptedEngine([*model.encode(server_text, special=False), *model.stop_ids[:1]], **options)


async def chat(server: Served, **options: Any) -> Any:
    asked: dict[str, Any] = {"model": "tiny", "messages": HI, **options}
    return await server.client.chat.completions.create(**asked)


@pytest.mark.parametrize("chunk", [1, 3, 64])
async def test_vllm_3574_a_stop_string_never_leaks_and_cancels_the_rest(directory: Path, chunk: int) -> None:
    engine = scripted("ABC DEFGHIJ and more", directory, chunk=chunk)
    async with served(directory, lambda: engine) as server:
        stream = await chat(server, stop=["DEFGHIJ"], stream=True)
        parts = [part.choices[0] async for part in stream]
        whole = await chat(server, stop="DEFGHIJ", logprobs=True)
    assert "".join(each.delta.content or "" for each in parts) == "ABC "
    assert not [each for each in parts if set(each.delta.content or "") & set("DEFGHIJ")]
    assert parts[-1].finish_reason == "stop"
    assert whole.choices[0].message.content == "ABC "
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(whole.choices[0].logprobs.content) == 4


async def test_usage_never_counts_more_than_was_emitted(directory: Path) -> None:
    engine = scripted("hello", directory, chunk=4)
    async with served(directory, lambda: engine) as server:
        done = await chat(server)
    assert done.usage.completion_tokens == 6, "five bytes and the end of the turn"
    assert done.choices[0].message.content == "hello"
    assert done.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("chunk", [1, 5, 200])
async def test_tool_calls_are_parsed_whole_and_streamed(directory: Path, chunk: int) -> None:
    engine = scripted(f"I look.\n{CALL}\n{CALL}", directory, chunk=chunk)
    async with served(directory, lambda: engine) as server:
        whole = (await chat(server, tools=[WEATHER])).choices[0]
        stream = await chat(server, tools=[WEATHER], stream=True)
        parts = [part.choices[0] async for part in stream]
    assert whole.finish_reason == parts[-1].finish_reason == "tool_calls"
    assert whole.message.content == "".join(each.delta.content or "" for each in parts) == "I look."
    calls = [(each.function.name, json.loads(each.function.arguments)) for each in whole.message.tool_calls]
    assert calls == [("weather", {"city": "Oslo"})] * 2
    streamed = [one for each in parts for one in each.delta.tool_calls or ()]
    assert [one.index for one in streamed] == [0, 1]
    assert [json.loads(one.function.arguments) for one in streamed] == [{"city": "Oslo"}] * 2


async def test_one_call_only_ends_the_output_after_it(directory: Path) -> None:
    engine = scripted(f"{CALL}{CALL}", directory)
    async with served(directory, lambda: engine) as server:
        answer = await chat(server, tools=[WEATHER], parallel_tool_calls=False)
        one = len(server.ids(CALL))
    done = answer.choices[0]
    assert len(done.message.tool_calls) == 1
    assert done.finish_reason == "tool_calls"
    assert answer.usage.completion_tokens == one


async def test_a_named_call_is_begun_for_the_model(directory: Path) -> None:
    engine = scripted('{"city": "Rome"}}\n</tool_call>', directory)
    choice = {"type": "function", "function": {"name": "weather"}}
    async with served(directory, lambda: engine) as server:
        done = (await chat(server, tools=[WEATHER], tool_choice=choice)).choices[0]
        begun = bytes(
            b for token in engine.requests[-1].tokens for b in server.model.tokens.of(token)
        ).decode()
    assert begun.endswith('<tool_call>\n{"name": "weather", "arguments": ')
    assert json.loads(done.message.tool_calls[0].function.arguments) == {"city": "Rome"}


async def test_tools_that_may_not_be_called_are_not_shown(directory: Path) -> None:
    engine = scripted(CALL, directory)
    async with served(directory, lambda: engine) as server:
        done = (await chat(server, tools=[WEATHER], tool_choice="none")).choices[0]
    assert done.message.content == CALL
    assert done.message.tool_calls is None


async def test_a_whole_conversation_with_a_tool_is_written_as_the_template_says(directory: Path) -> None:
    engine = scripted("It is cold.", directory)
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "-5"},
    ]
    async with served(directory, lambda: engine) as server:
        tools: list[Any] = [WEATHER]
        await server.client.chat.completions.create(model="tiny", messages=messages, tools=tools)
        names, table = server.model.tokens.names, server.model.tokens
        prompt = "".join(names.get(token) or table.of(token).decode() for token in engine.requests[-1].tokens)
    assert prompt.startswith("TOOLS [{")
    assert prompt.endswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n<|im_start|>tool\n-5<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_the_byte_policy_calls_by_its_role_token(byte_directory: Path) -> None:
    from temper.rollout.serving.directory import read_model

    model = read_model(byte_directory)
    call, end = model.tokenizer.token_to_id("<call>"), model.tokenizer.token_to_id("<end>")
    assert call is not None
    assert end is not None
    script = [*model.encode("hm", special=False), call, *model.encode("Oslo", special=False), end]
    engine = ScriptedEngine(script)
    async with served(byte_directory, lambda: engine) as server:
        done = (await chat(server, tools=[WEATHER])).choices[0]
        plain = (await chat(server)).choices[0]
    assert done.message.content == "hm"
    assert json.loads(done.message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    assert plain.message.content == "hmOslo"
    assert engine.requests[0].tokens[0] == model.tokenizer.token_to_id("<bos>")


async def test_a_tool_turn_of_the_byte_policy_is_written_as_it_was_made(byte_directory: Path) -> None:
    """What a client sends back has the arguments as text; a demanded call begins as the policy would begin it."""
    from temper.rollout.codec import Codec

    files = {name: (byte_directory / name).read_bytes() for name in ("tokenizer.json", "temper_chat.json")}
    codec = Codec.read(files)
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "-5"},
    ]
    forced = {"type": "function", "function": {"name": "weather"}}
    engine = ScriptedEngine([*b"Oslo", codec.stops[0]])
    async with served(byte_directory, lambda: engine) as server:
        await chat(server, messages=messages, tools=[WEATHER])
        called = (await chat(server, messages=messages, tools=[WEATHER], tool_choice=forced)).choices[0]
    turn = (*codec.prompt("Weather?"), *codec.call("Oslo"), *codec.observation("-5"))
    call_id = codec.call("")[0]
    assert engine.requests[0].tokens == turn
    assert engine.requests[1].tokens == (*turn, call_id)
    assert json.loads(called.message.tool_calls[0].function.arguments) == {"city": "Oslo"}


async def test_sampling_options_reach_the_engine(directory: Path) -> None:
    engine = scripted("x", directory)
    async with served(directory, lambda: engine) as server:
        await chat(
            server,
            temperature=0.5,
            top_p=0.9,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            logit_bias={"7": -100},
            max_completion_tokens=9,
            seed=-4,
            user="ann",
            extra_body={
                "top_k": 5,
                "min_p": 0.01,
                "repetition_penalty": 1.1,
                "stop_token_ids": [3],
                "priority": 2,
            },
        )
    request = engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.01)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        0.1,
        0.2,
        1.1,
    )
    assert sampling.logit_bias == ((7, -100.0),)
    assert 3 in sampling.stop_token_ids
    assert (sampling.max_tokens, request.seed, request.tenant, request.priority) == (9, -4, "ann", 2)


async def test_the_context_limit_ends_an_output_with_reason_length(directory: Path) -> None:
    async with served(directory) as server:
        done = await server.client.completions.create(
            model="tiny", prompt="a" * (CONTEXT - 3), max_tokens=50, extra_body={"stop_token_ids": []}
        )
    assert done.choices[0].finish_reason in ("length", "stop")
    assert done.usage is not None
    assert done.usage.completion_tokens <= 3


async def test_an_abort_by_a_weight_update_is_an_error_and_no_answer(directory: Path) -> None:
    engine = scripted("hello", directory)
    async with served(directory, lambda: engine) as server:
        engine.gate.clear()
        asking = asyncio.create_task(chat(server))
        await eventually(lambda: engine.requests)
        engine.cancel(engine.requests[0].request_id)  # as a swap with policy abort does
        with pytest.raises(openai.InternalServerError, match="cut off"):
            await asking
