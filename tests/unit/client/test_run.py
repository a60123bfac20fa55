import json
import os
import threading

import pytest
from tests.unit.client.fakes import FakePlatform, job, training

from temper.api.job.v1 import job_pb2
from temper.client.platform.layout import DataDir
from temper.client.platform.lock import DirectoryLock
from temper.client.runs.run import Run, RunOptions
from temper.client.runs.submit import prepare


@pytest.fixture
def layout(tmp_path, fake: FakePlatform):
    """A data directory in which the fake platform runs."""
    layout = DataDir.at(tmp_path / "data")
    layout.prepare()
    lock = DirectoryLock(layout.lock_file)
    lock.acquire()
    endpoints = dict(fake.target.endpoints)
    layout.write_state(
        {"pid": 1, "lasting": True, "endpoints": endpoints, "token_file": str(fake.token_file)}
    )
    yield layout
    lock.release()


@pytest.fixture
def run(temper, layout, job_file):
    return lambda *more: temper("run", str(job_file), "--data-dir", str(layout.root), "--plain", *more)


@pytest.mark.parametrize(("end", "code"), [("succeeded", 0), ("failed", 1)])
def test_a_run_exits_0_only_if_the_job_succeeded(run, world, tmp_path, end, code):
    world.script = training(end)
    said = run("--summary", str(tmp_path / "out.json"), "--seed", "3")
    assert said.code == code
    assert "using the platform that runs in" in said.err
    assert "0.300 [0.25, 0.35]" in said.out
    assert json.loads((tmp_path / "out.json").read_text())["state"] == end
    assert world.jobs["job-1"].spec.seed == 3


def test_a_run_writes_its_report_beside_the_data(run, world, layout):
    world.script = training()
    said = run()
    page = (layout.root / "reports" / "job-1.html").read_text()
    assert f"report: {layout.root}/reports/job-1.html" in said.err
    assert "name = &quot;trial&quot;" in page


def test_the_summary_is_data_when_asked_for(run, world):
    world.script = training()
    assert json.loads(run("-o", "json", "--no-report").out)["steps"] == 3


def test_a_wrong_job_file_starts_nothing(temper, tmp_path, job_file):
    said = temper("run", str(job_file), "--data-dir", str(tmp_path / "new"), "--set", "phase.rl.steps=0")
    assert said.code == 2
    assert not (tmp_path / "new").exists()


def test_a_platform_that_ends_with_another_run_is_none_to_build_on(run, layout):
    state = json.loads(layout.state_file.read_text())
    layout.write_state({**state, "lasting": False})
    said = run()
    assert said.code == 4
    assert f"is in use by process {os.getpid()}" in said.err


async def test_an_interrupted_run_cancels_its_job_and_says_so(world, layout, job_file):
    world.script = training()[:2]
    world.hold = threading.Event()
    options = RunOptions(layout, summary=layout.root / "out.json", write_report=False, bars=False)
    run = Run(prepare(job_file, [], None), options)
    seen = run._display.apply

    def stop_at_the_first_step(update):
        seen(update)
        if run._display.view.progress.step:
            run._stops.asked.set()

    run._display.apply = stop_at_the_first_step
    finished = await run.go()
    assert finished.exit_code == 130
    assert finished.job
    assert (finished.job.state, finished.job.reason) == ("cancelled", "interrupted")
    assert json.loads((layout.root / "out.json").read_text())["state"] == "cancelled"


def test_jobs_of_an_earlier_run_are_told_before_the_new_one_waits_for_them(run, world, layout):
    world.jobs |= {"job-0": job("job-0"), "job-9": job("job-9")}  # the one runs, the other has ended
    world.jobs["job-9"].state = job_pb2.JOB_STATE_SUCCEEDED
    world.script = training()
    said = run("--no-report")
    assert f"`temper job cancel job-0 --data-dir {layout.root}` ends it" in said.err
    assert "job-9" not in said.err


@pytest.mark.parametrize("option", ["--summary", "--report"])
@pytest.mark.parametrize("place", ["nowhere/out", "."])
def test_a_file_that_cannot_be_written_is_told_before_the_training(run, world, tmp_path, option, place):
    said = run(option, str(tmp_path / place))
    assert said.code == 2
    assert option in said.err
    assert not world.jobs
