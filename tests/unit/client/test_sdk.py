import pytest
from tests.unit.client.fakes import FakePlatform, job, table, training

from temper.api.job.v1 import platform_pb2
from temper.client.sdk import Client, Target, connect, connect_async
from temper.client.sdk.target import parse_endpoints
from temper.client.sdk.types import Evaluation, Job, Progress, StateChange
from temper.runtime.errors import Conflict, Exhausted, Rejected, Unavailable


@pytest.fixture
def client(fake):
    with Client(fake.target) as made:
        yield made


def test_a_job_comes_back_frozen_and_without_protobuf(client, world):
    world.jobs["job-1"] = job()
    found = client.jobs.get("job-1")
    assert (found.name, found.state, found.created_at) == ("trial", "running", 1_700_000_000.0)
    assert found.spec["phases"][0]["steps"] == "3"
    with pytest.raises(AttributeError):
        found.state = "failed"


def test_pages_are_joined(client, world):
    world.jobs = {f"job-{n}": job(f"job-{n}") for n in range(5)}
    assert [each.id for each in client.jobs.list()] == [f"job-{n}" for n in range(5)]
    assert client.jobs.list(states=("failed",)) == []


@pytest.mark.parametrize("kind", [Rejected, Conflict, Exhausted, Unavailable])
def test_an_error_of_the_server_keeps_class_field_and_hint(client, world, kind):
    world.refusal = kind("too much", field="spec.phases[0].steps", hint="less")
    with pytest.raises(kind) as caught:
        client.jobs.create(job().spec, request_id="r")
    assert (caught.value.message, caught.value.field, caught.value.hint) == (
        "too much",
        "spec.phases[0].steps",
        "less",
    )


def test_the_same_request_gives_the_same_job(client):
    first = client.jobs.create(job().spec, request_id="once")
    assert client.jobs.create(job().spec, request_id="once").id == first.id


def test_a_wrong_token_is_refused_with_a_hint(fake, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text("other")
    with Client(Target(fake.target.endpoints, wrong)) as client, pytest.raises(Rejected) as caught:
        client.jobs.list()
    assert "token" in str(caught.value.hint)


def test_a_service_that_is_not_there_is_unavailable_with_a_way_out(free_port):
    target = Target({"scheduler": f"127.0.0.1:{free_port}"})
    with Client(target) as client, pytest.raises(Unavailable, match="does not answer") as caught:
        client.jobs.list()
    assert "temper up" in str(caught.value.hint)


def test_an_address_that_was_not_given_is_named():
    with pytest.raises(Rejected, match="qa"):
        Target({"scheduler": "a:1"}).endpoint("qa")


def test_a_watch_begins_with_a_snapshot_and_ends_with_the_job(client, world):
    world.jobs["job-1"] = job()
    world.script = training()
    kinds = [type(update.payload) for update in client.jobs.watch("job-1")]
    assert kinds == [Job, Evaluation, Progress, Progress, Progress, Evaluation, StateChange]


def test_a_watch_that_breaks_goes_on_where_it_stopped(client, world):
    world.jobs["job-1"] = job()
    world.script = training()
    world.cuts = [3]
    updates = list(client.jobs.watch("job-1"))
    assert world.cursors[-1] == "2"
    assert [update.cursor for update in updates] == ["0", "1", "2", "3", "4", "5", "6"]


def test_a_watch_of_an_unknown_job_is_an_error_not_a_wait(client, world):
    with pytest.raises(Unavailable):
        list(client.jobs.watch("nothing", patience_s=0))


def test_bytes_survive_upload_and_download(client, tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "blob").write_bytes(content)
    ref = client.artifacts.upload(tmp_path / "blob")
    assert ref == client.artifacts.upload_bytes("blob", content)
    assert client.artifacts.download(ref) == content


def test_bytes_that_are_not_what_they_should_be_are_refused(client, world):
    ref = client.artifacts.upload_bytes("a", b"a")
    world.blobs[ref.sha256] = b"b"
    with pytest.raises(Unavailable, match="checksum"):
        client.artifacts.download(ref)


def test_whole_numbers_of_a_query_are_whole(client, world):
    world.tables["steps"] = table({"n": "UInt64", "share": "Float64", "name": "String"}, [3, 0.5, "a"])
    found = client.query.sql("SELECT * FROM steps", parameters={"job": "x"}, max_rows=5, fresh=True)
    assert found.records() == [{"n": 3, "share": 0.5, "name": "a"}]
    assert isinstance(found.rows[0][0], int)
    asked = world.queries[0]
    assert (dict(asked.parameters), asked.max_rows, asked.fresh) == ({"job": "x"}, 5, True)


def test_instances_and_policies_are_listed(client, world):
    world.instances = [platform_pb2.Presence(service="rollout", instance="a", pid=7, status={"slots": "4"})]
    world.policies = [platform_pb2.Policy(job_id="job-1", version=3, state="running")]
    assert client.platform.services("rollout")[0].status == {"slots": "4"}
    assert client.platform.services("qa") == []
    assert client.platform.policies()[0].manifest is None


async def test_the_asyncio_client_offers_the_same(fake: FakePlatform):
    fake.world.jobs["job-1"] = job()
    fake.world.script = training()
    fake.world.cuts = [2]
    async with connect_async(endpoints=fake.target.endpoints, token_file=fake.token_file) as client:
        updates = [update async for update in client.jobs.watch("job-1")]
        ref = await client.artifacts.upload_bytes("a", b"abc")
        assert await client.artifacts.download(ref) == b"abc"
        assert (await client.jobs.get("job-1")).state == "succeeded"
    assert isinstance(updates[-1].payload, StateChange)


def test_both_clients_have_the_same_methods():
    from temper.client.sdk import aio, sync

    for name in ("Jobs", "Platform", "Environments", "Queries", "Artifacts"):
        blocking, asynchronous = getattr(sync, name), getattr(aio, f"Async{name}")
        public = [each for each in vars(blocking) if not each.startswith("_")]
        assert public == [each for each in vars(asynchronous) if not each.startswith("_")]


def test_connect_wants_exactly_one_place(tmp_path):
    with pytest.raises(Rejected, match="either"):
        connect()
    with pytest.raises(Unavailable, match="no platform runs in"):
        connect(data_dir=tmp_path)


def test_endpoints_are_read_from_text():
    assert parse_endpoints(["a:1"]) == dict.fromkeys(("scheduler", "qa", "telemetry"), "a:1")
    assert parse_endpoints(["a:1", "qa=b:2"])["qa"] == "b:2"
    with pytest.raises(Rejected, match="rollout"):
        parse_endpoints(["rollout=a:1"])
    with pytest.raises(Rejected, match="host:port"):
        parse_endpoints(["a"])
