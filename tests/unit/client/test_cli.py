import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from tests.unit.client.fakes import job, table, training

from temper.api.common.v1 import common_pb2
from temper.api.job.v1 import platform_pb2
from temper.api.qa.v1 import qa_pb2
from temper.client.cli.output import render
from temper.runtime.errors import Conflict, Exhausted, Rejected, Unavailable

COMMANDS = (
    "run",
    "up",
    "down",
    "doctor",
    "job",
    "env",
    "policy",
    "service",
    "dead",
    "query",
    "report",
    "serve",
    "variant",
    "plan",
)


def environment(state=qa_pb2.ENVIRONMENT_STATE_ADMITTED):
    check = qa_pb2.CheckResult(
        id="semantic.oracle_max", severity=qa_pb2.SEVERITY_ERROR, passed=True, evidence="5/5"
    )
    env = common_pb2.EnvRef(name="calc", version="1.0.0", digest="0" * 64)
    return qa_pb2.EnvironmentRecord(env=env, state=state, report=qa_pb2.CheckReport(results=[check]))


def test_help_names_every_command_and_the_exit_codes(temper):
    said = temper("--help")
    assert said.code == 0
    for word in COMMANDS:
        assert f"│ {word} " in said.out
    assert "Exit codes:" in said.out


def test_an_unknown_option_is_wrong_input(temper):
    assert temper("job", "list", "--colour").code == 2


def test_a_model_is_served_by_the_rollout_service_only(temper, tmp_path):
    said = temper("serve", "qa", "--model", str(tmp_path))
    assert said.code == 2
    assert "qa serves no model" in said.err
    said = temper("serve", "rollout", "--port", "0")
    assert said.code == 2
    assert "belong to --model" in said.err


def test_a_layout_is_planned_without_a_platform(temper, tmp_path):
    config = Path(__file__).parents[3] / "examples/checkpoints/warmstart/config.json"
    target = tmp_path / "launch.toml"
    asked = ("--gpus", "2", "--context", "1024", "--batch", "8", "--write", str(target))
    assert temper("plan", str(config), *asked).code == 0
    assert "tensor_parallel" in target.read_text()
    assert temper("plan", "/nowhere", "--gpus", "2", "--context", "1024").code == 2


def test_a_mistake_in_a_job_file_is_told_without_a_traceback(ask, job_file):
    said = ask("job", "submit", str(job_file), "--set", "phase.rl.stepz=1")
    assert said.code == 2
    assert 'phase[0].stepz is not a known key (did you mean "steps"?)' in said.err
    assert said.out == ""


def test_a_submitted_job_is_data_on_standard_output(ask, world, job_file):
    said = ask("job", "submit", str(job_file), "--seed", "5", "-o", "json", "--request-id", "once")
    assert said.code == 0
    assert json.loads(said.out)["id"] == "job-1"
    spec = world.jobs["job-1"].spec
    assert spec.seed == 5
    assert sorted(spec.policy.checkpoint.files) == [
        "config.json",
        "model.safetensors",
        "temper_chat.json",
        "tokenizer.json",
    ]


def test_only_checking_creates_nothing(ask, world, job_file):
    said = ask("job", "submit", str(job_file), "--check")
    assert (said.code, world.jobs) == (0, {})
    assert "is valid" in said.err


@pytest.mark.parametrize(("error", "code"), [(Rejected, 2), (Unavailable, 3), (Conflict, 4), (Exhausted, 5)])
def test_an_error_of_the_server_decides_the_exit_code(ask, world, job_file, error, code):
    world.refusal = error("no", field="spec.phases[0].steps", hint="another way")
    said = ask("job", "submit", str(job_file))
    assert said.code == code
    assert "phase[0].steps: no" in said.err
    assert "hint: another way" in said.err


@pytest.mark.parametrize(("end", "code"), [("succeeded", 0), ("failed", 1)])
def test_waiting_exits_with_the_fate_of_the_job(ask, world, job_file, end, code):
    world.script = training(end)
    said = ask("job", "submit", str(job_file), "--wait", "-o", "json")
    assert said.code == code
    summary = json.loads(said.out)
    assert summary["domains"]["calc"]["before"] == 0.3
    assert summary["groups"] == {
        "published": 48,
        "consumed": 48,
        "dropped": 1,
        "in_flight": 0,
        "dropped_by_reason": {"stale": 1},
    }
    assert "eval after calc pass@1 0.900" in said.err


def test_waiting_ends_at_its_timeout(ask, world, job_file):
    import threading

    world.hold = threading.Event()
    assert ask("job", "submit", str(job_file), "--wait", "--timeout", "0.3").code == 6


def test_jobs_are_listed_and_filtered(ask, world):
    world.jobs = {"job-1": job("job-1"), "job-2": job("job-2")}
    assert [row["id"] for row in json.loads(ask("job", "list", "-o", "json").out)] == ["job-1", "job-2"]
    assert json.loads(ask("job", "list", "--state", "failed", "-o", "json").out) == []
    said = ask("job", "list", "--state", "runing")
    assert said.code == 2
    assert 'did you mean "running"?' in said.err


def test_a_job_is_steered(ask, world):
    world.jobs["job-1"] = job()
    assert "state: paused" in ask("job", "pause", "job-1").out
    assert "state: running" in ask("job", "resume", "job-1").out
    assert "state: cancelled" in ask("job", "cancel", "job-1", "--reason", "enough").out
    assert world.jobs["job-1"].reason == "enough"


def test_an_unknown_job_is_wrong_input_with_a_way_out(ask):
    said = ask("job", "get", "nothing")
    assert said.code == 2
    assert "hint: temper job list" in said.err


def test_events_of_a_job_are_told_oldest_first(ask, world):
    world.jobs["job-1"] = job()
    columns = {"time": "DateTime", "kind": "String", "message": "String"}
    world.tables["job_events"] = table(columns, ["2", "state", "running"], ["1", "state", "pending"])
    rows = json.loads(ask("job", "logs", "job-1", "-o", "json").out)
    assert [row["message"] for row in rows] == ["pending", "running"]


def test_an_environment_is_packed_the_same_on_every_machine(ask, world, tmp_path):
    directory = tmp_path / "mine"
    (directory / "__pycache__").mkdir(parents=True)
    (directory / "__pycache__" / "env.pyc").write_bytes(b"x")
    (directory / "env.toml").write_text('name = "mine"')
    (directory / "env.py").write_text("pass")
    assert ask("env", "register", str(directory)).code == 0
    (directory / "env.py").touch()
    ask("env", "register", str(directory))
    (content,) = world.blobs.values()
    with tarfile.open(fileobj=BytesIO(content)) as archive:
        assert [(entry.name, entry.mtime) for entry in archive] == [("env.py", 0), ("env.toml", 0)]


def test_a_directory_that_is_no_environment_is_refused(ask, tmp_path):
    said = ask("env", "register", str(tmp_path))
    assert said.code == 2
    assert "has no env.toml" in said.err


@pytest.mark.parametrize(
    ("state", "code"), [(qa_pb2.ENVIRONMENT_STATE_ADMITTED, 0), (qa_pb2.ENVIRONMENT_STATE_REJECTED, 1)]
)
def test_a_check_exits_with_its_verdict(ask, world, state, code):
    world.environments = [environment(state)]
    said = ask("env", "check", "calc", "--param", "low=3", "--param", "suffix=?")
    assert said.code == code
    assert "semantic.oracle_max" in said.out
    assert json.loads(world.environments[0].env.params_json) == {"low": 3, "suffix": "?"}


def test_environments_are_listed_and_withdrawn(ask, world):
    world.environments = [environment()]
    assert "calc" in ask("env", "list").out
    assert "admitted" in ask("env", "get", "calc@1.0.0").out
    said = ask("env", "quarantine", "calc@1.0.0", "--reason", "pays for nothing", "-o", "yaml")
    assert "reason: pays for nothing" in said.out


def test_services_are_listed_and_drained(ask, world):
    world.instances = [platform_pb2.Presence(service="rollout", instance="a", state="ready")]
    assert "rollout" in ask("service", "list").out
    said = ask("service", "drain", "rollout", "a", "--wait")
    assert (said.code, world.instances) == (0, [])
    assert "is gone" in said.err


def test_dead_letters_are_listed_retried_and_dropped(ask, world):
    world.letters = [platform_pb2.DeadLetter(seq=n, subject="s", reason="poison") for n in (1, 2)]
    assert "poison" in ask("dead", "list").out
    assert ask("dead", "retry", "1").code == 0
    assert ask("dead", "drop", "2").code == 0
    assert ask("dead", "drop", "2").code == 2


def test_a_query_is_asked_by_text_or_by_name(ask, world):
    world.tables["SELECT"] = table({"n": "UInt64"}, [3])
    said = ask("query", "SELECT 3", "--param", "job=a=b", "-o", "json")
    assert json.loads(said.out) == [{"n": 3}]
    assert dict(world.queries[0].parameters) == {"job": "a=b"}
    assert ask("query", "--saved", "staleness").code == 0
    assert world.queries[1].saved == "staleness"
    assert "How old." in ask("query", "--list").out
    assert ask("query").code == 2


def test_a_policy_is_exported_whole_or_not_at_all(ask, world, tmp_path):
    weights, config = world.put(b"weights"), world.put(b"{}")
    manifest = {
        "shards": [{"key": weights.key, "sha256": weights.sha256, "size": "7"}],
        "files": {"config.json": {"key": config.key, "sha256": config.sha256, "size": "2"}},
    }
    ref = world.put(json.dumps(manifest).encode())
    world.policies = [platform_pb2.Policy(job_id="job-1", version=3, manifest=ref)]
    target = tmp_path / "out"
    assert ask("policy", "export", "job-1", str(target)).code == 0
    assert (target / "model.safetensors").read_bytes() == b"weights"
    assert ask("policy", "export", "job-1", str(target)).code == 4
    world.blobs[config.sha256] = b"[]"
    assert ask("policy", "export", "job-1", str(tmp_path / "broken")).code == 3
    assert not (tmp_path / "broken").exists()


def test_a_name_stands_for_what_passed_and_goes_back(ask, world, tmp_path):
    weights, config = world.put(b"weights"), world.put(b"{}")
    manifest = {
        "shards": [{"key": weights.key, "sha256": weights.sha256, "size": "7"}],
        "files": {"config.json": {"key": config.key, "sha256": config.sha256, "size": "2"}},
    }
    world.policies = [
        platform_pb2.Policy(job_id="job-1", version=3, manifest=world.put(json.dumps(manifest).encode()))
    ]
    assert ask("policy", "promote", "tutor", "job-1").code == 0
    assert ask("policy", "promote", "tutor", "job-1", "--version", "3").code == 2
    assert ask("policy", "promote", "tutor", "job-1", "--version", "3", "--force").code == 0
    (row,) = json.loads(ask("policy", "list", "--promoted", "-o", "json").out)
    assert (row["name"], row["version"], row["forced"], row["history"]) == ("tutor", 3, True, 2)
    (row,) = json.loads(ask("policy", "rollback", "tutor", "-o", "json").out)
    assert (row["version"], row["returns_to"], row["history"]) == (0, 0, 3)
    target = tmp_path / "out"
    assert ask("policy", "export", "tutor", str(target), "--promoted").code == 0
    assert (target / "model.safetensors").read_bytes() == b"weights"
    assert "known: tutor" in ask("policy", "export", "other", str(tmp_path / "no"), "--promoted").err
    both = ask("policy", "export", "tutor", str(tmp_path / "no"), "--promoted", "--reward-model")
    assert (both.code, (tmp_path / "no").exists()) == (2, False)
    assert "leave --promoted out" in both.err


@pytest.mark.parametrize("version", ["-1", "18446744073709551616", "x"])
def test_a_version_that_is_none_is_refused(ask, world, version):
    assert ask("policy", "promote", "tutor", "job-1", "--version", version).code == 2
    assert not world.promoted


def test_a_job_is_sent_back_with_a_reason(ask, world, job_file):
    assert ask("job", "submit", str(job_file)).code == 0
    assert ask("job", "rollback", "job-1", "--reason", "odd answers").code == 0
    assert list(world.jobs["job-1"].rollbacks_asked) == ["odd answers"]


def test_exposure_names_policies_that_build_on_a_version_and_names_that_stand_for_one(ask, world):
    columns = {"job_id": "String", "first_version": "UInt64"}
    world.tables["exposure"] = table(columns, ["job-1", 4])
    for name, version in (("old", 3), ("new", 6)):
        known = platform_pb2.PromotedPolicy(name=name)
        known.history.add(job_id="job-1", version=version)
        world.promoted[name] = known
    (row,) = json.loads(ask("env", "exposure", "calc@1.0.0", "-o", "json").out)
    assert row["promoted_as"] == "new"
    assert dict(world.queries[-1].parameters) == {"env": "calc", "version": "1.0.0"}
    for name in ("calc", "calc@", "@1.0.0", "@"):
        assert "does not name a version" in ask("env", "exposure", name).err


def test_a_job_may_start_from_the_policy_of_another(ask, world, job_file):
    world.put(b"{}")
    ref = world.put(
        json.dumps({"files": {"config.json": {"key": "a", "sha256": "0" * 64, "size": "2"}}}).encode()
    )
    world.policies = [platform_pb2.Policy(job_id="job-0", version=3, manifest=ref)]
    override = 'policy={from_job = "job-0"}'
    assert ask("job", "submit", str(job_file), "--set", override).code == 0
    assert list(world.jobs["job-1"].spec.policy.checkpoint.files) == ["config.json"]
    said = ask("job", "submit", str(job_file), "--set", 'policy={from_job = "job-9"}')
    assert "known: job-0" in said.err


def test_nothing_running_in_a_data_directory_is_told_with_the_way_out(temper, tmp_path):
    said = temper("job", "list", "--data-dir", str(tmp_path / "none"))
    assert said.code == 3
    assert "hint: temper up" in said.err


def test_what_a_killed_platform_left_is_not_taken_for_a_platform(temper, tmp_path):
    (tmp_path / "platform.json").write_text(
        json.dumps({"pid": 2**22 + 1, "endpoints": {}, "token_file": "t"})
    )
    assert "no platform runs in" in temper("job", "list", "--data-dir", str(tmp_path)).err


def test_an_unknown_service_is_told_with_the_nearest(temper):
    said = temper("config", "show", "trainr")
    assert said.code == 2
    assert 'did you mean "trainer"?' in said.err


def test_settings_of_a_service_are_shown_with_their_source(temper):
    said = temper("config", "show", "qa", "--set", "bus.url=nats://h:1", "-o", "json")
    rows = {row["key"]: row for row in json.loads(said.out)}
    assert rows["bus.url"] == {"key": "bus.url", "value": "nats://h:1", "source": "--set"}


def test_yaml_quotes_what_would_be_read_as_something_else():
    value = {"a": "yes", "b": [1, {"c": "x: y", "d": None}], "e": {}, "f": "plain words", "g": 1.5}
    assert render(value, "yaml").splitlines() == [
        'a: "yes"',
        "b:",
        "  - 1",
        '  - c: "x: y"',
        "    d: null",
        "e: {}",
        "f: plain words",
        "g: 1.5",
    ]


def test_a_file_that_is_not_there_is_a_line_and_no_traceback(temper, tmp_path):
    said = temper("report", "j1", "--job-file", str(tmp_path / "none.toml"), "--data-dir", str(tmp_path))
    assert said.code == 2
    assert said.err == f"error: {tmp_path / 'none.toml'}: No such file or directory\n"


@pytest.mark.parametrize("value", ["2026-01-01", "nan"])
def test_a_parameter_that_json_cannot_carry_is_refused(value):
    from temper.client.cli.env import _params
    from temper.client.sdk import calls

    with pytest.raises(Rejected, match="cannot be written as JSON"):
        calls.check_environment("calc", params=_params((f"low={value}",)), force=False)


def test_the_time_of_a_dead_letter_is_shown_as_a_date():
    from temper.client.cli.output import cell

    assert cell(1_796_042_538.2, "time").startswith("2026-11-30 ")
    assert cell(0.5, "wall_s") == "0.5"
