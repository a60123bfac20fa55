"""A report as one HTML page; styles and script are inlined, nothing is fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

from temper.client.live.results import Comparison, compare, mean
from temper.client.live.words import duration, percent, reason_word
from temper.client.report.charts import COLOURS, Pair, Score, draw, dumbbells, number
from temper.client.report.curves import curves, domain_colours
from temper.client.report.gather import Episode, Material
from temper.client.sdk.types import Evaluation

_STATES = {"succeeded": "good", "failed": "bad", "cancelled": "warn"}
_ROLES = {"prompt": "prompt", "call": "tool call", "result": "result", "answer": "answer", "other": ""}


def page(material: Material) -> str:
    """The whole document."""
    sections = [
        _header(material),
        _tiles(material),
        _results(material),
        _gates(material),
        _curves(material),
        _trajectories(material),
        _events(material),
        _versions(material),
        _job_file(material),
        _missing(material),
    ]
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(material.job.name)} · temper</title><style>{_file('page.css')}</style></head>"
        f'<body><main>{"".join(sections)}</main><div id="tip"></div><script>{_file("page.js")}</script></body></html>'
    )


def _file(name: str) -> str:
    return (resources.files("temper.client.report") / name).read_text()


def _header(material: Material) -> str:
    job = material.job
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created_at)) if job.created_at else ""
    phases = " + ".join(f"{each['steps']} steps {each['algorithm']}" for each in job.spec.get("phases", []))
    reason = f'<p class="{_STATES.get(job.state, "soft")}">{escape(job.reason)}</p>' if job.reason else ""
    return (
        f'<header><h1>{escape(job.name)}</h1><span class="state {_STATES.get(job.state, "soft")}">{job.state}</span>'
        f'<span class="soft mono">{escape(job.id)}</span><button id="theme" type="button">dark</button></header>'
        f'<p class="soft">{when} · {escape(phases)} · seed {escape(str(job.spec.get("seed", 0)))}</p>{reason}'
    )


def _tiles(material: Material) -> str:
    progress = material.job.progress
    rows = compare(material.job)
    before = mean([row.before.pass_at_1 for row in rows if row.before])
    after = mean([row.after.pass_at_1 for row in rows if row.after])
    groups = f"{progress.groups_consumed} of {progress.groups_published}"
    tiles = [
        (f"{_share(before)} → {_share(after)}", "mean pass@1, held out"),
        (f"{progress.step}", f"optimizer steps of {progress.total_steps}"),
        (duration(progress.wall_s), "wall time"),
        (groups, "groups trained on"),
        (number(float(sum(each.action_tokens for each in material.steps))), "action tokens trained on"),
        (f"{percent(progress.trainer_idle)} / {percent(progress.rollout_idle)}", "idle: trainer / rollout"),
    ]
    cells = "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles)
    return f'<div class="tiles">{cells}</div>'


def _results(material: Material) -> str:
    rows = compare(material.job)
    if not any(row.before or row.after for row in rows):
        return ""
    colours = domain_colours(material)
    pairs = [Pair(row.domain, colours[row.domain], _score(row.before), _score(row.after)) for row in rows]
    body = "".join(_result_row(row) for row in rows)
    befores = mean([row.before.pass_at_1 for row in rows if row.before])
    afters = mean([row.after.pass_at_1 for row in rows if row.after])
    total = (
        f'<tr class="sum"><td>mean</td><td class="n">{_plain(befores)}</td><td class="n">{_plain(afters)}</td>'
        "<td></td><td></td></tr>"
    )
    head = '<tr><th>domain</th><th class="n">before</th><th class="n">after</th><th class="n">change</th><th class="n">n</th></tr>'
    return (
        "<h2>Before and after</h2>"
        '<p class="soft">pass@1 on held-out tasks with 95 % intervals; hollow before, full after.</p>'
        f'<div class="two"><div>{dumbbells(pairs)}</div>'
        f'<div class="scroll"><table>{head}{body}{total if len(rows) > 1 else ""}</table></div></div>'
    )


def _result_row(row: Comparison) -> str:
    change = "-" if row.change is None else f"{row.change:+.3f}"
    tone = ("good" if (row.change or 0) > 0 else "bad") if row.clear else ""
    last = row.after or row.before
    return (
        f"<tr><td>{escape(row.domain)}</td><td class='n'>{_interval(row.before)}</td>"
        f"<td class='n'>{_interval(row.after)}</td><td class='n {tone}'>{change}</td>"
        f"<td class='n'>{last.n if last else '-'}</td></tr>"
    )


def _curves(material: Material) -> str:
    charts = curves(material)
    if not charts:
        return ""
    return f'<h2>Curves</h2><div class="two curves">{"".join(draw(chart) for chart in charts)}</div>'


def _gates(material: Material) -> str:
    """What the gates said; nothing for a job without any."""
    rows = [
        (each.point, each.step, f"v{each.version}", each.verdict.replace("_", " "), each.action, each.message)
        for each in material.job.gates
    ]
    table = _table(("point", "step", "version", "verdict", "what followed", "why"), rows)
    return f"<h2>Gates</h2>{table}" if table else ""


def _trajectories(material: Material) -> str:
    if not material.episodes:
        return ""
    colours = domain_colours(material)
    blocks = ["<h2>Trajectories, before and after</h2>"]
    blocks.append(
        '<p class="soft">The same held-out tasks, played by the initial and by the final policy.</p>'
    )
    for domain, episodes in material.episodes.items():
        paint = f"border-color:var(--c{colours.get(domain, 7) % COLOURS})"
        blocks.append(f'<h3 class="domain" style="{paint}">{escape(domain)}</h3>')
        for before, after in zip(episodes[::2], episodes[1::2], strict=True):
            blocks.append(f'<div class="pair">{_episode(before)}{_episode(after)}</div>')
    return "".join(blocks)


def _episode(episode: Episode) -> str:
    tone = "good" if episode.solved else "bad"
    turns = "".join(
        f'<div class="turn {part.role}"><span>{_ROLES[part.role]}</span>'
        f'<div class="mono">{escape(part.text) or "&nbsp;"}</div></div>'
        for part in episode.parts
        if part.role != "other" or part.text.strip()
    )
    return (
        f'<div class="episode"><div><span>{episode.point} · task {episode.task} · policy v{episode.version}</span>'
        f'<b class="{tone}">reward {episode.reward:g}</b></div>{turns}</div>'
    )


def _events(material: Material) -> str:
    if not material.events:
        return ""
    start = material.job.created_at or material.events[0].time
    tones = {"error": "bad", "warning": "warn"}
    rows = "".join(
        f'<tr><td class="n">{duration(max(each.time - start, 0))}</td>'
        f'<td class="{tones.get(each.level, "")}">{escape(each.message)}</td></tr>'
        for each in material.events
    )
    groups = material.job.progress
    dropped = (
        ", ".join(f"{count} {reason_word(name)}" for name, count in groups.groups_dropped.items()) or "none"
    )
    ledger = (
        f'<p class="soft">Groups: {groups.groups_published} published, {groups.groups_consumed} trained on, '
        f"dropped: {escape(dropped)}, {groups.groups_in_flight} in flight.</p>"
    )
    return f"<h2>What happened</h2>{ledger}<table class='events'>{rows}</table>"


def _versions(material: Material) -> str:
    environments = _table(
        ("environment", "version", "digest", "state", "licence"),
        [
            (each.name, each.version, each.digest[:16], each.state, each.licence)
            for each in material.environments
        ],
    )
    services = _table(
        ("service", "instance", "version", "what it says"),
        [
            (each.service, each.instance, each.version, ", ".join(f"{k}={v}" for k, v in each.status.items()))
            for each in material.instances
        ],
    )
    workers = _table(
        ("rollout worker", "engine", "groups", "seconds a group"),
        [(each["worker"], each["engine"], each["groups"], each["mean_s"]) for each in material.workers],
    )
    return f"<h2>Versions of everything</h2>{environments}<br>{workers}<br>{services}"


def _job_file(material: Material) -> str:
    written = f"<pre>{escape(material.job_file)}</pre>" if material.job_file else ""
    spec = escape(json.dumps(material.job.spec, indent=2, ensure_ascii=False))
    title = "Job file" if written else "Job"
    effective = (
        f"<details><summary>Effective specification, defaults filled in</summary><pre>{spec}</pre></details>"
    )
    return f"<h2>{title}</h2>{written}{effective}"


def _missing(material: Material) -> str:
    if not material.missing:
        return ""
    items = "".join(f"<li>{escape(each)}</li>" for each in material.missing)
    return f'<h2>Not available</h2><ul class="soft">{items}</ul>'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return ""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f'<div class="scroll"><table><tr>{names}</tr>{body}</table></div>'


def _interval(result: Evaluation | None) -> str:
    if result is None:
        return "-"
    return f'{result.pass_at_1:.3f} <span class="soft">[{result.low:.2f}, {result.high:.2f}]</span>'


def _score(result: Evaluation | None) -> Score | None:
    return Score(result.pass_at_1, result.low, result.high) if result else None


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
