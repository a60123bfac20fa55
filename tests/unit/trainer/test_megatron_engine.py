"""The Megatron engine against the torch engine, layout by layout, on real rank processes; and ranks that die."""

import dataclasses
import math
import os
import random
import signal
import threading
from typing import cast

import numpy as np
import pytest
from tests.unit.trainer.test_torch_engine import config, group_batch, step, weights

from temper.runtime.errors import Rejected, Unavailable
from temper.trainer.algorithms import algorithm
from temper.trainer.engine import make_engine
from temper.trainer.engine.base import OptimizerSettings, PhaseStart
from temper.trainer.engine.megatron import MegatronEngine
from temper.trainer.engine.megatron.group import Group
from temper.trainer.engine.torch import make as make_torch
from temper.trainer.samples import Batch

pytest.importorskip("megatron.core", reason="needs megatron-core: pip install 'temper-rl[megatron]'")

BUDGET = 512
LOGPROB, WEIGHT, METRIC = 2e-6, 2e-5, 1e-4
"""Largest differences: of a log-probability, of a weight after AdamW's first steps, of a metric (relative above 1)."""
LAYOUTS = {
    "one process": {},
    "recompute": {"recompute": "full"},
    "tensor": {"tensor_parallel": 2},
    "pipeline": {"pipeline_parallel": 2},
    "data": {"data_parallel": 2},
    "distributed optimizer": {"data_parallel": 2, "distributed_optimizer": True},
}
TWO = {"tensor_parallel": 2}


@pytest.fixture(scope="module")
def groups():
    """Rank processes by number: they take up any layout, so tests share them."""
    made = {}

    def get(ranks):
        if ranks not in made or any(process.poll() is not None for process in made[ranks]._processes):
            made[ranks] = Group(ranks, threads=1)
        return made[ranks]

    yield get
    for group in made.values():
        group.close()


@pytest.fixture
def engine(groups):
    def get(config_, seed=1, **options):
        made = cast(MegatronEngine, make_engine("megatron", micro_batch_tokens=BUDGET, megatron=options))
        made._group = groups(made._options.ranks)
        made.build(config_, seed=seed)
        return made

    return get


def reference(config_, seed=1):
    made = make_torch(micro_batch_tokens=BUDGET)
    made.build(config_, seed=seed)
    return made


def apart(one, other):
    """Largest difference of two policies."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max(
        float(np.abs(np.frombuffer(ours[n], np.float32) - np.frombuffer(theirs[n], np.float32)).max())
        for n in ours
    )


def assert_alike(found, wanted):
    assert (found.tokens, found.skipped) == (wanted.tokens, wanted.skipped)
    assert found.metrics.keys() == wanted.metrics.keys()
    for name, value in wanted.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=METRIC, abs=METRIC), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logprobs_and_steps_equal_the_torch_engine_at_every_layout(engine, family, layout):
    shape = config(family, tied=family != "llama")
    ours, theirs = engine(shape, **LAYOUTS[layout]), reference(shape)
    assert list(weights(ours).items()) == list(weights(theirs).items())
    samples = group_batch(0).samples
    for found, wanted in zip(ours.logprobs(samples), theirs.logprobs(samples), strict=True):
        assert np.abs(found - wanted).max() <= LOGPROB
    for seed in range(2):
        assert_alike(step(ours, group_batch(seed)), step(theirs, group_batch(seed)))
    assert apart(ours, theirs) <= WEIGHT


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("sft", {}),
        ("grpo", {"kl_beta": 0.1, "kl_target": 0.01, "mini_batches": 2, "epochs": 2, "entropy_bonus": 0.01}),
        ("gspo", {}),
        ("cispo", {}),
        ("dapo", {"top_entropy": 0.2}),
        ("reinforce_pp", {}),
    ],
)
@pytest.mark.parametrize("layout", [TWO, {"data_parallel": 2, "distributed_optimizer": True}])
def test_algorithms_equal_those_of_the_torch_engine(engine, name, params, layout):
    ours, theirs = engine(config(), **layout), reference(config())
    chosen = algorithm(name)
    settings = chosen.settings(params, {}, max_staleness=1)
    for each in (ours, theirs):
        each.begin(PhaseStart(chosen.needs(settings), kl_beta=params.get("kl_beta", 0.0)))
    for seed in range(2):
        assert_alike(
            step(ours, group_batch(seed), name, **params), step(theirs, group_batch(seed), name, **params)
        )
    assert apart(ours, theirs) <= 2 * WEIGHT


def test_a_step_after_a_restore_is_bit_identical(engine):
    for layout in (TWO, {"data_parallel": 2, "distributed_optimizer": True}):
        ours = engine(config("qwen2"), **layout)
        step(ours, group_batch(0))
        state = ours.snapshot()
        expected, after = step(ours, group_batch(1)), weights(ours)
        ours.restore(config("qwen2"), state)
        assert step(ours, group_batch(1)) == expected
        assert weights(ours) == after


def test_a_snapshot_moves_between_layouts_and_engines(engine):
    one = engine(config())
    step(one, group_batch(0))
    state = one.snapshot()
    expected = step(one, group_batch(1))
    two = engine(config(), seed=9, **TWO)
    two.restore(config(), state)
    assert two.snapshot().files == state.files
    assert_alike(step(two, group_batch(1)), expected)
    theirs = reference(config(), seed=9)
    theirs.restore(config(), state)
    assert_alike(step(theirs, group_batch(1)), expected)
    assert apart(two, theirs) <= WEIGHT


def test_a_snapshot_of_the_torch_engine_is_taken(engine):
    theirs = reference(config("qwen2"))
    step(theirs, group_batch(0))
    ours = engine(config("qwen2"), seed=9, **TWO)
    ours.restore(config("qwen2"), theirs.snapshot())
    assert_alike(step(ours, group_batch(1)), step(theirs, group_batch(1)))


@pytest.mark.parametrize("layout", [{}, {"data_parallel": 2, "distributed_optimizer": True}])
def test_bf16_publishes_bf16_and_keeps_fp32_masters(engine, layout):
    ours, theirs = engine(config(), precision="bf16", **layout), reference(config())
    assert {tensor.dtype for tensor in ours.export()} == {"BF16"}
    for seed in range(2):
        found, wanted = step(ours, group_batch(seed)), step(theirs, group_batch(seed))
        assert found.metrics["entropy"] == pytest.approx(wanted.metrics["entropy"], rel=0.02)
    state = ours.snapshot()
    expected, after = step(ours, group_batch(2)), weights(ours)
    ours.restore(config(), state)
    assert step(ours, group_batch(2)) == expected
    assert weights(ours) == after


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(engine):
    ours = engine(config(), **TWO)
    before, batch = weights(ours), group_batch(0)
    spoilt = Batch(batch.samples, np.where(batch.advantages == batch.advantages.max(), math.inf, 0.0))
    outcome = step(ours, spoilt)
    assert "non-finite gradient" in outcome.skipped
    assert weights(ours) == before
    step(ours, group_batch(1))
    assert weights(ours) != before


def test_what_the_engine_does_not_do_is_refused_by_name(engine):
    ours = engine(config())
    with pytest.raises(Rejected, match="Muon"):
        step(ours, group_batch(0), optimizer=OptimizerSettings(lr=1e-3, muon_lr=0.02))
    for name, why in (("ppo", "value head"), ("reward_model", "reward model")):
        needs = algorithm(name).needs(algorithm(name).settings({}, {}, max_staleness=0))
        with pytest.raises(Rejected, match=why):
            ours.begin(PhaseStart(needs))
    with pytest.raises(Rejected, match="reward model"):
        ours.judged(group_batch(0).samples)
    with pytest.raises(Rejected, match="reward model"):
        ours.export_judge()
    mixed = group_batch(0)
    samples = [dataclasses.replace(s, domain=str(s.group)) for s in mixed.samples]
    grpo = algorithm("grpo")
    compared = grpo.settings({"conflict_every": 5}, {}, max_staleness=1)
    with pytest.raises(Rejected, match="does not compare"):
        ours.step(Batch(samples, mixed.advantages), grpo, compared, OptimizerSettings(lr=1e-3))
    for field, value in (("merge", "pcgrad"), ("domain_loss", "by_share")):
        settings = grpo.settings({}, {field: value}, max_staleness=1)
        with pytest.raises(Rejected, match=value):
            ours.step(Batch(samples, mixed.advantages), grpo, settings, OptimizerSettings(lr=1e-3))


def killed(made, *, seed, kills):
    """Kill ranks at random instants of five steps: while they compute, between two calls, or after the last."""
    chance = random.Random(seed)
    step(made, group_batch(0))
    state = made.snapshot()
    expected, after = [step(made, group_batch(k)) for k in range(1, 6)], weights(made)
    for _ in range(kills):
        made.restore(config(), state)
        before, victim = made.restarts, chance.choice(made.pids)
        timer = threading.Timer(chance.uniform(0.0, 0.5), os.kill, (victim, signal.SIGKILL))
        timer.start()
        assert [step(made, group_batch(k)) for k in range(1, 6)] == expected
        timer.join()
        assert weights(made) == after
        assert made.restarts == before + 1
    made.close()


def test_a_killed_rank_changes_nothing_but_the_time(engine):
    killed(engine(config(), **TWO), seed=4, kills=1)


@pytest.mark.faults
def test_ranks_killed_at_random_instants_change_nothing_but_the_time(engine):
    killed(engine(config(), **TWO), seed=5, kills=6)


@pytest.mark.faults
@pytest.mark.parametrize(
    "layout", [{"tensor_parallel": 2, "data_parallel": 2}, {**TWO, "pipeline_parallel": 2}]
)
def test_four_ranks_equal_the_torch_engine(engine, layout):
    ours, theirs = engine(config("qwen2"), **layout), reference(config("qwen2"))
    for seed in range(2):
        assert_alike(step(ours, group_batch(seed)), step(theirs, group_batch(seed)))
    assert apart(ours, theirs) <= WEIGHT


def test_ranks_that_cannot_start_are_an_error_in_the_end(monkeypatch):
    made = make_engine("megatron")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Unavailable, match="rank 0 is gone"):
        made.build(config(), seed=0)


def test_the_ranks_end_with_the_engine(engine):
    made = engine(config())
    processes = made._group._processes
    made.close()
    assert all(process.returncode is not None for process in processes)
    with pytest.raises(Unavailable, match="closed"):
        step(made, group_batch(0))
