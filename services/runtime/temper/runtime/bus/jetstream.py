"""JetStream over a `Link`: its JSON API, persisted publishes, and what the rest of the bus asks of streams.

The vendor's own JetStream client is not used: its pull loop waits for whole batches, its ordered consumer does not
survive every restart of the server, and the API is a dozen documented JSON requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from temper.runtime.bus.link import Link
from temper.runtime.errors import Conflict, Exhausted, Rejected, TemperError, Unavailable
from temper.runtime.topology import Bucket, Consumer, Stream

T = TypeVar("T")

API = "$JS.API"
MSG_ID = "Nats-Msg-Id"
EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"
NANO = 1_000_000_000
ATTEMPT_S = 2.0  # one try; a loaded two-core machine answers in milliseconds, a restarting server not at all
BUDGET_S = 15.0  # all tries: longer than a restart of the server takes
MARKERS_S = 3600  # how long a watcher may be away and still learn that a value grew too old
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
# Error numbers of the server (server/errors.json); the text beside them is not stable, the numbers are.
_MISSING = {10014, 10037, 10043, 10057, 10059}  # consumer, message (by place, by number, to delete), stream
_CHANGED = {10071, 10164}  # wrong last sequence
_FULL = {10023, 10047, 10077}  # resources, storage, stream limit (discard new)
_TOO_LARGE = {10054}


class Missing(Rejected):
    """The stream, consumer or message does not exist."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message read from a stream by position or subject."""

    subject: str
    """Subject that it was published on."""
    seq: int
    """Position in the stream."""
    headers: Mapping[str, str]
    """Its headers."""
    data: bytes
    """Its body."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What JetStream says about a delivery, in the reply subject."""

    delivered: int
    """How often the message was handed out."""
    stream_seq: int
    """Position in the stream."""
    consumer_seq: int
    """Number of the delivery within the consumer; without gaps."""
    time: float
    """Unix seconds at which the message was stored."""
    pending: int
    """How many messages follow."""


def metadata(reply: str) -> Metadata:
    """Parse `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<seq>.<seq>.<ns>.<pending>[.<token>]`."""
    tokens = reply.split(".")
    first = 4 if len(tokens) == 9 else 6
    delivered, stream_seq, consumer_seq, stamp, pending = map(int, tokens[first : first + 5])
    return Metadata(delivered, stream_seq, consumer_seq, stamp / NANO, pending)


class JetStream:
    """The API of the server's persistence layer."""

    def __init__(self, link: Link, *, budget_s: float = BUDGET_S) -> None:
        self.link = link
        self._budget_s = budget_s

    async def call(self, verb: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One API request, retried for `budget_s` while the server is away; raises Missing, Conflict, Exhausted."""
        payload = json.dumps(request).encode() if request else b""
        return await self._persistently(lambda: self._answered(f"{API}.{verb}", payload, None))

    async def publish(
        self, subject: str, body: bytes, headers: Mapping[str, str], *, msg_id: str | None = None
    ) -> tuple[int, bool]:
        """Persist a message; returns its position and whether the server had it already.

        With an id it is retried safely: the server drops a second one within the duplicate window.
        """
        complete = {**headers, MSG_ID: msg_id} if msg_id else headers
        answer = await self._persistently(lambda: self._answered(subject, body, complete))
        return int(answer["seq"]), bool(answer.get("duplicate", False))

    async def settle(self, reply: str, verdict: bytes) -> None:
        """Say what became of a delivery, and wait until the server has heard it."""
        await self._persistently(lambda: self.link.ask(reply, verdict, timeout_s=ATTEMPT_S))

    async def _answered(self, subject: str, body: bytes, headers: Mapping[str, str] | None) -> dict[str, Any]:
        reply = await self.link.ask(subject, body, timeout_s=ATTEMPT_S, headers=headers)
        answer: dict[str, Any] = json.loads(reply.data)
        if "error" in answer:
            raise _error(answer["error"], subject.removeprefix(f"{API}."))
        return answer

    async def _persistently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat while the server is away or not ready yet, for `budget_s` at most."""
        give_up = monotonic() + self._budget_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except Unavailable:
                if monotonic() + pause > give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def stored(
        self, stream: str, *, seq: int | None = None, subject: str | None = None
    ) -> Stored | None:
        """The message at `seq`, or the last one on `subject`; None if there is none."""
        request = {"seq": seq} if subject is None else {"last_by_subj": subject}
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", request)
        except Missing:
            return None
        message = answer["message"]
        return Stored(
            subject=message["subject"],
            seq=int(message["seq"]),
            headers=_headers(base64.b64decode(message.get("hdrs", ""))),
            data=base64.b64decode(message.get("data", "")),
        )

    async def erase(self, stream: str, seq: int) -> None:
        """Delete one message; Missing if it is not there."""
        await self.call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})

    async def last_seq(self, stream: str) -> int:
        """Position of the newest message that was ever in the stream; 0 if there was none."""
        return int((await self.call(f"STREAM.INFO.{stream}"))["state"]["last_seq"])

    async def put_stream(self, wanted: Mapping[str, Any], *, dry: bool = False) -> str | None:
        """Create or update a stream; returns what differed, None when nothing did. With `dry`, only look."""
        name = wanted["name"]
        try:
            present = (await self.call(f"STREAM.INFO.{name}"))["config"]
        except Missing:
            if not dry:
                await self.call(f"STREAM.CREATE.{name}", wanted)
            return f"stream {name}: absent"
        changed = {key: value for key, value in wanted.items() if present.get(key, _ABSENT.get(key)) != value}
        if not changed:
            return None
        if not dry:
            await self.call(f"STREAM.UPDATE.{name}", {**present, **changed})
        return f"stream {name}: " + ", ".join(
            f"{key} {present.get(key)} -> {changed[key]}" for key in changed
        )

    async def put_consumer(self, stream: str, wanted: Mapping[str, Any], *, dry: bool = False) -> str | None:
        """Create or update a durable consumer; returns what differed, None when nothing did."""
        name = wanted["durable_name"]
        try:
            present = (await self.call(f"CONSUMER.INFO.{stream}.{name}"))["config"]
        except Missing:
            present = {}
        changed = {key: value for key, value in wanted.items() if present.get(key) != value}
        if changed and not dry:
            await self.call(
                f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": wanted}
            )
        if not changed:
            return None
        what = ", ".join(f"{key} {present.get(key)} -> {changed[key]}" for key in changed)
        return f"consumer {name}: " + (what if present else "absent")

    async def new_reader(self, stream: str, config: Mapping[str, Any]) -> tuple[str, int]:
        """Create an ephemeral consumer; returns its name and how many messages wait for it."""
        answer = await self.call(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        return str(answer["name"]), int(answer["num_pending"])

    async def drop_reader(self, stream: str, name: str) -> None:
        """Delete a consumer; no error if it is gone."""
        try:
            await self.link.ask(f"{API}.CONSUMER.DELETE.{stream}.{name}", b"", timeout_s=ATTEMPT_S)
        except Unavailable:
            return  # the server forgets it by itself when nobody pulls


# What the server leaves out of its answer when it has the default.
_ABSENT: dict[str, Any] = {
    "max_age": 0,
    "allow_direct": False,
    "allow_rollup_hdrs": False,
    "deny_delete": False,
}


def stream_config(stream: Stream) -> dict[str, Any]:
    """A stream of the topology in the server's words."""
    return {
        "name": stream.name,
        "subjects": list(stream.subjects),
        "retention": stream.retention,
        "discard": stream.discard,
        "max_age": int(stream.max_age_s * NANO),
        "max_msgs": stream.max_messages,
        "max_bytes": stream.max_bytes,
        "duplicate_window": int(stream.duplicate_window_s * NANO),
        "storage": stream.storage,
    }


def bucket_config(bucket: Bucket) -> dict[str, Any]:
    """A bucket in the server's words: the layout of NATS key-value buckets, so that `nats kv` reads it too."""
    age = int(bucket.ttl_s * NANO)
    window = int(120 * NANO)
    # Without a marker, a watcher would never hear that a value grew too old.
    markers = {"subject_delete_marker_ttl": MARKERS_S * NANO, "allow_msg_ttl": True} if age else {}
    return markers | {
        "name": f"KV_{bucket.name}",
        "subjects": [f"$KV.{bucket.name}.>"],
        "max_msgs_per_subject": bucket.history,
        "max_msg_size": bucket.max_value_bytes,
        "max_age": age,
        "duplicate_window": min(age, window) if age else window,
        "storage": "file",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
    }


def consumer_config(consumer: Consumer) -> dict[str, Any]:
    """A command consumer in the server's words."""
    return {
        "durable_name": consumer.service,
        "filter_subject": consumer.subjects,
        "ack_policy": "explicit",
        "ack_wait": int(consumer.ack_wait_s * NANO),
        "max_deliver": consumer.max_deliver,
        "max_ack_pending": consumer.max_ack_pending,
        "deliver_policy": "all",
        "replay_policy": "instant",
    }


def with_ack_wait(consumer: Consumer, ack_wait_s: float | None) -> Consumer:
    """`consumer`, with another ack wait if one is given."""
    return consumer if ack_wait_s is None else replace(consumer, ack_wait_s=ack_wait_s)


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _error(error: Mapping[str, Any], about: str) -> TemperError:
    number, text = int(error.get("err_code", 0)), str(error.get("description", "unknown error"))
    if number in _MISSING:
        return Missing(f"{about}: {text}")
    if number in _CHANGED:
        return Conflict(f"{about}: changed meanwhile")
    if number in _FULL:
        return Exhausted(f"{about}: {text}", hint="wait until work is taken from the queue")
    if number in _TOO_LARGE:
        return Rejected(f"{about}: {text}", hint="send large payloads through object storage")
    if int(error.get("code", 500)) >= 500:
        return Unavailable(f"{about}: {text}")
    return Rejected(f"{about}: {text}")
