import dataclasses
import io
import json

import pytest
from rich.console import Console
from tests.unit.client.fakes import evaluation, job, training

from temper.client.live.plain import PlainLines
from temper.client.live.results import compare, results_table
from temper.client.live.screen import draw
from temper.client.live.summary import summarize
from temper.client.live.view import JobView
from temper.client.live.words import dropped, duration, sparkline
from temper.client.sdk import convert
from temper.client.sdk.types import GateVerdict, Notice, Update


def shown(renderable) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


@pytest.fixture
def view() -> JobView:
    view = JobView()
    view.apply(Update("0", convert.job(job())))
    for message in training():
        update = convert.update(message)
        assert update
        view.apply(update)
    return view


def test_a_view_follows_the_job(view):
    assert (view.state, view.progress.step, view.ended) == ("succeeded", 3, True)
    assert list(view.rewards["calc"]) == pytest.approx([0.5, 0.7, 0.9])
    assert [(bar.name, bar.done, bar.steps) for bar in view.bars()] == [("rl", 3, 3)]
    assert view.evaluation("after", "calc").pass_at_1 == 0.9


def test_a_repeated_evaluation_replaces_the_older_one(view):
    view.apply(Update("9", convert.evaluation(evaluation("after", "calc", 0.95))))
    assert [each.pass_at_1 for each in view.job.evals if each.point == "after"] == [0.95]


def test_a_verdict_that_did_not_pass_is_noticed_once_however_often_it_is_told(view):
    failed = GateVerdict("step-2", 2, 2, "fail", action="hold", message="calc fell")
    view.apply(Update("8", GateVerdict("before", 0, 0, "pass")))
    for cursor in ("9", "10"):
        view.apply(Update(cursor, failed))
    assert [each.point for each in view.job.gates] == ["before", "step-2"]
    assert [each.message for each in view.notices] == ["gate step-2 fail, hold: calc fell"]


def test_a_line_about_a_step_has_no_gap_where_nothing_was_diagnosed(view):
    lines: list[str] = []
    plain = PlainLines(view, lines.append)
    for step, diagnostics in enumerate(({}, {"ess": 0.97, "masked_share": 0.03}), start=7):
        progress = dataclasses.replace(view.progress, step=step, wall_s=100.0 * step, diagnostics=diagnostics)
        view.apply(Update(str(step), progress))
        plain.apply(Update(str(step), progress))
    bare, told = lines
    assert "  " not in bare.partition("] ")[2]
    assert "ess 97%, masked 3% eta" in told


def test_phases_fill_one_after_another():
    view = JobView()
    spec = {"phases": [{"name": "warm", "steps": "4"}, {"name": "rl", "steps": "6"}]}
    from temper.client.sdk.types import Job, Progress

    view.apply(Update("0", Job("j", "n", "running", spec=spec, progress=Progress(step=5, total_steps=10))))
    assert [(bar.done, bar.steps) for bar in view.bars()] == [(4, 4), (1, 6)]


def test_the_screen_shows_what_matters(view):
    view.apply(Update("8", Notice("warning", "trainer_recovered", "the trainer came back")))
    text = shown(draw(view))
    for word in (
        "trial",
        "job-1",
        "succeeded",
        "3/3 steps",
        "calc",
        "0.90",
        "1 dropped (1 stale)",
        "came back",
    ):
        assert word in text


def test_lines_are_one_per_event_and_few_for_progress(view):
    lines: list[str] = []
    plain = PlainLines(view, lines.append)
    for message in training():
        update = convert.update(message)
        assert update
        plain.apply(update)
    assert len([line for line in lines if "step " in line]) == 3
    assert "eval before calc pass@1 0.300 [0.25, 0.35] n=256" in lines[0]
    assert lines[-1].endswith("job job-1 succeeded")


def test_results_stand_side_by_side_with_their_intervals(view):
    (row,) = compare(view.job)
    assert row.change == pytest.approx(0.6)
    assert row.clear
    assert "0.300 [0.25, 0.35]" in shown(results_table(view.job))


def test_an_evaluation_without_valid_samples_is_no_result():
    (row,) = compare(convert.job(job(evals=[evaluation("before", "calc", 0.0)])))
    assert row.before
    empty = evaluation("before", "calc", 0.0)
    empty.n = 0
    (row,) = compare(convert.job(job(evals=[empty])))
    assert row.before is None


def test_the_summary_has_the_promised_form(view):
    summary = json.loads(json.dumps(summarize(view.job)))
    assert summary["domains"]["calc"]["before"] == 0.3
    assert summary["domains"]["calc"]["after"] == 0.9
    assert summary["domains"]["calc"]["n"] == 256
    assert (summary["steps"], summary["policy_versions"], summary["seed"]) == (3, 4, 7)
    groups = summary["groups"]
    assert (groups["published"], groups["consumed"], groups["dropped"], groups["in_flight"]) == (48, 48, 1, 0)
    assert summary["wall_s"] == 60.0
    assert summary["trainer_idle"] == 0.25


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (5, "0:05"), (95, "1:35"), (3700, "1:01:40")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_sparklines_average_what_does_not_fit():
    assert sparkline([0, 0, 1, 1], 2) == "▁█"
    assert sparkline([], 5) == ""
    assert sparkline([0.5], 5) == "▅"


def test_dropped_groups_are_told_with_their_reasons():
    assert dropped({}) == "0 dropped"
    assert dropped({"DROP_REASON_STALE": 2, "DROP_REASON_POISON": 1}) == "3 dropped (1 poison, 2 stale)"
