"""The view as lines: one per event, for logs and pipes; progress at most every few seconds."""

from __future__ import annotations

from collections.abc import Callable

from temper.client.live.view import JobView
from temper.client.live.words import diagnosed, dropped, duration, interval, percent, verdict_line
from temper.client.sdk.types import Evaluation, GateVerdict, Job, Notice, Progress, StateChange, Update

_EVERY_S = 5.0  # of the job's own time


class PlainLines:
    """Turns updates into lines for `write`."""

    def __init__(self, view: JobView, write: Callable[[str], None]) -> None:
        self._view = view
        self._write = write
        self._told_at = -_EVERY_S
        self._told: tuple[int, str, int] | None = None

    def apply(self, update: Update) -> None:
        """Say what `update` brought; the view has it already."""
        match update.payload:
            case Job() as job:
                self._line(f"job {job.id} {job.state}{_because(job.reason)}")
            case StateChange(state=state, reason=reason):
                self._line(f"job {self._view.job.id} {state}{_because(reason)}")
            case Evaluation() as result:
                score = interval(result.pass_at_1, result.low, result.high)
                self._line(f"eval {result.point} {result.domain} pass@1 {score} n={result.n}")
            case GateVerdict() as verdict:
                self._line(f"gate {verdict_line(verdict)}")
            case Notice() as notice:
                self._line(f"{notice.level}: {notice.message}")
            case Progress() as progress:
                self._progress(progress)

    def _progress(self, progress: Progress) -> None:
        now = (progress.step, progress.activity, progress.eval_done)
        if now == self._told or progress.wall_s - self._told_at < _EVERY_S:
            return
        self._told, self._told_at = now, progress.wall_s
        if progress.eval_total and progress.eval_done < progress.eval_total and not progress.domain_reward:
            self._line(f"{progress.activity}: {progress.eval_done}/{progress.eval_total} episodes")
        else:
            self._line(_step_line(progress))

    def _line(self, text: str) -> None:
        self._write(f"[{duration(self._view.progress.wall_s):>6}] {text}")


def _step_line(progress: Progress) -> str:
    rewards = " ".join(f"{name}={value:.2f}" for name, value in sorted(progress.domain_reward.items()))
    health = diagnosed(progress.diagnostics)
    return (
        f"step {progress.step}/{progress.total_steps} v{progress.version} reward {rewards or '-'}"
        f" staleness {progress.staleness:.2f} {progress.tokens_per_s:,.0f} tokens/s"
        f" sandboxes {progress.sandboxes_in_use}"
        f" idle trainer {percent(progress.trainer_idle)} rollout {percent(progress.rollout_idle)}"
        f" groups {progress.groups_in_flight} in flight, {dropped(progress.groups_dropped)}"
        f"{f' {health}' if health else ''} eta {duration(progress.eta_s)}"
    )


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
