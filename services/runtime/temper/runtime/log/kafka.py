"""The event log on Kafka. This file is the only one that knows kafka-python, whose calls block and so run on threads.

Topic `temper.<topic>.v1`; the partition is Kafka's default hash of the key, so every client in every language agrees.
Headers carry the envelope, the value is the bare message: ClickHouse's Kafka engine reads it as it is.

A token names the last offset seen in each partition (`2:17` for one key, `0:5,2:17` for a reader of all keys), and each
record's token includes those before it in the same read. Kafka does not know ids, so an append is idempotent within
this process; readers deduplicate the rest, as the protocol says.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from google.protobuf.message import Message
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError
from kafka.partitioner.default import murmur2
from kafka.structs import TopicPartition

from temper.runtime.clock import Clock, SystemClock
from temper.runtime.envelope import Envelope, decode, encode, type_of
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.log.base import LogRecord, Token
from temper.runtime.topology import Topology, kafka_topic, load, token

T = TypeVar("T")
_Offsets = dict[int, int]  # partition -> last offset seen
_Place = tuple[str, str | None, str]  # topic, key, token

SCHEME = "kafka://"
CALL_S = 15.0  # one bounded call to the cluster
PRODUCERS = 4  # threads that may wait for acknowledgements at a time
MOST_READERS = 16  # idle readers kept open, each a connection and a thread
REMEMBERED = 100_000  # ids of appends: about 10 MB
POLL_MAX_S = 0.5  # a poll cannot be interrupted, so a long wait is made of short ones


class KafkaLog:
    """Facts at `url`: `kafka://host:port[,host:port…]`."""

    def __init__(
        self,
        url: str,
        *,
        source: str = "temper",
        clock: Clock | None = None,
        topology: Topology | None = None,
    ) -> None:
        if not url.startswith(SCHEME) or not url.removeprefix(SCHEME):
            raise Rejected(
                f"{url!r} is not the address of a Kafka cluster", field="log.url", hint="kafka://host:port"
            )
        self._servers = url.removeprefix(SCHEME).rstrip("/").split(",")
        self._source, self._clock = source, clock or SystemClock()
        self._topology = topology or load()
        self._threads = ThreadPoolExecutor(PRODUCERS, thread_name_prefix="kafka-append")
        self._producer: KafkaProducer | None = None
        self._producer_lock = Lock()
        self._known: OrderedDict[tuple[str, str], Token] = OrderedDict()
        self._idle: OrderedDict[_Place, _Reader] = OrderedDict()
        self._retired: set[asyncio.Future[None]] = set()

    async def connect(self) -> None:
        """Create the topics that are missing; Unavailable if no broker answers."""
        await _on(self._threads, self._create_topics)
        await _on(self._threads, self._open_producer)

    async def close(self) -> None:
        """Flush and disconnect."""
        while self._idle:
            self._retire(self._idle.popitem()[1])
        if self._retired:
            await asyncio.wait(self._retired)
        producer, self._producer = self._producer, None
        if producer is not None:
            await _on(self._threads, lambda: producer.close(CALL_S))
        self._threads.shutdown(wait=False)

    async def append(self, topic: str, key: str, msg: Message, *, id: str) -> Token:  # noqa: A002  # the envelope's word
        """Persist a fact on all in-sync replicas."""
        known = self._known.get((topic, id))
        if known is not None:
            return known
        envelope = Envelope(id, type_of(msg), self._source, key, self._clock.now())
        headers = [(name, value.encode()) for name, value in encode(envelope).items()]
        body, partition = msg.SerializeToString(), self._partition(topic, token(key))
        sent = await _on(self._threads, lambda: self._send(topic, key, body, headers, partition))
        place = _token({partition: sent})
        self._known[topic, id] = place
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return place

    async def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        after: Token | None = None,
        max_records: int = 100,
        timeout_s: float = 1.0,
    ) -> list[LogRecord]:
        """Records behind `after`."""
        place = (topic, key, after or "")
        reader = self._idle.pop(place, None) or self._new_reader(topic, key, after)
        try:
            records = await reader.read(max_records, self._clock.monotonic() + timeout_s, self._clock)
        except BaseException:
            self._retire(reader)
            raise
        self._keep((topic, key, records[-1].token if records else place[2]), reader)
        return records

    async def end(self, topic: str, key: str | None = None) -> Token | None:
        """Position of the last record; for a key, of the last record in its partition."""
        partitions = self._partitions(topic, key)
        return await _on(self._threads, lambda: self._end(topic, partitions))

    def _partitions(self, topic: str, key: str | None) -> list[int]:
        return (
            list(range(self._topology.topic(topic).partitions))
            if key is None
            else [self._partition(topic, token(key))]
        )

    def _partition(self, topic: str, key: str) -> int:
        return (murmur2(key.encode()) & 0x7FFFFFFF) % self._topology.topic(topic).partitions

    def _new_reader(self, topic: str, key: str | None, after: Token | None) -> _Reader:
        return _Reader(self._servers, topic, key, self._partitions(topic, key), _offsets(after))

    def _keep(self, place: _Place, reader: _Reader) -> None:
        replaced = self._idle.pop(place, None)
        self._idle[place] = reader
        if replaced is None and len(self._idle) > MOST_READERS:
            replaced = self._idle.popitem(last=False)[1]
        if replaced is not None:
            self._retire(replaced)

    def _retire(self, reader: _Reader) -> None:
        """Disconnect in the background: a poll that runs cannot be interrupted."""
        task = asyncio.ensure_future(reader.close())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    # -- on a thread ---------------------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        admin: Any = KafkaAdminClient(**_connection(self._servers))  # Any: pyright's stubs describe release 2
        try:
            present = set(admin.list_topics())
            missing = {
                kafka_topic(each.name): {
                    "num_partitions": each.partitions,
                    "replication_factor": -1,  # the cluster's default
                    "configs": {"retention.ms": str(int(each.retention_s * 1000) or -1)},
                }
                for each in self._topology.topics
                if kafka_topic(each.name) not in present
            }
            if missing:
                admin.create_topics(
                    missing, raise_errors=False
                )  # another client may be creating them as well
        finally:
            admin.close()

    def _new_producer(self) -> KafkaProducer:
        return KafkaProducer(
            **_connection(self._servers),
            acks="all",
            linger_ms=2,
            max_block_ms=int(CALL_S * 1000),
            delivery_timeout_ms=int(CALL_S * 1000),
        )

    def _send(
        self, topic: str, key: str, body: bytes, headers: list[tuple[str, bytes]], partition: int
    ) -> int:
        producer = self._open_producer()
        try:
            sent = producer.send(
                kafka_topic(topic), key=key.encode(), value=body, headers=headers, partition=partition
            )
            return int(sent.get(CALL_S).offset)
        except MessageSizeTooLargeError:
            raise
        except KafkaError:
            # After some errors (a lost sequence, a broker that forgot us) a producer never works again.
            self._drop_producer(producer)
            raise

    def _open_producer(self) -> KafkaProducer:
        with self._producer_lock:
            if self._producer is None:
                self._producer = self._new_producer()
            return self._producer

    def _drop_producer(self, producer: KafkaProducer) -> None:
        with self._producer_lock:
            if self._producer is producer:
                self._producer = None
        producer.close(timeout=0)

    def _end(self, topic: str, partitions: list[int]) -> Token | None:
        consumer = _consumer(self._servers)
        try:
            ends = consumer.end_offsets([TopicPartition(kafka_topic(topic), each) for each in partitions])
            last = {where.partition: offset - 1 for where, offset in ends.items() if offset > 0}
            return _token(last) if last else None
        finally:
            consumer.close()


class _Reader:
    """One position in one topic: a consumer without a group, on a thread of its own."""

    def __init__(
        self, servers: list[str], topic: str, key: str | None, partitions: list[int], seen: _Offsets
    ) -> None:
        self._servers, self._topic, self._key, self._partitions = servers, topic, key, partitions
        self._seen = seen
        self._buffer: deque[LogRecord] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-read")
        self._consumer: KafkaConsumer | None = None

    async def read(self, most: int, end: float, clock: Clock) -> list[LogRecord]:
        """Wait until there is something or monotonic time `end`."""
        while not self._buffer:
            left = end - clock.monotonic()
            wait_s = min(max(left, 0.0), POLL_MAX_S)
            await _on(self._thread, lambda wait_s=wait_s: self._poll(wait_s, most))
            if left <= 0:
                break
        return [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]

    async def close(self) -> None:
        """Disconnect, behind a poll that may still be running."""
        await _on(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    def _poll(self, wait_s: float, most: int) -> None:
        if self._consumer is None:
            self._consumer = self._open()
        polled: Mapping[Any, list[Any]] = self._consumer.poll(timeout_ms=int(wait_s * 1000), max_records=most)
        for batch in polled.values():
            for raw in batch:
                self._accept(raw)

    def _accept(self, raw: Any) -> None:
        self._seen[raw.partition] = raw.offset
        key = raw.key.decode() if raw.key else ""
        if self._key is not None and key != self._key:
            return
        envelope = decode({name: value.decode() for name, value in raw.headers})
        place = _token(self._seen)
        stamp = raw.timestamp / 1000
        self._buffer.append(
            LogRecord(self._topic, key, place, envelope.id, envelope.type, raw.value or b"", stamp)
        )

    def _open(self) -> KafkaConsumer:
        consumer = _consumer(self._servers)
        places = {each: TopicPartition(kafka_topic(self._topic), each) for each in self._partitions}
        consumer.assign(list(places.values()))
        for partition, place in places.items():
            if partition in self._seen:
                consumer.seek(place, self._seen[partition] + 1)
            else:
                consumer.seek_to_beginning(place)
        return consumer

    def _disconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _consumer(servers: list[str]) -> KafkaConsumer:
    return KafkaConsumer(
        **_connection(servers),
        group_id=None,  # positions live in the reader's own checkpoint
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )


def _connection(servers: list[str]) -> dict[str, Any]:
    half = int(CALL_S * 500)  # one repetition fits into the bound of a call
    return {"bootstrap_servers": servers, "request_timeout_ms": half, "bootstrap_timeout_ms": half}


async def _on(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """Run a blocking call; the vendor's errors become ours."""
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, call)
    except MessageSizeTooLargeError as error:
        raise Rejected(str(error), field="body", hint="send large payloads through object storage") from None
    except KafkaError as error:
        raise Unavailable(f"Kafka: {type(error).__name__}: {error}") from error


def _token(offsets: _Offsets) -> Token:
    return Token(",".join(f"{partition}:{offsets[partition]}" for partition in sorted(offsets)))


def _offsets(after: Token | None) -> _Offsets:
    if not after:
        return {}
    try:
        pairs = (each.split(":") for each in after.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise Rejected(f"{after!r} is not a token of this log", field="after") from None
