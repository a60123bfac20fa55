"""What a job file may not say: each rule at its field's path, with the way out."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.jobs import blob, demo_phase, policy_phase, spec

from temper.api.job.v1.spec_pb2 import EvalSpec, JobSpec
from temper.runtime.errors import Rejected
from temper.runtime.validation import violations
from temper.scheduler import defaults, validate
from temper.scheduler.validate import Known

KNOWN = Known(("sft", "grpo", "gspo"), ("sft",), ("torch",))
SHAPE = {
    "family": "llama",
    "hiddenSize": 128,
    "layers": 2,
    "heads": 4,
    "kvHeads": 2,
    "intermediateSize": 256,
    "maxPositions": 256,
    "vocabSize": 264,
    "ropeTheta": 10000,
    "files": {name: blob(name) for name in ("tokenizer.json", "temper_chat.json")},
}


def found(job: JobSpec) -> dict[str, str]:
    return {
        each.field: f"{each.message} ({each.hint})"
        for each in validate.problems(defaults.effective(job), KNOWN)
    }


def domains(**second: object) -> list[dict[str, object]]:
    return [{"name": "calc", "env": "calc", "share": 1}, {"name": "b", "env": "b", "share": 1, **second}]


def test_a_good_job_has_no_problem_and_keeps_the_contract():
    job = defaults.effective(spec(phases=[demo_phase(), policy_phase()]))
    assert list(validate.problems(job, KNOWN)) == []
    assert violations(job) == []
    validate.check(job, KNOWN)


CASES = [
    (spec(phases=[policy_phase(algorithm="grop")]), "phases[0].algorithm", "did you mean 'grpo'?"),
    (spec(phases=[policy_phase(algorithm="xyzzy")]), "phases[0].algorithm", "known: grpo, gspo, sft"),
    (spec(phases=[policy_phase(), policy_phase()]), "phases[1].name", "taken by phases[0]"),
    (spec(phases=[policy_phase(tasksPerGroup=2)]), "phases[0].tasks_per_group", "must be 1"),
    (spec(phases=[policy_phase(samplesPerTask=1)]), "phases[0].samples_per_task", "at least 2"),
    (spec(phases=[policy_phase(source="PURPOSE_DEMO")]), "phases[0].source", "must be policy for grpo"),
    (spec(phases=[demo_phase(source="PURPOSE_TRAIN")]), "phases[0].source", "must be demo for sft"),
    (spec(phases=[demo_phase(oracleMix=[])]), "phases[0].oracle_mix", "needs the oracle's styles"),
    (
        spec(phases=[demo_phase(oracleMix=[{"until": 0.5, "styles": {"tool": 1}}])]),
        "phases[0].oracle_mix[0].until",
        "must be 1.0",
    ),
    (
        spec(phases=[demo_phase(oracleMix=[{"until": 1, "styles": {"tool": 0}}])]),
        "phases[0].oracle_mix[0].styles",
        "above 0",
    ),
    (
        spec(
            phases=[
                demo_phase(oracleMix=[{"until": 1, "styles": {"a": 1}}, {"until": 0.5, "styles": {"a": 1}}])
            ]
        ),
        "phases[0].oracle_mix",
        "must rise",
    ),
    (
        spec(phases=[policy_phase(oracleMix=[{"until": 1, "styles": {"a": 1}}])]),
        "phases[0].oracle_mix",
        "only where an oracle acts",
    ),
    (spec(phases=[policy_phase(publishEvery=9)]), "phases[0].publish_every", "more than the phase's 4 steps"),
    (spec(phases=[policy_phase(groupsPerStep=4000)]), "phases[0].groups_per_step", "do not fit"),
    (
        spec(phases=[policy_phase(optimizer={"lr": 1e-3, "schedule": "cosin"})]),
        "phases[0].optimizer.schedule",
        "'cosine'",
    ),
    (
        spec(phases=[policy_phase(optimizer={"lr": 1e-3, "beta1": 1.5})]),
        "phases[0].optimizer.beta1",
        "must be in [0, 1)",
    ),
    (spec(domains=domains(name="calc")), "domains[1].name", "taken by domains[0]"),
    (spec(domains=domains(share=-1)), "domains[1].share", "positive"),
    (spec(domains=domains(share=1e308)), "domains[1].share", "at most 1e+09"),
    (spec(domains=domains(curriculum="uniformm")), "domains[1].curriculum", "'uniform'"),
    (spec(domains=domains(curriculum="gate", train_tasks=3)), "domains[1].train_tasks", "at least 4"),
    (spec(domains=domains(paramsJson="[1]")), "domains[1].params_json", "JSON object"),
    (spec(accept={"minPass": {"clac": 0.5}}), "accept.min_pass.clac", "did you mean 'calc'?"),
    (spec(accept={"minPass": {"calc": 1.5}}), "accept.min_pass.calc", "must be in [0, 1]"),
    (spec(accept={"minMeanPass": 0.5}, eval={"after": False}), "accept", "eval.after = true"),
    (spec(accept={"maxDrop": 0.1}, eval={"after": True}), "accept.max_drop", "eval.before = true"),
    (spec(eval={"tasksPerDomain": 4, "duringTasks": 8}), "eval.during_tasks", "at most tasks_per_domain"),
    (spec(eval={"temperature": -1}), "eval.temperature", "must be in [0, 10]"),
    (
        spec(rollout={"maxTokensPerTurn": 64, "maxTokens": 32}),
        "rollout.max_tokens_per_turn",
        "at most max_tokens",
    ),
    (spec(rollout={"topP": 1.5}), "rollout.top_p", "must be in (0, 1]"),
    (spec(trainer={"engine": "torhc"}), "trainer.engine", "'torch'"),
    (
        spec(trainer={"engine": "torch", "megatron": {"tensorParallel": 2}}),
        "trainer.megatron",
        'trainer.engine = "megatron"',
    ),
    (
        spec(policy={"checkpoint": {"files": {"config.json": blob("c")}}}),
        "policy.checkpoint.files",
        "temper_chat.json is missing",
    ),
    (spec(policy={"random": {**SHAPE, "heads": 5}}), "policy.random.heads", "must divide hidden_size"),
    (spec(policy={"random": {**SHAPE, "kvHeads": 3}}), "policy.random.kv_heads", "must divide heads"),
    (
        spec(policy={"random": SHAPE}, rollout={"maxTokens": 512}),
        "rollout.max_tokens",
        "the policy's max_positions (256)",
    ),
]


@pytest.mark.parametrize(
    ("job", "field", "words"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)]
)
def test_each_mistake_is_named_at_its_path(job, field, words):
    problems = found(job)
    assert field in problems, problems
    assert words in problems[field]


def test_all_mistakes_are_told_at_once():
    job = spec(phases=[policy_phase(algorithm="grop", samplesPerTask=1)], accept={"minPass": {"x": 2}})
    with pytest.raises(Rejected) as caught:
        validate.check(defaults.effective(job), KNOWN)
    error = caught.value
    assert error.field == "spec.phases[0].algorithm"
    assert error.hint is not None
    assert "accept.min_pass.x" in error.hint


def test_defaults_fill_what_is_absent_and_nothing_else():
    bare = spec()
    bare.ClearField("eval")
    bare.ClearField("rollout")
    bare.ClearField("trainer")
    filled = defaults.effective(bare)
    assert (filled.eval.tasks_per_domain, filled.eval.temperature) == (256, 1.0)
    assert filled.eval.before
    assert filled.eval.after
    assert (filled.rollout.max_turns, filled.rollout.top_p, filled.trainer.engine) == (4, 1.0, "torch")
    assert bare.rollout.max_turns == 0, "the caller's message is left alone"
    assert defaults.effective(filled) == filled


def test_zeros_with_a_meaning_stay_zero():
    job = spec(phases=[demo_phase(maxStaleness=0)])
    job.eval.CopyFrom(EvalSpec(temperature=0.0, tasks_per_domain=8))
    filled = defaults.effective(job)
    assert filled.eval.temperature == 0.0
    assert not filled.eval.before
    assert (filled.phases[0].publish_every, filled.phases[0].max_staleness) == (0, 0)


def test_a_policy_phase_always_publishes():
    assert defaults.effective(spec(phases=[policy_phase(publishEvery=0)])).phases[0].publish_every == 1
