"""Every architecture and every kind of rotary scaling through the real engine, against ``transformers`` in fp32."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load, save

from temper.rollout.engine.base import Completion, PolicyFiles, Request, Sampling
from temper.rollout.engine.torch.architecture import read_architecture
from temper.rollout.engine.torch.engine import TorchEngine
from temper.rollout.engine.torch.weights import read_weights
from temper.runtime.errors import Rejected

VOCAB, CONTEXT = 96, 320


def rope(kind: str, **scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **scaling}}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, all heads have keys": ("Llama", {"num_key_value_heads": 4}),
    "llama, one head has keys": ("Llama", {"num_key_value_heads": 1}),
    "llama, biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, wide heads": ("Llama", {"head_dim": 32}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, tied and biased": (
        "Qwen3",
        {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "linear": ("Llama", rope("linear", factor=2.0)),
    "llama3": (
        "Llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=40,
        ),
    ),
    "yarn": ("Qwen2", rope("yarn", factor=8.0, original_max_position_embeddings=40)),
    "yarn, own attention factor": (
        "Qwen3",
        rope("yarn", factor=4.0, original_max_position_embeddings=80, attention_factor=1.3, truncate=False),
    ),
    "dynamic": ("Llama", rope("dynamic", factor=4.0)),
    "longrope": (
        "Llama",
        rope(
            "longrope",
            factor=4.0,
            original_max_position_embeddings=CONTEXT,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            long_factor=[2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
        ),
    ),
}


def model_of(family: str, extra: dict[str, Any], seed: int = 0) -> Any:
    """A random model whose logits are spread out, and whose norms and biases are not trivial."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
    }
    config = getattr(transformers, f"{family}Config")(**{**shape, **extra})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * (0.2 if value.dim() == 1 else 0.08))
    return model


def saved(model: Any, where: Path, shard: str = "1GB") -> PolicyFiles:
    """The model as ``save_pretrained`` writes it, read back."""
    model.save_pretrained(where, max_shard_size=shard)
    shards = tuple(path.read_bytes() for path in sorted(where.glob("*.safetensors")))
    return PolicyFiles(1, json.loads((where / "config.json").read_bytes()), shards)


async def generate(files: PolicyFiles, prompts: list[tuple[int, ...]], count: int) -> list[Completion]:
    engine = TorchEngine(max_context=CONTEXT * 8)
    await engine.start()
    await engine.load(files)
    await engine.swap(files.version)
    sampling = Sampling(count, temperature=0.0)
    done = await asyncio.gather(
        *(engine.submit(Request(f"r{i}", prompt, sampling, 0, 0)) for i, prompt in enumerate(prompts))
    )
    await engine.close()
    return done


def check(model: Any, prompt: tuple[int, ...], done: Completion) -> None:
    """Greedy tokens equal to the reference's argmax everywhere, log probabilities within 1e-4."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *done.tokens]])).logits[0]
    expected = torch.log_softmax(logits.double(), dim=-1)[len(prompt) - 1 : -1]
    assert expected.argmax(dim=-1).tolist() == list(done.tokens)
    taken = expected.gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
    assert (taken - torch.tensor(done.logprobs_raw)).abs().max() < 1e-4


PROMPTS = [tuple((7 * i * i + 3 * size) % VOCAB for i in range(size)) for size in (1, 17, 64, 200)]


@pytest.mark.parametrize("name", sorted(MODELS))
async def test_greedy_tokens_and_logprobs_equal_the_reference(name: str, tmp_path: Path):
    model = model_of(*MODELS[name])
    for prompt, done in zip(PROMPTS, await generate(saved(model, tmp_path), PROMPTS, 24), strict=True):
        check(model, prompt, done)


async def test_greedy_tokens_equal_what_the_reference_generates(tmp_path: Path):
    model = model_of("Qwen3", {"head_dim": 16})
    (done,) = await generate(saved(model, tmp_path), PROMPTS[1:2], 40)
    with torch.no_grad():
        made = model.generate(
            torch.tensor([PROMPTS[1]]), do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0
        )
    assert made[0, len(PROMPTS[1]) :].tolist() == list(done.tokens)


async def test_a_sharded_checkpoint_equals_the_reference(tmp_path: Path):
    model = model_of("Qwen2", {})
    files = saved(model, tmp_path, shard="30KB")
    assert len(files.shards) > 3
    for prompt, done in zip(PROMPTS, await generate(files, PROMPTS, 8), strict=True):
        check(model, prompt, done)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
async def test_a_checkpoint_of_16_bits_equals_the_reference_in_fp32(dtype: torch.dtype, tmp_path: Path):
    model = model_of("Llama", {}).to(dtype)
    files = saved(model, tmp_path)
    assert load(files.shards[0])["model.norm.weight"].dtype == dtype
    wide = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    for prompt, done in zip(PROMPTS, await generate(files, PROMPTS, 8), strict=True):
        check(wide, prompt, done)


# ---------------------------------------------------------------- rotations that depend on the length


STRETCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("Llama", {"max_position_embeddings": 40, **rope("dynamic", factor=4.0)}),
    "longrope": (
        "Llama",
        rope(
            "longrope",
            factor=4.0,
            original_max_position_embeddings=40,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            long_factor=[2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
        ),
    ),
}


def check_step_by_step(model: Any, prompt: tuple[int, ...], done: Completion) -> None:
    """Each token against a forward over just the context before it: what a context of that length means."""
    for at, (token, logprob) in enumerate(zip(done.tokens, done.logprobs_raw, strict=True)):
        with torch.no_grad():
            model(
                torch.tensor([[0]])
            )  # transformers keeps the frequencies of its longest context until a short one
            logits = model(torch.tensor([[*prompt, *done.tokens[:at]]])).logits[0, -1]
        expected = torch.log_softmax(logits.double(), dim=-1)
        assert expected.argmax().item() == token
        assert abs(expected[token].item() - logprob) < 1e-4


@pytest.mark.parametrize("name", sorted(STRETCHED))
async def test_contexts_that_outgrow_the_original_length_are_turned_anew(name: str, tmp_path: Path):
    """Short ones, one that is long from the start, and ones that cross on their way, side by side."""
    model = model_of(*STRETCHED[name])
    prompts = [tuple((7 * i * i + size) % VOCAB for i in range(size)) for size in (5, 37, 39, 40, 41, 90)]
    for prompt, done in zip(prompts, await generate(saved(model, tmp_path), prompts, 8), strict=True):
        check_step_by_step(model, prompt, done)


# ---------------------------------------------------------------- sliding windows


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
@pytest.mark.parametrize("first", [0, 1])
async def test_sliding_windows_equal_the_reference(family: str, first: int, tmp_path: Path):
    extra = {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": first}
    model = model_of(family, {**extra, "head_dim": 16} if family == "Qwen3" else extra)
    assert model.config.layer_types[first:] == ["sliding_attention"] * (3 - first)
    prompts = [*PROMPTS, tuple(i * 7 % VOCAB for i in range(290))]
    for prompt, done in zip(prompts, await generate(saved(model, tmp_path), prompts, 24), strict=True):
        check(model, prompt, done)


# ---------------------------------------------------------------- what is broken is refused by name


def refusal(files: PolicyFiles, *shards: bytes) -> str:
    with pytest.raises(Rejected) as caught:
        read_weights(read_architecture(files.config), shards or files.shards, 1)
    return str(caught.value)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PolicyFiles:
    return saved(model_of("Llama", {}), tmp_path_factory.mktemp("llama"), shard="60KB")


def test_a_missing_shard_names_a_tensor_that_was_in_it(files: PolicyFiles):
    gone = refusal(files, *files.shards[1:])
    assert "is missing" in gone
    assert any(name in gone for name in load(files.shards[0]))


def test_a_shard_that_is_cut_short_names_the_first_tensor_behind_the_cut(files: PolicyFiles):
    words = refusal(files, *files.shards[:-1], files.shards[-1][:-1])
    assert "is cut short, 1 bytes are missing" in words
    assert "tensor " in words
    assert "not a safetensors file" in refusal(files, b"\x05\0\0\0\0\0\0\0hello")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda one: torch.full_like(one, float("inf")), "model.norm.weight has numbers that are not finite"),
        (lambda one: one.to(torch.int8), "model.norm.weight is int8"),
        (lambda one: one[:-1].clone(), r"model.norm.weight is \[47\], config.json asks for \[48\]"),
    ],
)
def test_a_tensor_that_is_spoilt_is_named(files: PolicyFiles, spoil: Any, words: str):
    tensors = {name: tensor for shard in files.shards for name, tensor in load(shard).items()}
    tensors["model.norm.weight"] = spoil(tensors["model.norm.weight"])
    with pytest.raises(Rejected, match=words):
        read_weights(read_architecture(files.config), [save(tensors)], 1)


def test_an_embedding_of_another_vocabulary_is_refused(files: PolicyFiles):
    config = {**files.config, "vocab_size": VOCAB + 1}
    with pytest.raises(Rejected, match=r"embed_tokens.weight is \[96, 48\], config.json asks for \[97, 48\]"):
        read_weights(read_architecture(config), files.shards, 1)
