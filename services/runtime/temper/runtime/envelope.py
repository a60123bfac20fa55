"""What travels around a message: CloudEvents 1.0 in binary mode.

Attributes are headers, the body is the bare protobuf message; so any language, and ClickHouse, reads bodies directly.

    ce-specversion: 1.0
    ce-id: job7-12                                  deterministic: the same effect has the same id
    ce-type: temper.api.rollout.v1.GroupCommand     full protobuf name of the body
    ce-source: scheduler/4f2a                       service/instance
    ce-subject: job7                                what it is about (optional)
    ce-time: 2026-03-01T12:00:00.250Z
    temper-deadline: 1772366430.250                 unix seconds after which nobody wants the effect (optional)
    temper-fence: 41                                revision of the sender's lease (optional)
    temper-attempt: 2                               only when above 1
    traceparent: 00-…                               W3C trace context (optional)

Encoding is on the path of every request, hence plain dictionaries and no intermediate objects.
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from temper.runtime.errors import Rejected

M = TypeVar("M", bound=Message)

SPEC_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Envelope:
    """Attributes of one message.

    Example: `Envelope(id="job7-12", type="temper.api.rollout.v1.GroupCommand", source="scheduler/4f2a")`.
    """

    id: str
    """Idempotency key: the broker and every receiver treat two messages with one id as one."""
    type: str
    """Full protobuf name of the body."""
    source: str = ""
    """`service/instance` of the sender."""
    subject: str = ""
    """Key that the message is about, e.g. a job id."""
    time: float = 0.0
    """Unix seconds at which it was made; 0 when the sender did not say."""
    deadline: float | None = None
    """Unix seconds after which its effect is not wanted."""
    fence: int | None = None
    """Revision of the lease under which it was sent; a receiver refuses one below the highest seen."""
    attempt: int = 1
    """How often the message was handed out, this time included."""
    traceparent: str | None = None
    """W3C trace context."""

    def expired(self, now: float) -> bool:
        """Whether the deadline has passed at unix time `now`."""
        return self.deadline is not None and now > self.deadline


def type_of(message: Message | type[Message]) -> str:
    """Full protobuf name of a message or message class."""
    return message.DESCRIPTOR.full_name


def encode(envelope: Envelope) -> dict[str, str]:
    """Headers for `envelope`."""
    return headers(
        envelope.id,
        envelope.type,
        envelope.source,
        envelope.subject,
        envelope.time,
        envelope.deadline,
        envelope.fence,
        envelope.attempt,
        envelope.traceparent,
    )


def headers(
    id: str,  # noqa: A002  # the attribute's name
    type: str,  # noqa: A002  # the attribute's name
    source: str = "",
    subject: str = "",
    time: float = 0.0,
    deadline: float | None = None,
    fence: int | None = None,
    attempt: int = 1,
    traceparent: str | None = None,
) -> dict[str, str]:
    """Headers for an envelope with these attributes, without making one: for the path of a request."""
    found = {"ce-specversion": SPEC_VERSION, "ce-id": id, "ce-type": type, "ce-source": source or "temper"}
    if subject:
        found["ce-subject"] = subject
    if time:
        found["ce-time"] = _rfc3339(time)
    if deadline is not None:
        found["temper-deadline"] = f"{deadline:.3f}"
    if fence is not None:
        found["temper-fence"] = str(fence)
    if attempt > 1:
        found["temper-attempt"] = str(attempt)
    if traceparent:
        found["traceparent"] = traceparent
    return found


def decode(found: Mapping[str, str] | None, *, attempt: int | None = None) -> Envelope:
    """The envelope in the headers `found`; `attempt` overrides the header where the broker knows better.

    Raises Rejected if an attribute is missing or malformed.
    """
    if not found:
        raise Rejected("message has no CloudEvents headers", field="ce-id")
    get = found.get
    try:
        sent, deadline, fence = get("ce-time"), get("temper-deadline"), get("temper-fence")
        return Envelope(
            found["ce-id"],
            found["ce-type"],
            get("ce-source", ""),
            get("ce-subject", ""),
            datetime.fromisoformat(sent).timestamp() if sent else 0.0,
            float(deadline) if deadline else None,
            int(fence) if fence else None,
            attempt if attempt is not None else int(get("temper-attempt", 1)),
            get("traceparent"),
        )
    except KeyError as missing:
        raise Rejected("header is missing", field=str(missing.args[0])) from None
    except ValueError as broken:
        raise Rejected(f"malformed envelope: {broken}", field="headers") from None


def parse(envelope: Envelope, body: bytes, message_type: type[M]) -> M:
    """The body as `message_type`; Rejected if the envelope names another type or the bytes are not one."""
    expected = message_type.DESCRIPTOR.full_name
    if envelope.type != expected:
        raise Rejected(f"body is a {envelope.type}, expected {expected}", field="ce-type")
    try:
        return message_type.FromString(body)
    except DecodeError as broken:
        raise Rejected(f"body is not a {expected}: {broken}", field="body") from None


@lru_cache(maxsize=4)
def _to_the_second(whole: int) -> str:
    return clock.strftime("%Y-%m-%dT%H:%M:%S", clock.gmtime(whole))


def _rfc3339(unix_s: float) -> str:
    whole = int(unix_s)
    return f"{_to_the_second(whole)}.{int((unix_s - whole) * 1000):03d}Z"
