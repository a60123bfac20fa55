"""The view on a terminal: bars per phase, a table per domain, one line of vital signs, the newest notices."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from temper.client.live.view import JobView
from temper.client.live.words import diagnosed, dropped, duration, percent, sparkline

_SPARK = 24
_NOTICES = 4
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}
_STATES = {"succeeded": "bold green", "failed": "bold red", "cancelled": "yellow", "paused": "yellow"}


def draw(view: JobView) -> RenderableType:
    """Everything worth seeing now, in about fifteen lines."""
    parts: list[RenderableType] = [_headline(view), _bars(view)]
    if view.progress.domain_reward or view.job.evals:
        parts += [Text(), _domains(view)]
    parts += [Text(), _vitals(view)]
    parts += [_notice(each.level, each.message) for each in list(view.notices)[-_NOTICES:]]
    return Group(*parts)


def _headline(view: JobView) -> Text:
    progress = view.progress
    line = Text()
    line.append(view.job.name, style="bold")
    line.append(f"  {view.job.id}  ", style="dim")
    line.append(view.state, style=_STATES.get(view.state, "cyan"))
    if progress.activity and progress.activity != view.state and not view.ended:
        line.append(f" · {progress.activity}")
    if view.job.reason:
        line.append(f" · {view.job.reason}", style="yellow")
    line.append(f" · {duration(progress.wall_s)}", style="dim")
    if progress.eta_s is not None and not view.ended:
        line.append(f" · about {duration(progress.eta_s)} left", style="dim")
    return line


def _bars(view: JobView) -> Table:
    grid = Table.grid(padding=(0, 2))
    progress = view.progress
    for bar in view.bars():
        grid.add_row(
            bar.name,
            ProgressBar(total=bar.steps, completed=bar.done, width=40),
            f"{bar.done}/{bar.steps} steps",
            f"policy v{progress.version}" if 0 < bar.done < bar.steps else "",
        )
    if progress.eval_done < progress.eval_total and not view.ended:
        grid.add_row(
            "evaluation",
            ProgressBar(total=progress.eval_total, completed=progress.eval_done, width=40),
            f"{progress.eval_done}/{progress.eval_total} episodes",
            "",
        )
    return grid


def _domains(view: JobView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("domain", no_wrap=True)
    for column in ("reward", "solved", "groups", "before", "now"):
        table.add_column(column, justify="right")
    table.add_column("", no_wrap=True)
    progress = view.progress
    for name in view.domains:
        table.add_row(
            name,
            _number(progress.domain_reward.get(name)),
            percent(progress.domain_solved[name]) if name in progress.domain_solved else "-",
            str(progress.domain_groups.get(name, 0)),
            _pass(view, name, first=True),
            _pass(view, name, first=False),
            Text(sparkline(list(view.rewards.get(name, ())), _SPARK), style="cyan"),
        )
    return table


def _pass(view: JobView, domain: str, *, first: bool) -> str:
    """pass@1 before training, or the newest one after it."""
    results = [each for each in view.job.evals if each.domain == domain]
    chosen = [each for each in results if (each.point == "before") is first]
    return f"{chosen[-1].pass_at_1:.3f}" if chosen else "-"


def _vitals(view: JobView) -> Text:
    progress = view.progress
    speed = [
        f"staleness {progress.staleness:.2f}",
        f"{progress.tokens_per_s:,.0f} tokens/s",
        f"{progress.episodes_per_s:,.1f} episodes/s",
        f"{progress.sandboxes_in_use} sandboxes in use",
        f"idle: trainer {percent(progress.trainer_idle)}, rollout {percent(progress.rollout_idle)}",
    ]
    groups = (
        f"groups: {progress.groups_in_flight} in flight, {progress.groups_consumed} trained on, "
        f"{dropped(progress.groups_dropped)}"
    )
    health = diagnosed(progress.diagnostics)
    lines = [" · ".join(speed), groups, *([health] if health else [])]
    return Text("\n".join(lines), style="dim")


def _notice(level: str, message: str) -> Text:
    return Text(f"  {message}", style=_STYLES.get(level, "dim"), overflow="ellipsis", no_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
