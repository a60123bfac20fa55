"""The books balance whatever the trainer's records say, in whatever order they come."""

from hypothesis import given, settings
from hypothesis import strategies as st

from temper.api.common.v1.common_pb2 import IndexRange
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.scheduler.ledger import GroupLedger, IndexSet

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=20)


def published(count):
    ledger = GroupLedger()
    for index in range(count):
        ledger.publish(GroupCommand(job_id="j", group_id=f"j-{index}", index=index))
    return ledger


@given(RANGES)
def test_index_set_is_a_set(ranges):
    indexes, expected = IndexSet(), set()
    for first, length in ranges:
        indexes.add(first, first + length - 1)
        expected |= set(range(first, first + length))
    assert {index for low, high in indexes for index in range(low, high + 1)} == expected
    assert len(indexes) == len(expected)
    assert all(index in indexes for index in expected)
    assert all(
        after[0] > before[1] + 1 for before, after in zip(list(indexes), list(indexes)[1:], strict=False)
    )


@given(st.integers(0, 30), RANGES)
@settings(max_examples=200)
def test_settling_in_any_order_keeps_the_balance(count, ranges):
    ledger, expected = published(count), set()
    for first, length in ranges:
        news = set(range(first, min(first + length, count))) - expected
        assert ledger.settle([IndexRange(first=first, last=first + length - 1)] if length else []) == len(
            news
        )
        expected |= news
        ledger.check()
    assert ledger.in_flight == count - len(expected)


@given(st.integers(0, 30), RANGES, st.sets(st.integers(0, 40)))
def test_save_and_load_lose_nothing(count, ranges, returned):
    ledger = published(count)
    ledger.settle(IndexRange(first=a, last=a + n) for a, n in ranges)
    for index in returned:
        ledger.returned(index)
    again = GroupLedger()
    again.load(*ledger.save())
    again.check()
    assert again.save() == ledger.save()
    assert again.outstanding() == ledger.outstanding()


def test_a_record_is_noted_once_and_not_after_settlement():
    ledger = published(3)
    assert ledger.returned(1)
    assert not ledger.returned(1)
    ledger.settle([IndexRange(first=0, last=1)])
    assert not ledger.returned(0)
    assert [command.index for command in ledger.outstanding()] == [2]
    assert ledger.waiting_for_trainer() == 0


def test_what_was_never_published_cannot_be_settled():
    ledger = published(3)
    ledger.settle([IndexRange(first=0, last=10)])
    assert ledger.in_flight == 0
    ledger.publish(GroupCommand(index=3))
    ledger.check()
    assert ledger.in_flight == 1
