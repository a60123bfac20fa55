"""Counters, alarms and sentences for people."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.jobs import job, record_of

from temper.api.common.v1.common_pb2 import IndexRange, Purpose
from temper.api.job.v1.job_pb2 import JobProgress, JobState
from temper.api.job.v1.platform_pb2 import Presence
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.scheduler.alarm import Alarm
from temper.scheduler.config import JobsConfig
from temper.scheduler.facts import JobFacts
from temper.scheduler.progress import Meter, activity, compose
from temper.scheduler.signals import GroupSeen, PolicySeen, Tick
from temper.scheduler.state import JobMachine
from temper.scheduler.watchdog import diagnose

NOW = 1_700_000_000.0


def present(*services, **status):
    return [Presence(service=each, instance="1", state="ready", status=status) for each in services]


def running():
    machine = JobMachine(
        JobFacts(job(resolved=True, eval={"tasksPerDomain": 2, "samplesPerTask": 1}), fence=1)
    )
    machine.handle(Tick(), NOW)
    machine.handle(PolicySeen(PolicyRecord(version=0)), NOW)
    return machine


@pytest.mark.parametrize(
    ("state", "there", "words"),
    [
        (JobState.JOB_STATE_PENDING, ["sandbox"], "no qa service is running"),
        (JobState.JOB_STATE_PENDING, [], "no qa service and no sandbox service"),
        (JobState.JOB_STATE_PENDING, ["qa", "sandbox"], "qa is still checking"),
        (JobState.JOB_STATE_STARTING, [], "no trainer service is running"),
        (JobState.JOB_STATE_STARTING, ["trainer"], "no trainer has published the initial policy"),
    ],
)
def test_the_sentence_names_what_is_missing(state, there, words):
    stall = diagnose(JobFacts(job(state), fence=1), present(*there), 31.0)
    assert stall is not None
    assert words in stall.message
    assert stall.message.startswith("nothing has happened for 31 s")


def test_a_running_job_waits_for_workers_first_and_then_for_the_trainer():
    machine = running()
    services = present("rollout", "sandbox", "trainer")
    stall = diagnose(machine.facts, services, 5)
    assert stall is not None
    assert "owe 6 groups" in stall.message
    for number, command in enumerate(machine.facts.ledger.outstanding()):
        machine.handle(GroupSeen(record_of(command), str(number)), NOW)
    stall = diagnose(machine.facts, services, 5)
    assert stall is not None
    assert stall.waiting_for == "trainer"
    assert "has not settled 6 finished groups" in stall.message


def test_verl_3895_a_silence_with_credits_free_names_the_empty_queue():
    """An idle pipeline without an error: what each queue holds, and what the services say, is in the alarm."""
    machine = running()
    facts = machine.facts
    machine.handle(PolicySeen(PolicyRecord(version=1, step=1, settled=[IndexRange(first=0, last=2)])), NOW)
    outstanding = len(facts.ledger.outstanding())
    stall = diagnose(facts, present("rollout", "sandbox", in_use="0", slots="8"), 60)
    assert stall is not None
    assert f"({outstanding} groups for rollout, no groups for trainer, 0 of 6 credits free" in stall.message
    assert "empty: queue of trainer" in stall.message
    assert "1 ready [in_use=0 slots=8]" in stall.message


def test_verl_3873_a_step_that_hangs_is_told_with_what_the_trainer_says():
    machine = running()
    for number, command in enumerate(machine.facts.ledger.outstanding()):
        machine.handle(GroupSeen(record_of(command), str(number)), NOW)
    stall = diagnose(machine.facts, present("trainer", training="quickstart-7f3a", jobs="1"), 60)
    assert stall is not None
    assert stall.message.endswith("empty: queue of rollout); 1 ready [training=quickstart-7f3a jobs=1]")


def test_an_alarm_of_a_large_platform_stays_short():
    machine = running()
    many = [Presence(service="rollout", instance=f"r{n}", state="ready") for n in range(50)]
    stall = diagnose(machine.facts, [*many, *present("sandbox")], 60)
    assert stall is not None
    assert stall.message.endswith("and 45 more")


@pytest.mark.parametrize("state", [JobState.JOB_STATE_PAUSED, JobState.JOB_STATE_SUCCEEDED])
def test_a_job_that_should_stand_still_raises_no_alarm(state):
    assert diagnose(JobFacts(job(state), fence=1), [], 1000.0) is None


def test_a_draining_instance_does_not_count():
    gone = [Presence(service="trainer", instance="1", state="draining")]
    stall = diagnose(JobFacts(job(JobState.JOB_STATE_STARTING), fence=1), gone, 5)
    assert stall is not None
    assert stall.absent == ("trainer",)


def test_an_alarm_sounds_once_per_silence_and_then_rarely():
    alarm = Alarm(JobsConfig(stall_s=10, reissue_after_s=100), now=0.0)
    facts = running().facts
    sounded = [now for now in range(100) if alarm.is_due(now) and alarm.sound(facts, [], now)]
    assert sounded == [10, 50, 90]
    alarm.progress(100.0)
    assert not alarm.is_due(109.0)
    assert alarm.is_due(110.0)


def test_groups_are_published_again_only_when_workers_live_and_the_silence_is_longer_than_any_group():
    alarm = Alarm(JobsConfig(stall_s=10, reissue_after_s=60), now=0.0)
    facts = running().facts  # a group may take 30 s
    workers = present("rollout", "sandbox")
    stall = diagnose(facts, workers, 80.0)
    assert stall is not None
    wanted = [now for now in (80.0, 95.0, 130.0, 190.0) if alarm.wants_reissue(facts, stall, now)]
    assert wanted == [95.0, 190.0]
    nobody = diagnose(facts, [], 500.0)
    assert nobody is not None
    assert not alarm.wants_reissue(facts, nobody, 500.0)


def test_the_meter_means_over_recent_samples_and_ten_seconds():
    machine, meter = running(), Meter()
    for command in machine.facts.ledger.outstanding()[:2]:
        meter.observe(record_of(command, solved=command.index == 0), version=1, now=NOW)
    progress = JobProgress()
    meter.fill(progress, NOW)
    assert dict(progress.domain_reward) == {"sums": 0.5}
    assert progress.staleness == 1.0
    assert progress.tokens_per_s == pytest.approx(8.0)  # 2 groups of 4 samples of 10 tokens in 10 s
    meter.fill(progress, NOW + 11)
    assert progress.tokens_per_s == 0.0


def test_evaluations_do_not_count_as_training_reward():
    machine, meter = running(), Meter()
    command = machine.facts.ledger.outstanding()[0]
    record = record_of(command)
    record.purpose = Purpose.PURPOSE_EVAL
    meter.observe(record, version=0, now=NOW)
    progress = JobProgress()
    meter.fill(progress, NOW)
    assert not progress.domain_reward
    assert progress.tokens_per_s > 0


def test_time_to_the_end_follows_the_pace_of_steps():
    meter = Meter()
    for step in range(5):
        meter.observe_step(step, NOW + 2 * step)
    progress = JobProgress(step=4, total_steps=10)
    meter.fill(progress, NOW + 8)
    assert progress.eta_s == pytest.approx(12.0)


def test_idle_rollout_is_what_the_engines_say_and_else_what_slots_say():
    meter, progress = Meter(), JobProgress()
    meter.observe_rollout(present("rollout", busy_share="0.75", slots="4", in_use="4"))
    meter.fill(progress, NOW)
    assert progress.rollout_idle == pytest.approx(0.25)
    meter = Meter()
    meter.observe_rollout(present("rollout", slots="4", in_use="1"))
    meter.fill(progress, NOW)
    assert progress.rollout_idle == pytest.approx(0.75)
    meter.observe_rollout(present("rollout", slots="many"))
    meter.fill(progress, NOW)
    assert progress.rollout_idle == pytest.approx(0.875)


def test_counters_come_from_the_books():
    machine = running()
    command = machine.facts.ledger.outstanding()[0]
    machine.handle(GroupSeen(record_of(command), "1"), NOW)
    record = PolicyRecord(step=1, version=1, consumed_groups=1, idle_share=0.5)
    record.settled.add(first=0, last=1)
    record.dropped_groups["DROP_REASON_STALE"] = 1
    machine.handle(PolicySeen(record), NOW)
    progress = compose(machine.facts, Meter(), present("sandbox", in_use="3"), NOW)
    assert progress.groups_published == progress.groups_in_flight + 2
    assert progress.groups_consumed + sum(progress.groups_dropped.values()) == 2
    assert (progress.step, progress.total_steps, progress.sandboxes_in_use) == (1, 4, 3)
    assert progress.trainer_idle == 0.5
    assert activity(machine.facts) == "training"
