"""The Megatron engine against the torch engine, layout by layout, on real rank processes; and ranks that die."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tests.unit.trainer.test_torch_engine import config, group_batch, step, weights

from temper.runtime.errors import Rejected, Unavailable
from temper.trainer.algorithms import algorithm
from temper.trainer.engine import make_engine
from temper.trainer.engine.base import OptimizerSettings, PhaseStart, Teacher
from temper.trainer.engine.megatron import MegatronEngine
from temper.trainer.engine.megatron.group import Group, RankLost
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.nursery import Nursery
from temper.trainer.engine.megatron.wire import Frame
from temper.trainer.engine.torch import make as make_torch
from temper.trainer.samples import Batch
from temper.trainer.weights import safetensors

pytest.importorskip("megatron.core", reason="needs megatron-core: pip install 'temper-rl[megatron]'")

BUDGET = 512
LOGPROB, WEIGHT, METRIC = 2e-6, 2e-5, 1e-4
"""Largest differences: of a log-probability, of a weight after AdamW's first steps, of a metric (relative above 1)."""
LAYOUTS = {
    "one process": {},
    "recompute": {"recompute": "full"},
    "tensor": {"tensor_parallel": 2},
    "pipeline": {"pipeline_parallel": 2},
    "sequence": {"tensor_parallel": 2, "sequence_parallel": True},
    "context": {"context_parallel": 2},
    "data": {"data_parallel": 2},
    "distributed optimizer": {"data_parallel": 2, "distributed_optimizer": True},
}
TWO = {"tensor_parallel": 2}


@pytest.fixture(scope="module")
def nursery():
    """Imports Megatron once for the module."""
    made = Nursery(threads=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def groups(nursery):
    """Rank processes by number: they take up any layout, so tests share them."""
    made = {}

    def get(ranks):
        if ranks not in made or not made[ranks].alive:
            made[ranks] = Group(ranks, threads=1, nursery=nursery)
        return made[ranks]

    yield get
    for group in made.values():
        group.close()


@pytest.fixture
def engine(groups, nursery):
    def get(config_, seed=1, **options):
        layout = MegatronOptions(**options)
        made = MegatronEngine(layout, micro_batch_tokens=BUDGET, nursery=nursery)
        made._group = groups(layout.ranks)
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
        ("ppo", {"kl_beta": 0.05, "mini_batches": 2}),
        ("dpo", {}),
        ("distill", {}),
        ("reward_model", {"centring": 0.1}),
    ],
)
@pytest.mark.parametrize(
    "layout", [TWO, {"data_parallel": 2, "distributed_optimizer": True}, {"context_parallel": 2}]
)
def test_algorithms_equal_those_of_the_torch_engine(engine, name, params, layout):
    ours, theirs = engine(config(), **layout), reference(config())
    chosen = algorithm(name)
    settings = chosen.settings(params, {}, max_staleness=1)
    needs = chosen.needs(settings)
    other = Teacher([safetensors(list(reference(config(), seed=5).export()))]) if needs.reference else None
    for each in (ours, theirs):  # a reference that is the policy itself would give noise to learn from
        each.begin(PhaseStart(needs, other, params.get("kl_beta", 0.0)))
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


MOVES = {"one process": {}, **{name: LAYOUTS[name] for name in list(LAYOUTS)[2:]}}


def test_a_snapshot_moves_between_any_two_layouts_and_engines(engine):
    theirs = reference(config())
    step(theirs, group_batch(0))
    state = theirs.snapshot()
    expected = step(theirs, group_batch(1))
    for options in MOVES.values():  # each from the one before it, so that every layout gives and takes
        ours = engine(config(), seed=9, **options)
        ours.restore(config(), state)
        assert dict(ours.snapshot().files) == dict(state.files)
        assert_alike(step(ours, group_batch(1)), expected)
        ours.restore(config(), state)
        state = dataclasses.replace(ours.snapshot(), facts=state.facts)
    theirs.restore(config(), state)
    assert step(theirs, group_batch(1)) == expected


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


DOMAINS = [("sum", "pooled"), ("norm_equal", "by_share"), ("pcgrad", "by_share"), ("gradnorm", "pooled")]


@pytest.mark.parametrize(
    "layout", [{"data_parallel": 2, "distributed_optimizer": True}, {**TWO, "sequence_parallel": True}]
)
@pytest.mark.parametrize(("merge", "share"), DOMAINS)
def test_domains_are_compared_and_merged_as_in_the_torch_engine(engine, layout, merge, share):
    ours, theirs = engine(config(), **layout), reference(config())
    grpo = algorithm("grpo")
    settings = grpo.settings({"conflict_every": 1}, {"merge": merge, "domain_loss": share}, max_staleness=1)
    for number in range(2):
        plain = group_batch(number)
        samples = [dataclasses.replace(s, domain="abc"[s.group % 3]) for s in plain.samples]
        batch = Batch(samples, plain.advantages, {"a": 0.5, "b": 0.3, "c": 0.2}, number)
        said = [each.step(batch, grpo, settings, OptimizerSettings(lr=1e-3)) for each in (ours, theirs)]
        assert "conflict_cosine_min" in said[0].metrics
        assert_alike(*said)
    assert apart(ours, theirs) <= WEIGHT
    assert ours.snapshot().facts["balance"].keys() == theirs.snapshot().facts["balance"].keys()


@pytest.mark.parametrize("layout", [TWO, {"pipeline_parallel": 2}])
def test_a_reward_model_is_that_of_the_torch_engine(engine, layout):
    ours, theirs = engine(config(), **layout), reference(config())
    judge = algorithm("reward_model")
    needs = judge.needs(judge.settings({}, {}, max_staleness=0))
    for each in (ours, theirs):
        each.begin(PhaseStart(needs))
        step(each, group_batch(0), "reward_model")
    samples = group_batch(1).samples
    assert ours.judged(samples)[1] == theirs.judged(samples)[1] == 1
    assert np.abs(ours.judged(samples)[0] - theirs.judged(samples)[0]).max() <= LOGPROB
    assert [t.name for t in ours.export_judge()] == [t.name for t in theirs.export_judge()]
    assert weights(ours) == weights(theirs)  # the policy has not moved
    state = ours.snapshot()
    theirs.restore(config(), state)
    for each in (ours, theirs):  # goes on with a fresh optimizer and the head it has
        each.begin(PhaseStart(needs))
    assert_alike(step(ours, group_batch(2), "reward_model"), step(theirs, group_batch(2), "reward_model"))


def test_a_value_head_is_part_of_a_snapshot_and_ends_with_its_phase(engine):
    ours = engine(config(), **TWO)
    ppo = algorithm("ppo")
    ours.begin(PhaseStart(ppo.needs(ppo.settings({}, {}, max_staleness=1))))
    step(ours, group_batch(0), "ppo")
    state = ours.snapshot()
    expected = step(ours, group_batch(1), "ppo")
    ours.restore(config(), state)
    assert step(ours, group_batch(1), "ppo") == expected
    theirs = reference(config())
    theirs.restore(config(), state)
    assert_alike(step(theirs, group_batch(1), "ppo"), expected)
    ours.begin(PhaseStart())
    assert set(ours.snapshot().files) == {"weights.safetensors"}


def test_what_the_engine_does_not_do_is_refused_by_name(engine):
    ours = engine(config())
    with pytest.raises(Rejected, match="Muon"):
        step(ours, group_batch(0), optimizer=OptimizerSettings(lr=1e-3, muon_lr=0.02))
    with pytest.raises(Rejected, match="no reward model yet"):
        ours.judged(group_batch(0).samples)
    with pytest.raises(Rejected, match="no reward model yet"):
        list(ours.export_judge())


def gone(pid):
    """Whether a process has ended; one that nobody has waited for yet has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_killed_rank_changes_nothing_but_the_time(engine):
    ours = engine(config(), **TWO)
    step(ours, group_batch(0))
    state = ours.snapshot()
    expected, after = [step(ours, group_batch(k)) for k in range(1, 4)], weights(ours)
    ours.restore(config(), state)
    assert step(ours, group_batch(1)) == expected[0]
    os.kill(ours.pids[1], signal.SIGKILL)
    assert [step(ours, group_batch(k)) for k in range(2, 4)] == expected[1:]
    assert weights(ours) == after
    assert ours.restarts == 1


def test_whoever_asks_is_told_which_rank_was_killed(nursery):
    group = Group(2, threads=1, nursery=nursery)
    os.kill(group.pids[1], signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1 was killed by SIGKILL"):
        group.ask(build(TWO))


def test_a_rank_that_keeps_the_others_waiting_is_named(
    nursery,
):  # verl#2325: a collective that hangs names nobody
    group = Group(2, threads=1, nursery=nursery, stall_s=1.0)
    os.kill(group.pids[1], signal.SIGSTOP)
    with pytest.raises(RankLost, match=r"rank 1 is stopped \(no rank has moved for 1 s\)"):
        group.ask(build(TWO))
    assert all(gone(pid) for pid in group.pids)


def test_a_rank_that_ended_by_itself_is_named_with_its_words(nursery):
    group = Group(2, threads=1, nursery=nursery)
    with pytest.raises(RankLost, match=r"rank [01] ended: (.|\n)*KeyError: 'policy'"):
        group.ask(Frame({"op": "forget", "who": "policy"}))


def build(layout):
    """A question that ranks answer together."""
    options = dataclasses.asdict(MegatronOptions(**layout))
    return Frame({"op": "build", "who": "policy", "options": options, "config": config(), "files": []})


def test_ranks_that_cannot_start_are_an_error_in_the_end(monkeypatch):
    made = make_engine("megatron")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Unavailable, match="the process that starts ranks is gone"):
        made.build(config(), seed=0)


def test_a_closed_engine_leaves_no_process_and_says_so():
    made = cast(MegatronEngine, make_engine("megatron", megatron=TWO))
    made.build(config(), seed=0)
    assert made._nursery is not None
    pids = [*made.pids, made._nursery._process.pid]
    made.close()
    eventually_gone(pids)
    with pytest.raises(Unavailable, match="closed"):
        step(made, group_batch(0))


def eventually_gone(pids, deadline_s=60.0):
    until = time.monotonic() + deadline_s
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < until, "a process lives on"
        time.sleep(0.01)


SERVICE = """
import os, signal, sys
from temper.trainer.engine import make_engine
from tests.unit.trainer.test_torch_engine import config
made = make_engine("megatron", megatron={"tensor_parallel": 2})
made.build(config(), seed=0)
print(*made.pids, made._nursery._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_rank_outlives_a_service_that_is_killed():
    done = subprocess.run([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    eventually_gone([int(pid) for pid in done.stdout.split()])


# ------------------------------------------------------------- four ranks


FOUR = {
    "tensor data": {**TWO, "data_parallel": 2, "distributed_optimizer": True},
    "tensor pipeline": {**TWO, "pipeline_parallel": 2},
    "tensor context": {**TWO, "context_parallel": 2, "sequence_parallel": True},
    "pipeline data": {"pipeline_parallel": 2, "data_parallel": 2, "distributed_optimizer": True},
}


@pytest.mark.parametrize("layout", FOUR)
def test_four_ranks_equal_the_torch_engine(engine, layout):
    ours, theirs = engine(config("qwen2"), **FOUR[layout]), reference(config("qwen2"))
    for seed in range(2):
        assert_alike(step(ours, group_batch(seed)), step(theirs, group_batch(seed)))
    assert apart(ours, theirs) <= WEIGHT


def test_a_teacher_of_another_shape_is_refused_by_name_and_one_of_its_own_is_taken(engine):
    ours = engine(config(), **TWO)
    ours.check_teacher(config() | {"max_position_embeddings": 512})
    with pytest.raises(Rejected, match=r"hidden_size 16 .the policy's is 32.*torch") as refused:
        ours.check_teacher(config() | {"hidden_size": 16, "head_dim": 4})
    assert "head_dim 4" in refused.value.message
