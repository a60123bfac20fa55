"""Whether a finished job is good enough: its own bounds against its last evaluation."""

from __future__ import annotations

from collections.abc import Iterable

from temper.api.job.v1.job_pb2 import EvalResult
from temper.api.job.v1.spec_pb2 import AcceptSpec
from temper.scheduler.points import AFTER, BEFORE


def shortfalls(accept: AcceptSpec, evals: Iterable[EvalResult]) -> list[str]:
    """A sentence for each bound that is missed; empty when the job is accepted.

    A domain without a valid sample meets no bound: nothing was shown.
    """
    results = list(evals)
    before = _pass_by_domain(results, BEFORE)
    after = _pass_by_domain(results, AFTER)
    missed = [_below(domain, after.get(domain), least) for domain, least in sorted(accept.min_pass.items())]
    if accept.min_mean_pass:
        mean = _mean([value for value in after.values() if value is not None])
        missed.append(_below("mean over domains", mean, accept.min_mean_pass))
    if accept.max_drop:
        missed.extend(
            _fell(domain, before[domain], after.get(domain), accept.max_drop) for domain in sorted(before)
        )
    return [sentence for sentence in missed if sentence]


def _pass_by_domain(results: Iterable[EvalResult], point: str) -> dict[str, float | None]:
    return {each.domain: each.pass_at_1 if each.n else None for each in results if each.point == point}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _below(what: str, value: float | None, least: float) -> str:
    if value is None:
        return f"{what}: no valid sample after training, pass@1 of {least:.3g} is required"
    return f"{what}: pass@1 {value:.3f} is below the required {least:.3g}" if value < least else ""


def _fell(domain: str, start: float | None, end: float | None, most: float) -> str:
    if start is None or end is None:
        return f"{domain}: no valid sample to compare with its start"
    if start - end > most:
        return f"{domain}: pass@1 fell from {start:.3f} to {end:.3f}, more than {most:.3g}"
    return ""
