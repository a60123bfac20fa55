"""The layout planner against published configurations, closed forms, and what the CPU engine really keeps."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.trainer.planner.__main__ import main
from temper.trainer.planner.layout import Layout, Work, impossible
from temper.trainer.planner.machine import GIB, MACHINES
from temper.trainer.planner.memory import RESERVE, needed, per_token
from temper.trainer.planner.search import SAME, layouts, plan
from temper.trainer.planner.shapes import Shape, read
from temper.trainer.planner.speed import estimate

ROOT = Path(__file__).parents[3]
A100, H100 = MACHINES["a100-80g"], MACHINES["h100"]

# arXiv 2104.04473, table 1: billions of parameters, hidden, heads, layers, TP, PP, devices, batch, achieved teraflops per device
PUBLISHED = [
    (1.7, 2304, 24, 24, 1, 1, 32, 512, 137),
    (3.6, 3072, 32, 30, 2, 1, 64, 512, 138),
    (7.5, 4096, 32, 36, 4, 1, 128, 512, 142),
    (18.4, 6144, 48, 40, 8, 1, 256, 1024, 135),
    (39.1, 8192, 64, 48, 8, 2, 512, 1536, 138),
    (76.1, 10240, 80, 60, 8, 4, 1024, 1792, 140),
    (145.6, 12288, 96, 80, 8, 8, 1536, 2304, 148),
    (310.1, 16384, 128, 96, 8, 16, 1920, 2160, 155),
    (529.6, 20480, 128, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 25600, 160, 128, 8, 64, 3072, 3072, 163),
]


def gpt(hidden, heads, layers):
    """Their models: two matrices of 4h, learned positions, a vocabulary of 51,200, contexts of 2,048."""
    return Shape(
        hidden, layers, heads, heads, hidden // heads, 4 * hidden, 51_200, True, gated=False, positions=2048
    )


def published(row):
    _, hidden, heads, layers, tensor, pipeline, devices, batch, _ = row
    shape, work = gpt(hidden, heads, layers), Work(2048, batch)
    return (
        shape,
        work,
        Layout(devices // tensor // pipeline, tensor, pipeline, 1, 1, recompute=True, sharded=False),
    )


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}B")
def test_parameters_are_those_of_the_table(row):
    shape, _, _ = published(row)
    assert shape.parameters / 1e9 == pytest.approx(row[0], rel=0.01, abs=0.05)  # they round to a tenth


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}B")
def test_work_is_that_of_their_formula(row):
    """96·B·s·l·h²·(1 + s/6h + V/16lh), with the head counted in the recomputed forward, too, and attention over all of the context."""
    shape, work, _ = published(row)
    b, s, layers, h, v = work.batch, work.context, shape.layers, shape.hidden, shape.vocab
    theirs = 96 * b * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    ours = shape.flops(b * s, s, recomputed=True)
    causal = 4 * b * s * (2 * 2 * layers * h * s / 2)
    assert ours + causal == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}B")
def test_what_they_ran_can_run_and_fits(row):
    shape, work, layout = published(row)
    assert impossible(shape, work, layout, A100.node) == ""
    assert needed(shape, work, layout).total < A100.memory * RESERVE


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}B")
def test_the_estimated_speed_is_within_a_third_of_what_they_saw(row):
    shape, work, layout = published(row)
    b, s, layers, h, v = work.batch, work.context, shape.layers, shape.hidden, shape.vocab
    flops = 96 * b * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    reached = flops / estimate(shape, work, layout, A100).total / layout.devices / 1e12
    assert reached == pytest.approx(row[-1], rel=0.33)


@pytest.mark.parametrize("row", PUBLISHED[:7], ids=lambda row: f"{row[0]}B")
def test_the_chosen_layout_is_no_slower_than_the_published_one(row):
    shape, work, layout = published(row)
    found = plan(shape, work, A100, layout.devices)
    assert found.best.step.total <= SAME * estimate(shape, work, layout, A100).total


def test_the_bubble_is_that_of_one_forward_one_backward():
    shape, work = gpt(4096, 32, 36), Work(2048, 64)
    for pipeline, count in ((4, 64), (4, 16)):
        layout = Layout(64 // count, 1, pipeline, 1, 1, recompute=True)
        step = estimate(shape, work, layout, A100)
        share = step.bubble / (step.bubble + step.compute + step.tensor)
        assert share == pytest.approx((pipeline - 1) / (count + pipeline - 1))


def test_activations_are_those_of_korthikanti():  # arXiv 2205.05198: 34·s·b·h bytes a layer, 10 of them dropout masks and one input
    shape = gpt(12288, 96, 96)
    ours = 2 * per_token(shape, Work(2048, 1))
    theirs = (
        34 * shape.hidden - 2 * shape.hidden
    )  # no dropout masks here: one byte each for attention and the block
    assert ours == pytest.approx(theirs, rel=0.01)


# ---------------------------------------------------------------- on CPU, against what is really kept


def measured_bytes(config, tokens):
    """Weights, gradients, moments and everything autograd keeps, of one fp32 step of the CPU engine on one full row."""
    from temper.trainer.engine.torch.model import Decoder, parse_config

    model = Decoder(parse_config(config))
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    own |= {b.untyped_storage().data_ptr() for b in model.buffers()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(0, config["vocab_size"], (1, tokens))
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model.lm_head(model.hidden(ids, torch.arange(tokens)[None], mask))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    moments = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())
    fixed = sum(2 * p.nbytes for p in model.parameters() if p.grad is not None) + moments
    return fixed, sum(kept.values())


SMALL = {
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.mark.parametrize("width", [128, 256])
def test_memory_of_a_tiny_model_is_within_a_tenth_of_what_is_measured(width):
    config = {**SMALL, "hidden_size": width, "head_dim": width // 4, "intermediate_size": 3 * width}
    fixed, kept = measured_bytes(config, 512)
    work = Work(512, 1, half=False, engine="torch")
    found = needed(read(config), work, Layout(1, 1, 1, 1, 1, recompute=False))
    assert found.weights + found.gradients + found.optimizer == pytest.approx(fixed, rel=0.01)
    assert found.activations + found.logits == pytest.approx(kept, rel=0.03)
    assert found.total == pytest.approx(fixed + kept, rel=0.03)


MEGATRON = {
    "one": {},
    "tensor": {"tensor_parallel": 2},
    "sequence": {"tensor_parallel": 2, "sequence_parallel": True},
    "pipeline": {"pipeline_parallel": 2},
    "context": {"context_parallel": 2},
    "bf16": {"precision": "bf16"},
}


@pytest.fixture(scope="module")
def ranks_keep():
    """What the ranks of every layout really keep, from one process that forks them all."""
    pytest.importorskip("megatron.core", reason="needs megatron-core: pip install 'temper-rl[megatron]'")
    layouts = list(MEGATRON.values())
    command = ["-m", "tests.unit.trainer.rank_memory", json.dumps(SMALL), json.dumps(layouts), "512"]
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, check=True, timeout=280, text=True, cwd=ROOT
    )
    return dict(zip(MEGATRON, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", MEGATRON)
def test_memory_of_megatron_ranks_is_within_a_tenth_of_what_is_measured(ranks_keep, name):
    options = MEGATRON[name]
    work = Work(512, 1, half="precision" in options, fused=False)
    data, tensor, pipeline, context = (
        int(options.get(f"{each}_parallel", 1)) for each in ("data", "tensor", "pipeline", "context")
    )
    sequence = bool(options.get("sequence_parallel", False))
    layout = Layout(data, tensor, pipeline, context, 1, recompute=False, sharded=False, sequence=sequence)
    found = needed(read(SMALL), work, layout)
    fullest = max(ranks_keep[name], key=lambda rank: sum(rank.values()))
    assert found.weights == pytest.approx(fullest["weights"], rel=0.01)
    assert found.gradients == pytest.approx(fullest["gradients"], rel=0.01)
    assert found.optimizer == pytest.approx(fullest["optimizer"], rel=0.01)
    assert found.activations + found.logits == pytest.approx(fullest["kept"], rel=0.1)


# ---------------------------------------------------------------- refusals and properties

LLAMA_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def test_a_known_model_has_its_known_size():
    assert read(LLAMA_70B).parameters / 1e9 == pytest.approx(70.55, abs=0.05)


def test_too_little_memory_names_the_leanest_layout_and_what_fills_it():
    with pytest.raises(Rejected) as caught:
        plan(read(LLAMA_70B), Work(8192, 8), H100, 8)
    assert "no layout fits: the leanest" in str(caught.value)
    assert "GiB" in str(caught.value)
    assert caught.value.field == "gpus"


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(1, 16, 1, 1, 1, recompute=False), "8 key/value heads"),
        (Layout(1, 1, 3, 1, 1, recompute=False), "pipeline 3 does not divide 80 layers"),
        (Layout(1, 1, 1, 3, 1, recompute=False), "6 equal pieces"),
        (Layout(3, 1, 1, 1, 1, recompute=False), "no multiple of data 3"),
    ],
)
def test_a_layout_that_cannot_work_names_the_constraint(layout, words):
    assert words in impossible(read(LLAMA_70B), Work(8192, 64), layout, 8)


@given(st.integers(1, 64), st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_every_layout_uses_exactly_the_devices(devices, batch):
    found = list(layouts(Work(2048, batch), devices))
    assert found
    assert {layout.devices for layout in found} == {devices}


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_more_tensor_parallelism_and_recomputation_never_need_more_memory(tensor, pipeline, recompute):
    shape, work = read(LLAMA_70B), Work(4096, 64)
    here = needed(shape, work, Layout(1, tensor, pipeline, 1, 1, recompute=recompute)).total
    assert needed(shape, work, Layout(1, 2 * tensor, pipeline, 1, 1, recompute=recompute)).total < here
    assert needed(shape, work, Layout(1, tensor, pipeline, 1, 1, recompute=True)).total <= here


def test_of_layouts_that_cannot_be_told_apart_the_simplest_is_chosen():
    tiny = read({**LLAMA_70B, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8})
    assert str(plan(tiny, Work(1024, 64), H100, 8).best.layout).startswith("DP8 TP1 PP1 CP1")


def test_a_rollout_engine_beside_the_trainer_is_counted():
    shape = read(LLAMA_70B)
    alone = needed(shape, Work(8192, 64), Layout(8, 8, 1, 1, 1, recompute=True))
    both = needed(shape, Work(8192, 64, colocated_kv=100_000), Layout(8, 8, 1, 1, 1, recompute=True))
    kv = 100_000 * 2 * 1024 * 80 * 2
    assert both.total - alone.total == pytest.approx((2 * shape.parameters + kv) / 8)


# ---------------------------------------------------------------- the command


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return tmp_path


def test_the_command_ranks_and_explains(model, capsys):
    assert main([str(model), "--gpus", "64", "--context", "8192", "--batch", "128", "--show", "40"]) == 0
    out = capsys.readouterr().out
    assert "70.55 B parameters" in out
    assert "(best)" in out
    assert "x the time: " in out
    assert "does not divide" in out


def test_programs_get_json_and_a_launch_configuration(model, capsys, tmp_path):
    target = tmp_path / "launch.toml"
    command = [str(model), "--gpus", "64", "--context", "8192", "--batch", "128", "-o", "json"]
    assert main([*command, "--write", str(target)]) == 0
    best = json.loads(capsys.readouterr().out)["layouts"][0]
    written = tomllib.loads(target.read_text())
    assert written["tensor_parallel"] == best["tensor"]
    assert np.prod([written[f"{kind}_parallel"] for kind in ("tensor", "pipeline", "context", "data")]) == 64
    assert best["memory_bytes"] < H100.memory
    assert best["memory_bytes"] / GIB > 10


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "is not JSON"), ("[]", "no JSON object"), ('{"hidden_size": 0}', "num_attention_heads")],
)
def test_a_broken_config_is_refused_with_its_name(tmp_path, capsys, content, says):
    (tmp_path / "config.json").write_text(content)
    assert main([str(tmp_path), "--gpus", "8", "--context", "128"]) == 2
    assert says in capsys.readouterr().err


def test_a_model_with_experts_is_refused_and_not_planned_as_if_it_had_none(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, "num_experts": 8}))
    assert main([str(tmp_path), "--gpus", "8", "--context", "128"]) == 2
    assert "num_experts" in capsys.readouterr().err
