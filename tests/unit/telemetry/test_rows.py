import re
from datetime import UTC, datetime

import pytest
from tests.unit.telemetry import facts

from temper.api.common.v1 import common_pb2 as common
from temper.runtime.errors import Rejected
from temper.runtime.topology import load
from temper.telemetry import rows, schema
from temper.telemetry.columns import COLUMNS
from temper.telemetry.engine.fake import KEYS


def of(record):
    """Rows by table, each as a dictionary."""
    return {
        batch.table: [dict(zip(batch.columns, row, strict=True)) for row in batch.rows]
        for batch in rows.batches([record])
    }


def test_every_topic_of_the_platform_has_a_mapping():
    assert set(rows.TOPICS) == {topic.name for topic in load().topics}


def test_columns_and_keys_are_those_of_the_tables():
    for statement in schema.statements():
        made = re.match(
            r"CREATE TABLE IF NOT EXISTS (\w+)\s*\((.*)\)\s*ENGINE.*ORDER BY \(?([\w, ]+)\)?$",
            statement,
            re.DOTALL,
        )
        if made:
            columns = re.findall(r"^    (\w+)", made[2], re.MULTILINE)
            assert tuple(columns) == COLUMNS[made[1]], made[1]
            key = made[3].split(", ")
            if made[1] != "sandbox_sessions":  # whose key goes on with host and time of acquisition
                assert tuple(key) == COLUMNS[made[1]][: KEYS[made[1]]], made[1]


def test_a_group_becomes_itself_its_samples_and_their_tool_calls():
    found = of(facts.logged("trajectories", facts.group()))
    assert [len(found[table]) for table in ("groups", "samples", "tool_uses")] == [1, 2, 2]
    (group,) = found["groups"]
    assert (group["purpose"], group["samples"], group["seed"], group["drop_reason"]) == (
        "train",
        2,
        2**64 - 1,
        "",
    )
    first = found["samples"][0]
    assert (first["class"], first["reward"], first["finish_reason"]) == ("scored", 1.0, "stop")
    assert first["finished_at"] == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


def test_an_absent_reward_is_null_and_not_zero():
    lost = facts.sample(sample_class=common.SAMPLE_CLASS_INFRA_FAILED)
    lost.ClearField("reward")
    (row,) = of(facts.logged("trajectories", facts.group(samples=[lost])))["samples"]
    assert row["reward"] is None
    assert row["class"] == "infra_failed"


def test_a_group_that_never_ran_is_a_row_with_its_reason():
    dropped = facts.group(samples=[])
    dropped.drop_reason = common.DROP_REASON_POISON
    found = of(facts.logged("trajectories", dropped))
    assert found["groups"][0]["drop_reason"] == "poison"
    assert "samples" not in found


def test_the_first_record_of_a_group_and_the_last_of_a_step_count():
    early, late = 1_700_000_000.0, 1_700_000_001.0
    assert rows.first_wins(early) > rows.first_wins(late) > 0
    assert rows.last_wins(late) > rows.last_wins(early)
    assert rows.first_wins(0.0) < 2**64


def test_a_step_keeps_its_maps():
    (row,) = of(facts.logged("steps", facts.step()))["steps"]
    assert row["metrics"] == {"loss": 0.5}
    assert row["staleness"] == {0: 1, 1: 1}
    assert row["group_ids"] == ["job-1-0"]


def test_each_kind_of_job_event_has_its_row():
    state, evaluation, notice = (
        of(facts.logged("jobs", event, id=str(n))) for n, event in enumerate(facts.events())
    )
    assert (state["job_events"][0]["kind"], state["job_events"][0]["state"]) == ("state", "running")
    assert state["job_events"][0]["message"] == "go"
    assert evaluation["evals"][0]["pass_at_1"] == 0.3125
    assert (notice["job_events"][0]["code"], notice["job_events"][0]["message"]) == ("recovered", "again")


def test_a_verdict_keeps_each_check_with_its_evidence():
    (row,) = of(facts.logged("verdicts", facts.verdict(), id="v1"))["verdicts"]
    assert row["checks"] == {"semantic.floor_gap": False}
    assert row["evidence"] == {"semantic.floor_gap": "earns 0.05"}
    assert row["verdict_id"] == "v1"


def test_a_sandbox_session_is_a_row():
    (row,) = of(facts.logged("sandbox", facts.session()))["sandbox_sessions"]
    assert (row["session_id"], row["limit_hits"], row["end"]) == ("s0", {"TIMED_OUT": 1}, "finished")


def test_a_record_of_another_type_is_refused():
    with pytest.raises(Rejected, match="expected temper"):
        rows.batches([facts.logged("steps", facts.group())])


def test_a_value_of_a_newer_contract_is_shown_as_its_number():
    assert rows.name(common.Purpose, 77) == "77"
    assert rows.name(common.Purpose, 0) == ""


def test_an_unset_time_is_1970():
    unset = facts.group()
    unset.ClearField("started_at")
    assert of(facts.logged("trajectories", unset))["groups"][0]["started_at"].year == 1970


def test_rows_of_many_records_are_one_batch_per_table():
    records = [facts.logged("trajectories", facts.group(n), id=str(n)) for n in range(5)]
    assert {batch.table: len(batch.rows) for batch in rows.batches(records)} == {
        "groups": 5,
        "samples": 10,
        "tool_uses": 10,
    }


def test_saved_queries_have_headers_and_declare_their_parameters():
    queries = schema.saved_queries()
    assert {"lineage", "staleness", "reward_by_domain_and_step", "slowest_sandboxes", "idle_shares"} <= set(
        queries
    )
    for query in queries.values():
        used = set(re.findall(r"\{(\w+):(\w+)\}", query.sql))
        assert used == set(query.parameters.items()), query.name
    with pytest.raises(Rejected, match="no saved query"):
        schema.saved_query("lineag")


def test_a_sample_says_how_old_the_kv_was_what_was_reused_and_whether_it_may_train():
    told = facts.sample(
        kv_origin_lag=2, cached_tokens=30, stop_token=262, attention="sparse", for_training=False
    )
    silent = facts.sample()
    rows_of = of(facts.logged("trajectories", facts.group(samples=[told, silent])))["samples"]
    names = ("kv_origin_lag", "cached_tokens", "stop_token", "attention", "for_training")
    assert [tuple(row[name] for name in names) for row in rows_of] == [
        (2, 30, 262, "sparse", False),
        (0, 0, None, "", True),
    ]


def test_a_gate_is_an_event_in_words_and_a_row_for_every_bound():
    found = of(facts.logged("jobs", facts.gate(), id="g1"))
    (event,) = found["job_events"]
    assert (event["kind"], event["level"], event["code"]) == ("gate", "warning", "gate_fail")
    assert event["message"] == "gate step-20 fail, rollback: calc fell"
    assert [
        (each["domain"], each["verdict"], each["check_verdict"], each["value"]) for each in found["gates"]
    ] == [
        ("calc", "fail", "fail", -0.5),
        ("sums", "fail", "pass", 0.1),
    ]
    assert {(each["action"], each["rollback"], each["version"]) for each in found["gates"]} == {
        ("rollback", 1, 21)
    }


def test_a_verdict_without_a_bound_has_a_row_all_the_same():
    event = facts.gate()
    del event.gate.checks[:]
    (row,) = of(facts.logged("jobs", event, id="g1"))["gates"]
    assert (row["domain"], row["message"]) == ("", "calc fell")


def test_a_rollback_is_told_from_a_step():
    record = facts.step(4)
    assert of(facts.logged("steps", record))["steps"][0]["restored_step"] is None
    record.restored_step = 0
    record.domain_flat["calc"] = 0.25
    (row,) = of(facts.logged("steps", record))["steps"]
    assert (row["restored_step"], row["domain_flat"]) == (0, {"calc": 0.25})
