"""Each number of a step's diagnostics, by value."""

import math

import numpy as np
import pytest

from temper.api.rollout.v1.rollout_pb2 import GroupRecord, SampleSummary
from temper.trainer.diagnostics import by_domain, of_step
from temper.trainer.engine.base import StepOutcome
from temper.trainer.reports import StepFacts
from temper.trainer.samples import Sample


def sample(domain, group, reward, *, valid=True):
    arrays = np.zeros(2)
    return Sample(
        ids=arrays.astype(np.int64),
        mask=arrays.astype(np.bool_),
        logprobs=arrays.astype(np.float32),
        reward=reward,
        valid=valid,
        group=group,
        domain=domain,
    )


def facts(samples=(), ages=(), metrics=None):
    groups = [GroupRecord(domain=domain, samples=[SampleSummary()] * count) for domain, count, _ in ages]
    outcome = StepOutcome(metrics or {}, 0, 0)
    return StepFacts(groups, [age for _, _, age in ages], list(samples), outcome, 0)


def test_shares_and_means_are_of_their_own_domain():
    found = by_domain(
        facts(
            [
                sample("calc", 0, 1.0),
                sample("calc", 0, 1.0),
                sample("calc", 1, 0.0),
                sample("calc", 1, 1.0),
                sample("sums", 2, math.nan, valid=False),
                sample("sums", 2, 0.0),
            ],
            [("calc", 3, 0), ("calc", 1, 4), ("sums", 2, 1)],
        )
    )
    assert found.masked == {"calc": 0.0, "sums": 0.5}
    assert found.flat == {"calc": 0.5}, "a single valid sample is not a difference, nor the want of one"
    assert found.staleness == {"calc": 1.0, "sums": 1.0}


def test_a_step_is_told_in_a_few_numbers_with_fixed_names():
    metrics = {"mismatch_k1": 0.01, "mismatch_k3": 0.002, "ess": 0.9, "loss": 1.0, "mismatch_slope": math.nan}
    found = of_step(
        facts(
            [sample("d0", 0, 0.0), sample("d0", 0, 0.0), sample("d1", 1, 0.0, valid=False)],
            [("d0", 2, 3)],
            metrics,
        )
    )
    assert found == pytest.approx(
        {
            "mismatch_k1": 0.01,
            "mismatch_k3": 0.002,
            "ess": 0.9,
            "masked_share": 1 / 3,
            "staleness_max": 3.0,
            "flat_share": 1.0,
        }
    )


def test_names_do_not_grow_with_domains():
    many = [sample(f"d{n}", n, float(n % 2)) for n in range(300) for _ in range(2)]
    assert len(of_step(facts(many, [("d0", 1, 0)]))) == 3


def test_a_rollback_in_the_place_of_a_step_has_none():
    assert of_step(facts()) == {}
    found = by_domain(facts())
    assert (found.masked, found.flat, found.staleness) == ({}, {}, {})
