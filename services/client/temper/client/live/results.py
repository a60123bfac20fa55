"""Evaluations before and after, side by side, with intervals and whether the change is more than noise."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from temper.client.live.words import interval
from temper.client.sdk.types import Evaluation, Job


@dataclass(frozen=True, slots=True)
class Comparison:
    """One domain before and after. Example: `Comparison("calc", before, after)`."""

    domain: str
    """Domain."""
    before: Evaluation | None
    """Of the initial policy."""
    after: Evaluation | None
    """Of the final policy."""

    @property
    def change(self) -> float | None:
        """Difference of pass@1."""
        if self.before is None or self.after is None:
            return None
        return self.after.pass_at_1 - self.before.pass_at_1

    @property
    def clear(self) -> bool:
        """Whether the two intervals do not overlap."""
        if self.before is None or self.after is None:
            return False
        return self.after.low > self.before.high or self.after.high < self.before.low


def compare(job: Job) -> list[Comparison]:
    """Every domain of the job with its first and last evaluation."""
    names = [str(each["name"]) for each in job.spec.get("domains", [])]
    names += sorted({each.domain for each in job.evals} - set(names))
    found = {(each.point, each.domain): each for each in job.evals if each.n}  # no valid sample: no result
    return [Comparison(name, found.get(("before", name)), found.get(("after", name))) for name in names]


def mean(values: list[float]) -> float | None:
    """Mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def results_table(job: Job) -> Table:
    """The table that ends a run."""
    table = Table(
        title=f"{job.name} · held-out pass@1, 95 % intervals", title_justify="left", title_style="bold"
    )
    table.add_column("domain", no_wrap=True)
    for column in ("before", "after", "change", "n"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = compare(job)
    for row in rows:
        table.add_row(row.domain, _score(row.before), _score(row.after), _change(row), _n(row))
    if len(rows) > 1:
        befores = mean([row.before.pass_at_1 for row in rows if row.before])
        afters = mean([row.after.pass_at_1 for row in rows if row.after])
        table.add_section()
        table.add_row("mean", _plain(befores), _plain(afters), "", "")
    return table


def _score(result: Evaluation | None) -> str:
    return interval(result.pass_at_1, result.low, result.high) if result else "-"


def _change(row: Comparison) -> Text:
    if row.change is None:
        return Text("-")
    style = ("green" if row.change > 0 else "red") if row.clear else ""
    return Text(f"{row.change:+.3f}", style=style)


def _n(row: Comparison) -> str:
    result = row.after or row.before
    return str(result.n) if result else "-"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
