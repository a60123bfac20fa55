"""Commands follow from the job, the index and the draw; they keep the contract's rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.jobs import demo_phase, job, policy_phase

from temper.api.common.v1.common_pb2 import Purpose
from temper.runtime.validation import violations
from temper.scheduler.groups import chunk_of, evaluation_groups, training_group
from temper.scheduler.sampler import Draw, seed_of

NOW = 1_700_000_000.0


def made(phase, index=5, position=0.0, tasks=(3,)):
    owner = job(resolved=True, phases=[phase])
    return training_group(
        owner, index=index, phase=0, position=position, draw=Draw("calc", tasks), version=7, fence=3, now=NOW
    )


def test_a_policy_group_keeps_the_contract():
    command = made(policy_phase())
    assert violations(command) == []
    assert (command.group_id, command.split, command.min_version) == ("quickstart-7f3a-5", "train", 7)
    assert command.sampling.max_tokens_per_turn == 32


def test_a_demonstration_needs_no_version_and_no_sampling():
    command = made(demo_phase(), tasks=(1, 2, 3, 4))
    assert violations(command) == []
    assert command.purpose == Purpose.PURPOSE_DEMO
    assert not command.HasField("sampling")
    assert len(command.oracle_styles) == 4


def test_the_same_decision_is_the_same_command():
    assert made(demo_phase(), tasks=(1, 2)) == made(demo_phase(), tasks=(1, 2))
    assert made(policy_phase(), index=5).seed != made(policy_phase(), index=6).seed


def test_the_last_mix_holds_at_the_very_end():
    assert set(made(demo_phase(), position=1.0, tasks=tuple(range(40))).oracle_styles) == {"direct", "tool"}


@given(st.integers(1, 40), st.integers(1, 16))
def test_evaluation_covers_each_task_of_each_domain_once(tasks, per_group):
    owner = job(resolved=True)
    commands = list(
        evaluation_groups(owner, "step-20", tasks=tasks, per_group=per_group, version=2, fence=1, now=NOW)
    )
    for domain in ("calc", "sums"):
        mine = [each for each in commands if each.domain == domain]
        assert [task for each in mine for task in each.task_indices] == list(range(tasks))
        assert [chunk_of(each.group_id) for each in mine] == list(range(len(mine)))
    assert len({each.group_id for each in commands}) == len(commands)
    assert all(violations(each) == [] for each in commands[:1])


@given(st.lists(st.text(max_size=5), min_size=1, max_size=3))
def test_seeds_survive_json(parts):
    assert 0 <= seed_of(*parts) < 2**53
