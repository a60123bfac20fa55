"""Which curves a report shows, and where each comes from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from temper.client.report.charts import Chart, Series
from temper.client.report.gather import Material, Step

# Metrics of the step records by the names that trainers use, first found first shown.
_KL = ("kl", "kl_ref", "mismatch_k3", "mismatch_k1")
_KL_NOTES = {
    "kl": "Of the policy to its reference.",
    "kl_ref": "Of the policy to its reference.",
    "mismatch_k3": "K3 estimate between the policy that sampled and the policy that is trained.",
    "mismatch_k1": "K1 estimate between the policy that sampled and the policy that is trained.",
}


def domain_colours(material: Material) -> dict[str, int]:
    """Colour of each domain: the same in every picture."""
    names = [str(each["name"]) for each in material.job.spec.get("domains", [])]
    names += sorted({result.domain for result in material.job.evals} - set(names))
    return {name: index for index, name in enumerate(names)}


def curves(material: Material) -> list[Chart]:
    """All charts that have something to show, most wanted first."""
    steps = material.steps
    colours = domain_colours(material)
    marks = _phases(steps)
    charts = [
        Chart(
            "Reward in training",
            [
                Series(
                    name,
                    colour,
                    [(each.step, each.reward.get(name, math.nan)) for each in steps],
                    errors=[each.error.get(name, math.nan) for each in steps],
                    smooth=True,
                )
                for name, colour in colours.items()
            ],
            note="Mean of a step's samples; thick: running mean with its 95 % interval.",
            marks=marks,
        ),
        _pass_at_1(material, colours, marks),
        _kl(steps, marks),
        _metric(steps, "entropy", "Entropy", "Nats per token that the policy wrote.", marks),
        Chart(
            "Staleness",
            [Series("versions behind", 2, _points(steps, lambda each: each.staleness))],
            note="Mean age of a step's samples, in policy versions.",
            y_low=0.0,
            marks=marks,
        ),
        _time(steps, marks),
        Chart(
            "Tokens per second",
            [
                Series("through the model", 0, _rate(steps, lambda each: each.total_tokens), smooth=True),
                Series(
                    "written by the policy", 1, _rate(steps, lambda each: each.action_tokens), smooth=True
                ),
            ],
            note="Trained on, over the wall time between steps.",
            y_low=0.0,
            marks=marks,
        ),
        _metric(steps, "grad_norm", "Gradient norm", "Before clipping.", marks),
        _metric(steps, "nll", "Loss on demonstrations", "Nats per token that the oracle wrote.", marks),
    ]
    return [chart for chart in charts if not chart.empty]


def _pass_at_1(material: Material, colours: dict[str, int], marks: Sequence[tuple[float, str]]) -> Chart:
    series: list[Series] = []
    for name, colour in colours.items():
        results = sorted(
            (each for each in material.job.evals if each.domain == name), key=lambda each: each.step
        )
        series.append(
            Series(
                name,
                colour,
                [(each.step, each.pass_at_1) for each in results],
                low=[each.low for each in results],
                high=[each.high for each in results],
                dots=True,
            )
        )
    note = "Held-out tasks, never sampled in training; whiskers are 95 % intervals."
    return Chart("pass@1", series, note=note, y_low=0.0, y_high=1.0, percent=True, marks=marks)


def _kl(steps: Sequence[Step], marks: Sequence[tuple[float, str]]) -> Chart:
    name = next((name for name in _KL if any(name in each.metrics for each in steps)), _KL[0])
    return _metric(steps, name, "KL divergence", _KL_NOTES[name], marks)


def _metric(
    steps: Sequence[Step], name: str, title: str, note: str, marks: Sequence[tuple[float, str]]
) -> Chart:
    points = _points(steps, lambda each: each.metrics.get(name, math.nan))
    return Chart(title, [Series(name, 0, points, smooth=True)], note=note, marks=marks)


def _time(steps: Sequence[Step], marks: Sequence[tuple[float, str]]) -> Chart:
    def share(part: str) -> Callable[[Step], float]:
        return lambda each: each.seconds[part] / (sum(each.seconds.values()) or math.nan)

    names = {
        "wait": "idle: waiting for samples",
        "compute": "computing",
        "data": "fetching",
        "publish": "publishing",
    }
    series = [
        Series(label, index, _points(steps, share(part)), smooth=True)
        for index, (part, label) in enumerate(names.items())
    ]
    note = "Shares of the trainer's time."
    return Chart(
        "Idle share of the trainer", series, note=note, y_low=0.0, y_high=1.0, percent=True, marks=marks
    )


def _points(steps: Sequence[Step], value: Callable[[Step], float]) -> list[tuple[float, float]]:
    return [(each.step, value(each)) for each in steps]


def _rate(steps: Sequence[Step], amount: Callable[[Step], float]) -> list[tuple[float, float]]:
    rates: list[tuple[float, float]] = []
    for before, each in itertools.pairwise(steps):
        seconds = each.finished_at - before.finished_at
        rates.append((each.step, amount(each) / seconds if seconds > 0 else math.nan))
    return rates


def _phases(steps: Sequence[Step]) -> list[tuple[float, str]]:
    """Where each phase but the first begins."""
    pairs = itertools.pairwise(steps)
    return [(after.step, after.phase) for before, after in pairs if after.phase != before.phase]
