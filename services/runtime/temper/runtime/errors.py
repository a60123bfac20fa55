"""The errors of the platform: one tree, and one table saying who retries what.

    TemperError
    ├── Rejected      the caller's fault: never retried
    │   └── NotFound  what the request names does not exist
    ├── Unavailable   a part is down or late: retry with backoff
    ├── Stale         the caller speaks for an older owner or version: give up, someone else owns it now
    ├── Conflict      the thing changed or exists already: read again, then decide
    └── Exhausted     a limit is full: slow down, then retry

| error       | gRPC code           | delivery | retried by the caller |
| ----------- | ------------------- | -------- | --------------------- |
| Rejected    | INVALID_ARGUMENT    | term     | no                    |
| NotFound    | NOT_FOUND           | term     | no                    |
| Unavailable | UNAVAILABLE         | nak      | yes                   |
| Stale       | FAILED_PRECONDITION | ack      | no                    |
| Conflict    | ABORTED             | nak      | after reading again   |
| Exhausted   | RESOURCE_EXHAUSTED  | nak      | yes, later            |

Nothing outside this tree is raised on purpose across a process boundary. The wire form is a `google.rpc.Status`
with an `ErrorInfo` (the class) and a `BadRequest` (the field path), the same over gRPC and over the bus. This
module knows protobuf and nothing of gRPC, so that the pure parts of a service may import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from google.rpc import code_pb2, error_details_pb2, status_pb2

__all__ = [
    "Conflict",
    "Disposition",
    "Exhausted",
    "NotFound",
    "Outcome",
    "Rejected",
    "RpcFailure",
    "Stale",
    "TemperError",
    "Unavailable",
    "disposition",
    "from_status",
    "from_wire",
    "to_status",
]

ERROR_DOMAIN = "temper"  # `ErrorInfo.domain`: tells our details from those of a proxy on the way
STATUS_METADATA_KEY = "grpc-status-details-bin"  # where gRPC carries a serialized google.rpc.Status

Outcome = Literal["ack", "nak", "term"]


class TemperError(Exception):
    """Base of every error that temper raises.

    `field` is the path of the value at fault (`phases[0].steps`), `hint` the way out in one sentence.
    """

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        way_out = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{way_out}"


class Rejected(TemperError):  # noqa: N818  # the name says what to do, as HTTP's do
    """The request itself is wrong; repeating it cannot help."""


class NotFound(Rejected):
    """What the request is about (a job, an environment, a letter, an object) does not exist.

    A name inside a specification that is wrong for this reason is `Rejected`, like every other mistake in it.
    """


class Unavailable(TemperError):  # noqa: N818  # the name says what to do, as HTTP's do
    """A part that is needed is down, unreachable or late; the same request may succeed later."""


class Stale(TemperError):  # noqa: N818  # the name says what to do, as HTTP's do
    """The caller's fence or version is older than one already seen; its work belongs to somebody else now."""


class Conflict(TemperError):  # noqa: N818  # the name says what to do, as HTTP's do
    """The thing changed since it was read, or exists already."""


class Exhausted(TemperError):  # noqa: N818  # the name says what to do, as HTTP's do
    """A bounded thing (queue, credits, slots, quota) is full."""


@dataclass(frozen=True, slots=True)
class Disposition:
    """One row of the table above."""

    grpc_code: int
    """Value of `google.rpc.Code`."""
    outcome: Outcome
    """What becomes of the delivery whose handler raised it."""
    retried: bool
    """Whether repeating the same request unchanged can succeed."""


_TABLE: dict[type[TemperError], Disposition] = {
    Rejected: Disposition(code_pb2.INVALID_ARGUMENT, "term", False),
    NotFound: Disposition(code_pb2.NOT_FOUND, "term", False),
    Unavailable: Disposition(code_pb2.UNAVAILABLE, "nak", True),
    Stale: Disposition(code_pb2.FAILED_PRECONDITION, "ack", False),
    Conflict: Disposition(code_pb2.ABORTED, "nak", False),
    Exhausted: Disposition(code_pb2.RESOURCE_EXHAUSTED, "nak", True),
}
_BY_NAME: dict[str, type[TemperError]] = {kind.__name__: kind for kind in _TABLE}
# Codes that a peer outside temper (a proxy, the gRPC library itself) may answer with.
_BY_CODE: dict[int, type[TemperError]] = {
    code_pb2.INVALID_ARGUMENT: Rejected,
    code_pb2.NOT_FOUND: NotFound,
    code_pb2.OUT_OF_RANGE: Rejected,
    code_pb2.PERMISSION_DENIED: Rejected,
    code_pb2.UNAUTHENTICATED: Rejected,
    code_pb2.UNIMPLEMENTED: Rejected,
    code_pb2.FAILED_PRECONDITION: Stale,
    code_pb2.ABORTED: Conflict,
    code_pb2.ALREADY_EXISTS: Conflict,
    code_pb2.RESOURCE_EXHAUSTED: Exhausted,
}


def disposition(error: TemperError) -> Disposition:
    """The row of the table for `error`; a bare `TemperError` counts as `Unavailable`."""
    for kind in type(error).__mro__:
        if kind in _TABLE:
            return _TABLE[kind]
    return _TABLE[Unavailable]


def to_status(error: TemperError) -> status_pb2.Status:
    """`error` as a `google.rpc.Status`, losing nothing of it."""
    row = disposition(error)
    status = status_pb2.Status(code=row.grpc_code, message=error.message)
    info = error_details_pb2.ErrorInfo(reason=_name(error), domain=ERROR_DOMAIN)
    if error.hint:
        info.metadata["hint"] = error.hint
    status.details.add().Pack(info)
    if error.field:
        request = error_details_pb2.BadRequest()
        request.field_violations.add(field=error.field, description=error.message)
        status.details.add().Pack(request)
    return status


def from_wire(status: status_pb2.Status) -> TemperError:
    """The error that `to_status` wrote; for a foreign status, the nearest class by its code."""
    kind = _BY_CODE.get(status.code, Unavailable)
    field: str | None = None
    hint: str | None = None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        request = error_details_pb2.BadRequest()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            kind = _BY_NAME.get(info.reason, kind)
            hint = info.metadata.get("hint")
        elif detail.Unpack(request) and request.field_violations:
            field = request.field_violations[0].field
    return kind(status.message, field=field, hint=hint)


class _StatusCode(Protocol):
    @property
    def value(self) -> tuple[int, str]: ...


class RpcFailure(Protocol):
    """What is needed of a `grpc.RpcError`, named here so that this module need not import gRPC."""

    def code(self) -> _StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> object: ...


def from_status(failure: RpcFailure) -> TemperError:
    """The temper error behind a failed gRPC call (`grpc.RpcError`)."""
    metadata = failure.trailing_metadata()
    for key, value in metadata if isinstance(metadata, Iterable) else ():
        if key == STATUS_METADATA_KEY and isinstance(value, bytes):
            return from_wire(status_pb2.Status.FromString(value))
    number, name = failure.code().value
    return from_wire(status_pb2.Status(code=number, message=failure.details() or name))


def _name(error: TemperError) -> str:
    for kind in type(error).__mro__:
        if kind in _TABLE:
            return kind.__name__
    return Unavailable.__name__
