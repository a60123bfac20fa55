"""Registry and gate over the memory bus, with the real checks on the local twin."""

import asyncio
import io
import tarfile
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.qa.subjects import GOOD_CODE, GOOD_MANIFEST, double

from temper.api.common.v1 import common_pb2 as common
from temper.api.qa.v1 import qa_pb2 as qa
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, SampleSummary
from temper.qa import builtin, digest, records, state
from temper.qa.admission import Admission, Parts
from temper.qa.config import ChecksConfig, LiveConfig
from temper.qa.engine.local import LocalProbe
from temper.qa.live import Live
from temper.qa.metrics import Metrics
from temper.qa.registry import Registry
from temper.qa.service import EnvironmentService
from temper.runtime.blobs import BlobStore, content_key
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import eventually
from temper.runtime.topology import rpc

LEAKY = GOOD_CODE.replace("else 0.0", "else 0.5")


class CountingProbe(LocalProbe):
    """The twin, which counts and can be away."""

    checks = 0
    away = False

    async def backend(self):
        if self.away:
            raise Unavailable("nobody serves")
        return await super().backend()

    async def materialize(self, env, split, indices, style=""):
        if self.away:
            raise Unavailable("the host is gone")
        self.checks += split == "eval"  # asked for once per run of the checks
        await asyncio.sleep(0)
        return await super().materialize(env, split, indices, style)


@pytest.fixture
async def world(memory_platform):
    blobs = BlobStore((memory_platform.directory / "objects").as_uri())
    registry = Registry(await memory_platform.bus.kv(records.BUCKET), blobs, memory_platform.clock)
    following = asyncio.create_task(registry.follow())
    await registry.ready()

    async def load(env):
        return (await registry.asset(env.bundle)).tree

    probe = CountingProbe(load)
    metrics = Metrics(CollectorRegistry())
    config = ChecksConfig(sandbox_wait_s=0)
    parts = Parts(registry, probe, memory_platform.log, memory_platform.clock, config, metrics)
    admission = Admission(parts)
    live = Live(memory_platform.log, blobs, registry, memory_platform.clock, LiveConfig(), metrics)
    yield SimpleNamespace(
        platform=memory_platform, blobs=blobs, registry=registry, probe=probe, admission=admission, live=live
    )
    following.cancel()


async def register(world, code=GOOD_CODE, manifest=GOOD_MANIFEST, folder="asset"):
    data = digest.write_tar(double(world.platform.directory / folder, code=code, manifest=manifest))
    ref = await world.blobs.put(content_key(data, prefix="bundles"), data)
    return await world.registry.register(ref)


async def verdicts(world):
    if await world.platform.log.end("verdicts") is None:
        return []
    found = await world.platform.log.read("verdicts", timeout_s=1)
    return [record.message(qa.VerdictRecord).verdict for record in found]


async def test_a_clean_environment_is_admitted_once_and_its_report_is_kept(world):
    (draft,) = await register(world)
    assert draft.state == state.DRAFT
    first = await world.admission.resolve(records.wish("double"))
    again = await world.admission.resolve(records.wish("double@1.0.0"))
    assert first == again == draft.env
    assert world.probe.checks == 1
    assert await verdicts(world) == ["admitted"]


async def test_two_jobs_that_ask_at_once_share_one_run(world):
    await register(world)
    wish = records.wish("double")
    one, other = await asyncio.gather(world.admission.resolve(wish), world.admission.resolve(wish))
    assert one == other
    assert world.probe.checks == 1


async def test_a_failing_environment_is_refused_with_the_checks_name_every_time(world):
    await register(world, code=LEAKY)
    for _ in range(2):
        with pytest.raises(Rejected, match=r"semantic\.floor_gap: agent \w+ earns 0\.5"):
            await world.admission.resolve(records.wish("double"))
    assert world.probe.checks == 1
    assert await verdicts(world) == ["rejected"]


async def test_other_parameters_are_another_variant_with_a_verdict_of_its_own(world):
    await register(world)
    own = await world.admission.resolve(records.wish("double"))
    far = await world.admission.resolve(records.wish("double", '{"step":7}'))
    assert own.digest != far.digest
    assert far.params_json == '{"step":7}'
    assert world.probe.checks == 2
    assert {key for key, _ in world.registry.all()} == {
        "double.1-0-0.own",
        records.variant_key("double", "1.0.0", '{"step":7}'),
    }


async def test_the_assets_own_parameters_written_out_are_no_other_variant(world):
    await register(world)
    assert await world.admission.resolve(records.wish("double", '{"step":1}')) == (
        await world.admission.resolve(records.wish("double"))
    )


async def test_without_a_sandbox_there_is_no_verdict(world):
    await register(world)
    world.probe.away = True
    with pytest.raises(Unavailable, match="no sandbox host"):
        await world.admission.resolve(records.wish("double"))
    world.probe.away = False
    assert (await world.admission.resolve(records.wish("double"))).name == "double"


async def test_a_sandbox_that_dies_in_mid_check_leaves_a_draft(world):
    await register(world)
    key, record = await world.registry.find(records.wish("double"))

    async def backend():
        world.probe.away = True
        return "local"

    world.probe.backend = backend
    with pytest.raises(Unavailable, match="the host is gone"):
        await world.admission.check(key, record)
    _, record = await world.registry.find(records.wish("double"))
    assert record.state == state.DRAFT
    assert await verdicts(world) == []


async def test_a_version_never_changes(world):
    await register(world)
    await register(world)  # the same again is no change
    with pytest.raises(Rejected, match="raise version") as refused:
        await register(world, code=LEAKY, folder="other")
    assert refused.value.field == "version"


async def test_any_tar_of_an_asset_is_registered_in_its_normal_form(world):
    (first,) = await register(world)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(world.platform.directory / "asset", arcname=".")
    ref = await world.blobs.put("uploads/mine.tar", buffer.getvalue())
    (again,) = await world.registry.register(ref)
    assert again.env == first.env
    assert (await world.admission.resolve(records.wish("double"))).bundle == first.env.bundle


async def test_the_newest_version_is_taken_unless_one_is_named(world):
    await register(world)
    for version in ("1.2.0", "1.10.0"):
        await register(world, manifest=GOOD_MANIFEST.replace("1.0.0", version), folder=version)
    assert (await world.admission.resolve(records.wish("double"))).version == "1.10.0"
    assert (await world.admission.resolve(records.wish("double@1.2.0"))).version == "1.2.0"
    with pytest.raises(Rejected, match="no version 3"):
        await world.admission.resolve(records.wish("double@3.0.0"))


async def test_an_unknown_name_is_told_the_nearest(world):
    await register(world)
    with pytest.raises(Rejected) as refused:
        await world.admission.resolve(records.wish("duoble"))
    assert refused.value.hint == "did you mean 'double'?"


async def test_a_quarantine_withdraws_every_variant_until_it_is_lifted(world):
    await register(world)
    await world.admission.resolve(records.wish("double"))
    await world.admission.resolve(records.wish("double", '{"step":7}'))
    withdrawn = await world.admission.quarantine(records.wish("double@1.0.0"), "leaks", lift=False)
    assert [record.state for record in withdrawn] == [state.QUARANTINED] * 2
    for params in ("", '{"step":7}', '{"step":9}'):  # the last one was never used before
        with pytest.raises(Rejected, match="quarantined: leaks"):
            await world.admission.resolve(records.wish("double", params))
    await world.admission.quarantine(records.wish("double@1.0.0"), "fixed", lift=True)
    assert (await world.admission.resolve(records.wish("double"))).name == "double"
    assert (await world.admission.resolve(records.wish("double", '{"step":7}'))).name == "double"
    assert world.probe.checks == 4
    assert (await verdicts(world))[-1] == "admitted"


async def test_what_was_lifted_is_checked_again_without_being_asked_for(world):
    await register(world)
    await world.admission.resolve(records.wish("double"))
    await world.admission.quarantine(records.wish("double"), "leaks", lift=False)
    (lifted,) = await world.admission.quarantine(records.wish("double"), "fixed", lift=True)
    assert lifted.state == state.DRAFT
    bucket = await world.platform.bus.client("scheduler/1").kv("environments")

    async def admitted():
        entry = await bucket.get("double.1-0-0.own")
        return qa.EnvironmentRecord.FromString(entry.value).state == state.ADMITTED

    await eventually(admitted)
    assert world.probe.checks == 2
    await world.admission.stop()


async def test_a_watcher_sees_the_quarantine(world):
    await register(world)
    await world.admission.quarantine(records.wish("double"), "leaks", lift=False)
    bucket = await world.platform.bus.client("scheduler/1").kv("environments")
    entry = await bucket.get("double.1-0-0.own")
    assert qa.EnvironmentRecord.FromString(entry.value).state == state.QUARANTINED


async def test_a_dry_run_runs_nothing(world):
    await register(world)
    assert (await world.admission.resolve(records.wish("double"), dry_run=True)).name == "double"
    assert world.probe.checks == 0


async def test_the_bus_answers_with_the_path_of_the_wish(world):
    await register(world)
    service = EnvironmentService(world.registry, world.admission)
    await service.serve_on(world.platform.bus)
    client = world.platform.bus.client("scheduler/1")
    await client.connect()
    wishes = [qa.EnvironmentWish(name="double"), qa.EnvironmentWish(name="double", params_json='{"stp":1}')]
    reply = await client.request(
        rpc("qa", "ResolveEnvironments"),
        qa.ResolveEnvironmentsRequest(wishes=wishes[:1]),
        qa.ResolveEnvironmentsResponse,
        timeout_s=60,
    )
    assert [env.name for env in reply.envs] == ["double"]
    with pytest.raises(Rejected) as refused:
        await client.request(
            rpc("qa", "ResolveEnvironments"),
            qa.ResolveEnvironmentsRequest(wishes=wishes),
            qa.ResolveEnvironmentsResponse,
            timeout_s=60,
        )
    assert refused.value.field == "wishes[1].params_json.stp"


async def test_lists_are_paged_and_show_what_was_never_used(world):
    await builtin.register_all(world.registry, world.blobs)
    assert await builtin.register_all(world.registry, world.blobs) == 107
    service = EnvironmentService(world.registry, world.admission)
    names, token = [], ""
    while True:
        page = await service.ListEnvironments(
            qa.ListEnvironmentsRequest(prefix="rg/", page_size=50, page_token=token), None
        )
        names += [record.env.name for record in page.environments]
        token = page.next_page_token
        if not token:
            break
    assert len(names) == len(set(names)) == 106


async def test_checking_again_by_force_and_getting_a_draft(world):
    await register(world)
    service = EnvironmentService(world.registry, world.admission)
    await service.CheckEnvironment(qa.CheckEnvironmentRequest(name="double"), None)
    checked = await service.CheckEnvironment(qa.CheckEnvironmentRequest(name="double", force=True), None)
    assert checked.environment.report.passed
    assert world.probe.checks == 2
    draft = await service.GetEnvironment(
        qa.GetEnvironmentRequest(name="double", params_json='{"step":4}'), None
    )
    assert draft.environment.state == state.DRAFT
    assert len(world.registry.all()) == 1


async def test_live_rates_reach_the_record_and_survive_a_restart(world):
    await register(world)
    env = await world.admission.resolve(records.wish("double"))
    for number, solved in enumerate([True, True, False]):
        sample = SampleSummary(sample_class=common.SAMPLE_CLASS_SCORED, reward=float(solved), solved=solved)
        group = GroupRecord(
            job_id="j", group_id=f"j-{number}", purpose=common.PURPOSE_TRAIN, env=env, samples=[sample]
        )
        await world.platform.log.append("trajectories", "j", group, id=group.group_id)
    for _ in range(2):  # the second instance finds everything counted
        live = Live(
            world.platform.log,
            world.blobs,
            world.registry,
            world.platform.clock,
            LiveConfig(),
            Metrics(CollectorRegistry()),
        )
        running = asyncio.create_task(live.run())
        for _ in range(4):
            await world.platform.clock.advance(1.0)
            await asyncio.sleep(0.02)  # object storage answers from its own threads
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        _, record = await world.registry.find(records.wish("double"))
        assert (record.live.n, record.live.solved) == (3, 2)
