"""Three places for snapshots: which one is taken up after a crash, and that no one of them holds up another or the job."""

import asyncio

import pytest
from pydantic import ValidationError
from tests.unit.trainer.test_stores import anything, snapshot
from tests.unit.trainer.world import JOB

from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.trainer.config import SnapshotsConfig
from temper.trainer.keeper import Keeper
from temper.trainer.levels import Level, clear, levels, newest
from temper.trainer.snapshot import Snapshots


@pytest.fixture
def store(tmp_path):
    return BlobStore((tmp_path / "objects").as_uri())


@pytest.fixture
def places(tmp_path, store):
    settings = SnapshotsConfig(
        memory_dir=str(tmp_path / "memory"), disk_dir=str(tmp_path / "disk"), disk_every=3
    )
    made, problems = levels(store, JOB, settings)
    assert not problems
    return made


def part(tmp_path, level, step, name):
    (found,) = (tmp_path / level / "snapshots" / JOB / f"{step:010d}").glob(f"*{name}")
    return found


async def test_the_newest_of_all_levels_is_taken_up_and_of_equals_the_nearest(places):
    memory, disk, store = places
    await store.snapshots.save(snapshot(5))
    await disk.snapshots.save(snapshot(6))
    assert (await newest(places, anything)).level == "disk"
    await memory.snapshots.save(snapshot(6))
    found = await newest(places, anything)
    assert (found.level, found.snapshot, found.problems) == ("memory", snapshot(6), [])
    await store.snapshots.save(snapshot(7))
    assert (await newest(places, anything)).level == "object storage"


async def test_what_is_truncated_or_altered_is_named_and_the_next_older_is_taken_up(places, tmp_path):
    memory, disk, store = places
    for level, step in ((store, 1), (disk, 3), (memory, 4), (memory, 5)):
        await level.snapshots.save(snapshot(step))
    weights = part(tmp_path, "memory", 5, "weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    state = part(tmp_path, "memory", 4, "state.json")
    state.write_bytes(state.read_bytes().replace(b"9", b"8"))
    part(tmp_path, "disk", 3, "optimizer.safetensors").unlink()
    found = await newest(places, anything)
    assert (found.level, found.snapshot) == ("object storage", snapshot(1))
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "snapshot of step 5 (memory)",
        "snapshot of step 4 (memory)",
        "snapshot of step 3 (disk)",
    ]


async def test_one_that_the_engine_refuses_is_passed_over_as_well(places):
    memory, disk, _ = places
    await disk.snapshots.save(snapshot(3))
    await memory.snapshots.save(snapshot(4))

    async def accept(offered):
        if offered.step == 4:
            raise Rejected("weights do not fit config.json", field="weights")

    found = await newest(places, accept)
    assert found.snapshot == snapshot(3)
    assert "do not fit" in found.problems[0]


async def test_a_near_level_that_does_not_answer_is_passed_over_and_the_store_is_not(places, monkeypatch):
    memory, _, store = places

    async def away():
        raise Unavailable("it is away")

    await store.snapshots.save(snapshot(2))
    monkeypatch.setattr(memory.snapshots, "steps", away)
    found = await newest(places, anything)
    assert found.snapshot == snapshot(2)
    assert found.problems == ["memory: it is away"]
    monkeypatch.setattr(store.snapshots, "steps", away)
    with pytest.raises(Unavailable):
        await newest(places, anything)


async def test_a_directory_that_cannot_be_made_is_named_and_left_out(tmp_path, store):
    (tmp_path / "file").write_text("")
    made, problems = levels(store, JOB, SnapshotsConfig(memory_dir=str(tmp_path / "file/memory")))
    assert [level.name for level in made] == ["object storage"]
    assert "snapshots.memory_dir" in problems[0]


async def test_a_step_that_is_saved_again_cannot_tear_the_one_that_is_there(store, monkeypatch):
    kept = Snapshots(store, JOB)
    await kept.save(snapshot(2))
    put = store.put

    async def dying(key, data):
        if key.endswith("manifest.json"):
            raise Unavailable("killed here")
        return await put(key, data)

    monkeypatch.setattr(store, "put", dying)
    with pytest.raises(Unavailable):
        await kept.save(snapshot(2, data=b"not the same bytes"))
    assert await kept.load(2) == snapshot(2)


async def test_what_a_killed_writer_left_behind_goes_with_the_snapshots_that_are_forgotten(store, tmp_path):
    kept = Snapshots(store, JOB)
    await store.put(f"snapshots/{JOB}/0000000002/dead.weights.safetensors", b"half")
    for step in (1, 3, 4, 5):
        await kept.save(snapshot(step))
    assert await kept.steps() == [5, 4]
    folders = [path.name for path in (tmp_path / "objects/snapshots" / JOB).iterdir() if list(path.iterdir())]
    assert sorted(folders) == ["0000000004", "0000000005"]


async def test_another_format_is_refused_by_name(store):
    await store.put(f"snapshots/{JOB}/0000000002/manifest.json", b'{"format": 1, "step": 2, "parts": {}}')
    with pytest.raises(Rejected, match="format 1, this trainer reads format 2"):
        await Snapshots(store, JOB).load(2)
    await store.put(f"snapshots/{JOB}/0000000003/manifest.json", b'{"format": 2, "step": 2, "parts": {}}')
    with pytest.raises(Rejected, match="that of step 2"):
        await Snapshots(store, JOB).load(3)


class Place(Snapshots):
    """One that waits, or fails, when it is told to."""

    def __init__(self):
        self.saved, self.trouble, self.open = [], None, asyncio.Event()
        self.open.set()

    async def save(self, snapshot):
        await self.open.wait()
        if self.trouble:
            raise self.trouble
        self.saved.append(snapshot.step)


async def run(keeper, steps, every=4):
    for step in steps:
        if keeper.after_step(every):
            keeper.keep(snapshot(step), every)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
def shelves():
    memory, disk, store = Place(), Place(), Place()
    made = [Level("memory", memory, 1), Level("disk", disk, 2), Level("object storage", store)]
    return made, memory, disk, store


async def silent(key, message):
    raise AssertionError(message)


async def test_each_level_has_its_own_pace(world, shelves):
    made, memory, disk, store = shelves
    await run(Keeper(made, world.metrics, silent), range(1, 9))
    assert memory.saved == [1, 2, 3, 4, 5, 6, 7, 8]
    assert disk.saved == [2, 4, 6, 8]
    assert store.saved == [4, 8]


async def test_a_slow_store_holds_up_neither_the_job_nor_the_other_levels(world, shelves):
    made, memory, _, store = shelves
    store.open.clear()
    keeper = Keeper(made, world.metrics, silent)
    await run(keeper, range(1, 11))
    assert memory.saved == list(range(1, 11))
    assert store.saved == []
    store.open.set()
    await keeper.idle()
    assert store.saved == [4]
    await run(keeper, [11])
    assert store.saved == [4, 11]  # it is late: at once


async def test_what_cannot_be_written_is_told_and_counted_and_the_rest_goes_on(world, shelves):
    made, memory, disk, _ = shelves
    told = []

    async def alarm(key, message):
        told.append((key, message))

    disk.trouble = Exhausted("object storage is full")
    keeper = Keeper(made, world.metrics, alarm)
    await run(keeper, range(1, 5))
    assert memory.saved == [1, 2, 3, 4]
    assert [key for key, _ in told] == ["disk/Exhausted"] * 2
    assert "step 2 (disk) not written" in told[0][1]
    count = world.registry.get_sample_value
    assert count("temper_trainer_snapshots_total", {"level": "disk", "outcome": "failed"}) == 2
    assert count("temper_trainer_snapshots_total", {"level": "memory", "outcome": "saved"}) == 4


async def test_settling_writes_what_is_behind_once(world, shelves):
    made, memory, disk, store = shelves
    keeper = Keeper(made, world.metrics, silent)
    await run(keeper, range(1, 4))

    async def cut():
        return snapshot(3)

    await keeper.settle(cut)
    await keeper.settle(cut)
    assert (memory.saved, disk.saved, store.saved) == ([1, 2, 3], [2, 3], [3])


async def test_all_levels_are_cleared_when_the_job_is_over(places):
    for level in places:
        await level.snapshots.save(snapshot(1))
    await clear(places)
    assert (await newest(places, anything)).snapshot is None


async def test_forgotten_snapshots_leave_no_directories_and_nothing_of_others_is_touched(places, tmp_path):
    memory, disk, _ = places
    for step in range(1, 6):
        await memory.snapshots.save(snapshot(step))
        await disk.snapshots.save(snapshot(step))
    held = tmp_path / "memory" / "snapshots" / JOB
    assert sorted(each.name for each in held.iterdir()) == ["0000000004", "0000000005"]
    foreign = tmp_path / "disk" / "snapshots" / JOB / "notes"
    foreign.mkdir()
    await clear(places)
    assert not held.exists()
    assert list(foreign.parent.iterdir()) == [foreign]


async def test_a_snapshot_that_found_no_room_leaves_no_directory(store, tmp_path, monkeypatch):
    write = store.put

    async def put(key, data):
        if key.endswith("optimizer.safetensors"):
            raise Exhausted("full")
        return await write(key, data)

    monkeypatch.setattr(store, "put", put)
    with pytest.raises(Exhausted):
        await Snapshots(store, JOB).save(snapshot(1))
    assert list((tmp_path / "objects" / "snapshots" / JOB).iterdir()) == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"memory_dir": "here"}, "memory_dir must be an absolute path"),
        ({"disk_every": 7}, "disk_every has no effect without disk_dir"),
        ({"memory_keep": 3}, "memory_keep has no effect without memory_dir"),
        ({"memory_dir": "/a", "disk_dir": "/a"}, "must differ"),
        ({"memory_dir": "/a", "memory_every": 0}, "memory_every"),
    ],
)
def test_settings_that_would_do_nothing_or_harm_are_refused_by_name(given, named):
    with pytest.raises(ValidationError, match=named):
        SnapshotsConfig.model_validate(given)
