"""What an evaluation point says: pass@1, unbiased pass@k, Wilson intervals.

A task's estimate needs all its samples, and a task lies whole in one group; so every group reduces to a few sums, and
the sums are the state. Samples that infrastructure lost are no failures: they leave `n` and show as coverage.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from temper.api.common.v1.common_pb2 import SampleClass
from temper.api.job.v1.job_pb2 import EvalResult
from temper.api.rollout.v1.rollout_pb2 import SampleSummary
from temper.scheduler.gates.rates import put

VALID = (SampleClass.SAMPLE_CLASS_SCORED, SampleClass.SAMPLE_CLASS_AGENT_FAILED)
MOST_RATES = 256  # tasks per domain that are compared one by one: 512 bytes in the books
Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Chance that one of k samples drawn from n, of which c are right, is right; None (never 0 or 1) if n < k.

    1 - C(n-c, k)/C(n, k) (Chen et al., arXiv 2107.03374).
    """
    if n < k:
        return None
    if n - c < k:
        return 1.0
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float | None:
    """Chance that all of k samples drawn from n are right: C(c, k)/C(n, k); None if n < k."""
    return None if n < k else math.comb(c, k) / math.comb(n, k)


def wilson(p: float, n: int) -> tuple[float, float]:
    """95 % Wilson interval of a proportion p seen in n trials; (0, 1) when there is none."""
    if n == 0:
        return 0.0, 1.0
    spread = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    centre, scale = p + Z95**2 / (2 * n), 1 + Z95**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def is_valid(sample: SampleSummary) -> bool:
    """Whether the sample has a reward that may be counted."""
    return sample.sample_class in VALID and sample.HasField("reward") and math.isfinite(sample.reward)


@dataclass(slots=True)
class Tally:
    """Sums of one domain at one point. Example: `Tally(attempted=256, groups=4)` before any record came."""

    groups: int
    """Groups asked for."""
    attempted: int
    """Samples asked for."""
    done: list[int] = field(default_factory=list[int])
    """Chunks whose record was counted."""
    n: int = 0
    """Valid samples."""
    solved: int = 0
    """Solved samples."""
    tasks: int = 0
    """Tasks with at least one valid sample."""
    reward: float = 0.0
    """Sum of rewards over valid samples."""
    pass_sums: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """k -> [sum of pass@k over tasks with n >= k, number of those tasks]. Keys are text to survive JSON."""
    versions: list[int] = field(default_factory=list[int])
    """[oldest, newest] policy version over valid samples; empty before the first."""
    rates: str = ""
    """What each task did (`gates.rates`); tasks from `MOST_RATES` on are left out."""

    @property
    def complete(self) -> bool:
        return len(self.done) == self.groups

    def add(self, chunk: int, samples: Iterable[SampleSummary]) -> bool:
        """Count one group; False if it was counted before."""
        if chunk in self.done:
            return False
        self.done.append(chunk)
        by_task: dict[int, list[SampleSummary]] = defaultdict(list)
        for sample in samples:
            if is_valid(sample):
                by_task[sample.task_index].append(sample)
        for valid in by_task.values():
            self._add_task(valid)
        return True

    def _add_task(self, valid: list[SampleSummary]) -> None:
        n, c = len(valid), sum(sample.solved for sample in valid)
        self.n += n
        self.solved += c
        self.tasks += 1
        self.reward += sum(sample.reward for sample in valid)
        task = valid[0].task_index
        if task < MOST_RATES:
            self.rates = put(self.rates, task, c / n)
        k = 1
        while (estimate := pass_at_k(n, c, k)) is not None:
            sums = self.pass_sums.setdefault(str(k), [0.0, 0])
            sums[0] += estimate
            sums[1] += 1
            k *= 2
        seen = [*self.versions, *(each.min_version for each in valid), *(each.max_version for each in valid)]
        self.versions = [min(seen), max(seen)]

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `Tally(**state)` continues exactly here."""
        return asdict(self)

    def result(self, point: str, domain: str, step: int) -> EvalResult:
        """The point's result. Without a valid sample n = 0, and nothing may be read from the zeros."""
        estimates = {int(k): total / count for k, (total, count) in self.pass_sums.items()}
        pass_1 = estimates.pop(1, 0.0)
        low, high = wilson(pass_1, self.tasks)  # tasks, not samples: samples of one task are not independent
        oldest, newest = self.versions or (0, 0)
        return EvalResult(
            point=point,
            domain=domain,
            step=step,
            min_version=oldest,
            max_version=newest,
            n=self.n,
            attempted=self.attempted,
            solved=self.solved,
            pass_at_1=pass_1,
            low=low,
            high=high,
            mean_reward=self.reward / self.n if self.n else 0.0,
            pass_at_k=estimates,
        )


def tallies_from(state: Mapping[str, Mapping[str, Any]]) -> dict[str, Tally]:
    """Tallies by domain from what `Tally.state` gave."""
    return {domain: Tally(**saved) for domain, saved in state.items()}
