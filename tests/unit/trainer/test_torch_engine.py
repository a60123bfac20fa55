import json
import math

import numpy as np
import pytest
import torch

from temper.runtime.errors import Rejected
from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import EngineState, OptimizerSettings
from temper.trainer.engine.torch import make
from temper.trainer.engine.torch.engine import TorchEngine
from temper.trainer.engine.torch.muon import orthogonal
from temper.trainer.engine.torch.storage import decode, encode
from temper.trainer.samples import Batch, Sample, scores

FAMILIES = ("llama", "qwen2", "qwen3")
ADAM = OptimizerSettings(lr=1e-3)


def config(family="qwen3", *, tied=True, **more):
    return {
        "model_type": family,
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        **more,
    }


def sample(rng, group, prompt, *, reward=0.0, length=9, valid=True):
    tail = rng.integers(1, 40, size=length)
    mask = np.concatenate([np.zeros(len(prompt), bool), rng.random(length) < 0.7])
    mask[len(prompt)] = True
    ids = np.concatenate([prompt, tail])
    logprobs = np.where(mask, -3.0 + rng.random(mask.size), 0.0).astype(np.float32)
    return Sample(ids, mask, logprobs, reward, valid, group, "calc")


def group_batch(seed=0, groups=3, size=4):
    rng = np.random.default_rng(seed)
    samples = []
    for g in range(groups):
        prompt = rng.integers(1, 40, size=int(rng.integers(5, 30)))
        samples += [
            sample(rng, g, prompt, reward=float(rng.integers(0, 2)), length=int(rng.integers(3, 20)))
            for _ in range(size)
        ]
    grpo = algorithm("grpo")
    return Batch(samples, grpo.advantages(scores(samples), grpo.settings({}, {}, max_staleness=1)))


def engine(seed=0, budget=0, **kwargs):
    made = make(micro_batch_tokens=budget)
    made.build(config(**kwargs), seed=seed)
    return made


def weights(made):
    return {tensor.name: tensor.data for tensor in made.export()}


def step(made, batch, name="grpo", optimizer=ADAM, **params):
    chosen = algorithm(name)
    return made.step(batch, chosen, chosen.settings(params, {}, max_staleness=1), optimizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = engine(family=family, tied=family != "llama")
    (tmp_path / "config.json").write_text(json.dumps(config(family, tied=family != "llama")))
    tensors = {
        t.name: torch.frombuffer(bytearray(t.data), dtype=torch.float32).view(t.shape) for t in ours.export()
    }
    (tmp_path / "model.safetensors").write_bytes(encode(tensors))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    rng = np.random.default_rng(1)
    samples = [sample(rng, 0, rng.integers(1, 40, size=12), length=n) for n in (3, 20)]
    for one, found in zip(samples, ours.logprobs(samples), strict=True):
        ids = torch.from_numpy(one.ids)[None]
        with torch.no_grad():
            expected = theirs(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0].numpy()
        np.testing.assert_allclose(found[one.mask], expected[one.mask[1:]], atol=2e-5)


def test_a_shared_prompt_changes_no_logprob():
    batch = group_batch()
    made = engine()
    together = made.logprobs(batch.samples)
    for one, found in zip(batch.samples, together, strict=True):
        np.testing.assert_allclose(made.logprobs([one])[0], found, atol=2e-5)


def test_logprobs_are_zero_where_nobody_acted():
    batch = group_batch()
    for one, found in zip(batch.samples, engine().logprobs(batch.samples), strict=True):
        assert not found[~one.mask].any()
        assert (found[one.mask] < 0).all()


@pytest.mark.parametrize("name", ["sft", "grpo", "dr_grpo", "gspo", "cispo", "dapo", "rloo", "sapo"])
def test_micro_batching_does_not_change_the_step(name):
    batch = group_batch()
    whole, cut = engine(), engine(budget=1)  # one row at a time
    first, second = step(whole, batch, name), step(cut, batch, name)
    assert first.metrics["loss"] == pytest.approx(second.metrics["loss"], abs=1e-5)
    assert first.metrics["grad_norm"] == pytest.approx(second.metrics["grad_norm"], rel=1e-4)


def test_a_member_without_reward_changes_nothing():
    batch = group_batch()
    lost = Sample(
        batch.samples[0].ids, batch.samples[0].mask, batch.samples[0].logprobs, float("nan"), False, 0, "calc"
    )
    more = [*batch.samples, lost]
    grpo = algorithm("grpo")
    advantages = grpo.advantages(scores(more), grpo.settings({}, {}, max_staleness=1))
    first, second = engine(), engine()
    step(first, batch)
    step(second, Batch(more, advantages))
    assert weights(first) == weights(second)


def test_the_same_step_twice_is_bit_identical():
    first, second = engine(), engine()
    assert step(first, group_batch()) == step(second, group_batch())
    assert weights(first) == weights(second)


def test_a_step_redone_from_a_snapshot_is_bit_identical():
    made = engine()
    step(made, group_batch(1))
    state = made.snapshot()
    step(made, group_batch(2))
    expected = weights(made)
    other = make()
    other.restore(config(), state)
    step(other, group_batch(2))
    assert weights(other) == expected


def test_a_snapshot_is_a_copy_and_not_a_view():
    made = engine()
    state = made.snapshot()
    before = dict(state.files)
    step(made, group_batch())
    assert state.files == before


def test_demonstrations_are_learned():
    made = engine()
    batch = group_batch()
    losses = [step(made, batch, "sft", OptimizerSettings(lr=1e-2)).metrics["loss"] for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]


def test_flat_groups_give_a_zero_gradient():
    batch = group_batch()
    flat = Batch(batch.samples, np.zeros(len(batch.samples)))
    outcome = step(engine(), flat)
    assert outcome.metrics["grad_norm"] == 0.0
    assert not outcome.skipped


def test_a_batch_without_valid_tokens_is_a_skipped_step_with_loss_zero():
    made = engine()
    before = weights(made)
    outcome = step(made, Batch([], np.zeros(0)))
    assert outcome.skipped
    assert outcome.metrics["loss"] == 0.0
    assert weights(made) == before


def test_a_non_finite_gradient_leaves_the_weights_alone():
    made = engine()
    before = weights(made)
    batch = group_batch()
    outcome = step(made, Batch(batch.samples, np.full(len(batch.samples), np.inf)))
    assert "non-finite" in outcome.skipped
    assert weights(made) == before


def test_mini_batches_and_epochs_make_that_many_updates():
    outcome = step(engine(), group_batch(groups=4), mini_batches=2, epochs=3)
    assert outcome.metrics["updates"] == 6


def test_later_updates_of_a_step_are_clipped_against_its_start():
    made = engine()
    outcome = step(made, group_batch(groups=4), optimizer=OptimizerSettings(lr=0.05), epochs=4)
    assert outcome.metrics["clip_low"] + outcome.metrics["clip_high"] > 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "sliding_window"),
    ],
)
def test_a_model_it_cannot_compute_is_refused(change, field):
    with pytest.raises(Rejected) as caught:
        make().build(config() | change, seed=0)
    assert field in str(caught.value.field)


def test_weights_that_do_not_fit_are_refused_by_name():
    state = engine().snapshot()
    with pytest.raises(Rejected, match="do not fit"):
        make().load(config(num_hidden_layers=3), [state.files["weights.safetensors"]])
    with pytest.raises(Rejected, match="has shape"):
        make().load(config(intermediate_size=52), [state.files["weights.safetensors"]])
    with pytest.raises(Rejected, match="not a safetensors file"):
        make().load(config(), [b"\x80\x04pickle"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    named = decode(engine().snapshot().files["weights.safetensors"], what="weights")
    named["model.norm.weight"][3] = value
    with pytest.raises(Rejected, match=r"model\.norm\.weight has numbers that are not finite"):
        make().load(config(), [encode(named)])


def test_a_tied_head_is_not_exported_twice():
    assert "lm_head.weight" not in weights(engine(tied=True))
    assert "lm_head.weight" in weights(engine(tied=False))


def test_state_of_another_engine_is_refused():
    with pytest.raises(Rejected):
        TorchEngine().restore(config(), EngineState({"weights.safetensors": b""}, {"rng": ""}))


def test_muon_steps_redone_from_a_snapshot_are_bit_identical():
    muon = OptimizerSettings(lr=1e-3, muon_lr=0.02)
    made = engine()
    step(made, group_batch(1), optimizer=muon)
    state = made.snapshot()
    step(made, group_batch(2), optimizer=muon)
    other = make()
    other.restore(config(), state)
    step(other, group_batch(2), optimizer=muon)
    assert weights(other) == weights(made)
    assert weights(other) != weights(engine())


def test_muon_makes_matrices_orthogonal():
    found = orthogonal(torch.randn(24, 8, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6  # Newton-Schulz with these coefficients ends between .7 and 1.2
    assert values.max() < 1.3
