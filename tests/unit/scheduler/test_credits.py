"""Credits and the admission gate of published systems are the same rule, step by step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from temper.scheduler.credits import Credits


def gate(max_staleness, version, per_step, accepted, running):
    """Admission gate in groups: (η + v + 1)·B - (accepted + running)."""
    return (max_staleness + version + 1) * per_step - (accepted + running)


@given(
    st.integers(0, 8),
    st.integers(1, 6),
    st.lists(st.sampled_from(["admit", "finish", "drop", "step"]), max_size=300),
)
@settings(max_examples=200, deadline=None)
def test_credits_equal_the_gate_when_each_step_consumes_b(max_staleness, per_step, moves):
    """Any interleaving: what credits allow is what the gate allows, at every moment."""
    rule = Credits(max_staleness, per_step)
    version = running = finished = consumed = dropped = published = 0
    for move in moves:
        if move == "admit" and rule.free(published - consumed - dropped, 10**9) > 0:
            running += 1
            published += 1
        elif move == "finish" and running:
            running -= 1
            finished += 1
        elif move == "drop" and finished:
            finished -= 1
            dropped += 1
        elif move == "step" and finished >= per_step:
            finished -= per_step
            consumed += per_step
            version += 1
        accepted = (
            finished + consumed
        )  # the gate counts finished groups since version 0, without dropped ones
        free = rule.free(published - consumed - dropped, 10**9)
        assert free == gate(max_staleness, version, per_step, accepted, running)
        assert 0 <= free <= rule.bound


def test_zero_staleness_is_one_batch_at_a_time():
    rule = Credits(0, 4)
    assert rule.free(0, 10) == 4
    assert rule.free(4, 10) == 0


@given(st.integers(0, 8), st.integers(1, 6), st.integers(0, 20), st.integers(0, 60))
def test_a_phase_never_has_more_in_flight_than_its_steps_can_consume(staleness, per_step, left, in_flight):
    rule = Credits(staleness, per_step)
    free = rule.free(in_flight, left)
    assert free == 0 or in_flight + free <= min(rule.bound, left * per_step)


@given(st.integers(0, 4), st.integers(1, 4), st.integers(1, 12), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_no_sample_is_older_than_the_bound_when_groups_are_consumed_in_order(
    staleness, per_step, steps, chance
):
    """First in, first out: the version at consumption is at most η above the version at publication."""
    rule = Credits(staleness, per_step)
    queue, version = [], 0
    while version < steps:
        admitted = rule.free(len(queue), steps - version)
        queue += [version] * chance.randint(0 if len(queue) >= per_step else admitted, admitted)
        if len(queue) >= per_step and chance.random() < 0.7:
            assert all(version - born <= staleness for born in queue[:per_step])
            del queue[:per_step]
            version += 1
