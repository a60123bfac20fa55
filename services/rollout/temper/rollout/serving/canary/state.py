"""The canary as a machine: who gets which version, what the outcomes so far allow, and how it ends.

    running --min samples, nothing failed--> running at the next share
    running at the last share --pass--> waiting (if a human must approve) --approve--> promoted
                              --pass--> promoted (otherwise)
    running, waiting --fail--> failed          running, waiting --abort--> aborted

Failed and aborted mean: everybody gets the previous version again, which has been loaded all along. ``insufficient_data``
moves nothing: it never promotes and never rolls back.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from temper.rollout.serving.canary.evidence import Arm, Verdict, cost_ratio, quantile, success_difference
from temper.runtime.errors import Conflict, NotFound, Rejected

_REMEMBERED = 100_000  # trajectories; the one that was quiet longest is forgotten
_SURE = 1.96  # standard deviations of a rank


class Phase(StrEnum):
    """Where a canary is."""

    RUNNING = "running"
    WAITING = "waiting"
    PROMOTED = "promoted"
    FAILED = "failed"
    ABORTED = "aborted"


OPEN = (Phase.RUNNING, Phase.WAITING)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of a canary. Example: ``Plan(steps=(0.05, 0.25, 0.5), min_samples=100)``."""

    steps: tuple[float, ...] = (0.05, 0.25, 0.5)
    """Shares of the traffic, ascending, in (0, 1)."""
    min_samples: int = 100
    """Judged trajectories of either arm before a step is left or anything is concluded."""
    margin: float = 0.05
    """How much lower the success rate may be, in rate."""
    alpha: float = 0.05
    """Chance of a wrong conclusion about success or cost, over all looks together."""
    max_p95_ratio: float | None = 1.5
    """Latency p95 over the baseline's; None to ignore latency."""
    max_cost_ratio: float | None = None
    """Cost per success over the baseline's; None to ignore cost."""
    approve: bool = False
    """Whether a human has to approve the promotion."""

    def __post_init__(self) -> None:
        if not self.steps or any(not 0 < share < 1 for share in self.steps):
            raise Rejected("steps must be shares in (0, 1), at least one", field="steps")
        if list(self.steps) != sorted(set(self.steps)):
            raise Rejected("steps must grow", field="steps")
        if self.min_samples < 1:
            raise Rejected("min_samples must be at least 1", field="min_samples")
        if not 0 < self.alpha < 1 or not 0 < self.margin < 1:
            raise Rejected("alpha and margin must lie in (0, 1)", field="alpha")
        for name in ("max_p95_ratio", "max_cost_ratio"):
            ratio = getattr(self, name)
            if ratio is not None and not (1 <= ratio < math.inf):
                raise Rejected(f"{name} must be 1 or more", field=name)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons."""

    verdict: Verdict
    """What may be done."""
    reasons: tuple[str, ...]
    """Why, one per metric that had a say."""


class Canary:
    """See the module. Not safe to share between threads."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.phase = Phase.RUNNING
        self.step = 0
        self.reason = ""
        self.baseline, self.canary = Arm(), Arm()
        self._at_step = (0, 0)  # judged trajectories of either arm when this step began
        self._arms: OrderedDict[str, bool] = OrderedDict()
        self._told: set[str] = set()

    @property
    def share(self) -> float:
        """Share of new trajectories that get the new version now."""
        match self.phase:
            case Phase.RUNNING | Phase.WAITING:
                return self.plan.steps[self.step]
            case Phase.PROMOTED:
                return 1.0
            case _:
                return 0.0

    def takes(self, trajectory: str) -> bool:
        """Whether a trajectory gets the new version: decided once, kept while the canary is open."""
        if self.phase not in OPEN:
            return self.phase is Phase.PROMOTED
        known = self._arms.get(trajectory)
        if known is None:
            digest = hashlib.blake2b(f"{self.name}\0{trajectory}".encode(), digest_size=8).digest()
            known = int.from_bytes(digest, "big") / 2**64 < self.share
            self._arms[trajectory] = known
            if len(self._arms) > _REMEMBERED:
                forgotten, _ = self._arms.popitem(last=False)
                self._told.discard(forgotten)
        self._arms.move_to_end(trajectory)
        return known

    def observe(
        self,
        trajectory: str,
        *,
        success: bool | None,
        latency_s: float | None = None,
        cost: float | None = None,
    ) -> None:
        """Count what became of a trajectory, then move if the evidence allows.

        Raises ``Rejected`` for a number that is none, ``NotFound`` for a trajectory that was never routed, ``Conflict``
        for one that was told already. After the end outcomes are accepted and change nothing.
        """
        for name, value in (("latency_s", latency_s), ("cost", cost)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise Rejected(f"{value} is not a finite number of 0 or more", field=name)
        if self.phase not in OPEN:
            return
        arm = self._arms.get(trajectory)
        if arm is None:
            raise NotFound(f"trajectory {trajectory!r} was not routed by this canary", field="trajectory")
        if trajectory in self._told:
            raise Conflict(f"trajectory {trajectory!r} has its outcome already", field="trajectory")
        self._told.add(trajectory)
        (self.canary if arm else self.baseline).add(success, latency_s, cost)
        self._move()

    def approve(self) -> None:
        """A human agrees. Raises ``Conflict`` unless that is what the canary waits for."""
        if self.phase is not Phase.WAITING:
            raise Conflict(f"canary {self.name} is {self.phase}, it waits for nobody")
        self.phase = Phase.PROMOTED

    def abort(self, reason: str) -> None:
        """End it; the previous version serves everybody. Raises ``Conflict`` when it has ended already."""
        if self.phase not in OPEN:
            raise Conflict(f"canary {self.name} has ended: {self.phase}")
        self.phase, self.reason = Phase.ABORTED, reason

    def judge(self) -> Judgement:
        """What the outcomes so far allow. Any failure fails; all metrics must pass to pass."""
        least = min(self.baseline.judged, self.canary.judged)
        if least < self.plan.min_samples:
            return Judgement(
                Verdict.INSUFFICIENT_DATA, (f"{least} of {self.plan.min_samples} samples in the smaller arm",)
            )
        found = [self._judge_success(), self._judge_latency(), self._judge_cost()]
        said = [each for each in found if each is not None]
        reasons = tuple(reason for _, reason in said)
        verdicts = [verdict for verdict, _ in said]
        for decisive in (Verdict.FAIL, Verdict.INSUFFICIENT_DATA):
            if decisive in verdicts:
                return Judgement(decisive, reasons)
        return Judgement(Verdict.PASS, reasons)

    def _move(self) -> None:
        judgement = self.judge()
        if judgement.verdict is Verdict.FAIL:
            self.phase, self.reason = Phase.FAILED, "; ".join(judgement.reasons)
            return
        if self.phase is Phase.WAITING or not self._step_is_full():
            return
        if self.step + 1 < len(self.plan.steps):
            if self._within_margin():
                self.step += 1
                self._at_step = (self.baseline.judged, self.canary.judged)
        elif judgement.verdict is Verdict.PASS:
            self.phase = Phase.WAITING if self.plan.approve else Phase.PROMOTED
            self.reason = "; ".join(judgement.reasons)

    def _step_is_full(self) -> bool:
        fresh = (self.baseline.judged - self._at_step[0], self.canary.judged - self._at_step[1])
        return min(fresh) >= self.plan.min_samples

    def _within_margin(self) -> bool:
        baseline, canary = self.baseline.success_rate, self.canary.success_rate
        return baseline is not None and canary is not None and canary >= baseline - self.plan.margin

    def _judge_success(self) -> tuple[Verdict, str]:
        found = success_difference(self.baseline, self.canary, self.plan.alpha)
        assert found is not None, "both arms have samples here"
        text = f"success difference {found.estimate:+.3f} in [{found.low:+.3f}, {found.high:+.3f}]"
        if found.high < -self.plan.margin:
            return Verdict.FAIL, text
        return (Verdict.PASS if found.low >= -self.plan.margin else Verdict.INSUFFICIENT_DATA), text

    def _judge_latency(self) -> tuple[Verdict, str] | None:
        limit = self.plan.max_p95_ratio
        if limit is None:
            return None
        base, new = self.baseline.latencies, self.canary.latencies
        if min(len(base), len(new)) < self.plan.min_samples:
            return (
                Verdict.INSUFFICIENT_DATA,
                f"latency of only {min(len(base), len(new))} trajectories is known",
            )
        high, low = quantile(base, 0.95, _SURE), quantile(new, 0.95, -_SURE)
        middle, point = quantile(base, 0.95), quantile(new, 0.95)
        assert high is not None
        assert low is not None
        assert middle is not None
        assert point is not None
        text = f"p95 {point:.3f} s against {middle:.3f} s"
        if low > limit * high:
            return Verdict.FAIL, text
        return (Verdict.PASS if point <= limit * middle else Verdict.INSUFFICIENT_DATA), text

    def _judge_cost(self) -> tuple[Verdict, str] | None:
        limit = self.plan.max_cost_ratio
        if limit is None:
            return None
        found = cost_ratio(self.baseline, self.canary, self.plan.alpha)
        if found is None or min(self.baseline.costs, self.canary.costs) < self.plan.min_samples:
            return Verdict.INSUFFICIENT_DATA, "cost per success is not known for both"
        text = f"cost per success times {math.exp(found.estimate):.3f}"
        if found.low > math.log(limit):
            return Verdict.FAIL, text
        return (Verdict.PASS if found.estimate <= math.log(limit) else Verdict.INSUFFICIENT_DATA), text
