"""What a stored sample says of its tokens: the span rules, however turns and weight updates fall."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.api.common.v1 import common_pb2 as common
from temper.rollout.engine.base import Completion, FinishReason, Span
from temper.rollout.engine.spans import Spans
from temper.rollout.trajectory import Trajectory

VERSIONS = st.lists(st.integers(0, 3), max_size=12)


@dataclass(frozen=True)
class Turn:
    """One turn, token by token: versions of the context, of the output, and of the KV that the output read."""

    context: list[int]
    output: list[int]
    lags: list[int]
    finish: FinishReason


def spans(versions: Sequence[int]) -> tuple[Span, ...]:
    made = Spans()
    for version in versions:
        made.extend(1, version)
    return made.frozen()


def origins(turn: Turn) -> list[int]:
    return [max(0, version - lag) for version, lag in zip(turn.output, turn.lags, strict=False)]


def completion(turn: Turn, **more) -> Completion:
    size = len(turn.output)
    return Completion(
        request_id="r",
        tokens=tuple(range(100, 100 + size)),
        logprobs_raw=tuple(-0.5 - n for n in range(size)),
        logprobs=tuple(-0.25 - n for n in range(size)),
        log_surviving_mass=(-0.125,) * size,
        weight_versions=spans(turn.output),
        prefill_versions=spans(turn.context),
        finish=turn.finish,
        cached_tokens=2,
        kv_origin_versions=spans(origins(turn)),
        stopped_by=7 if turn.finish is FinishReason.STOP else None,
        **more,
    )


def play(turns: Sequence[Turn]) -> Trajectory:
    made = Trajectory()
    for turn in turns:
        made.add_turn(range(len(turn.context)), completion(turn))
    return made


@st.composite
def turn(draw: st.DrawFn) -> Turn:
    output = draw(VERSIONS)
    lags = draw(st.lists(st.integers(0, 2), min_size=len(output), max_size=len(output)))
    return Turn(draw(VERSIONS.filter(bool)), output, lags, draw(st.sampled_from(list(FinishReason))))


TURNS = st.lists(turn(), min_size=1, max_size=5)


def per_token(written: Sequence[common.VersionSpan], length: int) -> list[int]:
    """The versions token by token; checks every rule of a span list on the way."""
    edges = [span.start for span in written] + ([written[-1].end] if written else [])
    assert not written or written[0].start == 0
    assert all(span.end == edges[number + 1] for number, span in enumerate(written))
    assert all(one.version != two.version for one, two in itertools.pairwise(written))
    assert (edges[-1] if edges else 0) == length
    return [span.version for span in written for _ in range(span.start, span.end)]


@given(TURNS)
def test_spans_start_at_0_meet_differ_and_end_with_the_tokens(turns: list[Turn]):
    made = play(turns)
    row = made.table_row(0, 0)
    context = [version for each in turns for version in each.context]
    output = [version for each in turns for version in each.output]
    assert per_token(row.versions, len(row.token_ids)) == [
        version for each in turns for version in (*each.context, *each.output)
    ]
    assert per_token(row.weight_versions, made.action_tokens) == output
    assert per_token(row.prefill_weight_versions, len(context)) == context
    assert per_token(row.kv_origin_versions, made.action_tokens) == [
        v for each in turns for v in origins(each)
    ]
    assert made.version_range == (min(output, default=0), max(output, default=0))
    assert made.problem() is None


@given(TURNS)
def test_the_origin_lag_is_the_largest_distance_of_a_token_from_the_kv_it_read(turns: list[Turn]):
    distances = [new - old for each in turns for new, old in zip(each.output, origins(each), strict=True)]
    assert play(turns).kv_origin_lag == max(distances, default=0)


@given(TURNS, st.data())
def test_a_recorded_sample_that_goes_on_says_the_same_as_one_that_never_stopped(
    turns: list[Turn], data: st.DataObject
):
    cut = data.draw(st.integers(0, len(turns)))
    record = play(turns[:cut]).table_row(3, 1)
    made = Trajectory()
    for _ in range(cut):
        made.add_recorded(record)
    assert made.resumed_tokens == made.action_tokens
    for each in turns[cut:]:
        made.add_turn(range(len(each.context)), completion(each))
    assert made.table_row(3, 1) == play(turns).table_row(3, 1)


def test_an_update_without_a_new_version_does_not_split_and_two_updates_make_three_spans():
    one = play([Turn([1], [1, 1, 1], [0, 0, 0], FinishReason.STOP)]).table_row(0, 0)
    assert len(one.weight_versions) == 1
    three = play([Turn([1], [1, 2, 3], [0, 1, 2], FinishReason.STOP)]).table_row(0, 0)
    assert [(s.start, s.end, s.version) for s in three.weight_versions] == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    assert [(s.start, s.end, s.version) for s in three.kv_origin_versions] == [(0, 3, 1)]


def test_an_aborted_turn_reports_its_spans_and_its_end():
    row = play([Turn([4], [4, 5], [0, 0], FinishReason.ABORT)]).table_row(0, 0)
    assert [span.version for span in row.weight_versions] == [4, 5]
    assert row.turns[0].finish_reason == common.FINISH_REASON_ABORT
    assert not row.turns[0].HasField("stop_token")


def test_a_turn_says_where_it_is_what_stopped_it_and_what_was_not_computed():
    row = play([Turn([1, 1], [1, 1], [0, 0], FinishReason.STOP), Turn([1], [1], [0], FinishReason.LENGTH)])
    first, second = row.table_row(0, 0).turns
    assert (first.start, first.end, first.stop_token, first.cached_tokens) == (2, 4, 7, 2)
    assert (second.start, second.end, second.HasField("stop_token")) == (5, 6, False)
    assert (row.stop_token, row.cached_tokens) == (None, 4)


def test_one_turn_of_a_fast_variant_keeps_the_whole_sample_from_training():
    made = play([Turn([1], [1], [0], FinishReason.STOP)])
    made.add_turn(
        [5], completion(Turn([1], [1], [0], FinishReason.STOP), attention="sparse", for_training=False)
    )
    made.add_turn([5], completion(Turn([1], [1], [0], FinishReason.STOP)))
    row = made.table_row(0, 0)
    assert (row.attention, row.for_training) == ("sparse", False)


def test_spans_that_do_not_cover_the_tokens_are_a_problem():
    made = Trajectory()
    made.add_turn([1, 2], completion(Turn([1], [1], [0], FinishReason.STOP)))
    assert made.problem() == "version spans do not cover the tokens"


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.DEADLINE])
def test_a_turn_that_was_cut_before_it_began_leaves_no_trace(finish: FinishReason):
    made = play([Turn([1], [1], [0], FinishReason.STOP)])
    before = made.table_row(0, 0)
    made.add_turn([1, 2, 3], completion(Turn([1], [], [], finish)))
    assert made.table_row(0, 0) == before
