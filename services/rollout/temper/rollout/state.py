"""What a worker knows and decides: which groups run, which versions serve, which group may start. Pure.

Versions per job: *announced* (newest seen in the bucket), *served* (loaded and swapped in), and the reason why a newer
one could not be loaded. A worker starts a group only if it serves at least the group's ``min_version``, and no version that is
further behind the announced one than the group's staleness bound. An engine that is new, or came back from the dead, plays nothing
until it has served the announced version once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Offer:
    """A group as far as admission cares. Example: ``Offer("job-1-42", "job-1", 7, needs_weights=True)``."""

    group_id: str
    """Group."""
    job_id: str
    """Its job."""
    min_version: int
    """Oldest policy version that may play it."""
    needs_weights: bool
    """False for demonstrations: the oracle plays, the policy lends its tokens."""
    max_staleness: int | None = None
    """Versions that the one played may be behind the announced one; None: any number."""


@dataclass(slots=True)
class Job:
    """Policy versions of one job."""

    announced: int = -1
    """Newest version published; -1 before the first."""
    digest: str = ""
    """Digest of its manifest."""
    fence: int = 0
    """Highest fence seen."""
    served: int = -1
    """Version in the engine; -1 without one."""
    failed: dict[int, str] = field(default_factory=dict[int, str])
    """Versions that will not load, with the reason."""
    used: int = 0
    """Tick of the last use."""
    joined: bool = False
    """Whether the engine has caught up with the announced version since it was made."""
    bound: int | None = None
    """Staleness bound of the last group that had one."""
    line_start: int = 0
    """Oldest version whose tokens are trained on: the first one after the last rollback."""

    def too_old(self, version: int, bound: int | None) -> bool:
        """Whether no trainer takes tokens of ``version``, under a staleness bound; without one they are not for training."""
        return bound is not None and (self.announced - version > bound or version < self.line_start)

    @property
    def overdue(self) -> bool:
        """Whether what is served is past the staleness bound, or was rejected."""
        return self.joined and self.too_old(self.served, self.bound)


class Worker:
    """The state. Every method is a transition or a question; nothing waits."""

    def __init__(self, *, slots: int, policies: int) -> None:
        """``slots``: most groups at once; ``policies``: most engines at once."""
        self.slots, self.policies = slots, policies
        self.running: dict[str, Offer] = {}
        self.jobs: dict[str, Job] = {}
        self._tick = 0

    def announce(self, job_id: str, version: int, digest: str, fence: int, line_start: int = 0) -> bool:
        """A publication was seen; says whether it is news. A lower fence or version speaks for a past owner.

        ``line_start``: versions before it were rejected by a rollback. A version that would not load and is published again, with other bytes, gets another chance.
        """
        job = self.jobs.setdefault(job_id, Job())
        if fence < job.fence or version < job.announced:
            return False
        news = version > job.announced or (digest != job.digest and version in job.failed)
        job.fence, job.announced = fence, version
        job.line_start = max(job.line_start, line_start)
        if news:
            job.digest = digest
            job.failed.pop(version, None)
        return news

    def loaded(self, job_id: str, version: int) -> None:
        """The engine serves ``version`` from now on. Versions never go back."""
        job = self.jobs.setdefault(job_id, Job())
        job.served = max(job.served, version)
        job.joined = job.joined or job.served >= job.announced
        job.failed = {bad: why for bad, why in job.failed.items() if bad > job.served}

    def load_failed(self, job_id: str, version: int, reason: str) -> None:
        """``version`` will not load; the one served stays."""
        self.jobs.setdefault(job_id, Job()).failed[version] = reason

    def wanted(self, job_id: str) -> int | None:
        """Version to load next: the newest announced, if it is newer than the one served and not known to be bad."""
        job = self.jobs.get(job_id)
        if job is None or job.announced <= job.served or job.announced in job.failed:
            return None
        return job.announced

    def offer(self, offer: Offer) -> bool:
        """Start a group if its version is here; says whether it runs. Starting it again takes no second slot.

        The caller offers no more groups than there are slots.
        """
        job = self.jobs.setdefault(offer.job_id, Job())
        have = job.served if offer.needs_weights else job.announced
        if offer.needs_weights and offer.max_staleness is not None:
            job.bound = offer.max_staleness
        if have < max(offer.min_version, 0):
            return False
        if offer.needs_weights and (not job.joined or self.too_old(offer.job_id, have, offer.max_staleness)):
            return False
        self._tick += 1
        job.used = self._tick
        self.running[offer.group_id] = offer
        return True

    def finish(self, group_id: str) -> None:
        """A group left, by success or failure. Idempotent."""
        self.running.pop(group_id, None)

    def engine_lost(self, job_id: str) -> None:
        """The job's engine is gone: evicted, or died."""
        if job_id in self.jobs:
            self.jobs[job_id].served, self.jobs[job_id].joined = -1, False

    def surplus(self) -> str | None:
        """Job whose engine should make room: the least recently used one that runs nothing, when over the limit."""
        held = [job_id for job_id, job in self.jobs.items() if job.served >= 0]
        busy = {offer.job_id for offer in self.running.values() if offer.needs_weights}
        idle = [job_id for job_id in held if job_id not in busy]
        if len(held) <= self.policies or not idle:
            return None
        return min(idle, key=lambda job_id: self.jobs[job_id].used)

    def too_old(self, job_id: str, version: int, bound: int | None) -> bool:
        """Whether ``version`` is further behind the announced one than ``bound``, or was rejected by a rollback."""
        job = self.jobs.get(job_id)
        return job is not None and job.too_old(version, bound)

    def line_start(self, job_id: str) -> int:
        """Oldest version of a job whose tokens are trained on."""
        job = self.jobs.get(job_id)
        return 0 if job is None else job.line_start

    def refuses(self) -> bool:
        """Whether the worker takes no groups: all it serves is past the staleness bound."""
        served = [job for job in self.jobs.values() if job.served >= 0]
        return bool(served) and all(job.overdue for job in served)

    def overdue(self) -> Mapping[str, str]:
        """Why no groups of a job are taken, by job."""
        return {job_id: _why(job) for job_id, job in self.jobs.items() if job.overdue}

    def complaints(self) -> Mapping[str, str]:
        """Why a job's newest version is not served, by job."""
        return {
            job_id: f"version {job.announced}: {job.failed[job.announced]}"
            for job_id, job in self.jobs.items()
            if job.announced in job.failed
        }


def _why(job: Job) -> str:
    if job.served < job.line_start:
        return f"serves version {job.served}, training went back and goes on from {job.line_start}"
    return f"serves version {job.served}, {job.announced} is published, the staleness bound is {job.bound}"
