"""A sample that a worker could not finish goes on elsewhere, or begins anew; what was generated once is not generated again."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rollout.test_episode import TOOLS, ScriptedSession
from tests.unit.rollout.test_episode import Script as Sandbox
from tests.unit.rollout.world import JOB, byte_codec, group

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import SampleSummary, SampleTokens
from temper.rollout.engine.base import Completion, FinishReason, Request, Sampling, Span, Stats
from temper.rollout.episode import Episode, Rules
from temper.rollout.partials import Journal, Partials
from temper.rollout.players import Draw, PolicyPlayer, ResumingPlayer
from temper.rollout.trajectory import Trajectory
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Unavailable
from temper.runtime.testing import eventually

CODEC = byte_codec()
COMMAND = group(0)


@dataclass
class Engine:
    """Says prepared turns, as many as it was asked for; dies before the turn ``dies_at``."""

    turns: list[list[int]]
    version: int = 1
    dies_at: int | None = None
    said: int = 0
    requests: list[Request] = field(default_factory=list)

    def submit(self, request: Request) -> asyncio.Future[Completion]:
        if self.said == self.dies_at:
            raise Unavailable("the engine died")
        tokens, self.said = tuple(self.turns[self.said]), self.said + 1
        self.requests.append(request)
        size = len(tokens)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        future.set_result(
            Completion(
                request_id=request.request_id,
                tokens=tokens,
                logprobs_raw=tuple(-0.5 * self.said for _ in tokens),
                logprobs=(-0.25,) * size,
                log_surviving_mass=(0.0,) * size,
                weight_versions=(Span(0, size, self.version),),
                prefill_versions=(Span(0, len(request.tokens), self.version),),
                finish=FinishReason.STOP,
                cached_tokens=0,
                kv_origin_versions=(Span(0, size, self.version),),
                stopped_by=tokens[-1],
                attempt=request.attempt,
            )
        )
        return future

    def release(self, request_id: str) -> None:
        pass

    def stats(self) -> Stats:
        return Stats(self.version, 0, 0, 0, 1, 0, 0, 0, 0, 0.0)


@dataclass
class Bound:
    """Everything below a version is too old, from the moment the event says so."""

    below: int
    came: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    def too_old(self, version: int) -> bool:
        self.asked += 1
        return version < self.below

    async def news(self) -> None:
        await self.came.wait()


@dataclass
class Seat:
    """One delivery of one sample."""

    engine: Engine
    sandbox: Sandbox
    journal: Journal
    attempt: int = 1
    age: "Bound | None" = None
    deadline: float = math.inf

    def player(self, attempt: int) -> PolicyPlayer | ResumingPlayer:
        draw = Draw(Sampling(64, stop_token_ids=CODEC.stops), 5, 0, math.inf, attempt=self.attempt)
        acting = PolicyPlayer(self.engine, f"d{self.attempt}.{attempt}", draw, self.journal, self.age)  # type: ignore[arg-type]  # the two methods a player uses
        recorded = self.journal.recorded
        return acting if recorded is None or attempt else ResumingPlayer(recorded, acting)

    def session(self, attempt: int) -> ScriptedSession:
        return ScriptedSession(self.sandbox)

    async def play(self) -> tuple[Trajectory, SampleSummary]:
        limits = COMMAND.limits
        rules = Rules(CODEC, TOOLS, limits, max_tokens_per_turn=64, floor=0.0)
        return await Episode(rules, self, "2+2=", FakeClock()).run()


CALL, ANSWER = CODEC.call("2+2"), CODEC.answer("4")
TURNS = [CALL, CALL, ANSWER]
SEEN = ["4", "5"]


@pytest.fixture
def partials(tmp_path) -> Partials:
    return Partials(BlobStore(f"file://{tmp_path}/objects"), flush_tokens=1)


def journal(partials: Partials, recorded: SampleTokens | None = None) -> Journal:
    return Journal(partials, COMMAND, (0, 0), 7, recorded)


async def left_by_a_death(partials: Partials, at: int = 1) -> SampleTokens | None:
    """What the first delivery stored before its engine died at turn ``at``."""
    seat = Seat(Engine(TURNS, dies_at=at), Sandbox([], list(SEEN)), journal(partials))
    with pytest.raises(Unavailable):
        await seat.play()
    return (await partials.read(COMMAND)).get((0, 0))


async def uninterrupted(partials: Partials) -> SampleTokens:
    made, _ = await Seat(Engine(TURNS), Sandbox([], list(SEEN)), journal(partials)).play()
    return made.table_row(7, 0)


@pytest.mark.parametrize("died_at", [1, 2])
async def test_a_redelivered_sample_goes_on_from_its_last_whole_turn(partials: Partials, died_at: int):
    recorded = await left_by_a_death(partials, died_at)
    engine = Engine(TURNS, said=died_at, version=2)
    sandbox = Sandbox([], list(SEEN))
    made, summary = await Seat(engine, sandbox, journal(partials, recorded), attempt=2).play()
    row = made.table_row(7, 0)
    whole = await uninterrupted(partials)
    assert row.token_ids == whole.token_ids
    assert row.logprob_raw == whole.logprob_raw
    assert summary.sample_class == common.SAMPLE_CLASS_SCORED
    assert summary.resumed_tokens == sum(map(len, TURNS[:died_at]))
    assert (summary.min_version, summary.max_version) == (1, 2)
    assert [turn.attempt for turn in row.turns] == [1] * died_at + [2] * (3 - died_at)
    assert [line for line in sandbox.log if line.startswith("step")] == [
        f'step {n} {{"code":"2+2"}}' for n in (0, 1)
    ]
    assert made.problem() is None


async def test_the_first_turn_after_a_resumption_brings_the_whole_context(partials: Partials):
    recorded = await left_by_a_death(partials)
    engine = Engine(TURNS, said=1)
    made, _ = await Seat(engine, Sandbox([], list(SEEN)), journal(partials, recorded)).play()
    first, second = engine.requests
    assert first.continues is None
    assert list(first.tokens) == made.tokens[: len(first.tokens)]
    assert (second.continues, list(second.tokens)) == (first.request_id, CODEC.observation("5"))


async def test_a_world_that_answers_otherwise_begins_the_sample_anew(partials: Partials):
    recorded = await left_by_a_death(partials, 2)
    sandbox = Sandbox([], ["now 9", *SEEN])
    made, summary = await Seat(Engine(TURNS), sandbox, journal(partials, recorded)).play()
    assert made.tokens == list((await uninterrupted(partials)).token_ids)
    assert (summary.resumed_tokens, summary.restarts) == (0, 1)
    assert "abandon" in sandbox.log


async def test_another_prompt_begins_the_sample_anew(partials: Partials):
    recorded = await left_by_a_death(partials)
    assert recorded is not None
    recorded.token_ids[2] += 1
    _, summary = await Seat(Engine(TURNS), Sandbox([], list(SEEN)), journal(partials, recorded)).play()
    assert (summary.sample_class, summary.resumed_tokens) == (common.SAMPLE_CLASS_SCORED, 0)


async def test_a_sample_that_becomes_too_old_is_stopped_at_the_edge_of_a_turn(partials: Partials):
    engine = Engine(TURNS)

    class AfterTheFirstTurn(Bound):
        def too_old(self, version: int) -> bool:
            return engine.said > 0

    made, summary = await Seat(
        engine, Sandbox([], list(SEEN)), journal(partials), age=AfterTheFirstTurn(0)
    ).play()
    assert summary.sample_class == common.SAMPLE_CLASS_STALE
    assert not summary.HasField("reward")
    assert (engine.said, made.turns) == (1, 1)


async def test_a_turn_is_given_up_as_soon_as_it_is_too_old(partials: Partials):
    class Slow(Engine):
        turn: asyncio.Future[Completion] | None = None

        def submit(self, request: Request) -> asyncio.Future[Completion]:
            self.done = super().submit(request).result()
            self.turn = asyncio.get_running_loop().create_future()
            return self.turn

        def cancel(self, request_id: str) -> None:
            assert self.turn is not None
            self.turn.set_result(replace(self.done, finish=FinishReason.ABORT, stopped_by=None))

    age, engine = Bound(0), Slow(TURNS)
    playing = asyncio.create_task(Seat(engine, Sandbox([]), journal(partials), age=age).play())
    await eventually(lambda: engine.turn is not None)
    age.came.set()  # news, but the version is young enough
    await asyncio.sleep(0)
    assert not playing.done()
    age.below = 2
    made, summary = await playing
    assert (summary.sample_class, summary.finish_reason) == (
        common.SAMPLE_CLASS_STALE,
        common.FINISH_REASON_ABORT,
    )
    assert [span.version for span in made.table_row(0, 0).weight_versions] == [1]
    assert not await partials.read(COMMAND)


async def test_nothing_is_written_before_enough_was_generated(partials: Partials):
    partials.flush_tokens = len(CALL) + 1
    assert await left_by_a_death(partials, 1) is None
    recorded = await left_by_a_death(partials, 2)
    assert recorded is not None
    assert len(recorded.turns) == 2
    partials.flush_tokens = 0
    await partials.clear(COMMAND, attempt=2)
    assert await left_by_a_death(partials, 2) is None


async def test_a_group_that_has_its_record_and_a_job_that_is_over_leave_nothing(partials: Partials, tmp_path):
    other = replace(journal(partials), command=group(1))
    sample = Trajectory()
    sample.add_demonstration([1], [2, 3], 0)
    await journal(partials).turn_ended(sample)
    await other.turn_ended(sample)
    assert await partials.read(COMMAND)
    await partials.clear(COMMAND, attempt=1)
    assert not await partials.read(COMMAND)
    assert await partials.read(group(1))
    await partials.clear_job(JOB)
    assert not list(tmp_path.rglob("*.binpb"))


async def test_what_cannot_be_read_is_as_good_as_absent(partials: Partials, tmp_path):
    await left_by_a_death(partials)
    (path,) = tmp_path.rglob("*.binpb")
    path.write_bytes(b"\xff\xff")
    assert not await partials.read(COMMAND)


@given(calls=st.lists(st.sampled_from(["2+2", "1+1+1"]), max_size=2), data=st.data())
@settings(max_examples=30)
def test_wherever_it_died_the_sample_is_the_one_that_never_died(
    tmp_path_factory, calls: Sequence[str], data: st.DataObject
):
    turns = [*map(CODEC.call, calls), ANSWER]
    seen = [f"{len(call)}" for call in calls]
    dies_at = data.draw(st.integers(0, len(turns) - 1))

    async def check() -> None:
        store = Partials(BlobStore(f"file://{tmp_path_factory.mktemp('objects')}"), flush_tokens=1)
        with pytest.raises(Unavailable):
            await Seat(Engine(turns, dies_at=dies_at), Sandbox([], list(seen)), journal(store)).play()
        recorded = (await store.read(COMMAND)).get((0, 0))
        engine = Engine(turns, said=dies_at)
        again, _ = await Seat(engine, Sandbox([], list(seen)), journal(store, recorded)).play()
        once, _ = await Seat(Engine(turns), Sandbox([], list(seen)), journal(store)).play()
        assert again.table_row(7, 0) == once.table_row(7, 0)
        assert engine.said - dies_at == len(turns) - dies_at

    asyncio.run(check())
