"""The mixer keeps its proof: no prefix strays from the shares by more than one group."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.scheduler.mixer import WHOLE, Mixer, quantise

SHARES = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=4), st.floats(1e-3, 1e3), min_size=1, max_size=12
)


def stream(mixer, draws):
    return tuple(mixer.draw() for _ in range(draws))


def assert_prefixes_hold(mixer, draws):
    shares = mixer.shares
    bound = 1 - 1 / (2 * len(shares) - 2) if len(shares) > 1 else 0
    for total in range(1, draws + 1):
        mixer.draw()
        worst = max(abs(mixer.issued[name] - share * total) for name, share in shares.items())
        assert worst <= bound + 1e-9, f"{worst} after {total} draws"


@given(SHARES, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_prefix_is_within_the_proven_bound(shares, seed):
    assert_prefixes_hold(Mixer(shares, seed), 300)


def test_half_third_fifth_holds_for_a_thousand_draws():
    assert_prefixes_hold(Mixer({"a": 0.5, "b": 0.3, "c": 0.2}, 0), 1000)


def test_three_hundred_unequal_domains_hold():
    assert_prefixes_hold(Mixer({f"d{i}": 1 + i * i for i in range(300)}, 7), 900)


def test_three_hundred_equal_domains_each_come_once_per_round():
    mixer = Mixer({f"d{i}": 1.0 for i in range(300)}, 3)
    first = [mixer.draw() for _ in range(300)]
    assert len(set(first)) == 300


@given(SHARES, st.integers(0, 99), st.integers(0, 120))
@settings(max_examples=50, deadline=None)
def test_resume_continues_bit_for_bit(shares, seed, cut):
    whole, part = Mixer(shares, seed), Mixer(shares, seed)
    expected = [whole.draw() for _ in range(cut + 60)]
    for _ in range(cut):
        part.draw()
    resumed = Mixer(shares, seed)
    resumed.resume(part.state())
    assert [resumed.draw() for _ in range(60)] == expected[cut:]


def test_the_seed_decides_ties_only():
    shares = {f"d{i}": 1.0 for i in range(8)}
    streams = {stream(Mixer(shares, seed), 8) for seed in range(20)}
    assert len(streams) > 1
    assert all(sorted(each) == sorted(shares) for each in streams)


def test_changed_shares_restart_the_deficits():
    old = Mixer({"a": 0.9, "b": 0.1}, 0)
    for _ in range(100):
        old.draw()
    new = Mixer({"a": 0.5, "b": 0.5}, 0)
    new.resume(old.state())
    assert new.issued == {"a": 0, "b": 0}


@given(SHARES)
def test_weights_are_positive_and_whole(shares):
    weights = quantise(shares)
    assert sum(weights.values()) == WHOLE
    assert min(weights.values()) >= 1


@pytest.mark.parametrize("shares", [{}, {"a": 0.0}, {"a": -1.0}, {"a": float("nan")}, {"a": float("inf")}])
def test_shares_that_mean_nothing_are_refused(shares):
    with pytest.raises(Rejected):
        Mixer(shares, 0)
