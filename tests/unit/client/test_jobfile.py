from pathlib import Path

import pytest
from tests.unit.client.conftest import JOB, REPOSITORY

from temper.api.common.v1 import common_pb2
from temper.client.jobfile import JobFileRejected, load_job, parse_job
from temper.client.jobfile.spec import file_path, policy_source, teacher_sources, to_spec
from temper.runtime.errors import Rejected
from temper.runtime.validation import violations

EXAMPLES = REPOSITORY / "examples"
REF = common_pb2.BlobRef(key="a", sha256="0" * 64, size=1)
FILES = {"config.json": REF, "tokenizer.json": REF}


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(JobFileRejected) as caught:
        parse_job(text.encode(), overrides=overrides)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("phase.rl.stepz=3", 'phase[0].stepz is not a known key (did you mean "steps"?)'),
        ("evl.every=3", 'evl is not a known key (did you mean "eval"?)'),
        ("phase.rl.steps=0", "phase[0].steps must be at least 1, not 0"),
        ("phase.rl.steps=2.5", "phase[0].steps must be a whole number, not 2.5"),
        ("phase.rl.steps=true", "phase[0].steps must be a whole number, not True"),
        ("phase.rl.optimizer.lr=-1", "phase[0].optimizer.lr must be more than 0.0, not -1"),
        ("phase.rl.optimizer.lr=inf", "phase[0].optimizer.lr must be at most 100.0, not inf"),
        ("phase.rl.optimizer.lr=nan", "phase[0].optimizer.lr must be at most 100.0, not nan"),
        ("domain.calc.share=1e308", "domain[0].share must be at most 1000000000.0, not 1e+308"),
        (
            "phase.rl.optimizer.schedule=cosin",
            "phase[0].optimizer.schedule must be one of 'constant', 'cosine' or 'linear', not 'cosin' (did you mean \"cosine\"?)",
        ),
        ("domain[0].share=0", "domain[0].share must be more than 0.0, not 0"),
        ("domain.calc.env=[1]", "domain[0].env must be text in quotes, not (1,)"),
        ("eval.before=1", "eval.before must be true or false, not 1"),
        ("eval=3", "eval must be a table, not 3"),
        ("phase.rl.samples_per_task=1", "phase[0].samples_per_task must be at least 2 for grpo"),
        (
            "phase.rl.tasks_per_group=2",
            'phase[0].tasks_per_group must be 1 where the policy acts (source = "policy")',
        ),
        (
            "phase.rl.source=demo",
            'phase[0].source must be "policy" for grpo: demonstrations do not vary',
        ),
        (
            "accept.min_pass.clac=.5",
            'accept.min_pass.clac is not a domain of this job (did you mean "calc"?)',
        ),
        ("rollout.max_tokens=8", "rollout.max_tokens_per_turn must be at most rollout.max_tokens (8)"),
        ("eval.during_tasks=500", "eval.during_tasks must be at most eval.tasks_per_domain (256)"),
        ("phase.rl.publish_every=4", "phase[0].publish_every must be at most the phase's steps (3)"),
        (
            "policy.from_job=job-1",
            "policy needs exactly one of checkpoint, from_job, random; checkpoint and from_job given",
        ),
        ("phase.r1.steps=3", "--set phase.r1.steps has no entry named 'r1' (known: rl)"),
        ("phase.7.steps=3", "--set phase.7.steps has no entry 7: 1 entries"),
        ("name.x.y=3", "--set name.x.y cannot be followed: nothing lies under 'x'"),
        ("steps", "--set steps must have the form a.b=value"),
        ("a" + ".a" * 20_000 + "=1", "must have the form a.b=value"),
        ("phase.rl.steps=5\nseed=3", "phase[0].steps must be a whole number, not '5\\nseed=3'"),
        (
            "phase.rl.params.beta=nan",
            "phase[0].params.beta must be a finite number or text in quotes, not nan",
        ),
        (
            "phase.rl.params.beta=[1]",
            "phase[0].params.beta must be a finite number or text in quotes, not [1]",
        ),
        ("domain.calc.params.low=nan", "domain[0].params.low must be a finite number, not nan"),
        ("domain.calc.params.low=[{a=inf}]", "domain[0].params.low[0].a must be a finite number, not inf"),
        (
            "domain.calc.params.low=2026-01-01",
            "domain[0].params.low must be text, a number, true, false, a list or a table, not a date (put it in quotes)",
        ),
    ],
)
def test_a_mistake_is_told_with_its_path_and_the_way_out(override, problem):
    assert any(problem in found for found in problems(JOB, override))


def test_one_wrong_value_of_an_algorithm_is_one_mistake():
    assert len(problems(JOB, "phase.rl.params.beta=true")) == 1


def test_brackets_without_end_are_a_mistake_and_no_crash():
    assert problems("x = " + "[" * 5000 + "]" * 5000) == ["is nested too deeply: this is not a job file"]


def test_a_file_without_end_is_refused_after_its_first_megabyte():
    with pytest.raises(JobFileRejected, match="larger than 1 MiB"):
        load_job(Path("/dev/zero"))


def test_several_mistakes_are_told_at_once():
    found = problems(JOB, "phase.rl.steps=0", "domain.calc.share=0", "seeed=1")
    assert len(found) == 3


def test_a_list_whose_entries_are_wrong_is_not_also_called_too_short():
    assert problems(JOB, "phase.rl.steps=0") == ["phase[0].steps must be at least 1, not 0"]


@pytest.mark.parametrize(
    ("text", "word"),
    [(b"name = ", "is not TOML"), (b"\xff\xfe", "is not text"), (b"", "name is required")],
)
def test_a_file_that_is_no_job_is_refused_in_words(text, word):
    with pytest.raises(JobFileRejected, match=word):
        parse_job(text)


def test_a_missing_file_is_refused_in_words(tmp_path):
    with pytest.raises(JobFileRejected, match=r"nothing\.toml: 1 mistake\n  cannot be read: No such file"):
        load_job(tmp_path / "nothing.toml")


def test_two_domains_may_not_share_a_name():
    twice = JOB + '\n[[domain]]\nname = "calc"\nenv = "rg/gcd"\n'
    assert problems(twice) == ['domain[1].name "calc" is taken by domain[0]']


def test_acceptance_needs_the_evaluations_it_looks_at():
    found = problems(JOB, "accept.max_drop=0.1", "eval.before=false", "eval.after=false")
    assert found == [
        "accept needs the evaluation after training (set eval.after = true)",
        "accept.max_drop needs the evaluation before training (set eval.before = true)",
    ]


@pytest.mark.parametrize(
    ("mix", "problem"),
    [
        ("[]", "oracle_mix is required"),
        ("[{until = 0.5, styles = {tool = 1}}]", "must be 1.0"),
        ("[{until = 1, styles = {tool = 1}}, {until = 1, styles = {tool = 1}}]", "rising values"),
        ("[{until = 1, styles = {tool = 0}}]", "a weight above 0"),
        ("[{until = 1, styles = {}}]", "at least 1 entries"),
    ],
)
def test_demonstrations_need_a_mix_of_styles_up_to_the_end(mix, problem):
    assert problem in problems(JOB, "phase.rl.algorithm=sft", f"phase.rl.oracle_mix={mix}")[0]


def test_overrides_win_and_seed_wins_over_all():
    job = parse_job(JOB.encode(), overrides=["phase.rl.steps=9", "name=other", "seed=3"], seed=4)
    assert (job.phase[0].steps, job.name, job.seed) == (9, "other", 4)


def test_parameters_of_an_environment_keep_their_lists():
    job = parse_job(JOB.encode(), overrides=['domain.calc.params={operators = ["+"], max = 3}'])
    spec = to_spec(job, FILES, "here")
    assert spec.domains[0].params_json == '{"max":3,"operators":["+"]}'


def test_numbers_and_choices_of_an_algorithm_are_told_apart():
    job = parse_job(JOB.encode(), overrides=["phase.rl.params={clip_high_delta = 0.28, advantage = 'rloo'}"])
    phase = to_spec(job, FILES, "here").phases[0]
    assert dict(phase.algorithm_params) == {"clip_high_delta": 0.28}
    assert dict(phase.algorithm_choices) == {"advantage": "rloo"}


def test_sft_learns_from_demonstrations_and_publishes_at_the_end():
    mix = "phase.rl.oracle_mix=[{until = 1.0, styles = {tool = 1.0}}]"
    spec = to_spec(parse_job(JOB.encode(), overrides=["phase.rl.algorithm=sft", mix]), FILES, "here")
    phase = spec.phases[0]
    assert (phase.source, phase.samples_per_task, phase.publish_every) == (common_pb2.PURPOSE_DEMO, 1, 0)


def test_a_teacher_is_uploaded_with_the_job(job_file, policy: Path):
    job = load_job(job_file, ["phase.rl.algorithm=distill", f"phase.rl.teacher={policy}"])
    (source,) = teacher_sources(job, job_file.parent).values()
    assert "model.safetensors" in source.files
    phase = to_spec(job, FILES, "here", {0: FILES}).phases[0]
    assert dict(phase.teacher.files) == dict(FILES)
    assert not to_spec(job, FILES, "here").phases[0].HasField("teacher")


def test_a_teacher_that_is_not_there_is_refused_with_its_phase(job_file):
    job = load_job(job_file, ["phase.rl.teacher=nowhere"])
    with pytest.raises(JobFileRejected, match=r"phase\[0\].teacher .*nowhere does not exist"):
        teacher_sources(job, job_file.parent)


@pytest.mark.parametrize("name", ["quickstart", "warmstart", "from_scratch"])
def test_examples_keep_the_rules_of_the_contract(name):
    spec = to_spec(load_job(EXAMPLES / f"{name}.toml"), FILES, "here")
    assert violations(spec) == []


def test_the_quick_start_fits_on_forty_lines():
    assert len((EXAMPLES / "quickstart.toml").read_text().splitlines()) <= 40


def test_an_error_of_the_server_gets_the_path_in_the_job_file():
    assert file_path("spec.phases[1].algorithm_params.clip") == "phase[1].params.clip"
    assert file_path("spec.domains[0].params_json") == "domain[0].params"


def test_files_of_a_policy_are_found_beside_the_job_file(job_file):
    source = policy_source(load_job(job_file), job_file.parent)
    assert sorted(source.files) == ["config.json", "model.safetensors", "temper_chat.json", "tokenizer.json"]


def test_a_policy_without_weights_is_refused_before_anything_starts(job_file, policy: Path):
    (policy / "model.safetensors").unlink()
    (policy / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(Rejected, match="pickled weights are refused"):
        policy_source(load_job(job_file), job_file.parent)


def test_a_policy_that_does_not_exist_is_refused(job_file):
    job = load_job(job_file, ["policy.checkpoint=nowhere"])
    with pytest.raises(Rejected, match="nowhere does not exist"):
        policy_source(job, job_file.parent)


@pytest.mark.parametrize(
    ("name", "content", "mistake"),
    [
        ("tokenizer.json", "{}", "tokenizer.json has no model"),
        ("tokenizer.json", "{", "tokenizer.json is not a JSON object"),
        ("temper_chat.json", "[]", "temper_chat.json is not a JSON object: it holds a list"),
        ("temper_chat.json", "\xff", "temper_chat.json is not a JSON object"),
        ("config.json", "[" * 50_000, "config.json is not a JSON object: nested too deeply"),
        ("config.json", '{"vocab_size": 263}', "has 263 tokens, but tokenizer.json has ids up to 263"),
        (
            "tokenizer.json",
            '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 264}]}',
            "policy.checkpoint has 264 tokens, but tokenizer.json has ids up to 264 (vocab_size must be at least 265)",
        ),
    ],
)
def test_a_file_that_only_a_worker_would_refuse_is_refused_here(
    job_file, policy: Path, name: str, content: str, mistake: str
):
    (policy / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(JobFileRejected) as caught:
        policy_source(load_job(job_file), job_file.parent)
    assert mistake in str(caught.value)


def test_a_random_policy_brings_its_tokenizer_but_no_weights(job_file, policy: Path):
    shape = (
        'policy={random = {family = "qwen3", hidden_size = 64, layers = 2, heads = 4, kv_heads = 2, '
        'intermediate_size = 128, files = "policy"}}'
    )
    job = load_job(job_file, [shape])
    assert sorted(policy_source(job, job_file.parent).files) == [
        "config.json",
        "temper_chat.json",
        "tokenizer.json",
    ]
    small = load_job(job_file, [shape.replace("layers", "vocab_size = 256, layers")])
    with pytest.raises(JobFileRejected, match=r"policy\.random\.vocab_size has 256 tokens"):
        policy_source(small, job_file.parent)
    assert problems(JOB, shape.replace("heads = 4", "heads = 5"))[0] == (
        "policy.random.heads must divide hidden_size (64)"
    )
