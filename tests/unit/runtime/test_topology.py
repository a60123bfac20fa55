from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime import topology
from temper.runtime.bus.broker import matches
from temper.runtime.errors import Rejected
from temper.runtime.topology import cmd, dead, evt, kafka_topic, log, log_stream, rpc


def test_subjects_are_spelled_in_one_place():
    assert cmd("rollout", "job7") == "temper.v1.cmd.rollout.job7"
    assert rpc("sandbox", "host-1") == "temper.v1.rpc.sandbox.host-1"
    assert evt("scheduler", "job7", "state") == "temper.v1.evt.scheduler.job7.state"
    assert dead("rollout", "job7") == "temper.v1.dead.rollout.job7"
    assert log("steps", "job7") == "temper.v1.log.steps.job7"
    assert (log_stream("steps"), kafka_topic("steps")) == ("LOG_STEPS", "temper.steps.v1")


@pytest.mark.parametrize("text", ["", "a.b", "*", ">", "a b", "ä", "a\n", "$SYS"])
def test_no_user_text_gets_into_a_subject(text: str):
    with pytest.raises(Rejected, match="cannot be part of a subject"):
        cmd("rollout", text)


@given(st.text(max_size=20))
def test_a_subject_has_as_many_tokens_as_it_was_given(text: str):
    try:
        subject = cmd("rollout", text)
    except Rejected:
        return
    assert len(subject.split(".")) == 5
    assert matches("temper.v1.cmd.rollout.*", subject)


def test_the_shipped_topology_has_what_the_runtime_relies_on():
    shape = topology.load()
    for name in (topology.CMD, topology.EVT, topology.DEAD, topology.POISON):
        assert shape.stream(name)
    assert shape.stream(topology.CMD).retention == "workqueue"
    assert shape.stream(topology.CMD).discard == "new"
    for name in ("jobs", "policies", "environments", "leases", "presence"):
        assert shape.bucket(name)
    for name in ("trajectories", "steps", "verdicts", "jobs", "sandbox"):
        assert shape.topic(name)
        assert shape.stream(log_stream(name)).subjects == (f"temper.v1.log.{name}.>",)


def test_a_service_without_an_entry_gets_the_defaults():
    consumer = topology.load().consumer("newcomer")
    assert consumer.subjects == "temper.v1.cmd.newcomer.>"
    assert consumer.max_deliver == 3


def test_an_unknown_name_is_rejected_with_the_known_ones():
    with pytest.raises(Rejected, match=r"no bucket named 'job'.*jobs"):
        topology.load().bucket("job")


def test_an_unknown_key_is_rejected_with_its_place():
    with pytest.raises(Rejected, match=r"streams\.CMD\.max_msg: unknown key.*max_messages"):
        topology.parse('[streams.CMD]\nsubjects = ["x"]\nmax_msg = 3\n')


def test_another_version_is_rejected():
    with pytest.raises(Rejected, match="version 1"):
        topology.parse("version = 2")


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*.c", "a.b.c", True),
        ("a.b", "a", False),
    ],
)
def test_wildcards_match_as_on_the_server(pattern: str, subject: str, expected: bool):  # a table's column
    assert matches(pattern, subject) is expected
