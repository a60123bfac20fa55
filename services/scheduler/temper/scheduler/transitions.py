"""The states of a job, and who may move it where.

pending → starting → running ⇄ paused
                        ↓
                    finishing → succeeded | failed          and from every live state → cancelled | failed
"""

from __future__ import annotations

from temper.api.job.v1.job_pb2 import JobState
from temper.runtime.errors import Conflict

PENDING = JobState.JOB_STATE_PENDING
STARTING = JobState.JOB_STATE_STARTING
RUNNING = JobState.JOB_STATE_RUNNING
PAUSED = JobState.JOB_STATE_PAUSED
FINISHING = JobState.JOB_STATE_FINISHING
SUCCEEDED = JobState.JOB_STATE_SUCCEEDED
FAILED = JobState.JOB_STATE_FAILED
CANCELLED = JobState.JOB_STATE_CANCELLED

TERMINAL = frozenset({SUCCEEDED, FAILED, CANCELLED})

ALLOWED: dict[JobState, frozenset[JobState]] = {
    PENDING: frozenset({STARTING, FAILED, CANCELLED}),
    STARTING: frozenset({RUNNING, FAILED, CANCELLED}),
    RUNNING: frozenset({PAUSED, FINISHING, FAILED, CANCELLED}),
    PAUSED: frozenset({RUNNING, FAILED, CANCELLED}),
    FINISHING: frozenset({SUCCEEDED, FAILED, CANCELLED}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
}


def name_of(state: JobState) -> str:
    """A state in words: `running`."""
    return JobState.Name(state).removeprefix("JOB_STATE_").lower()


def may(source: JobState, target: JobState) -> bool:
    """Whether the table has the move."""
    return target in ALLOWED.get(source, frozenset())


def check(source: JobState, target: JobState) -> None:
    """Raise Conflict if the table does not have the move."""
    if not may(source, target):
        raise Conflict(
            f"the job is {name_of(source)}, so it cannot become {name_of(target)}",
            field="state",
            hint=f"from here it may become: {', '.join(sorted(map(name_of, ALLOWED.get(source, ())))) or 'nothing'}",
        )
