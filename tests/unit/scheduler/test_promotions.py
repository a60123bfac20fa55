"""Names that stand for versions: what passed, what was forced, and the way back. On a bus and a store in memory."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson
from tests.unit.scheduler.jobs import job

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1.job_pb2 import GateVerdict, JobState
from temper.api.job.v1.platform_pb2 import PromotedPolicy, PromotePolicyRequest
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, WeightManifest
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Conflict, NotFound, Rejected
from temper.scheduler.promotions import MOST, Promotions, before
from temper.scheduler.store import JobStore, is_job_key

JOB = "quickstart-7f3a"


class Desk:
    """Promotions with one job that has published versions 0 to 4, judged at 2 (pass) and 4 (fail)."""

    def __init__(self, tmp_path):
        self.clock = FakeClock()
        self.bus = MemoryBus(self.clock)
        self.blobs = BlobStore(tmp_path.as_uri())
        self.store = JobStore(self.bus)
        around: Any = SimpleNamespace(bus=self.bus, clock=self.clock, store=self.store)
        self.promotions = Promotions(around, self.blobs)

    async def fill(self):
        made = job(JobState.JOB_STATE_RUNNING, resolved=True)
        for version, verdict in ((2, "pass"), (4, "fail")):
            made.gates.append(
                GateVerdict(
                    point=f"step-{version}",
                    step=version,
                    version=version,
                    verdict=verdict,
                    message="calc fell",
                    manifest=await self.manifest(version),
                )
            )
        await self.store.create(made)
        record = PolicyRecord(job_id=JOB, version=5, manifest=await self.manifest(5))
        await (await self.bus.kv("policies")).put(JOB, record.SerializeToString())
        return self

    async def manifest(self, version, delta="") -> BlobRef:
        body = MessageToJson(WeightManifest(job_id=JOB, version=version, delta=delta)).encode()
        return await self.blobs.put(f"policies/{JOB}/{version}/manifest.json", body)

    async def promote(self, name="tutor", **more):
        return await self.promotions.promote(PromotePolicyRequest(name=name, job_id=JOB, **more))


@pytest.fixture
async def desk(tmp_path):
    return await Desk(tmp_path).fill()


async def test_the_newest_version_that_passed_is_taken(desk):
    current = (await desk.promote(reason="good")).history[-1]
    assert (current.version, current.verdict, current.point, current.forced) == (2, "pass", "step-2", False)
    assert (current.reason, current.promoted_at.seconds) == ("good", int(desk.clock.now()))
    assert [each.name for each in await desk.promotions.all()] == ["tutor"]


@pytest.mark.parametrize(("version", "says"), [(4, "fail at step-4: calc fell"), (5, "it was not judged")])
async def test_what_did_not_pass_is_refused_unless_forced_and_the_record_says_so(desk, version, says):
    with pytest.raises(Rejected, match=says):
        await desk.promote(version=version)
    forced = (await desk.promote(version=version, force=True)).history[-1]
    assert forced.forced
    assert forced.version == version


async def test_promoted_weights_are_held_by_the_job_s_trainer(desk):
    await desk.promote()
    await desk.promote(name="other")
    assert list((await desk.store.get(JOB)).promoted_versions) == [2]


async def test_weights_that_are_gone_or_a_delta_are_not_promoted(desk):
    await desk.blobs.delete(f"policies/{JOB}/2/manifest.json")
    with pytest.raises(NotFound, match="weights of version 2 are not kept"):
        await desk.promote()
    record = PolicyRecord(job_id=JOB, version=5, manifest=await desk.manifest(5, delta="xor"))
    await (await desk.bus.kv("policies")).put(JOB, record.SerializeToString())
    with pytest.raises(Rejected, match="was published as a delta"):
        await desk.promote(version=5, force=True)
    with pytest.raises(NotFound, match="nobody has noted where version 3"):
        await desk.promote(version=3, force=True)


async def test_going_back_goes_further_each_time_and_forgets_nothing(desk):
    await desk.promote()
    await desk.promote(version=4, force=True)
    await desk.promote(version=5, force=True)
    once = await desk.promotions.demote("tutor", "odd answers")
    assert (once.history[-1].version, once.history[-1].returns_to, once.history[-1].reason) == (
        4,
        1,
        "odd answers",
    )
    twice = await desk.promotions.demote("tutor", "")
    assert twice.history[-1].version == 2
    with pytest.raises(Conflict, match="nothing was promoted as 'tutor' before"):
        await desk.promotions.demote("tutor", "")
    assert [each.version for each in twice.history] == [2, 4, 5, 4, 2]
    again = await desk.promote(version=5, force=True)
    assert again.history[before(again)].version == 2, "what was current before the newest promotion"


async def test_a_name_that_stands_for_nothing_is_not_found(desk):
    with pytest.raises(NotFound, match="no policy is promoted"):
        await desk.promotions.demote("nobody", "")


async def test_a_history_is_bounded_its_newest_entries_stay_and_where_it_begins_is_no_way_back(desk):
    """The entry that the oldest one led back to has gone; the version that it returned to is still what it stands for."""
    await desk.promote(version=2)
    await desk.promote(version=4, force=True)
    await desk.promotions.demote("tutor", "to version 2")
    known = await desk.promote(version=5, force=True)
    while known.history[0].reason != "to version 2":
        await desk.promote(version=4, force=True)
        known = await desk.promotions.demote("tutor", "to version 5")
    assert len(known.history) == MOST
    assert not known.history[0].HasField("returns_to")
    assert (known.history[-1].version, known.history[-1].returns_to) == (5, 1)
    first = await desk.promotions.demote("tutor", "")
    assert first.history[-1].version == 2


def test_names_are_no_jobs():
    assert not is_job_key("promoted.tutor")


def test_the_way_back_is_a_place_in_the_history():
    known = PromotedPolicy(name="x")
    for version, back in ((1, None), (2, None), (1, 0), (3, None)):
        entry = known.history.add(version=version)
        if back is not None:
            entry.returns_to = back
    assert known.history[before(known)].version == 1
