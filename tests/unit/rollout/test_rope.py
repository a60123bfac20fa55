"""Rotary frequencies against published vectors and against ``transformers``; what a config may say about them."""

import math
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from temper.rollout.engine.torch.architecture import Architecture, RopeConfig, read_architecture, read_rope
from temper.rollout.engine.torch.rope import Rotary, frequencies, interleave, rotate, rotations
from temper.runtime.errors import Rejected

HEAD, ORIGINAL = 128, 2048


def config_of(kind: str, *, head: int = HEAD, longest: int = ORIGINAL, **scaling: Any) -> dict[str, Any]:
    """A Llama ``config.json`` with some scaling."""
    return {
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": head * 2,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": head,
        "max_position_embeddings": longest,
        "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **scaling},
    }


def rope_of(kind: str, **options: Any) -> RopeConfig:
    config = config_of(kind, **options)
    return read_rope(config, config["head_dim"])


LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 256,
    "short_factor": [1.0 + i / 64 for i in range(64)],
    "long_factor": [2.0 + i / 16 for i in range(64)],
}

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 10.0},
    "dynamic": {"factor": 10.0},
    "yarn": {"factor": 10.0},
    "llama3": {"factor": 10.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {**LONGROPE, "factor": 8.0},
}


# ---------------------------------------------------------------- vectors of transformers' own tests


def test_default_frequencies():
    plain = frequencies(rope_of("default"), HEAD)
    found = plain[[0, 1, 16, 32, 48, 63]].tolist()
    assert found == pytest.approx([1, 0.86596, 0.1, 0.01, 1e-3, 1.1548e-4], rel=1e-4)


@pytest.mark.parametrize("factor", [2.0, 10.0, 20.0])
def test_linear_divides_every_frequency(factor: float):
    rope = rope_of("linear", factor=factor)
    plain = frequencies(rope_of("default"), HEAD)
    assert torch.allclose(frequencies(rope, HEAD), plain / factor, rtol=1e-12)
    assert rope.attention_factor == 1.0


def test_dynamic_ntk_at_sixteen_thousand_tokens():
    rope = rope_of("dynamic", factor=10.0)
    found = frequencies(rope, HEAD, 16384)[[1, 2, 16, 24, 32, 40, 48, 63]].tolist()
    expected = [0.80931, 0.65498, 0.033872, 6.2339e-3, 1.1473e-3, 2.1115e-4, 3.8861e-5, 1.6265e-6]
    assert found == pytest.approx(expected, rel=1e-4)
    assert rope.attention_factor == 1.0


@pytest.mark.parametrize("length", [0, 1, 2047, 2048])
def test_dynamic_ntk_leaves_short_contexts_alone(length: int):
    rope = rope_of("dynamic", factor=10.0)
    assert torch.equal(frequencies(rope, HEAD, length), frequencies(rope_of("default"), HEAD))


def test_llama3_blends_between_two_wavelengths():
    rope = rope_of("llama3", **KINDS["llama3"], original_max_position_embeddings=2048)
    plain, found = frequencies(rope_of("default"), HEAD), frequencies(rope, HEAD)
    at = [30, 31, 32, 36, 40, 41]
    expected = [1.3335e-2, 1.0730e-2, 7.7785e-3, 1.9675e-3, 3.4539e-4, 2.7384e-4]
    assert found[at].tolist() == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(found[:31], plain[:31], rtol=1e-12)
    assert torch.allclose(found[42:], plain[42:] / 10, rtol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 8.0, 64.0])
def test_longrope_takes_the_short_list_then_the_long_one(factor: float):
    rope = rope_of("longrope", **LONGROPE, factor=factor)
    plain = frequencies(rope_of("default"), HEAD)
    for stretch, key in ((0, "short_factor"), (1, "long_factor")):
        expected = plain / torch.tensor(LONGROPE[key], dtype=torch.float64)
        assert torch.allclose(frequencies(rope, HEAD, stretch), expected, rtol=1e-12)
    usual = math.sqrt(1 + math.log(factor) / math.log(256)) if factor > 1 else 1.0
    assert rope.attention_factor == pytest.approx(usual)


# ---------------------------------------------------------------- transformers as the oracle


@pytest.mark.parametrize("length", [1, 256, 257, 2048, 2049, 9000])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_equals_transformers_at_every_length(kind: str, length: int):
    config = config_of(kind, **KINDS[kind])
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](transformers.LlamaConfig(**config), "cpu", length)
    rope = read_rope(config, HEAD)
    ours = frequencies(rope, HEAD, Rotary(rope, HEAD, 64).stretch(length))
    assert torch.allclose(ours.float(), theirs, rtol=3e-6)
    assert rope.attention_factor == pytest.approx(factor)


@pytest.mark.parametrize(
    "extra",
    [
        {"attention_factor": 0.7},
        {"beta_fast": 20, "beta_slow": 2},
        {"mscale": 1.5, "mscale_all_dim": 0.5},
        {"truncate": False},
        {"original_max_position_embeddings": 512, "factor": None},
    ],
)
def test_options_of_yarn_equal_transformers(extra: dict[str, Any]):
    options: dict[str, Any] = {"factor": 4.0, **extra}
    config = config_of("yarn", **options)
    # A missing factor is the ratio of the two lengths, here and there; the class of transformers insists on one.
    spelled: dict[str, Any] = {**options, "factor": options["factor"] or 4.0}
    peer = transformers.LlamaConfig(**config_of("yarn", **spelled))
    theirs, factor = ROPE_INIT_FUNCTIONS["yarn"](peer, "cpu")
    rope = read_rope(config, HEAD)
    assert torch.allclose(frequencies(rope, HEAD).float(), theirs, rtol=3e-6)
    assert rope.attention_factor == pytest.approx(factor)


def test_the_old_spelling_reads_alike():
    new = config_of("yarn", factor=4.0, original_max_position_embeddings=512)
    old = {**new, "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    del old["rope_parameters"]
    old["original_max_position_embeddings"] = 512
    assert read_rope(old, HEAD) == read_rope(new, HEAD)


# ---------------------------------------------------------------- turns


def test_the_turn_carries_the_attention_factor():
    rope = rope_of("yarn", factor=10.0)
    turn = rotations(rope, HEAD, 5)
    assert torch.allclose(turn.abs(), torch.full((5, 64), 0.1 * math.log(10) + 1), rtol=1e-6)


@pytest.mark.parametrize("kind", ["default", *sorted(KINDS)])
def test_a_row_turns_by_the_stretch_of_its_own_context(kind: str):
    rope = rope_of(kind, **KINDS.get(kind, {}))
    rotary = Rotary(rope, HEAD, 4096)
    lengths, positions = [10, 300, 3000, 4000, 2500], [9, 17, 2999, 3, 2000]
    stretches = [rotary.stretch(length) for length in lengths]
    mixed = rotary.turns(positions, stretches)
    for row, (position, stretch) in enumerate(zip(positions, stretches, strict=True)):
        alone = rotations(rope, HEAD, position + 1, stretch)[position]
        assert torch.allclose(mixed[row], alone, atol=1e-6)
        assert torch.equal(mixed[row], rotary.turns([position], [stretch])[0])
    assert rotary.fixed == (set(stretches) == {0})


def test_a_rotation_keeps_relative_positions():
    turn = rotations(rope_of("yarn", factor=10.0), HEAD, 100)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, HEAD, generator=generator)
    scores = [(rotate(q, turn[None, p + 7]) * rotate(k, turn[None, p])).sum().item() for p in (0, 30, 92)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-4)


def test_interleaving_pairs_the_halves():
    assert interleave(torch.arange(8), 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


# ---------------------------------------------------------------- keys and limits


def test_kv_is_keyed_by_kind_by_every_parameter_and_by_stretch():
    shapes: list[Architecture] = [
        read_architecture(config_of(kind, **KINDS.get(kind, {}))) for kind in ("default", *KINDS)
    ]
    shapes.append(read_architecture(config_of("yarn", factor=9.0)))
    shapes.append(read_architecture(config_of("yarn", factor=9.0, beta_fast=31)))
    keys = [shape.kv_key(stretch) for shape in shapes for stretch in (0, 1, 4096)]
    assert len(set(keys)) == len(keys)
    again = read_architecture(config_of("yarn", factor=9.0))
    assert again.kv_key(1) == shapes[-2].kv_key(1)


@pytest.mark.parametrize(("kind", "longest"), [("default", 2048), ("dynamic", 20480), ("yarn", 20480)])
def test_stretched_models_take_stretched_contexts(kind: str, longest: int):
    assert read_architecture(config_of(kind, **KINDS.get(kind, {}))).max_context == longest


@pytest.mark.parametrize(
    ("kind", "scaling", "words"),
    [
        ("spiral", {}, "rope type 'spiral' is not one of"),
        ("linear", {}, r"rope_parameters\.factor is missing"),
        ("dynamic", {"factor": -1}, r"rope_parameters\.factor must be a positive number, got -1"),
        ("llama3", {"factor": 8.0}, r"rope_parameters\.low_freq_factor is missing"),
        ("yarn", {"factor": "4"}, r"rope_parameters\.factor must be a positive number, got '4'"),
        ("longrope", {"factor": 4.0}, r"rope_parameters\.short_factor must list 64 numbers"),
        ("default", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ("default", {"full_attention": {"rope_type": "default"}}, "rope_parameters differs by layer type"),
    ],
)
def test_a_scaling_that_is_not_understood_is_refused(kind: str, scaling: dict[str, Any], words: str):
    with pytest.raises(Rejected, match=words):
        read_rope(config_of(kind, **scaling), HEAD)


# ---------------------------------------------------------------- sliding windows


def qwen2(**changes: Any) -> dict[str, Any]:
    return {**config_of("default"), "model_type": "qwen2", "num_hidden_layers": 4, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 64},
        {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0},
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ],
)
def test_windows_are_read_as_transformers_reads_them(changes: dict[str, Any]):
    peer = transformers.Qwen2Config(**qwen2(**changes))
    expected = tuple(
        peer.sliding_window if one == "sliding_attention" else 0 for one in peer.layer_types or []
    )
    assert read_architecture(qwen2(**changes)).windows == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_sliding_window": True}, "sliding_window must be a positive integer, got None"),
        ({"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "use_sliding_window is not set"),
        ({"use_sliding_window": True, "model_type": "llama"}, "use_sliding_window is not part"),
    ],
)
def test_windows_that_do_not_fit_are_refused(changes: dict[str, Any], words: str):
    with pytest.raises(Rejected, match=words):
        read_architecture(qwen2(**changes))
