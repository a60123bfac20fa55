# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (the functions speak of a tensor protocol; the tests hand in torch tensors and look at more of them)
"""Numbers that other frameworks' tests agree on; the source of each is named beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.trainer import correction, kl, losses
from temper.trainer.advantage import ESTIMATORS, Scores
from temper.trainer.advantage import returns as token_level
from temper.trainer.aggregation import MODES, aggregate
from temper.trainer.algorithms import algorithm, registry
from temper.trainer.algorithms.base import TokenBatch, Totals

T = torch.tensor


def scores(rewards, group, valid=None, lengths=None):
    count = len(rewards)
    return Scores(
        np.array(rewards, dtype=float),
        np.array(valid if valid is not None else [True] * count),
        np.array(group),
        np.array(lengths if lengths is not None else [1] * count),
    )


def log(values):
    return T(values).log()


def close(found, expected, *, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(found), expected, atol=tolerance)


ONE = {"sequence": torch.zeros(3, dtype=torch.long), "lengths": T([3.0])}


# ---------------------------------------------------------------- policy losses


def test_ppo_clip():  # NeMo-RL tests/unit/algorithms/test_loss_functions.py
    found = losses.ppo_clip(log([0.5, 1.0, 1.5]), T([1.0, -1.0, 2.0]), low=0.2, high=0.2)
    close(found.value, [-0.5, 1.0, -2.4])
    close(found.value.mean(), -0.6333)


def test_dual_clip():  # NeMo-RL, same file
    found = losses.ppo_clip(log([0.5, 1.0, 10.0]), T([1.0, -1.0, -4.0]), low=0.2, high=0.2, dual=3.0)
    close(found.value, [-0.5, 1.0, 12.0])
    close(found.value.mean(), 4.1667)
    free = losses.ppo_clip(log([10.0]), T([-4.0]), low=0.2, high=0.2)
    close(free.value, [40.0])


def test_dual_clip_with_both_signs():  # slime tests/test_policy_loss.py
    found = losses.ppo_clip(log([2.0, 2.0, 0.5]), T([2.0, -2.0, 2.0]), low=0.2, high=0.2, dual=1.5)
    close(found.value, [-2.4, 3.0, -1.0])


def test_gspo():  # NeMo-RL test_clipped_pg_loss_gspo
    found = losses.gspo(log([0.5, 1.0, 1.5]), T([1.0, -1.0, 2.0]), **ONE, low=0.2, high=0.2)
    close(math.exp(float(losses.sequence_log_ratio(log([0.5, 1.0, 1.5]), **ONE)[0])), 0.9086)
    close(found.value.mean(), -0.6057)


def test_gspo_with_its_own_bounds():  # derived: s = .9086 is under 1 - 3e-4, so only A < 0 is bounded
    found = losses.gspo(log([0.5, 1.0, 1.5]), T([1.0, -1.0, 2.0]), **ONE, low=3e-4, high=4e-4)
    close(found.value, [-0.9086, 0.9997, -1.8171])
    close(found.value.mean(), -0.5753)


def test_the_gradient_of_gspo_reaches_every_token_of_its_sequence():
    log_w = log([0.9, 1.0, 1.1]).requires_grad_()
    losses.gspo(log_w, T([1.0, 1.0, 1.0]), **ONE, low=0.2, high=0.2).value.sum().backward()
    assert log_w.grad is not None
    assert (log_w.grad != 0).all()


@pytest.mark.parametrize("name", ["gspo", "sapo"])  # AReaL tests/test_functional.py
def test_packed_sequences_give_what_each_gives_alone(name):
    parts = [log([0.5, 1.0, 1.5]), log([0.9, 1.2])]
    gains = [T([1.0, -1.0, 2.0]), T([-1.0, 1.0])]

    def loss(log_w, gain, sequence, lengths):
        if name == "sapo":
            return losses.sapo(log_w, gain, tau_positive=1.0, tau_negative=1.05).value
        return losses.gspo(log_w, gain, sequence, lengths, low=3e-4, high=4e-4).value

    packed = loss(torch.cat(parts), torch.cat(gains), T([0, 0, 0, 1, 1]), T([3.0, 2.0]))
    alone = [
        loss(w, a, torch.zeros(len(w), dtype=torch.long), T([float(len(w))]))
        for w, a in zip(parts, gains, strict=True)
    ]
    close(packed, torch.cat(alone), tolerance=1e-6)


def test_the_cap_of_a_sequences_weight_is_five_unless_said_otherwise():  # 3·3 = 9 is cut to 5, by token 3 to 2
    far = {"log_rho": log([3.0, 3.0]), "sequence": T([0, 0]), "lengths": T([2.0])}
    close(correction.weights("tis_seq", **far), [5.0, 5.0])
    close(correction.weights("tis_token", **far), [2.0, 2.0])
    close(correction.weights("tis_seq", **far, cap=7.0), [7.0, 7.0])


def test_cispo_has_no_gradient_through_the_ratio():  # arXiv 2506.13585: w is a weight
    log_w = log([0.5, 2.0]).requires_grad_()
    log_pi = T([-1.0, -2.0]).requires_grad_()
    losses.cispo(log_w, log_pi, T([1.0, -1.0]), low_ratio=0.0, high_ratio=5.0).value.sum().backward()
    assert log_w.grad is None
    close(log_pi.grad, [-0.5, 2.0])


def test_cispo_has_no_lower_bound_by_default():
    knobs = registry()["cispo"].params
    assert (knobs["clip_low_ratio"].default, knobs["clip_high_ratio"].default) == (0.0, 5.0)


def test_sapo_equals_the_plain_ratio_gradient_at_one():  # derived: d/dw (4/tau) sigmoid(tau (w-1)) = 1 at w = 1
    log_w = torch.zeros(2, requires_grad=True)
    losses.sapo(log_w, T([1.0, -1.0]), tau_positive=1.0, tau_negative=1.05).value.sum().backward()
    close(log_w.grad, [-1.0, 1.0])


def test_dppo_cuts_tokens_whose_probability_moved_too_far():  # as prime-rl: bound .2 in probabilities
    found = losses.dppo(
        log([0.9, 0.6, 0.1]), log([0.5, 0.5, 0.5]), T([1.0, 1.0, -1.0]), bound=0.2, penalty=0.0
    )
    close(found.clipped_high, [1, 0, 0])
    close(found.clipped_low, [0, 0, 1])
    close(found.value, [0.0, -1.2, 0.0])


def test_log_ratios_are_limited_before_exp():
    assert torch.isfinite(losses.ratio(T([1000.0, -1000.0]))).all()


def test_off_policy_sequences_with_negative_advantage_can_be_dropped():
    keep = losses.off_policy_keep(T([-1.0, -1.0, 0.0]), T([-1.0, -1.0, -1.0]), **ONE, delta=0.5)
    close(keep, [0, 0, 0])
    keep = losses.off_policy_keep(T([-1.0, -1.0, 0.0]), T([1.0, 1.0, 1.0]), **ONE, delta=0.5)
    close(keep, [1, 1, 1])


# ---------------------------------------------------------------- advantages


def test_grpo_uses_the_sample_standard_deviation():  # worked check: +-.7071 with n-1, +-1 with n
    close(ESTIMATORS["grpo"](scores([6, 3], [0, 0])), [0.7071, -0.7071])


def test_verl_5355_rloo():  # SkyRL tests/backends/skyrl_train/utils/test_ppo_utils.py
    close(ESTIMATORS["rloo"](scores([6, 3, 9, 12, 1], [0, 0, 1, 1, 2])), [3, -3, -3, 3, 0])


def test_maxrl():  # SkyRL, same file
    found = ESTIMATORS["maxrl"](scores([6, 3, 9, 12], [0, 0, 1, 1]))
    close(found, [1.5 / 4.5, -1.5 / 4.5, -1.5 / 10.5, 1.5 / 10.5])
    with pytest.raises(Rejected, match="rewards >= 0"):
        ESTIMATORS["maxrl"](scores([-1, 3], [0, 0]))


def test_opo_weighs_its_baseline_by_length():  # arXiv 2505.23585: (1*4 + 3*0) / 4 = 1
    close(ESTIMATORS["opo"](scores([4, 0], [0, 0], lengths=[1, 3])), [3, -1])


def test_only_the_best_of_a_group_learns_and_ties_teach_nothing():
    close(ESTIMATORS["best_of_group"](scores([1, 5, 3, 2, 2], [0, 0, 0, 1, 1])), [0, 2, 0, 0, 0])


def test_gae():  # SkyRL: gamma = lambda = 1, r = [1,2,3], V = [.5,1,1.5] -> returns [6,5,3]
    advantages, found = token_level.gae(np.array([1.0, 2, 3]), np.array([0.5, 1, 1.5]), gamma=1.0, lam=1.0)
    close(found, [6, 5, 3])
    close(advantages, [5.5, 4, 1.5])


@pytest.mark.parametrize(
    "length", [1, 127, 128, 129, 1000]
)  # slime tests/test_discounted_returns.py, test_chunked_gae.py
def test_returns_and_gae_of_long_sequences_equal_their_sums(length):
    rng = np.random.default_rng(length)
    rewards, values = rng.normal(size=length), rng.normal(size=length)
    at = np.arange(length)
    decay = np.where(at[None] >= at[:, None], 0.97 ** np.maximum(at[None] - at[:, None], 0), 0.0)
    close(token_level.discounted(rewards, gamma=0.97), decay @ rewards, tolerance=1e-10)
    delta = rewards + 0.97 * np.append(values[1:], 0.0) - values
    weight = np.where(at[None] >= at[:, None], (0.97 * 0.9) ** np.maximum(at[None] - at[:, None], 0), 0.0)
    advantages, found = token_level.gae(rewards, values, gamma=0.97, lam=0.9)
    close(advantages, weight @ delta, tolerance=1e-10)
    close(found, weight @ delta + values, tolerance=1e-10)


def test_reinforce_pp_whitens_over_the_batch():
    parts = token_level.reinforce_pp([1.0, 0.0], [np.zeros(2), np.zeros(3)], beta=0.0, gamma=1.0)
    flat = np.concatenate(parts)
    close(flat.mean(), 0, tolerance=1e-9)
    close(flat.std(ddof=1), 1)
    assert [part.size for part in parts] == [2, 3]


@pytest.mark.parametrize("name", [*ESTIMATORS])
def test_a_group_of_one_learns_nothing(name):
    assert ESTIMATORS[name](scores([5.0], [0])).tolist() == [0.0]


@pytest.mark.parametrize("name", [*ESTIMATORS])
def test_a_flat_group_gives_exactly_zero(name):
    assert ESTIMATORS[name](scores([0.5] * 4, [0] * 4)).tolist() == [0.0] * 4


def test_rewards_closer_than_one_in_a_billion_are_flat():
    assert ESTIMATORS["grpo"](scores([1.0, 1.0 + 5e-10], [0, 0])).tolist() == [0.0, 0.0]


REWARDS = st.lists(st.integers(0, 4), min_size=2, max_size=8)


@pytest.mark.parametrize("name", [*ESTIMATORS])
@given(rewards=REWARDS, seed=st.integers(0, 99))
def test_order_inside_a_group_does_not_matter(name, rewards, seed):
    order = np.random.default_rng(seed).permutation(len(rewards))
    direct = ESTIMATORS[name](scores(rewards, [0] * len(rewards)))
    shuffled = ESTIMATORS[name](scores(np.array(rewards)[order], [0] * len(rewards)))
    close(shuffled, direct[order], tolerance=1e-9)


@pytest.mark.parametrize("name", [*ESTIMATORS])
@given(rewards=REWARDS)
def test_a_member_lost_to_the_infrastructure_changes_nothing(name, rewards):
    count = len(rewards)
    direct = ESTIMATORS[name](scores(rewards, [0] * count))
    more = ESTIMATORS[name](scores([*rewards, math.nan], [0] * (count + 1), valid=[True] * count + [False]))
    close(more, [*direct, 0.0], tolerance=1e-12)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "maxrl", "batch"])
@given(rewards=REWARDS)
def test_advantages_of_a_group_sum_to_zero(name, rewards):
    assert abs(ESTIMATORS[name](scores(rewards, [0] * len(rewards))).sum()) < 1e-6


# ---------------------------------------------------------------- kl and correction


def test_kl_estimators_at_a_difference_of_a_tenth():  # SkyRL
    pi, ref = T([0.1]), T([0.0])
    close(kl.k1(pi, ref), [0.1], tolerance=1e-6)
    close(kl.k2(pi, ref), [0.005], tolerance=1e-6)
    close(kl.k3(pi, ref), [0.004837], tolerance=1e-6)


def test_kl_in_a_loss_has_the_value_of_k3_and_the_gradient_of_k2():  # verl tests/trainer/ppo/test_core_algos_on_cpu.py
    pi = T([0.1], requires_grad=True)
    term = kl.in_loss(pi, T([0.0]))
    close(term.detach(), [0.004837], tolerance=1e-6)
    term.sum().backward()
    close(pi.grad, [0.1], tolerance=1e-6)


def test_the_adaptive_coefficient_moves_at_most_a_fifth():
    assert kl.adapt(0.1, 100.0, target=1.0, steps=1, horizon=1) == pytest.approx(0.12)
    assert kl.adapt(0.1, 0.0, target=1.0, steps=1, horizon=2) == pytest.approx(0.09)


LOG_RHO = [0.5, -0.5, 1.0]


def test_truncated_importance_sampling_by_token():  # SkyRL tests/train/algorithms/test_off_policy_correction.py
    close(correction.tis_token(T(LOG_RHO), cap=2.0), [1.6487, 0.6065, 2.0])


def test_truncated_importance_sampling_by_sequence():  # SkyRL, same file: the product is e
    close(correction.tis_seq(T(LOG_RHO), **ONE, cap=5.0), [2.7183] * 3)
    close(correction.tis_seq(T(LOG_RHO), **ONE, cap=2.0), [2.0] * 3)


def test_icepop_zeroes_what_is_outside():
    close(correction.icepop(T([math.log(0.4), 0.0, math.log(6.0)])), [0, 1, 0])


def test_geometric_mask_drops_whole_sequences():
    two = {"sequence": T([0, 0, 1]), "lengths": T([2.0, 1.0])}
    close(correction.mask_geo(T([0.2, -0.2, 0.2]), **two), [1, 1, 0])
    close(correction.mask_k3(T([0.0, 0.0, 1.0]), **two), [1, 1, 0])


def test_bypass_is_never_multiplied_in():
    assert correction.weights("bypass", T(LOG_RHO), **ONE, cap=2.0) is None


# ---------------------------------------------------------------- aggregation


@pytest.mark.parametrize("mode", MODES)
@given(cut=st.integers(1, 5), seed=st.integers(0, 20))
def test_a_cut_into_micro_batches_does_not_change_the_sum(mode, cut, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, size=6)
    values = [T(rng.random(n), dtype=torch.float64) for n in lengths]
    totals = {"tokens": int(lengths.sum()), "sequences": 6, "horizon": 10.0}

    def share(part):
        sizes = [len(values[i]) for i in part]
        sequence = T(np.repeat(np.arange(len(part)), sizes))
        return aggregate(
            mode, torch.cat([values[i] for i in part]), sequence, T(sizes, dtype=torch.float64), **totals
        )

    whole = share(range(6))
    parts = share(range(cut)) + share(range(cut, 6))
    close(parts, float(whole), tolerance=1e-9)


def test_no_tokens_give_a_loss_of_zero():
    empty = torch.zeros(0)
    found = aggregate(
        "token_mean",
        empty,
        torch.zeros(0, dtype=torch.long),
        torch.ones(0),
        tokens=0,
        sequences=0,
        horizon=1.0,
    )
    assert float(found) == 0.0


# ---------------------------------------------------------------- algorithms


def batch(log_pi, *, log_mu=None, advantage=1.0):
    count = len(log_pi)
    pi = T(log_pi)
    return TokenBatch(
        log_pi=pi,
        log_old=pi.detach(),
        log_mu=T(log_mu) if log_mu is not None else pi.detach(),
        entropy=torch.ones(count),
        advantage=torch.full((count,), advantage),
        sequence=torch.zeros(count, dtype=torch.long),
        lengths=T([float(count)]),
        totals=Totals(count, 1),
    )


def test_sft_is_the_mean_negative_log_likelihood():
    sft = algorithm("sft")
    terms = sft.loss(batch([-1.0, -3.0]), sft.settings({}, {}, max_staleness=0))
    assert float(terms.loss) == 2.0


def test_token_tis_is_on_by_default_with_a_cap_of_two():
    grpo = algorithm("grpo")
    settings = grpo.settings({}, {}, max_staleness=1)
    terms = grpo.loss(batch([-1.0, -1.0], log_mu=[-1.0, -9.0]), settings)
    close(terms.loss, -(1.0 + 2.0) / 2)


def test_mismatch_is_reported_against_the_rollout_engine():
    grpo = algorithm("grpo")
    terms = grpo.loss(batch([-1.0], log_mu=[-0.9]), grpo.settings({}, {}, max_staleness=1))
    close(terms.sums["mismatch_k1"], 0.1, tolerance=1e-6)


@pytest.mark.parametrize("name", sorted(registry()))
def test_every_algorithm_gives_a_finite_loss_and_gradient(name):
    chosen = algorithm(name)
    must = {"allow_unclipped": 1.0, "second_moment": 0.04}  # what has no default that suits everybody
    params = {name: value for name, value in must.items() if name in chosen.params}
    two = T([0.5, 0.1]).requires_grad_()
    more = {"value": two, "value_old": two, "returns": two, "score": two, "score_weight": two}
    tokens = replace(batch([-1.0, -2.0]), **more)
    tokens.log_pi.requires_grad_()
    terms = chosen.loss(tokens, chosen.settings(params, {}, max_staleness=1))
    terms.loss.backward()
    found = [each.grad for each in (tokens.log_pi, two) if each.grad is not None]
    assert found
    assert all(torch.isfinite(gradient).all() for gradient in found)


@pytest.mark.parametrize(
    ("params", "choices", "field", "says"),
    [
        ({"clip_low_dleta": 0.2}, {}, "phases[0].algorithm_params.clip_low_dleta", "clip_low_delta"),
        ({"clip_low_delta": -1.0}, {}, "phases[0].algorithm_params.clip_low_delta", "not in [0, 1]"),
        ({}, {"advantage": "best"}, "phases[0].algorithm_choices.advantage", "best_of_group"),
        ({}, {"advantages": "rloo"}, "phases[0].algorithm_choices.advantages", "advantage"),
    ],
)
def test_a_wrong_knob_is_refused_with_its_path_and_the_way_out(params, choices, field, says):
    with pytest.raises(Rejected) as caught:
        algorithm("grpo").settings(params, choices, max_staleness=1, path="phases[0]")
    assert caught.value.field == field
    assert says in str(caught.value)


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(Rejected, match="did you mean 'grpo'"):
        algorithm("grpo2", path="phases[0]")


def test_tinker_cookbook_822_unclipped_importance_sampling_must_be_asked_for_twice():
    plain = algorithm("importance")
    with pytest.raises(Rejected, match="diverges"):
        plain.settings({}, {}, max_staleness=1)
    assert plain.settings({"allow_unclipped": 1.0}, {}, max_staleness=1)
    assert plain.settings({}, {}, max_staleness=0)
