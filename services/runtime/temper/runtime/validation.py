"""The contract's own rules (protovalidate) at the edges: every violation with its field path.

The rules stand in the `.proto` files, so a service in another language refuses the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import protovalidate
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from temper.runtime.errors import Rejected, to_status


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule. Example: `Violation("phases[0].steps", "must be greater than 0", "uint32.gt")`."""

    field: str
    """Path from the message's root; empty when the rule is about the whole message."""
    message: str
    """What the rule demands."""
    rule: str
    """Name of the rule."""


def violations(message: Message) -> list[Violation]:
    """Every rule that `message` breaks; empty when it is valid."""
    return [
        Violation(_path(found.proto.field), found.proto.message or found.proto.rule_id, found.proto.rule_id)
        for found in protovalidate.collect_violations(message)
    ]


def check(message: Message, *, where: str = "") -> None:
    """Raise Rejected for the first broken rule (and name the others); `where` is put in front of paths."""
    broken = violations(message)
    if broken:
        raise as_error(broken, where=where)


def as_error(broken: list[Violation], *, where: str = "") -> Rejected:
    """`broken` (at least one) as the error that a user reads."""
    first, *others = broken
    hint = "; ".join(f"{where}{each.field}: {each.message}" for each in others[:5])
    return Rejected(
        first.message or "is not valid",
        field=f"{where}{first.field}" or None,
        hint=f"also wrong: {hint}" if others else None,
    )


def as_status(broken: list[Violation]) -> status_pb2.Status:
    """`broken` (at least one) for gRPC: a `BadRequest` that lists all of them."""
    status = to_status(as_error(broken))
    request = error_details_pb2.BadRequest()
    for each in broken:
        request.field_violations.add(field=each.field, description=each.message, reason=each.rule)
    kept = [detail for detail in status.details if not detail.type_url.endswith("/google.rpc.BadRequest")]
    del status.details[:]
    status.details.extend(kept)
    status.details.add().Pack(request)
    return status


def _path(field: object) -> str:
    """protovalidate's field path as text: `phases[0].steps`, `params["k"]`."""
    path = ""
    for element in getattr(field, "elements", ()):
        path += f".{element.field_name}" if path else element.field_name
        subscript = element.subscript
        if subscript is not None:
            value = subscript.value
            path += f'["{value}"]' if isinstance(value, str) else f"[{value}]"
    return path
