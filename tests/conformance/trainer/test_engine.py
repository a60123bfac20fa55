"""What every engine promises (`temper.trainer.engine.base`), over all that can run here."""

from typing import Any

import numpy as np
import pytest

from temper.runtime.errors import Rejected
from temper.trainer.algorithms import algorithm
from temper.trainer.engine import ENGINES, make_engine, usable
from temper.trainer.engine.base import OptimizerSettings, PhaseStart
from temper.trainer.engine.megatron.group import Group
from temper.trainer.engine.megatron.nursery import Nursery
from temper.trainer.samples import Batch, Sample, scores
from temper.trainer.weights import safetensors

CONFIG = {
    "model_type": "qwen3",
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
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
ADAM = OptimizerSettings(lr=1e-2)


@pytest.fixture(scope="module")
def nursery():
    """Imports Megatron once, if anybody asks."""
    made = []

    def get():
        if not made:
            made.append(Nursery(threads=1))
        return made[0]

    yield get
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def spare(nursery):
    """Rank processes of the megatron engine that no engine has just now: starting them takes seconds."""
    groups = []
    yield groups
    for group in groups:
        group.close()


@pytest.fixture(params=sorted(ENGINES))
def engine(request, spare, nursery):
    if request.param not in usable():
        pytest.skip(f"the vendor of {request.param} is not installed")
    used = []

    def make():
        made: Any = make_engine(request.param)
        if request.param == "megatron":
            made._nursery = nursery()
            made._group = spare.pop() if spare else Group(1, threads=1, nursery=nursery())
            used.append(made._group)
        made.make = make
        return made

    made = make()
    made.build(CONFIG, seed=7)
    yield made
    spare += used


def another(engine):
    return engine.make()


def batch(seed=0):
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(6):
        ids = rng.integers(1, 40, size=int(rng.integers(6, 15)))
        mask = np.arange(ids.size) >= 4
        logprobs = np.where(mask, -3.0, 0.0).astype(np.float32)
        samples.append(Sample(ids, mask, logprobs, float(number % 2), True, number // 3, "calc"))
    grpo = algorithm("grpo")
    return Batch(samples, grpo.advantages(scores(samples), grpo.settings({}, {}, max_staleness=1)))


def step(engine, data, optimizer=ADAM):
    grpo = algorithm("grpo")
    return engine.step(data, grpo, grpo.settings({}, {}, max_staleness=1), optimizer)


def weights(engine):
    return {tensor.name: tensor.data for tensor in engine.export()}


def test_equal_seeds_give_equal_policies_and_others_do_not(engine):
    same, other = another(engine), another(engine)
    same.build(CONFIG, seed=7)
    other.build(CONFIG, seed=8)
    assert weights(same) == weights(engine)
    assert weights(other) != weights(engine)


def test_what_is_exported_can_be_loaded_again(engine):
    step(engine, batch())
    other = another(engine)
    other.load(CONFIG, [safetensors(list(engine.export()))])
    assert weights(other) == weights(engine)


def test_exported_names_are_stable_and_sizes_fit_their_shapes(engine):
    first = list(engine.export())
    assert [tensor.name for tensor in first] == [tensor.name for tensor in engine.export()]
    for tensor in first:
        assert tensor.dtype == "F32"
        assert len(tensor.data) == 4 * int(np.prod(tensor.shape))


def test_a_step_moves_the_policy_and_reports_what_it_did(engine):
    before = weights(engine)
    outcome = step(engine, batch())
    assert weights(engine) != before
    assert not outcome.skipped
    assert outcome.tokens == sum(sample.actions for sample in batch().samples)
    assert {"loss", "grad_norm", "entropy", "lr", "kl"} <= outcome.metrics.keys()


def test_nothing_to_train_on_is_a_skipped_step(engine):
    before = weights(engine)
    outcome = step(engine, Batch([], np.zeros(0)))
    assert outcome.skipped
    assert outcome.metrics["loss"] == 0.0
    assert weights(engine) == before


def test_a_step_redone_from_a_snapshot_is_bit_identical(engine):
    step(engine, batch(1))
    state = engine.snapshot()
    expected = step(engine, batch(2))
    other = another(engine)
    other.restore(CONFIG, state)
    assert step(other, batch(2)) == expected
    assert weights(other) == weights(engine)


def test_the_optimizers_memory_is_part_of_a_snapshot(engine):
    step(engine, batch(1))
    other = another(engine)
    other.load(CONFIG, [safetensors(list(engine.export()))])
    step(engine, batch(2))
    step(other, batch(2))
    assert weights(other) != weights(engine)


def test_a_reset_optimizer_has_no_memory(engine):
    step(engine, batch(1))
    other = another(engine)
    other.load(CONFIG, [safetensors(list(engine.export()))])
    engine.begin(PhaseStart())
    step(engine, batch(2))
    step(other, batch(2))
    assert weights(other) == weights(engine)


def test_logprobs_are_negative_where_somebody_acted_and_zero_elsewhere(engine):
    samples = batch().samples
    for sample, found in zip(samples, engine.logprobs(samples), strict=True):
        assert found.shape == sample.ids.shape
        assert (found[sample.mask] < 0).all()
        assert not found[~sample.mask].any()


def test_a_config_without_a_vocabulary_is_refused(engine):
    with pytest.raises(Rejected, match="vocab_size"):
        another(engine).build({name: value for name, value in CONFIG.items() if name != "vocab_size"}, seed=0)


def test_an_unknown_engine_names_the_known_ones():
    with pytest.raises(Rejected, match="fake, megatron, torch"):
        make_engine("abacus")


def test_a_teacher_of_another_vocabulary_is_refused_and_one_of_the_policys_shape_is_not(engine):
    engine.check_teacher(CONFIG)
    with pytest.raises(Rejected, match="41"):
        engine.check_teacher(CONFIG | {"vocab_size": 41})
