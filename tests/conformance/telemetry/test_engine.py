"""What a database of the telemetry service must do, on ClickHouse embedded in this process.

`TEMPER_TEST_CLICKHOUSE=http://user:password@host:8123` runs the same tests against a server, in a database of their own.
"""

import os
import secrets
from urllib.parse import urlsplit

import pytest
from tests.unit.telemetry import facts

from temper.runtime.errors import Rejected
from temper.telemetry import guard, rows, schema
from temper.telemetry.columns import COLUMNS
from temper.telemetry.engine.base import Bounds
from temper.telemetry.engine.fake import FakeEngine

chdb = pytest.importorskip("chdb", reason="needs temper-rl[telemetry]")
BOUNDS = Bounds(max_rows=100, timeout_s=20, memory_bytes=1 << 30, threads=1)
SERVER = os.environ.get("TEMPER_TEST_CLICKHOUSE", "")


def embedded(root):
    from temper.telemetry.engine.chdb import ChdbEngine

    return ChdbEngine(root, "temper")


def server(_):
    from temper.telemetry.engine.http import HttpEngine, User

    parts = urlsplit(SERVER)
    url = f"{parts.scheme}://{parts.hostname}:{parts.port}"
    return HttpEngine(
        url, f"test_{secrets.token_hex(4)}", owner=User(parts.username or "default", parts.password or "")
    )


@pytest.fixture(scope="module", params=["chdb", "http"] if SERVER else ["chdb"])
def engine(request, tmp_path_factory):
    opened = (embedded if request.param == "chdb" else server)(tmp_path_factory.mktemp("clickhouse"))
    opened.open()
    store(opened)
    yield opened
    opened.close()


def store(engine, *, times=2):
    """Everything of one job, delivered twice: delivery is at least once."""
    records = [
        *(facts.logged("trajectories", facts.group(n), id=f"job-1-{n}") for n in range(4)),
        facts.logged("steps", facts.step(1, groups=(0, 1)), id="s1"),
        facts.logged("steps", facts.step(2, groups=(2, 3)), id="s2"),
        *(facts.logged("jobs", event, id=f"e{n}") for n, event in enumerate(facts.events())),
        facts.logged("jobs", facts.gate(), id="g1"),
        facts.logged("verdicts", facts.verdict(), id="v1"),
        *(facts.logged("sandbox", facts.session(n), id=f"x{n}") for n in range(3)),
    ]
    for _ in range(times):
        for batch in rows.batches(records):
            engine.insert(batch)


def ask(engine, sql, bounds=BOUNDS, **parameters):
    return engine.query(guard.check(sql), parameters, bounds)


@pytest.fixture(scope="module", params=["database", "twin"])
def either(request, engine):
    if request.param == "database":
        return engine
    twin = FakeEngine()
    twin.open()
    store(twin)
    return twin


@pytest.mark.parametrize(
    "table", ["groups", "samples", "tool_uses", "evals", "job_events", "sandbox_sessions"]
)
def test_database_and_twin_show_each_record_once(either, table):
    wanted = {"groups": 4, "samples": 8, "tool_uses": 8, "evals": 1, "job_events": 4, "sandbox_sessions": 3}
    result = either.query(f"SELECT * FROM {table}", {}, BOUNDS)
    assert (result.names, len(result.rows)) == (COLUMNS[table], wanted[table])


def test_database_and_twin_agree_on_rank_positions_and_cuts(either):
    for second, token in [(2, "30"), (1, "20"), (2, "30")]:
        either.insert(rows.positions({"jobs": token}, 1.7e9 + second))
    assert either.positions()["jobs"] == "30"
    cut = either.query("SELECT * FROM samples", {}, Bounds(3, 20, 1 << 30, 1))
    assert (len(cut.rows), cut.truncated) == (3, True)
    with pytest.raises(Rejected):
        either.query("SELECT nothing", {}, BOUNDS)


def test_tables_have_the_columns_of_the_rows(engine):
    for table, columns in COLUMNS.items():
        assert ask(engine, f"SELECT * FROM {table} LIMIT 0").names == columns


def test_every_record_is_seen_once_although_it_came_twice(engine):
    wanted = {
        "groups": 4,
        "samples": 8,
        "tool_uses": 8,
        "steps": 2,
        "evals": 1,
        "job_events": 4,
        "gates": 2,
        "verdicts": 1,
    }
    for table, count in {**wanted, "sandbox_sessions": 3}.items():
        assert ask(engine, f"SELECT count() FROM {table}").rows == [[count]], table


def test_the_schema_can_be_applied_again(engine):
    engine.open()
    assert ask(engine, "SELECT count() FROM groups").rows == [[4]]


def test_the_first_record_of_a_group_stays_and_the_last_of_a_step(engine):
    later = facts.group(0)
    later.worker = "slow"
    redone = facts.step(1, groups=(0, 1))
    redone.samples = 99
    changed = [
        facts.logged("trajectories", later, time=1.8e9),
        facts.logged("steps", redone, time=1.8e9),
    ]
    for batch in rows.batches(changed):
        engine.insert(batch)
    assert ask(engine, "SELECT worker FROM groups WHERE group_id = 'job-1-0'").rows == [["w1"]]
    assert ask(engine, "SELECT samples FROM steps WHERE step = 1").rows == [[99]]


def test_the_position_of_a_topic_is_the_last_one_stored(engine):
    for second, token in enumerate(["7", "12"]):
        engine.insert(rows.positions({"steps": token}, 1.7e9 + second))
    assert engine.positions()["steps"] == "12"


@pytest.mark.parametrize("name", schema.saved_queries())
def test_every_saved_query_answers_for_a_real_job(engine, name):
    query = schema.saved_query(name)
    known = {"job": "job-1", "step": "1", "env": "calc", "split": "train", "task": "4", "version": "1.0.0"}
    result = engine.query(guard.check(query.sql), {key: known[key] for key in query.parameters}, BOUNDS)
    assert result.rows, name


def test_torchforge_203_lineage_leads_from_a_step_to_environments_versions_and_rewards(engine):
    result = engine.query(schema.saved_query("lineage").sql, {"job": "job-1", "step": "2"}, BOUNDS)
    found = [dict(zip(result.names, row, strict=True)) for row in result.rows]
    assert [row["group_id"] for row in found] == ["job-1-2", "job-1-3"]
    assert (found[0]["env"], found[0]["env_version"], found[0]["oldest_version"]) == ("calc", "1.0.0", 2)
    assert sorted(found[0]["rewards"]) == [0, 1]


def test_exposure_names_the_versions_that_were_trained_on_a_withdrawn_environment(engine):
    result = engine.query(schema.saved_query("exposure").sql, {"env": "calc", "version": "1.0.0"}, BOUNDS)
    (row,) = [dict(zip(result.names, row, strict=True)) for row in result.rows]
    assert (row["job_id"], row["first_step"], row["last_step"]) == ("job-1", 1, 2)
    assert (row["first_version"], row["last_version"], row["groups"], row["samples"]) == (1, 2, 4, 8)
    nothing = engine.query(schema.saved_query("exposure").sql, {"env": "calc", "version": "2.0.0"}, BOUNDS)
    assert nothing.rows == []


def test_staleness_sums_over_steps(engine):
    result = engine.query(schema.saved_query("staleness").sql, {"job": "job-1"}, BOUNDS)
    assert result.rows == [[0, 2, 0.5], [1, 2, 0.5]]


def test_parameters_are_bound_and_not_pasted(engine):
    hostile = "x' OR 1=1; DROP TABLE groups --\n\\"
    assert ask(engine, "SELECT {job:String} AS x", job=hostile).rows == [[hostile]]
    assert ask(engine, "SELECT length({all:Array(String)})", all=["a'b", "c"]).rows == [[2]]


def test_rows_are_cut_and_that_is_told(engine):
    result = ask(engine, "SELECT number FROM numbers(1000)", Bounds(10, 20, 1 << 30, 1))
    assert (len(result.rows), result.truncated) == (10, True)
    whole = ask(engine, "SELECT number FROM numbers(10)", Bounds(10, 20, 1 << 30, 1))
    assert (len(whole.rows), whole.truncated) == (10, False)


@pytest.mark.parametrize(
    ("sql", "bounds"),
    [
        ("SELECT count() FROM numbers(1000000000000)", Bounds(10, 0.2, 1 << 30, 1)),
        ("SELECT groupArray(number) FROM numbers(1000000000)", Bounds(10, 20, 1 << 26, 1)),
        (
            "SELECT * FROM (SELECT groupArray(number) FROM numbers(1000000000) SETTINGS max_memory_usage = 0)",
            Bounds(10, 20, 1 << 26, 1),
        ),
    ],
)
def test_time_and_memory_are_limited_whatever_the_query_says(engine, sql, bounds):
    with pytest.raises(Rejected, match="refuses"):
        ask(engine, sql, bounds)
    assert ask(engine, "SELECT 2").rows == [[2]]  # and the next question gets its own answer


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO groups (job_id) VALUES ('x')",
        "DROP TABLE groups",
        "ALTER TABLE groups DELETE WHERE 1",
        "CREATE TABLE t (a UInt8) ENGINE = Memory",
        "SELECT 1; DROP TABLE groups; SELECT 2",
        "SET readonly = 0",
        "SELECT 1 SETTINGS readonly = 0",
        "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')",
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    ],
)
def test_the_database_itself_refuses_writes_even_without_the_guard(engine, sql):
    with pytest.raises(Rejected):
        engine.query(sql, {}, BOUNDS)
    assert ask(engine, "SELECT count() FROM groups").rows == [[4]]


def test_a_mistake_is_told_in_the_databases_words(engine):
    with pytest.raises(Rejected, match="nope"):
        ask(engine, "SELECT nope FROM groups")


def test_values_keep_their_kind(engine):
    result = ask(
        engine,
        "SELECT toUInt8(1), 1.5, 'x', [1, 2], map('k', 1), NULL, toDateTime64(0, 3, 'UTC'), true, max(seed) FROM groups",
    )
    assert result.rows == [[1, 1.5, "x", [1, 2], {"k": 1}, None, "1970-01-01 00:00:00.000", True, 2**64 - 1]]
