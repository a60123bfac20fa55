"""The sampler: shares over domains, frontiers per domain, exact resume."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.api.job.v1.spec_pb2 import DomainSpec, JobSpec
from temper.runtime.errors import Rejected
from temper.scheduler.sampler import Sampler


def spec(**shares):
    domains = [
        DomainSpec(name=name, env=name, share=share, curriculum="success_window", train_tasks=40)
        for name, share in shares.items()
    ]
    return JobSpec(name="j", seed=5, domains=domains)


def drive(sampler, count):
    draws = []
    for _ in range(count):
        draw = sampler.draw(2)
        for task in draw.tasks:
            sampler.observe(draw.domain, task, task % 5, 8)
        draws.append(draw)
    return draws


@given(st.integers(0, 60))
@settings(max_examples=25, deadline=None)
def test_resume_through_json_continues_bit_for_bit(cut):
    whole = Sampler(spec(a=1.0, b=2.0))
    drive(whole, cut)
    resumed = Sampler(spec(a=1.0, b=2.0))
    resumed.resume(json.loads(json.dumps(whole.state())))
    assert drive(resumed, 30) == drive(whole, 30)
    assert resumed.state() == whole.state()


def test_counts_follow_the_shares():
    sampler = Sampler(spec(a=1.0, b=3.0))
    drive(sampler, 40)
    assert sampler.issued == {"a": 10, "b": 30}
    assert sampler.frontier == {"a": 20, "b": 60}


def test_adding_a_domain_leaves_the_others_where_they_are():
    sampler = Sampler(spec(a=1.0, b=1.0))
    drive(sampler, 20)
    before = sampler.state()["curricula"]["a"]
    sampler.reconfigure(spec(a=1.0, b=1.0, c=2.0))
    assert sampler.state()["curricula"]["a"] == before
    later = [draw.domain for draw in drive(sampler, 40)]
    assert later.count("c") == 20


def test_a_result_of_a_removed_domain_is_ignored():
    Sampler(spec(a=1.0)).observe("gone", 1, 1, 1)


def test_a_state_that_cannot_be_read_is_refused():
    with pytest.raises(Rejected, match="sampler state"):
        Sampler(spec(a=1.0)).resume({"mixer": 1})
