"""What UpdateJob may change, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from temper.api.job.v1.job_pb2 import Job
from temper.api.job.v1.spec_pb2 import DomainSpec
from temper.runtime.complaints import nearest
from temper.runtime.errors import Conflict, Rejected
from temper.scheduler.transitions import PENDING, TERMINAL, name_of

PATHS = ("spec.labels", "spec.phases", "spec.domains")


def checked_paths(paths: Iterable[str]) -> list[str]:
    """The mask's paths; Rejected for one that cannot be changed, or for none."""
    wanted = list(paths)
    for path in wanted:
        if path not in PATHS:
            guess = nearest(path, PATHS)
            hint = f"did you mean {guess!r}?" if guess else f"these can: {', '.join(PATHS)}"
            raise Rejected(f"{path!r} cannot be changed", field="update_mask", hint=hint)
    if not wanted:
        raise Rejected("names no field", field="update_mask", hint=f"one of {', '.join(PATHS)}")
    return wanted


def edit(job: Job, new: Job, paths: Iterable[str]) -> None:
    """Apply `new` to `job` in place. Raises Conflict for a state in which it cannot be, Rejected for the rest.

    Labels may change as long as the job is stored, domains while it lives, phases until training is asked for:
    from then on the trainer has them.
    """
    for path in paths:
        match path:
            case "spec.labels":
                job.spec.labels.clear()
                job.spec.labels.update(new.spec.labels)
            case "spec.phases":
                _phases(job, new)
            case _:
                _domains(job, new)


def _phases(job: Job, new: Job) -> None:
    if job.state != PENDING:
        raise Conflict(
            f"the job is {name_of(job.state)}: the trainer has its phases already",
            field="job.spec.phases",
            hint="cancel it, and start a job from its last policy",
        )
    del job.spec.phases[:]
    job.spec.phases.extend(new.spec.phases)


def _domains(job: Job, new: Job) -> None:
    """Shares, curricula and train_tasks may change and domains may be added; none may go, change env or params."""
    if job.state in TERMINAL:
        raise Conflict(f"the job is {name_of(job.state)}", field="job.spec.domains")
    old = {domain.name: domain for domain in job.spec.domains}
    names = {domain.name for domain in new.spec.domains}
    if gone := sorted(set(old) - names):
        raise Rejected(
            f"{', '.join(gone)} cannot be removed: groups are under way and evaluations are compared",
            field="job.spec.domains",
            hint="give it a small share",
        )
    for index, domain in enumerate(new.spec.domains):
        known = old.get(domain.name)
        if known is not None and (domain.env, domain.params_json) != (known.env, known.params_json):
            raise Rejected(
                "env and params of a domain cannot change",
                field=f"job.spec.domains[{index}].env",
                hint="add another domain",
            )
    merged = [_merged(domain, old) for domain in new.spec.domains]
    del job.spec.domains[:]
    job.spec.domains.extend(merged)


def _merged(domain: DomainSpec, old: Mapping[str, DomainSpec]) -> DomainSpec:
    """The new values; the variant of a known domain stays."""
    kept = DomainSpec()
    kept.CopyFrom(domain)
    known = old.get(domain.name)
    if known is not None and known.HasField("resolved"):
        kept.resolved.CopyFrom(known.resolved)
    return kept
