"""Verdicts on evaluations, and what is remembered of them: references, the last accepted version, rollbacks ordered.

A verdict is "pass", "fail" or "insufficient_data", never a number. Per domain:

    min_pass   passes when the lower end of the 95 % Wilson interval reaches the bound; fails when the domain is below it beyond chance
    max_drop   passes when the domain did not fall by more than the bound, against its reference and task by task; fails when it did beyond chance
    either     is insufficient_data in between, and with fewer than `min_samples` tasks

"Beyond chance" holds for the whole job: see `comparison`. One failing domain fails the evaluation. What passed is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from temper.api.job.v1.job_pb2 import GateCheck, GateRecord, GateVerdict
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.scheduler.evaluation import Tally, wilson
from temper.scheduler.gates.comparison import ALPHA, Change, below, paired, rejected, unpaired
from temper.scheduler.gates.rates import pairs
from temper.scheduler.gates.settings import judges, looks

PASS, FAIL, TOO_LITTLE = "pass", "fail", "insufficient_data"
KEPT_VERSIONS = 2  # accepted versions whose weights stay
KEPT_ORDERS_REASON = 300  # characters


@dataclass(frozen=True, slots=True)
class Reference:
    """What a domain is compared with. Example: `Reference("step-20", 0.91, 48, "f0f000…")`."""

    point: str
    """Evaluation point."""
    p: float
    """pass@1."""
    n: int
    """Tasks."""
    rates: str
    """Of each task."""


class Gate:
    """The gates of one job."""

    def __init__(self, spec: JobSpec) -> None:
        self.orders = 0
        """Rollbacks ordered."""
        self.done = 0
        """Rollbacks that the trainer has carried out."""
        self.asked = 0
        """Rollbacks that users asked for and that were ordered."""
        self.judged: list[str] = []
        """Points that have a verdict."""
        self.accepted_step = 0
        self.accepted_version = 0
        self._order_step = 0
        self._reason = ""
        self._held: list[int] = []
        self._void: set[str] = set()
        self.pending: list[GateVerdict] = []
        """Verdicts that the job's record does not have yet: a crash must not lose what follows from them."""
        self._references: dict[str, Reference] = {}
        self.configure(spec)

    def configure(self, spec: JobSpec) -> None:
        """Take over settings."""
        self.spec = spec.gates
        self._alpha = ALPHA / looks(spec)
        self.active = judges(spec.gates)

    # ------------------------------------------------------------ rollbacks
    @property
    def waiting(self) -> bool:
        """Whether a rollback was ordered that the trainer has not carried out."""
        return self.orders > self.done

    @property
    def used_up(self) -> bool:
        """Whether no further rollback is allowed."""
        return self.orders >= self.spec.max_rollbacks

    def order(self, reason: str) -> int:
        """Send training back to the last accepted evaluation; returns the number of the order."""
        self.orders += 1
        self._order_step, self._reason = self.accepted_step, reason[:KEPT_ORDERS_REASON]
        return self.orders

    def carried_out(self, rollbacks: int, open_points: Iterable[str]) -> bool:
        """The trainer says how many it has carried out; True for news. Evaluations that are open measure two policies."""
        if rollbacks <= self.done:
            return False
        self.done = rollbacks
        self._void.update(open_points)
        return True

    def record(self, job_id: str, fence: int, promoted: Iterable[int]) -> GateRecord:
        """What the trainer is told."""
        return GateRecord(
            job_id=job_id,
            fence=fence,
            accepted_step=self.accepted_step,
            rollbacks=self.orders,
            rollback_step=self._order_step,
            reason=self._reason,
            held_versions=sorted({*self._held, *promoted}),
        )

    @property
    def reason(self) -> str:
        """Of the newest order."""
        return self._reason

    def too_late(self) -> None:
        """Training has finished: what was ordered and not carried out never will be."""
        self.done = self.orders

    def told(self) -> None:
        """The job's record has every verdict."""
        self.pending.clear()

    # ------------------------------------------------------------ verdicts
    def judge(self, name: str, step: int, version: int, tallies: Mapping[str, Tally]) -> GateVerdict:
        """The verdict on a whole evaluation; what passed becomes what later ones are compared with."""
        self.judged.append(name)
        verdict = GateVerdict(point=name, step=step, version=version)
        if self.waiting or name in self._void:
            self._void.discard(name)
            verdict.verdict = TOO_LITTLE
            verdict.message = "training was sent back while it ran, so it measures two policies"
            return verdict
        verdict.checks.extend(self._checks(tallies))
        found = {check.verdict for check in verdict.checks}
        verdict.verdict = FAIL if FAIL in found else TOO_LITTLE if TOO_LITTLE in found else PASS
        verdict.message = _sentence(verdict.checks)
        if verdict.verdict == PASS:
            self._accept(name, step, version, tallies)
        return verdict

    def _accept(self, name: str, step: int, version: int, tallies: Mapping[str, Tally]) -> None:
        self.accepted_step, self.accepted_version = step, version
        self._held = [*[each for each in self._held if each != version], version][-KEPT_VERSIONS:]
        for domain, tally in tallies.items():
            fresh = Reference(name, _p(tally), tally.tasks, tally.rates)
            known = self._references.get(domain)
            keep = known is not None and (
                self.spec.against == "before" or (self.spec.against == "best" and known.p > fresh.p)
            )
            if not keep and fresh.n:
                self._references[domain] = fresh

    def _checks(self, tallies: Mapping[str, Tally]) -> list[GateCheck]:
        checks: list[GateCheck] = []
        surprises: dict[str, float] = {}
        for domain, tally in sorted(tallies.items()):
            for check, surprise in self._bounds(domain, tally):
                checks.append(check)
                if check.verdict != TOO_LITTLE:
                    surprises[_name(check)] = surprise
        broken = rejected(surprises, self._alpha) if surprises else set[str]()
        for check in checks:
            if _name(check) in surprises:
                _decide(check, broken=_name(check) in broken)
            check.message = _words(check)
        return checks

    def _bounds(self, domain: str, tally: Tally) -> Iterable[tuple[GateCheck, float]]:
        """(check, surprise) of every bound on a domain; too little data is decided here."""
        enough = tally.tasks >= self.spec.min_samples
        p = _p(tally)
        if domain in self.spec.min_pass:
            low, high = wilson(p, tally.tasks)
            bound = self.spec.min_pass[domain]
            check = GateCheck(domain=domain, bound="min_pass", value=p, low=low, high=high, limit=bound)
            yield _sized(check, tally.tasks, enough), below(p, tally.tasks, bound) if enough else 1.0
        known = self._references.get(domain)
        if self.spec.HasField("max_drop") and known is not None:
            change = _change(known, tally)
            low, high = change.interval()
            check = GateCheck(
                domain=domain, bound="max_drop", value=change.mean, low=low, high=high, reference=known.point
            )
            check.limit = -self.spec.max_drop
            yield _sized(check, change.n, enough), change.surprise(self.spec.max_drop)
        elif not enough:  # nothing to compare with; but nothing was shown either
            yield _sized(GateCheck(domain=domain, bound="samples"), tally.tasks, enough), 1.0

    # ------------------------------------------------------------ the books
    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        return {
            "orders": self.orders,
            "done": self.done,
            "asked": self.asked,
            "judged": self.judged,
            "accepted": [self.accepted_step, self.accepted_version],
            "order": [self._order_step, self._reason],
            "held": self._held,
            "void": sorted(self._void),
            "pending": [MessageToDict(each) for each in self.pending],
            "references": {name: asdict(each) for name, each in self._references.items()},
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.orders, self.done, self.asked = state["orders"], state["done"], state["asked"]
        self.judged = list(state["judged"])
        self.accepted_step, self.accepted_version = state["accepted"]
        self._order_step, self._reason = state["order"]
        self._held, self._void = list(state["held"]), set(state["void"])
        self.pending = [ParseDict(each, GateVerdict()) for each in state["pending"]]
        self._references = {name: Reference(**each) for name, each in state["references"].items()}


def _p(tally: Tally) -> float:
    """Mean pass@1 over tasks; 0 without any."""
    total, count = tally.pass_sums.get("1", [0.0, 0])
    return total / count if count else 0.0


def _change(known: Reference, tally: Tally) -> Change:
    """Task by task where both know enough of the same tasks, else by the two shares."""
    both = pairs(known.rates, tally.rates)
    if 2 * len(both) >= min(known.n, tally.tasks):
        return paired(both)
    return unpaired((known.p, known.n), (_p(tally), tally.tasks))


def _name(check: GateCheck) -> str:
    return f"{check.domain}/{check.bound}"


def _sized(check: GateCheck, n: int, enough: bool) -> GateCheck:
    check.n, check.verdict = n, "" if enough else TOO_LITTLE
    return check


def _decide(check: GateCheck, *, broken: bool) -> None:
    if broken:
        check.verdict = FAIL
    elif (check.low if check.bound == "min_pass" else check.value) < check.limit:
        check.verdict = TOO_LITTLE  # the bound may be broken, or not
    else:
        check.verdict = PASS


def _words(check: GateCheck) -> str:
    where = f"{check.domain}: "
    match check.bound, check.verdict:
        case "samples", _:
            return f"{where}{check.n} tasks are too few to judge"
        case "min_pass", _:
            return (
                f"{where}pass@1 {check.value:.3f} [{check.low:.2f}, {check.high:.2f}] of {check.n} tasks "
                f"against at least {check.limit:.3g}"
            )
        case _:
            return (
                f"{where}pass@1 moved by {check.value:+.3f} [{check.low:+.2f}, {check.high:+.2f}] over {check.n} tasks "
                f"since {check.reference}, against a fall of at most {-check.limit:.3g}"
            )


def _sentence(checks: Sequence[GateCheck]) -> str:
    """What did not pass, worst first, at most three of them."""
    bad = sorted(
        (check for check in checks if check.verdict != PASS),
        key=lambda each: (each.verdict != FAIL, each.value),
    )
    if not bad:
        return "every bound is kept"
    more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
    return "; ".join(check.message for check in bad[:3]) + more
