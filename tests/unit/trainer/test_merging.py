"""Gradients of several domains become one: vectors, properties, and the engine against the same by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.unit.trainer.test_algorithms import STILL, begun, gradients
from tests.unit.trainer.test_torch_engine import config, engine, group_batch, sample, weights

from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch import make
from temper.trainer.merging import METHODS, Domains
from temper.trainer.merging.base import SHOWN
from temper.trainer.merging.gradnorm import next_weights
from temper.trainer.merging.pcgrad import projections
from temper.trainer.samples import Batch, scores

ADAM = OptimizerSettings(lr=1e-3)


def domains(vectors, *, share=None, weight=None, seed=0):
    g = np.asarray(vectors, dtype=float)
    count = len(g)
    return Domains(
        [f"d{i}" for i in range(count)],
        g @ g.T,
        np.full(count, 1 / count) if share is None else np.asarray(share),
        np.ones(count) if weight is None else np.asarray(weight),
        seed,
    )


def merged(method, vectors, **more):
    return METHODS[method](domains(vectors, **more)) @ np.asarray(vectors, dtype=float)


# ---------------------------------------------------------------- vectors


def test_pcgrad_of_two_that_pull_apart():  # derived: g1' = (.5, .5), g2' = (0, 1), sum (.5, 1.5)
    g = [[1.0, 0.0], [-1.0, 1.0]]
    rows = projections(domains(g)) @ np.array(g)
    np.testing.assert_allclose(rows, [[0.5, 0.5], [0.0, 1.0]])
    np.testing.assert_allclose(merged("pcgrad", g, share=[1.0, 1.0]), [0.5, 1.5])
    assert domains(g).cosines()[0, 1] == pytest.approx(-0.7071, abs=1e-4)


def test_pcgrad_leaves_what_agrees():
    g = [[1.0, 0.0], [1.0, 1.0]]
    np.testing.assert_allclose(merged("pcgrad", g), merged("sum", g))


def test_pcgrad_skips_a_gradient_without_direction():
    np.testing.assert_allclose(merged("pcgrad", [[1.0, 0.0], [0.0, 0.0]]), [0.5, 0.0])


def test_the_order_of_pcgrad_is_the_seeds():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(6, 3))
    assert (projections(domains(g, seed=1)) == projections(domains(g, seed=1))).all()
    assert (projections(domains(g, seed=1)) != projections(domains(g, seed=2))).any()


def test_norm_equal_gives_every_domain_the_mean_length():
    found = merged("norm_equal", [[4.0, 0.0], [0.0, 2.0]])
    np.testing.assert_allclose(found, [1.5, 1.5])


def test_gradnorm_weighs_slow_domains_more():  # one step by hand: equal norms, rates 1.5 and .5 of the mean
    found = next_weights(np.ones(2), np.ones(2), np.array([0.9, 0.3]), np.ones(2))
    np.testing.assert_allclose(found, [1.025, 0.975])


def test_gradnorm_without_any_gradient_stays():
    np.testing.assert_array_equal(next_weights(np.ones(2), np.zeros(2), np.ones(2), np.ones(2)), [1.0, 1.0])


# ---------------------------------------------------------------- properties

VECTORS = arrays(np.float64, st.tuples(st.integers(2, 5), st.just(4)), elements=st.floats(-3, 3))


@given(VECTORS, st.integers(0, 5))
def test_a_projected_pair_never_conflicts_with_the_other(g, seed):
    if len(g) != 2:
        g = g[:2]
    rows = projections(domains(g, seed=seed)) @ g
    assert rows[0] @ g[1] >= -1e-9
    assert rows[1] @ g[0] >= -1e-9


@given(VECTORS)
def test_lengths_from_the_gram_matrix_are_those_of_the_vectors(g):
    for method in METHODS:
        d = domains(g)
        c = METHODS[method](d)
        assert float(c @ d.gram @ c) == pytest.approx(float(np.linalg.norm(c @ g)) ** 2, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.01, 1)), min_size=2, max_size=6))
def test_gradnorms_weights_sum_to_the_number_of_domains(rows):
    norms, loss = (np.array(column) for column in zip(*rows, strict=True))
    found = next_weights(np.ones(len(rows)), norms, loss, np.ones(len(rows)))
    assert found.sum() == pytest.approx(len(rows))
    assert (found > 0).all()


def test_of_three_hundred_domains_only_the_worst_pairs_are_shown():
    rng = np.random.default_rng(0)
    report = domains(rng.normal(size=(300, 50))).report()
    pairs = [name for name in report if name.startswith("conflict_cosine/")]
    assert len(pairs) == SHOWN
    assert sum(name.startswith("domain_grad_norm/") for name in report) == 300
    assert 0.4 < report["conflict_share"] < 0.6
    assert min(report[name] for name in pairs) == report["conflict_cosine_min"]


# ---------------------------------------------------------------- in the engine


def of_domains(shares=None, number=0):
    batch = group_batch()
    names = ["calc", "sums", "words"]
    samples = [replace(sample, domain=names[sample.group]) for sample in batch.samples]
    return Batch(samples, batch.advantages, shares or {}, number)


def step(made, batch, optimizer=ADAM, name="grpo", **choices):
    numbers = {k: v for k, v in choices.items() if not isinstance(v, str)}
    words = {k: v for k, v in choices.items() if isinstance(v, str)}
    chosen = algorithm(name)
    return made.step(batch, chosen, chosen.settings(numbers, words, max_staleness=1), optimizer)


def test_looking_at_domains_changes_nothing_but_the_report():
    looked, blind = engine(), engine()
    found = step(looked, of_domains(), STILL, conflict_every=1).metrics
    plain = step(blind, of_domains(), STILL, conflict_every=0).metrics
    assert found["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    for name, gradient in gradients(blind).items():
        torch.testing.assert_close(gradients(looked)[name], gradient, atol=1e-6, rtol=1e-4)
    assert {"domain_grad_norm/calc", "conflict_cosine/calc|sums", "conflict_share"} <= found.keys()
    assert not [name for name in plain if name.startswith(("domain_", "conflict_"))]


@pytest.mark.parametrize(("number", "looks"), [(0, True), (1, False), (10, True)])
def test_domains_are_compared_every_so_many_steps(number, looks):
    found = step(engine(), of_domains(number=number)).metrics
    assert ("conflict_share" in found) == looks


def alone_gradient(domain):
    """Mean gradient of one domain by itself."""
    made, batch = engine(), of_domains()
    kept = [i for i, sample in enumerate(batch.samples) if sample.domain == domain]
    step(made, Batch([batch.samples[i] for i in kept], batch.advantages[kept]), STILL)
    return gradients(made)


def test_by_share_a_domain_weighs_its_share_however_long_its_answers_are():
    shares = {"calc": 2.0, "sums": 1.0, "words": 1.0}
    made = engine()
    step(made, of_domains(shares), STILL, domain_loss="by_share")
    parts = {name: alone_gradient(name) for name in shares}
    for parameter, found in gradients(made).items():
        expected = sum(parts[name][parameter] * share / 4 for name, share in shares.items())
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("method", ["norm_equal", "pcgrad"])
def test_the_engine_merges_as_the_vectors_say(method):
    made = engine()
    step(
        made,
        of_domains({"calc": 1.0, "sums": 1.0, "words": 1.0}),
        STILL,
        merge=method,
        domain_loss="by_share",
    )
    names = ["calc", "sums", "words"]
    parts = [alone_gradient(name) for name in names]
    flat = np.stack([np.concatenate([p.flatten().double().numpy() for p in part.values()]) for part in parts])
    expected = merged(method, flat)
    found = np.concatenate([p.flatten().double().numpy() for p in gradients(made).values()])
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["sft", "dpo", "gspo"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_works_with_every_kind_of_loss(name, method):
    made, batch = engine(), of_domains()
    chosen, settings = begun(made, name, {"merge": method})
    data = Batch(batch.samples, chosen.advantages(scores(batch.samples), settings))
    outcome = made.step(data, chosen, settings, ADAM)
    assert not outcome.skipped
    assert np.isfinite(outcome.metrics["grad_norm"])


def test_gradnorms_weights_are_part_of_a_snapshot():
    made = engine()
    for _ in range(3):
        step(made, of_domains(), merge="gradnorm")
    state = made.snapshot()
    expected = step(made, of_domains(), merge="gradnorm")
    other = make()
    other.restore(config(), state)
    assert step(other, of_domains(), merge="gradnorm") == expected
    assert weights(other) == weights(made)
    assert other.policy.balance.facts() == made.policy.balance.facts()


def test_a_gradient_that_is_not_finite_is_skipped_whatever_merges():
    batch = of_domains()
    made = engine()
    before = weights(made)
    broken = Batch(batch.samples, np.full(len(batch.samples), np.inf))
    assert "non-finite" in step(made, broken, merge="pcgrad").skipped
    assert weights(made) == before


# ---------------------------------------------------------------- three hundred domains

HUNDREDS = 300
TINY = {"hidden_size": 16, "head_dim": 4, "num_hidden_layers": 1, "intermediate_size": 16}


def of_hundreds(seed, number=0):
    """One task of two samples for each domain, in an order of the step's own."""
    rng = np.random.default_rng(seed)
    names = [f"domain{k:03d}" for k in rng.permutation(HUNDREDS)]
    samples = []
    for group, name in enumerate(names):
        prompt = rng.integers(1, 40, size=4)
        for reward in (0.0, 1.0):
            one = sample(rng, group, prompt, reward=reward, length=int(rng.integers(2, 6)))
            samples.append(replace(one, domain=name))
    chosen = algorithm("grpo")
    advantages = chosen.advantages(scores(samples), chosen.settings({}, {}, max_staleness=1))
    shares = {name: 1.0 + (k % 3) for k, name in enumerate(sorted(names))}
    return Batch(samples, advantages, shares, number)


def tiny():
    made = make()
    made.build(config() | TINY, seed=0)
    return made


@pytest.mark.parametrize("method", ["pcgrad", "gradnorm"])
def test_three_hundred_domains_are_merged_by_the_engine_and_resumed_bit_for_bit(method):
    made = tiny()
    report = step(made, of_hundreds(0), merge=method, domain_loss="by_share").metrics
    assert sum(name.startswith("domain_grad_norm/") for name in report) == HUNDREDS
    assert sum(name.startswith("conflict_cosine/") for name in report) == SHOWN
    state = made.snapshot()
    expected = step(made, of_hundreds(1, 1), merge=method, domain_loss="by_share")
    other = make()
    other.restore(config() | TINY, state)
    assert step(other, of_hundreds(1, 1), merge=method, domain_loss="by_share") == expected
    assert other.snapshot().files == made.snapshot().files
    assert other.policy.balance.facts() == made.policy.balance.facts()


def test_three_hundred_domains_merged_by_sum_give_the_gradient_of_the_mixed_loss():
    batch = of_hundreds(0)
    apart, whole = tiny(), tiny()
    step(apart, batch, STILL, conflict_every=1)
    step(whole, batch, STILL, conflict_every=0)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(apart)[name], gradient, atol=1e-6, rtol=1e-3)
