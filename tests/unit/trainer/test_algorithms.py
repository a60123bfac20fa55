# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false, reportCallIssue=false
# (the functions speak of a tensor protocol; the tests hand in torch tensors and look at more of them)
"""Algorithms that need more than a micro-batch: against the same formula written down directly, sequence by sequence."""

import json

import numpy as np
import pytest
import torch
from tests.unit.trainer.test_torch_engine import config, engine, group_batch, weights
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from temper.runtime.errors import Rejected
from temper.trainer.advantage import returns
from temper.trainer.advantage.base import Scores
from temper.trainer.advantage.shaping import soft_overlong
from temper.trainer.algorithms import algorithm, registry
from temper.trainer.algorithms.m2po import moments_below
from temper.trainer.algorithms.policy_gradient import most_uncertain
from temper.trainer.algorithms.ppo import value_loss
from temper.trainer.algorithms.preferences import bradley_terry
from temper.trainer.engine.base import OptimizerSettings, PhaseStart, Teacher
from temper.trainer.engine.torch import make
from temper.trainer.reward_models import classifier
from temper.trainer.samples import Batch, scores
from temper.trainer.weights import safetensors

STILL = OptimizerSettings(lr=0.0, max_grad_norm=1e9)
"""A step that moves nothing: its gradients stay to be looked at."""


def begun(made, name, choices=None, **params):
    chosen = algorithm(name)
    settings = chosen.settings(params, choices or {}, max_staleness=1)
    made.begin(PhaseStart(chosen.needs(settings), kl_beta=settings.params.get("kl_beta", 0.0)))
    return chosen, settings


def take(made, batch, chosen, settings, optimizer=STILL):
    data = Batch(batch.samples, chosen.advantages(scores(batch.samples), settings))
    return made.step(data, chosen, settings, optimizer)


def gradients(made):
    return gradients_of(made.model)


def gradients_of(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def alone(model, sample):
    """One sequence by itself: log π of its action tokens, hidden states before them, hidden state at its end."""
    ids = torch.from_numpy(sample.ids)[None]
    size = ids.shape[1]
    hidden = model.hidden(
        ids, torch.arange(size)[None], torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    )
    mask = torch.from_numpy(sample.mask)
    logp = model.lm_head(hidden[0]).log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return logp[mask[1:]], hidden[0, :-1][mask[1:]], hidden[0, -1]


def directly(made, loss):
    """Gradients of a loss written down by hand."""
    made.model.zero_grad(set_to_none=True)
    loss.backward()
    return gradients(made)


def assert_equal_gradients(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-6, rtol=1e-4, msg=name)


def pairs_of(samples):
    for group in sorted({s.group for s in samples}):
        members = [s for s in samples if s.group == group]
        best, worst = max(members, key=lambda s: s.reward), min(members, key=lambda s: s.reward)
        if best.reward > worst.reward:
            yield best, worst


def moved(made, seed=3):
    """The policy a little away from its reference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.model.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=generator))
    return made


# ---------------------------------------------------------------- preferences


@pytest.mark.parametrize("budget", [0, 1])
def test_dpo_has_the_gradient_of_its_formula_however_it_is_cut(budget):  # arXiv 2305.18290, eq. 7
    made, batch = engine(budget=budget), group_batch()
    chosen, settings = begun(made, "dpo", dpo_beta=0.3)
    moved(made)
    outcome = take(made, batch, chosen, settings)
    found = gradients(made)
    terms = []
    for best, worst in pairs_of(batch.samples):
        gain = [
            (alone(made.model, s)[0] - alone(made.policy.reference, s)[0].detach()).sum()
            for s in (best, worst)
        ]
        terms.append(-F.logsigmoid(0.3 * (gain[0] - gain[1])))
    loss = torch.stack(terms).mean()
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert outcome.metrics["dpo_pairs"] == len(terms)
    assert_equal_gradients(found, directly(made, loss))


def test_dpo_learns_to_prefer_the_better_samples():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "dpo")
    steps = [take(made, batch, chosen, settings, OptimizerSettings(lr=3e-3)) for _ in range(15)]
    assert steps[-1].metrics["dpo_accuracy"] == 1.0
    assert steps[-1].metrics["loss"] < steps[0].metrics["loss"]


@pytest.mark.parametrize("budget", [0, 1])
def test_a_reward_model_has_the_gradient_of_bradley_terry_however_it_is_cut(budget):
    made, batch = engine(budget=budget), group_batch()
    chosen, settings = begun(made, "reward_model", margin=0.2, centring=0.01)
    rm = made.judge.model
    torch.nn.init.normal_(rm.value_head.weight, generator=torch.Generator().manual_seed(1))
    outcome = take(made, batch, chosen, settings)
    found = gradients_of(rm)
    terms = []
    for best, worst in pairs_of(batch.samples):
        c, r = (rm.judge(alone(rm, s)[2][None])[0] for s in (best, worst))
        terms.append(-F.logsigmoid(c - r - 0.2) + 0.01 * (c + r) ** 2)
    loss = torch.stack(terms).mean()
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    rm.zero_grad(set_to_none=True)
    loss.backward()
    assert_equal_gradients(found, gradients_of(rm))


def test_the_policy_stays_as_it_is_while_its_reward_model_learns():
    made = engine()
    chosen, settings = begun(made, "reward_model")
    before = weights(made)
    take(made, group_batch(), chosen, settings, OptimizerSettings(lr=1.0))
    assert weights(made) == before


def test_a_reward_model_speaks_about_samples_in_their_order_and_counts_its_updates():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "reward_model")
    with pytest.raises(Rejected, match="no reward model"):
        engine().judged(batch.samples)
    for _ in range(25):
        take(made, batch, chosen, settings, OptimizerSettings(lr=3e-3))
    found, version = made.judged(batch.samples)
    assert version == 25
    turned, _ = made.judged(batch.samples[::-1])
    np.testing.assert_allclose(found[::-1], turned, atol=2e-5)
    for best, worst in pairs_of(batch.samples):
        at = [next(i for i, s in enumerate(batch.samples) if s is one) for one in (best, worst)]
        assert found[at[0]] > found[at[1]]


def test_transformers_reads_a_reward_model_and_says_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "reward_model")
    take(made, batch, chosen, settings, OptimizerSettings(lr=1e-2))
    (tmp_path / "config.json").write_text(json.dumps(classifier(config())))
    (tmp_path / "model.safetensors").write_bytes(safetensors(list(made.export_judge())))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    found, _ = made.judged(batch.samples)
    for sample, score in zip(batch.samples, found, strict=True):
        with torch.no_grad():
            assert theirs(torch.from_numpy(sample.ids)[None]).logits.item() == pytest.approx(score, abs=2e-5)


def test_a_reward_model_learns_the_order_of_what_it_has_seen():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "reward_model")
    steps = [take(made, batch, chosen, settings, OptimizerSettings(lr=3e-3)) for _ in range(25)]
    assert steps[-1].metrics["rm_accuracy"] == 1.0


def test_bradley_terry_by_hand():  # derived: -log sigmoid(1) = .3133, slope -sigmoid(-1) = -.2689
    found = bradley_terry(np.array([2.0, 1.0, 9.0]), [(0, 1)])
    assert found.loss == pytest.approx(0.313262, abs=1e-6)
    np.testing.assert_allclose(found.slope, [-0.268941, 0.268941, 0.0], atol=1e-6)


def test_bradley_terry_does_not_overflow():
    found = bradley_terry(np.array([-900.0, 900.0]), [(0, 1)])
    assert found.loss == pytest.approx(1800.0)
    np.testing.assert_allclose(found.slope, [-1.0, 1.0])


@pytest.mark.parametrize("name", ["dpo", "reward_model"])
def test_tasks_without_a_difference_skip_the_step_and_say_why(name):
    made, batch = engine(), group_batch()
    flat = [s for s in batch.samples if s.reward == 0.0]
    chosen, settings = begun(made, name)
    before = weights(made)
    outcome = take(made, Batch(flat, np.zeros(len(flat))), chosen, settings, OptimizerSettings(lr=1.0))
    assert "different rewards" in outcome.skipped
    assert weights(made) == before


# ---------------------------------------------------------------- reference


def test_the_kl_term_has_the_value_of_k3_and_the_gradient_of_k2():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "grpo", kl_beta=0.5)
    moved(made)
    flat = Batch(batch.samples, np.zeros(len(batch.samples)))
    outcome = made.step(flat, chosen, settings, STILL)
    found = gradients(made)
    d = torch.cat(
        [alone(made.model, s)[0] - alone(made.policy.reference, s)[0].detach() for s in batch.samples]
    )
    assert outcome.metrics["loss"] == pytest.approx(0.5 * ((-d).exp() + d - 1).mean().item(), abs=1e-5)
    assert_equal_gradients(found, directly(made, 0.5 * (d * d / 2).mean()))


def test_without_beta_there_is_no_reference():
    made = engine()
    chosen, settings = begun(made, "grpo")
    assert made.policy.reference is None
    assert "kl_ref" not in take(made, group_batch(), chosen, settings).metrics


def test_a_reference_stays_where_the_phase_began():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "grpo", kl_beta=0.1)
    first = take(made, batch, chosen, settings, OptimizerSettings(lr=1e-2)).metrics
    second = take(made, batch, chosen, settings, OptimizerSettings(lr=1e-2)).metrics
    assert first["kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl_ref"] > 1e-4


def test_beta_follows_its_target():  # beta·(1 + clip(kl/target - 1, ±.2)·steps/horizon)
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "grpo", kl_beta=0.1, kl_target=1.0, kl_horizon=10.0)
    take(made, batch, chosen, settings)
    assert take(made, batch, chosen, settings).metrics["kl_beta"] == pytest.approx(0.1 * (1 - 0.2 / 10))


def test_a_phase_that_was_not_begun_is_refused_instead_of_trained_against_nothing():
    chosen = algorithm("dpo")
    with pytest.raises(Rejected, match="reference"):
        take(engine(), group_batch(), chosen, chosen.settings({}, {}, max_staleness=1))


@pytest.mark.parametrize(
    ("name", "params"), [("ppo", {"kl_beta": 0.1, "kl_target": 0.05}), ("dpo", {}), ("reward_model", {})]
)
def test_reference_head_and_beta_are_part_of_a_snapshot(name, params):
    made = engine()
    adam = OptimizerSettings(lr=1e-2)
    chosen, settings = begun(made, name, **params)
    take(made, group_batch(1), chosen, settings, adam)
    state = made.snapshot()
    expected = take(made, group_batch(2), chosen, settings, adam)
    other = make()
    other.restore(config(), state)
    assert take(other, group_batch(2), chosen, settings, adam) == expected
    assert other.snapshot().files == made.snapshot().files


# ---------------------------------------------------------------- critic


def test_ppo_trains_on_whitened_gae_and_clipped_values():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "ppo", {"correction": "none"}, gae_lambda=0.9, gamma=0.99, value_coef=0.7)
    torch.nn.init.normal_(made.model.value_head.weight, std=0.1, generator=torch.Generator().manual_seed(1))
    outcome = take(made, batch, chosen, settings)
    found = gradients(made)
    parts = [alone(made.model, s) for s in batch.samples]
    values = [made.model.judge(before) for _, before, _ in parts]
    advantages, wanted = [], []
    for s, v in zip(batch.samples, values, strict=True):
        x = returns.token_rewards(s.reward, np.zeros(s.actions), beta=0.0)
        a, r = returns.gae(x, v.detach().double().numpy(), gamma=0.99, lam=0.9)
        advantages.append(a)
        wanted.append(r)
    flat = np.concatenate(advantages)
    white = torch.tensor((flat - flat.mean()) / (flat.std(ddof=1) + 1e-6), dtype=torch.float32)
    logp = torch.cat([p for p, _, _ in parts])
    policy = -(white * (logp - logp.detach()).exp()).mean()
    critic = (
        0.5 * ((torch.cat(values) - torch.tensor(np.concatenate(wanted), dtype=torch.float32)) ** 2).mean()
    )
    assert outcome.metrics["value_loss"] == pytest.approx(critic.item(), abs=1e-5)
    assert_equal_gradients(found, directly(made, policy + 0.7 * critic))


def test_the_critic_learns_what_samples_are_worth():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "ppo", value_coef=1.0, value_clip=10.0)
    steps = [take(made, batch, chosen, settings, OptimizerSettings(lr=3e-3)).metrics for _ in range(30)]
    assert steps[-1]["value_loss"] < 0.5 * steps[0]["value_loss"]
    assert steps[-1]["explained_variance"] > steps[0]["explained_variance"]


def test_a_value_may_move_by_the_clip_only():  # 0.5·max(clipped², unclipped²)
    new, old, wanted = torch.tensor([2.0, 0.2]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 1.0])
    found = value_loss(new, old, wanted, clip=0.5)
    np.testing.assert_allclose(found, [0.5 * 1.5**2, 0.5 * 0.8**2], atol=1e-6)


def test_gae_with_gamma_and_lambda_one():  # SkyRL tests/backends/skyrl_train/utils/test_ppo_utils.py
    _, found = returns.gae(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 1.5]), gamma=1.0, lam=1.0)
    np.testing.assert_allclose(found, [6.0, 5.0, 3.0])


def test_no_head_leaves_with_the_policy():
    made = engine()
    begun(made, "ppo")
    assert weights(made).keys() == weights(engine()).keys()
    assert "head.safetensors" in made.snapshot().files


def test_the_next_phase_drops_what_it_does_not_need():
    made = engine()
    begun(made, "ppo", kl_beta=0.1)
    begun(made, "grpo")
    assert made.snapshot().files.keys() == {"weights.safetensors"}


# ---------------------------------------------------------------- token-level


@pytest.mark.parametrize("baseline", [0, 1])
def test_reinforce_pp_whitens_over_the_whole_batch(baseline):
    made, batch = engine(budget=1), group_batch()
    chosen, settings = begun(made, "reinforce_pp", {"correction": "none"}, group_baseline=baseline)
    take(made, batch, chosen, settings)
    found = gradients(made)
    rewards = np.array([s.reward for s in batch.samples])
    if baseline:
        groups = np.array([s.group for s in batch.samples])
        rewards = rewards - np.array([rewards[groups == g].mean() for g in groups])
    flat = np.concatenate([np.full(s.actions, r) for s, r in zip(batch.samples, rewards, strict=True)])
    white = torch.tensor((flat - flat.mean()) / (flat.std(ddof=1) + 1e-6), dtype=torch.float32)
    logp = torch.cat([alone(made.model, s)[0] for s in batch.samples])
    assert_equal_gradients(found, directly(made, -(white * (logp - logp.detach()).exp()).mean()))


def test_a_penalty_in_the_reward_is_not_in_the_loss_as_well():
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "reinforce_pp", kl_beta=0.3)
    flat = Batch(batch.samples, np.zeros(len(batch.samples)))
    moved(made)
    assert made.step(flat, chosen, settings, STILL).metrics["kl_ref"] > 0
    at_reference = engine()
    chosen, settings = begun(at_reference, "reinforce_pp", kl_beta=0.3)
    assert at_reference.step(flat, chosen, settings, STILL).metrics["grad_norm"] == pytest.approx(
        0.0, abs=1e-6
    )


def test_a_student_comes_closer_to_its_teacher():
    student, teacher, batch = engine(seed=0), engine(seed=1), group_batch()
    chosen = algorithm("distill")
    settings = chosen.settings({}, {}, max_staleness=1)
    student.begin(
        PhaseStart(chosen.needs(settings), Teacher([teacher.snapshot().files["weights.safetensors"]]))
    )
    rng = np.random.default_rng(0)

    def gap():
        found = zip(student.logprobs(batch.samples), teacher.logprobs(batch.samples), strict=True)
        return float(
            np.mean(
                np.concatenate(
                    [np.abs(a - b)[s.mask] for (a, b), s in zip(found, batch.samples, strict=True)]
                )
            )
        )

    before = gap()
    for _ in range(20):
        order = rng.permutation(len(batch.samples))
        shuffled = Batch([batch.samples[i] for i in order], np.zeros(len(order)))
        take(student, shuffled, chosen, settings, OptimizerSettings(lr=3e-3))
    assert gap() < before


SMALL = {"hidden_size": 16, "head_dim": 4, "num_hidden_layers": 1}


def small_teacher():
    teacher = engine(seed=1, **SMALL)
    return teacher, Teacher([teacher.snapshot().files["weights.safetensors"]], config() | SMALL)


def test_a_teacher_has_its_own_shape_and_keeps_it_through_a_restore():
    student, (small, teacher), batch = engine(), small_teacher(), group_batch()
    needs = algorithm("distill").needs(algorithm("distill").settings({}, {}, max_staleness=1))
    student.check_teacher(teacher.config)
    student.begin(PhaseStart(needs, teacher))
    restored, again = engine(seed=5), engine(seed=6)
    restored.restore(config(), student.snapshot())
    again.restore(config(), restored.snapshot())
    expected = np.concatenate(
        [p[s.mask] for p, s in zip(small.logprobs(batch.samples), batch.samples, strict=True)]
    )
    for each in (student, restored, again):
        np.testing.assert_array_equal(np.concatenate(each.policy.reference_logprobs(batch.samples)), expected)
    student.begin(PhaseStart(needs))  # the next phase looks back at the policy itself
    assert "reference" not in student.snapshot().facts


def test_weights_that_are_not_of_the_teachers_shape_are_refused():
    needs = registry()["distill"].needs(algorithm("distill").settings({}, {}, max_staleness=1))
    _, teacher = small_teacher()
    with pytest.raises(Rejected, match="do not fit"):
        engine().begin(PhaseStart(needs, Teacher(teacher.weights)))


@pytest.mark.parametrize(
    ("more", "reason"), [({"vocab_size": 41}, "tokens"), ({"max_position_embeddings": 8}, "positions")]
)
def test_a_teacher_that_cannot_read_what_its_student_writes_is_refused(more, reason):
    with pytest.raises(Rejected, match=reason):
        engine().check_teacher(config() | more)


# ---------------------------------------------------------------- masks


def test_top_entropy_keeps_the_share_over_all_sequences():
    found = most_uncertain([np.array([0.1, 0.9, 0.5]), np.array([0.8, 0.2])], 0.4)
    np.testing.assert_array_equal(found[0], [0, 1, 0])
    np.testing.assert_array_equal(found[1], [1, 0])


@pytest.mark.parametrize("budget", [0, 1])
def test_top_entropy_in_a_step_is_that_of_the_whole_update(budget):
    made, batch = engine(budget=budget), group_batch()
    chosen, settings = begun(made, "grpo", {"correction": "none"}, top_entropy=0.2)
    take(made, batch, chosen, settings)
    found = gradients(made)
    advantage = chosen.advantages(scores(batch.samples), settings)
    logp, entropy, a = [], [], []
    for s, value in zip(batch.samples, advantage, strict=True):
        p, before, _ = alone(made.model, s)
        every = made.model.lm_head(before).log_softmax(-1)
        entropy.append(-(every.exp() * every).sum(-1).detach())
        logp.append(p)
        a.append(torch.full_like(p, float(value)))
    p, h, a = torch.cat(logp), torch.cat(entropy), torch.cat(a)
    keep = h >= h.sort(descending=True).values[int(np.ceil(0.2 * len(h))) - 1]
    assert_equal_gradients(found, directly(made, -(a * (p - p.detach()).exp() * keep).mean()))


def test_m2po_drops_the_largest_second_moments_until_the_mean_is_below():
    found = moments_below([np.array([0.1, 2.0]), np.array([0.2, 1.0])], 0.3)
    np.testing.assert_array_equal(
        found[0], [1, 0]
    )  # .01, .04 and 1.0: mean .35 is above, so 1.0 goes as well
    np.testing.assert_array_equal(found[1], [1, 0])
    np.testing.assert_array_equal(moments_below([np.array([0.1, 2.0])], 100.0)[0], [1, 1])


def test_m2po_has_no_silent_threshold():
    with pytest.raises(Rejected, match="second_moment"):
        algorithm("m2po").settings({}, {}, max_staleness=1)


@pytest.mark.parametrize(
    ("length", "expected"), [(16384, 0.0), (18432, -0.5), (20480, -1.0), (30000, -1.0), (1, 0.0)]
)
def test_soft_overlong(length, expected):  # DAPO: longest 20480, buffer 4096
    one = Scores(np.array([1.0]), np.array([True]), np.array([0]), np.array([length]))
    assert soft_overlong(one, 20480, 4096).rewards[0] == pytest.approx(1.0 + expected)


def test_no_length_is_too_long_when_nothing_was_said():
    one = Scores(np.array([1.0]), np.array([True]), np.array([0]), np.array([10**6]))
    assert soft_overlong(one, 0, 0) is one


# ---------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    ("name", "params", "choices", "field"),
    [
        ("grpo", {"kl_target": 0.1}, {}, "kl_target"),
        ("grpo", {"dual_clip": 0.5}, {}, "dual_clip"),
        ("dapo", {"overlong_length": 10}, {}, "overlong_buffer"),
        (
            "grpo",
            {"overlong_filter": 1, "overlong_length": 10, "overlong_buffer": 5},
            {},
            "overlong_filter",
        ),
        ("dapo", {"overlong_length": 10, "overlong_buffer": 20}, {}, "overlong_buffer"),
        ("decoupled_ppo", {}, {"correction": "bypass"}, "correction"),
        ("ppo", {}, {"advantage": "grpo"}, "advantage"),
        ("distill", {"kl_beta": 0.1}, {}, "kl_beta"),
        ("sft", {"kl_beta": 0.1}, {}, "kl_beta"),
    ],
)
def test_options_that_contradict_each_other_or_do_nothing_are_refused(name, params, choices, field):
    with pytest.raises(Rejected) as caught:
        algorithm(name).settings(params, choices, max_staleness=1, path="phase")
    assert field in str(caught.value.field)


def test_every_algorithm_that_takes_kl_beta_asks_for_a_reference_when_it_is_set():
    for name, entry in registry().items():
        if "kl_beta" not in entry.params:
            continue
        must = {"allow_unclipped": 1.0, "second_moment": 0.04}
        given = {k: v for k, v in must.items() if k in entry.params}
        assert entry.needs(entry.settings({**given, "kl_beta": 0.1}, {}, max_staleness=1)).reference, name
        assert not entry.needs(entry.settings(given, {}, max_staleness=1)).reference, name
