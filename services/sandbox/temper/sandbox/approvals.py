r"""Questions to a person as a state machine. Pure: time comes in, records go out.

    (absent) --ask--> PENDING --answer--> GRANTED | DENIED
                         \--expiry seen--> EXPIRED

Everything but GRANTED means no. A question is bound to a digest of exactly what is asked for, in one session: asking the
same again finds the same question, and a granted one says nothing about anything else.
"""

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.sandbox.v1 import approval_pb2
from temper.api.sandbox.v1.approval_pb2 import Approval
from temper.runtime.errors import Conflict

PENDING: Final = approval_pb2.APPROVAL_STATE_PENDING
GRANTED: Final = approval_pb2.APPROVAL_STATE_GRANTED
DENIED: Final = approval_pb2.APPROVAL_STATE_DENIED
EXPIRED: Final = approval_pb2.APPROVAL_STATE_EXPIRED

_SHOWN: Final = 16_384
"""Characters of the subject that are kept for the person; the digest is over all of it."""


def canonical(subject: Mapping[str, Any]) -> str:
    """The one JSON text of a subject: sorted keys, no spaces."""
    return json.dumps(subject, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def question(
    kind: str, subject: Mapping[str, Any], *, session: str, job: str, env: str, now: float, expires_s: float
) -> Approval:
    """A new question. Its id says what it is about, so that two askers of the same thing share it."""
    text = canonical({"kind": kind, **subject})
    digest = hashlib.sha256(text.encode()).hexdigest()
    record = Approval(
        approval_id=hashlib.sha256(f"{session}\0{digest}".encode()).hexdigest()[:32],
        kind=kind,
        digest=digest,
        subject_json=_shown(text),
        session_id=session,
        job_id=job,
        env=env,
        state=PENDING,
    )
    record.asked_at.CopyFrom(_stamp(now))
    record.expires_at.CopyFrom(_stamp(now + expires_s))
    return record


def _shown(text: str) -> str:
    """What a person reads says itself when it is not all: padding must not hide what matters."""
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters are not shown ...] {text[-half:]}"


def same(asked: Approval, stored: Approval) -> bool:
    """Whether a stored question is about exactly this. An id that fits with a digest that does not is somebody's play."""
    return (asked.approval_id, asked.digest, asked.session_id) == (
        stored.approval_id,
        stored.digest,
        stored.session_id,
    )


def overdue(record: Approval, now: float) -> bool:
    """Whether nobody has answered in time."""
    return record.state == PENDING and now >= seconds(record.expires_at)


def expire(record: Approval, now: float) -> Approval:
    """As a denial by silence. Raises Conflict unless it is overdue."""
    if not overdue(record, now):
        raise Conflict(f"approval {record.approval_id} is not overdue", field="approval_id")
    return _ended(record, EXPIRED, now, "", "nobody answered in time")


def answer(record: Approval, *, grant: bool, by: str, reason: str, now: float) -> Approval:
    """The person's word, once. Raises Conflict for what has been answered or has expired."""
    if record.state != PENDING:
        name = approval_pb2.ApprovalState.Name(record.state).removeprefix("APPROVAL_STATE_").lower()
        raise Conflict(f"approval {record.approval_id} is {name} already", field="approval_id")
    if overdue(record, now):
        raise Conflict(f"approval {record.approval_id} has expired", field="approval_id")
    return _ended(record, GRANTED if grant else DENIED, now, by, reason)


def _ended(record: Approval, state: approval_pb2.ApprovalState, now: float, by: str, reason: str) -> Approval:
    ended = Approval()
    ended.CopyFrom(record)
    ended.state, ended.resolved_by, ended.reason = state, by, reason
    ended.resolved_at.CopyFrom(_stamp(now))
    return ended


def needed(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a tool of this name must be approved: shell patterns such as "shell" or "*"."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def seconds(stamp: Timestamp) -> float:
    """Unix seconds."""
    return stamp.seconds + stamp.nanos / 1e9


def _stamp(at: float) -> Timestamp:
    return Timestamp(seconds=int(at // 1), nanos=int(at % 1 * 1e9))
