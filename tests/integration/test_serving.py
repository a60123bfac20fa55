"""``temper serve rollout --model DIR`` as a user runs it: a real directory, a real process, the real ``openai`` client."""

import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import transformers
from openai import AsyncOpenAI
from tests.unit.rollout.serving.world import CONTEXT, TEMPLATE, VOCAB, tokenizer

TEMPER = str(Path(sys.executable).with_name("temper"))
START_S = 120.0
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``save_pretrained`` leaves of a tiny random Qwen3 and its tokenizer, in two shards."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), eos_token="<|im_end|>", bos_token="<|end|>"
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=made.convert_tokens_to_ids("<|im_end|>"),
    )
    model = transformers.Qwen3ForCausalLM(config).float()
    model.save_pretrained(path, max_shard_size="60KB")
    assert (path / "model.safetensors.index.json").exists()
    return path


@asynccontextmanager
async def serving(directory: Path, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process that serves, and its URL."""
    process = await asyncio.create_subprocess_exec(
        TEMPER, "serve", "rollout", "--model", str(directory), "--port", "0", *options,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said: list[bytes] = []
    try:
        async with asyncio.timeout(START_S):
            async for line in process.stderr:
                said.append(line)
                found = re.search(rb"serving tiny at (http://\S+)", line)
                if found:
                    break
            else:
                pytest.fail(b"".join(said).decode())
        yield process, found[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest_asyncio.fixture
async def client(directory: Path) -> AsyncIterator[AsyncOpenAI]:
    async with (
        serving(directory, "--replicas", "2") as (_, url),
        AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as found,
    ):
        yield found


def greedy(directory: Path, prompt: list[int], count: int) -> list[int]:
    """What transformers itself says."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory).float().eval()
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


async def test_a_real_directory_answers_the_openai_client_whole_streamed_and_with_tools(
    client: AsyncOpenAI, directory: Path
) -> None:
    messages: Any = [{"role": "user", "content": "hi é"}]
    options: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 16}
    whole = await client.chat.completions.create(**options, temperature=0, logprobs=True)
    made: Any = transformers.AutoTokenizer.from_pretrained(directory)
    prompt = made.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(prompt)
    expected = greedy(directory, prompt, 16)
    content = whole.choices[0].message.content
    assert content is not None
    assert content.rstrip("\ufffd") == made.decode(expected, skip_special_tokens=True).rstrip("\ufffd")

    stream = await client.chat.completions.create(**options, temperature=0, stream=True)
    assert "".join([part.choices[0].delta.content or "" async for part in stream]) == content

    choice: Any = {"type": "function", "function": {"name": "weather"}}
    called = await client.chat.completions.create(**options, tools=[WEATHER], tool_choice=choice, seed=1)
    assert called.choices[0].message.tool_calls or called.choices[0].message.content

    done = await client.completions.create(model="tiny", prompt="abc", max_tokens=8, n=3, seed=1, logprobs=2)
    again = await client.completions.create(model="tiny", prompt="abc", max_tokens=8, n=3, seed=1, logprobs=2)
    assert [each.text for each in done.choices] == [each.text for each in again.choices]


async def test_a_stop_drains_what_is_under_way_and_exits_clean(directory: Path) -> None:
    patient = ("--set", "drain_timeout_s=120")
    async with (
        serving(directory, *patient) as (process, url),
        AsyncOpenAI(base_url=url, api_key="none") as client,
    ):
        stream = await client.completions.create(
            model="tiny", prompt="abc", max_tokens=60, seed=1, stream=True
        )
        first = await anext(aiter(stream))
        process.send_signal(signal.SIGTERM)
        rest = [part async for part in stream]
        assert first.choices
        assert rest[-1].choices[0].finish_reason in ("length", "stop")
        async with asyncio.timeout(START_S):
            assert await process.wait() == 0


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (["--set", "serving.prot=1"], 2, "serving.prot"),
        (["--engine", "abacus"], 2, "engine.name"),
        (["--replicas", "0"], 2, "serving.replicas"),
        (["--host", "256.1.1.1"], 2, "--host"),
        (["--set", "serving.token_file=/nowhere"], 2, "serving.token_file"),
    ],
)
async def test_a_mistake_costs_no_traceback(
    directory: Path, options: list[str], code: int, word: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        TEMPER, "serve", "rollout", "--model", str(directory), *options, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == code
    assert word in said.decode()
    assert "Traceback" not in said.decode()


def broken_copy(directory: Path, path: Path) -> tuple[Path, list[str]]:
    """A copy with a shard that is cut short, and the names of all tensors."""
    shutil.copytree(directory, path)
    shard = min(path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-4])
    return path, list(json.loads((path / "model.safetensors.index.json").read_text())["weight_map"])


async def test_a_directory_that_is_none_or_broken_is_told(directory: Path, tmp_path: Path) -> None:
    broken, names = broken_copy(directory, tmp_path / "broken")
    for path, word in ((tmp_path / "absent", "is not a directory"), (broken, "is cut short")):
        process = await asyncio.create_subprocess_exec(
            TEMPER, "serve", "rollout", "--model", str(path), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 2
        assert word in said.decode()
        assert b"Traceback" not in said
    assert any(name in said.decode() for name in names), "the tensor is named"
