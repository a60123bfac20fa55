"""Rules of a job file that concern more than one field; each finds problems and raises nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from temper.client.jobfile.model import JobFile, Phase, RandomPolicy
from temper.client.jobfile.problems import Problem, nearest

RELATIVE_ALGORITHMS = ("grpo",)  # compare the samples of one task: a single sample has no advantage


def inconsistencies(job: JobFile) -> list[Problem]:
    """Everything that cannot work although each field alone is fine."""
    found = [*_policy(job), *_names(job), *_eval(job), *_mix(job), *_accept(job), *_rollout(job)]
    for index, domain in enumerate(job.domain):
        found += not_json(f"domain[{index}].params", domain.params)
    for index, phase in enumerate(job.phase):
        found += _phase(f"phase[{index}]", phase)
    return found


def _policy(job: JobFile) -> Iterator[Problem]:
    given = [key for key in ("checkpoint", "from_job", "random") if getattr(job.policy, key) is not None]
    if len(given) != 1:
        which = " and ".join(given) or "none"
        yield Problem("policy", f"needs exactly one of checkpoint, from_job, random; {which} given")
    if job.policy.random:
        yield from _shape(job.policy.random)


def _shape(shape: RandomPolicy) -> Iterator[Problem]:
    if shape.hidden_size % shape.heads:
        yield Problem("policy.random.heads", f"must divide hidden_size ({shape.hidden_size})")
    if shape.heads % shape.kv_heads:
        yield Problem("policy.random.kv_heads", f"must divide heads ({shape.heads})")
    if (shape.hidden_size // shape.heads) % 2:
        yield Problem("policy.random.heads", "must leave an even width per head for rotary positions")


def _names(job: JobFile) -> Iterator[Problem]:
    yield from _repeated("domain", [each.name for each in job.domain])
    yield from _repeated("phase", [each.name for each in job.phase])


def _repeated(table: str, names: list[str]) -> Iterator[Problem]:
    counts = Counter(names)
    for index, name in enumerate(names):
        if counts[name] > 1 and name in names[:index]:
            yield Problem(f"{table}[{index}].name", f'"{name}" is taken by {table}[{names.index(name)}]')


def not_json(path: str, value: Any) -> Iterator[Problem]:
    """What an environment's parameters cannot carry although TOML can write it: dates, times, nan and inf."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from not_json(f"{path}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from not_json(f"{path}[{index}]", item)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"must be a finite number, not {value}")
    elif not isinstance(value, (str, bool, int, float)):
        kind = type(value).__name__
        yield Problem(
            path, f"must be text, a number, true, false, a list or a table, not a {kind}", "put it in quotes"
        )


def _eval(job: JobFile) -> Iterator[Problem]:
    most = job.eval.tasks_per_domain
    if job.eval.during_tasks > most:
        yield Problem("eval.during_tasks", f"must be at most eval.tasks_per_domain ({most})")


def _mix(job: JobFile) -> Iterator[Problem]:
    if job.mix.controller == "learnability" and not job.eval.every:
        yield Problem("mix.controller", "moves shares after evaluations on the way", "set eval.every above 0")
    for index, domain in enumerate(job.domain):
        if domain.curriculum == "gate" and domain.train_tasks < 4:
            yield Problem(f"domain[{index}].train_tasks", 'must be at least 4 for curriculum = "gate"')


def _accept(job: JobFile) -> Iterator[Problem]:
    domains = {each.name for each in job.domain}
    for name in job.accept.min_pass:
        if name not in domains:
            yield Problem(f"accept.min_pass.{name}", "is not a domain of this job", nearest(name, domains))
    asked = job.accept.min_pass or job.accept.min_mean_pass or job.accept.max_drop
    if asked and not job.eval.after:
        yield Problem("accept", "needs the evaluation after training", "set eval.after = true")
    if job.accept.max_drop and not job.eval.before:
        yield Problem("accept.max_drop", "needs the evaluation before training", "set eval.before = true")


def _rollout(job: JobFile) -> Iterator[Problem]:
    if job.rollout.max_tokens_per_turn > job.rollout.max_tokens:
        limit = job.rollout.max_tokens
        yield Problem("rollout.max_tokens_per_turn", f"must be at most rollout.max_tokens ({limit})")
    shape = job.policy.random
    if shape and job.rollout.max_tokens > shape.max_positions:
        limit = shape.max_positions
        yield Problem("rollout.max_tokens", f"must be at most policy.random.max_positions ({limit})")


def _phase(path: str, phase: Phase) -> Iterator[Problem]:
    if phase.demo:
        yield from _demo(path, phase)
        return
    if phase.tasks_per_group != 1:
        yield Problem(f"{path}.tasks_per_group", 'must be 1 where the policy acts (source = "policy")')
    if phase.oracle_mix:
        yield Problem(f"{path}.oracle_mix", 'has a meaning only with source = "demo"')
    if phase.algorithm in RELATIVE_ALGORITHMS and phase.samples_per_task == 1:
        yield Problem(f"{path}.samples_per_task", f"must be at least 2 for {phase.algorithm}")
    if (phase.publish_every or 0) > phase.steps:
        yield Problem(f"{path}.publish_every", f"must be at most the phase's steps ({phase.steps})")
    if phase.publish_every == 0:
        yield Problem(f"{path}.publish_every", 'must be at least 1 where the policy acts (source = "policy")')


def _demo(path: str, phase: Phase) -> Iterator[Problem]:
    if phase.algorithm in RELATIVE_ALGORITHMS:
        yield Problem(f"{path}.source", f'must be "policy" for {phase.algorithm}: demonstrations do not vary')
    if not phase.oracle_mix:
        hint = "for example [{ until = 1.0, styles = { tool = 1.0 } }]"
        yield Problem(f"{path}.oracle_mix", "is required for demonstrations: whom to imitate", hint)
    untils = [mix.until for mix in phase.oracle_mix]
    if untils != sorted(set(untils)):
        yield Problem(f"{path}.oracle_mix", "must have rising values of until")
    if untils and untils[-1] != 1.0:
        yield Problem(
            f"{path}.oracle_mix[{len(untils) - 1}].until", "must be 1.0: the last mix runs to the end"
        )
    for index, mix in enumerate(phase.oracle_mix):
        if not any(mix.styles.values()):
            yield Problem(f"{path}.oracle_mix[{index}].styles", "must have a weight above 0")
