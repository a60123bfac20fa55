"""Routing over replicas: the whole prefix counts, sessions stay, load stays level."""

import random

import pytest
from bench.rollout_routing import MAX_OVER_MEAN, MIN_GAIN, conversations, measure
from hypothesis import given
from hypothesis import strategies as st

from temper.rollout.serving.route import BLOCK, Router, chain


def test_sglang_26263_the_whole_prefix_decides_not_the_first_message() -> None:
    router = Router(2, blocks=1000)
    system = list(range(10 * BLOCK))
    first, second = [*system, *[1] * 20 * BLOCK], [*system, *[2] * 20 * BLOCK]
    one = router.place(first, output=20 * BLOCK, session=None)
    two = router.place(second, output=0, session=None)
    assert one is not None
    assert two is not None
    assert one.replica != two.replica, (
        "20 blocks of their own outweigh 10 shared ones while the other is idle"
    )
    for placed in (one, two):
        router.finished(placed)
    for prompt, home in ((first, one), (second, two), (first, one)):
        again = router.place([*prompt, *[3] * BLOCK], output=0, session=None)
        assert again is not None
        assert again.replica == home.replica
        assert again.cached >= 30 * BLOCK
        router.finished(again)


def test_a_session_stays_while_its_replica_is_healthy_and_moves_when_it_is_not() -> None:
    router = Router(3, blocks=100)
    first = router.place([1] * 64, output=8, session="s")
    assert first is not None
    for _ in range(20):
        router.place([2] * 640, output=8, session=None)
    assert router.place([9] * 64, output=8, session="s").replica == first.replica  # type: ignore[union-attr]  # it is there
    router.set_health(first.replica, healthy=False)
    moved = router.place([1] * 64, output=8, session="s")
    assert moved is not None
    assert moved.replica != first.replica
    assert router.place([1] * 64, output=8, session="s").replica == moved.replica  # type: ignore[union-attr]  # it is there


def test_no_healthy_replica_is_said_and_a_returning_one_has_forgotten() -> None:
    router = Router(1, blocks=100)
    router.place([1] * 64, output=0, session=None)
    router.set_health(0, healthy=False)
    assert router.place([1] * 64, output=0, session=None) is None
    router.set_health(0, healthy=True)
    placed = router.place([1] * 64, output=0, session=None)
    assert placed is not None
    assert placed.cached == 0


def test_tenants_share_no_prefix_and_new_weights_forget_all() -> None:
    router = Router(1, blocks=100)
    router.place([1] * 64, output=0, session=None, salt="a")
    assert router.place([1] * 64, output=0, session=None, salt="b").cached == 0  # type: ignore[union-attr]  # it is there
    assert router.place([1] * 64, output=0, session=None, salt="a").cached == 64  # type: ignore[union-attr]  # it is there
    router.forget()
    assert router.place([1] * 64, output=0, session=None, salt="a").cached == 0  # type: ignore[union-attr]  # it is there


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 5))
def test_a_key_stands_for_everything_before_it(tokens: list[int], changed: int) -> None:
    keys = list(chain(tokens))
    assert len(keys) == len(tokens) // BLOCK
    if changed < len(tokens):
        other = list(tokens)
        other[changed] += 1
        assert not set(keys) & set(chain(other)) or not keys


@pytest.mark.parametrize("seed", [1, 7])
def test_cache_aware_routing_hits_three_times_as_often_as_round_robin_and_stays_level(seed: int) -> None:
    trace = conversations(random.Random(seed), conversations=300)
    robin = measure(trace, policy="round_robin")
    aware = measure(trace, policy="cache_aware")
    sessions = measure(trace, policy="session")
    assert aware.hit_rate >= MIN_GAIN * robin.hit_rate, (aware, robin)
    assert aware.max_over_mean <= MAX_OVER_MEAN, aware
    assert sessions.hit_rate >= MIN_GAIN * robin.hit_rate, (sessions, robin)
