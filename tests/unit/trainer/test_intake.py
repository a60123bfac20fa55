import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.trainer.world import JOB

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable, SampleSummary, SampleTokens
from temper.runtime.errors import Rejected
from temper.runtime.log.base import LogRecord, Token
from temper.trainer import intake
from temper.trainer.state import Drop


def tokens(**more):
    fields: dict[str, Any] = {
        "token_ids": [257, 258, 50, 262],
        "mask": bytes([0, 0, 1, 1]),
        "logprob_raw": [0.0, 0.0, -0.5, -0.1],
        "versions": [common.VersionSpan(start=0, end=4, version=3)],
    }
    return SampleTokens(**(fields | more))


def summary(*, reward: float | None = 1.0, sample_class: Any = common.SAMPLE_CLASS_SCORED, task=0):
    made = SampleSummary(task_index=task, sample_class=sample_class, action_tokens=2, min_version=3)
    if reward is not None:
        made.reward = reward
    return made


def group(summaries, **more):
    made = GroupRecord(
        job_id=JOB, group_id="j-0", purpose=common.PURPOSE_TRAIN, domain="calc", samples=summaries, **more
    )
    made.table.CopyFrom(common.BlobRef(key="k", sha256="0" * 64, size=1))
    return made


def table(rows, group_id="j-0"):
    return GroupTable(group_id=group_id, samples=rows).SerializeToString()


def read(summaries, rows, *, needs_reward=True):
    return intake.samples(group(summaries), table(rows), first_group=5, needs_reward=needs_reward)


def record(message):
    return LogRecord(
        "trajectories", JOB, Token("7"), "j-0", message.DESCRIPTOR.full_name, message.SerializeToString(), 0.0
    )


def test_a_sample_carries_its_arrays_and_its_reward():
    (sample,) = read([summary()], [tokens()])
    assert sample.valid
    assert sample.reward == 1.0
    assert sample.ids.tolist() == [257, 258, 50, 262]
    assert sample.mask.tolist() == [False, False, True, True]
    np.testing.assert_allclose(sample.logprobs, [0, 0, -0.5, -0.1])
    assert sample.actions == 2


@pytest.mark.parametrize("name", ["INFRA_FAILED", "STALE", "REVOKED", "INVALID_TOKENS"])
def test_classes_that_may_not_be_trained_on_are_masked_by_name(name):
    (sample,) = read([summary(sample_class=common.SampleClass.Value(f"SAMPLE_CLASS_{name}"))], [tokens()])
    assert (sample.valid, sample.reason, sample.actions) == (False, name, 0)


def test_an_agent_that_failed_is_scored_like_any_other():
    (sample,) = read([summary(sample_class=common.SAMPLE_CLASS_AGENT_FAILED, reward=0.0)], [tokens()])
    assert sample.valid


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_an_absent_or_non_finite_reward_is_never_zero(reward):
    (sample,) = read([summary(reward=reward)], [tokens()])
    assert (sample.valid, sample.reason) == (False, intake.NO_REWARD)
    assert sample.reward != 0.0


def test_demonstrations_need_no_reward():
    (sample,) = read([summary(reward=None)], [tokens(logprob_raw=[])], needs_reward=False)
    assert sample.valid


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"mask": bytes([0, 1])}, "lengths"),
        ({"mask": bytes([0, 0, 0, 0])}, "mask"),
        ({"mask": bytes([1, 0, 0, 0])}, "mask"),
        ({"logprob_raw": [0.0]}, "lengths"),
        ({"logprob_processed": [0.0] * 3}, "lengths"),
        ({"log_surviving_mass": [0.0] * 5}, "lengths"),
        ({"logprob_raw": [0.0, 0.0, math.nan, 0.0]}, "logprobs"),
        ({"logprob_raw": [0.0, 0.0, -math.inf, 0.0]}, "logprobs"),
        ({"logprob_processed": [0.0, 0.0, 0.0, math.nan]}, "logprobs"),
        ({"versions": [common.VersionSpan(start=0, end=3, version=1)]}, "spans"),
        ({"versions": [common.VersionSpan(start=1, end=4, version=1)]}, "spans"),
        ({"weight_versions": [common.VersionSpan(start=0, end=4, version=1)]}, "spans"),
        ({"prefill_weight_versions": [common.VersionSpan(start=0, end=1, version=1)]}, "spans"),
        ({"kv_origin_versions": [common.VersionSpan(start=1, end=2, version=1)]}, "spans"),
        ({"token_ids": [], "mask": b"", "logprob_raw": [], "versions": []}, "lengths"),
        ({"for_training": False}, "not_for_training"),
    ],
)
def test_arrays_that_break_the_contract_are_masked_with_the_reason(broken, why):
    (sample,) = read([summary()], [tokens(**broken)])
    assert (sample.valid, sample.reason) == (False, f"{intake.INVALID_TOKENS}/{why}")


def test_a_sample_that_says_it_is_for_training_is_trained_on():
    (sample,) = read([summary()], [tokens(for_training=True)])
    assert sample.valid


@given(cuts=st.lists(st.integers(1, 9), unique=True))
def test_spans_that_cover_everything_are_contiguous(cuts):
    edges = [0, *sorted(cuts), 10]
    spans = list(itertools.pairwise(edges))
    assert intake.contiguous(spans, 10)
    assert not intake.contiguous(spans, 11)
    assert not intake.contiguous([*spans, (9, 10)], 10)


def test_samples_of_different_tasks_are_different_groups():
    found = read([summary(task=4), summary(task=9), summary(task=4)], [tokens()] * 3)
    assert [sample.group for sample in found] == [5, 6, 5]


@pytest.mark.parametrize("data", [b"\xff\xff\xff", table([tokens()], "j-1"), table([tokens(), tokens()])])
def test_a_table_that_is_not_the_records_is_refused(data):
    with pytest.raises(Rejected):
        intake.samples(group([summary()]), data, first_group=0, needs_reward=True)


def test_the_oldest_action_token_decides_a_groups_version():
    young, old, silent = summary(), summary(), summary()
    young.min_version, old.min_version, silent.min_version, silent.action_tokens = 7, 4, 0, 0
    arrival, _ = intake.arrival(record(group([young, old, silent])))
    assert arrival.min_version == 4


def test_a_group_without_a_usable_sample_is_invalid_before_its_bytes_are_fetched():
    arrival, _ = intake.arrival(record(group([summary(sample_class=common.SAMPLE_CLASS_INFRA_FAILED)])))
    assert arrival.dropped is Drop.INVALID


def test_a_group_with_a_sample_that_was_given_up_as_too_old_is_stale():
    given_up = summary(sample_class=common.SAMPLE_CLASS_STALE, reward=None)
    arrival, _ = intake.arrival(record(group([summary(), given_up])))
    assert arrival.dropped is Drop.STALE


@pytest.mark.parametrize("reason", [each.name for each in common.DropReason.DESCRIPTOR.values[1:]])
def test_every_drop_reason_of_the_contract_is_understood(reason):
    arrival, _ = intake.arrival(record(group([], drop_reason=common.DropReason.Value(reason))))
    assert arrival.dropped is not None
    assert arrival.dropped.value == reason


def test_evaluation_is_not_trained_on():
    message = group([summary()])
    message.purpose = common.PURPOSE_EVAL
    assert intake.arrival(record(message))[0].index is None
