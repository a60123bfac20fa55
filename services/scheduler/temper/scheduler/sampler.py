"""What to sample next: the domain by `mixer`, the task by that domain's `curriculum`; one state for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from temper.api.job.v1.spec_pb2 import JobSpec
from temper.runtime.errors import Rejected
from temper.scheduler import curriculum
from temper.scheduler.curriculum import Curriculum
from temper.scheduler.mixer import Mixer

REMEMBERED_TASKS = 4096  # over all domains of a job; keeps the ledger well below the KV's limit of 1 MiB


@dataclass(frozen=True, slots=True)
class Draw:
    """One decision. Example: `Draw("calc", (17,))`."""

    domain: str
    """Domain of the group."""
    tasks: tuple[int, ...]
    """Task indices of the group, distinct unless the domain has fewer tasks than the group wants."""


class Sampler:
    """Draws groups for a job. Deterministic in the job's seed and what it observed."""

    def __init__(self, spec: JobSpec) -> None:
        self._capacity = max(16, REMEMBERED_TASKS // len(spec.domains))
        self._curricula: dict[str, Curriculum] = {}
        self._kinds: dict[str, tuple[str, int]] = {}
        self._issued: dict[str, int] = {}
        self._frontier: dict[str, int] = {}
        self._withdrawn: set[str] = set()
        self._configure(spec)

    def _configure(self, spec: JobSpec) -> None:
        self._seed = spec.seed
        self._shares = {domain.name: domain.share for domain in spec.domains}
        self._remix()
        for domain in spec.domains:
            kind = (domain.curriculum, domain.train_tasks)
            if self._kinds.get(domain.name) != kind:
                self._curricula[domain.name] = curriculum.make(
                    *(domain.curriculum, seed_of(spec.seed, domain.name), domain.train_tasks, self._capacity)
                )
                self._kinds[domain.name] = kind

    def _remix(self) -> None:
        """A mixer over the domains that may be drawn; None if all were withdrawn."""
        mixed = {name: share for name, share in self._shares.items() if name not in self._withdrawn}
        self._mixer = Mixer(mixed, self._seed) if mixed else None

    def withdraw(self, domains: Iterable[str]) -> None:
        """Never draw these domains until another call names others; deficits of the rest restart from zero."""
        if set(domains) != self._withdrawn:
            self._withdrawn = set(domains)
            self._remix()

    @property
    def withdrawn(self) -> frozenset[str]:
        """Domains that are not drawn."""
        return frozenset(self._withdrawn)

    def reshare(self, shares: Mapping[str, float]) -> None:
        """Other shares for the same domains; deficits restart from zero."""
        self._shares = dict(shares)
        self._remix()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw from."""
        return self._mixer is None

    def reconfigure(self, spec: JobSpec) -> None:
        """Take over changed domains: deficits restart, the other domains' frontiers stay where they are."""
        before = self._mixer.state() if self._mixer else None
        self._configure(spec)
        if self._mixer and before:
            self._mixer.resume(before)

    @property
    def issued(self) -> dict[str, int]:
        """Groups drawn per domain since the job began."""
        return dict(self._issued)

    @property
    def frontier(self) -> dict[str, int]:
        """Tasks drawn per domain since the job began."""
        return dict(self._frontier)

    def draw(self, tasks: int) -> Draw:
        """The next group, of `tasks` tasks of one domain."""
        assert self._mixer is not None, "asked for a group although every domain is withdrawn"
        domain = self._mixer.draw()
        drawn = tuple(self._curricula[domain].draw() for _ in range(tasks))
        self._issued[domain] = self._issued.get(domain, 0) + 1
        self._frontier[domain] = self._frontier.get(domain, 0) + tasks
        return Draw(domain, drawn)

    def observe(self, domain: str, task: int, solved: int, valid: int) -> None:
        """A task's group came back; unknown domains (removed meanwhile) are ignored."""
        if domain in self._curricula:
            self._curricula[domain].observe(task, solved, valid)

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        return {
            "mixer": self._mixer.state() if self._mixer else None,
            "shares": self._shares,
            "withdrawn": sorted(self._withdrawn),
            "curricula": {
                name: {"kind": list(self._kinds[name]), **each.state()}
                for name, each in self._curricula.items()
            },
            "issued": self._issued,
            "frontier": self._frontier,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; a domain whose curriculum was changed meanwhile starts afresh."""
        try:
            if state["shares"].keys() == self._shares.keys():
                self.reshare(state["shares"])
            self.withdraw(state["withdrawn"])
            if self._mixer and state["mixer"]:
                self._mixer.resume(state["mixer"])
            for name, saved in state["curricula"].items():
                if name in self._curricula and tuple(saved["kind"]) == self._kinds[name]:
                    self._curricula[name].resume(saved)
            self._issued = dict(state["issued"])
            self._frontier = dict(state["frontier"])
        except (KeyError, TypeError, ValueError) as broken:
            raise Rejected(
                f"saved sampler state cannot be read: {broken!r}", field="sampler_state_json"
            ) from None


def seed_of(*parts: object) -> int:
    """A seed in [0, 2**53) that depends on all `parts`; small enough to survive JSON."""
    return int(curriculum.fraction("/".join(map(str, parts))) * (1 << 53))
