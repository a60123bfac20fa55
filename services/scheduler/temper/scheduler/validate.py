"""What a job file may not say. Every rule yields problems with the field's path; `check` raises all of them at once.

Rules on single fields are in the contract (protovalidate); here are those that need several fields or know the
platform. Whether an environment exists is qa's to say: `service` asks it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import Purpose
from temper.api.job.v1.spec_pb2 import DomainSpec, EvalSpec, JobSpec, ModelSpec, PhaseSpec
from temper.runtime.complaints import nearest
from temper.runtime.errors import Rejected
from temper.scheduler.credits import Credits
from temper.scheduler.curriculum import CURRICULA
from temper.scheduler.curriculum.gate import TIERS
from temper.scheduler.gates.settings import COLLAPSE_GROUPS, MAX_ROLLBACKS, OFF, rolls_back

SCHEDULES = ("constant", "cosine", "linear")
POLICY_FILES = ("config.json", "model.safetensors", "tokenizer.json", "temper_chat.json")
TOKENIZER_FILES = ("tokenizer.json", "temper_chat.json")
MOST_LEDGER_BYTES = (
    700_000  # of 1 MiB that a value of KV `jobs` may have; the rest is curricula and evaluations
)
COMMAND_BYTES, TASK_BYTES = 600, 16  # a published command in the ledger; each of its tasks on top
LARGEST, LARGEST_LR = 1e9, 100.0  # larger numbers overflow where they are added or multiplied
_SHOWN = 6  # problems told at once


@dataclass(frozen=True, slots=True)
class Known:
    """Names that the platform offers. Example: `Known(("sft", "grpo"), ("sft",), ("torch",))`."""

    algorithms: tuple[str, ...]
    """Algorithms of the trainers."""
    from_demonstrations: tuple[str, ...]
    """Those that learn from demonstrations; all others learn from rewards of the policy's own samples."""
    engines: tuple[str, ...]
    """Engines of the trainers."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Example: `Problem("phases[0].steps", "must be positive", "1 or more")`."""

    field: str
    """Path from the specification's root."""
    message: str
    """What is wrong."""
    hint: str = ""
    """The way out."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}{f' ({self.hint})' if self.hint else ''}"


def check(spec: JobSpec, known: Known) -> None:
    """Raise Rejected for the first problem, with the others in its hint."""
    found = list(problems(spec, known))
    if not found:
        return
    first, *others = found
    also = "; ".join(map(str, others[: _SHOWN - 1]))
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    hint = "; ".join(filter(None, (first.hint, f"also wrong: {also}{more}" if also else "")))
    raise Rejected(first.message, field=f"spec.{first.field}", hint=hint or None)


def problems(spec: JobSpec, known: Known) -> Iterator[Problem]:
    """Everything that is wrong with an effective specification (defaults filled in)."""
    yield from _policy(spec)
    yield from _unique("domains", [domain.name for domain in spec.domains])
    for index, domain in enumerate(spec.domains):
        yield from _domain(f"domains[{index}]", domain)
    yield from _unique("phases", [phase.name for phase in spec.phases])
    for index, phase in enumerate(spec.phases):
        yield from _phase(f"phases[{index}]", phase, known)
    yield from _evaluation(spec.eval)
    yield from _rollout(spec)
    yield from _accept(spec)
    yield from _gates(spec)
    if spec.mix.controller == "learnability" and not spec.eval.every:
        yield Problem("mix.controller", "moves shares after evaluations on the way", "set eval.every above 0")
    yield from _trainer(spec, known)


def _policy(spec: JobSpec) -> Iterator[Problem]:
    if spec.policy.HasField("checkpoint"):
        yield from _files("policy.checkpoint.files", spec.policy.checkpoint.files, POLICY_FILES)
    elif spec.policy.HasField("random"):
        yield from _files("policy.random.files", spec.policy.random.files, TOKENIZER_FILES)
        yield from _shape(spec.policy.random)
    else:
        yield Problem("policy.init", "needs a checkpoint or the shape of a random policy")


def _files(field: str, given: Iterable[str], wanted: tuple[str, ...]) -> Iterator[Problem]:
    names = set(given)
    for missing in (name for name in wanted if name not in names):
        yield Problem(field, f"{missing} is missing", f"a policy needs {', '.join(wanted)}")


def _shape(shape: ModelSpec) -> Iterator[Problem]:
    if shape.heads and shape.hidden_size % shape.heads:
        yield Problem("policy.random.heads", f"must divide hidden_size ({shape.hidden_size})")
    elif shape.heads and (shape.hidden_size // shape.heads) % 2:
        yield Problem("policy.random.heads", "must leave an even width per head for rotary positions")
    if shape.kv_heads and shape.heads % shape.kv_heads:
        yield Problem("policy.random.kv_heads", f"must divide heads ({shape.heads})")


def _unique(table: str, names: list[str]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(f"{table}[{index}].name", f"{name!r} is taken by {table}[{names.index(name)}]")


def _domain(path: str, domain: DomainSpec) -> Iterator[Problem]:
    if not 0 < domain.share <= LARGEST:
        yield Problem(
            f"{path}.share", f"must be a positive number of at most {LARGEST:g}, is {domain.share:g}"
        )
    yield from _choice(f"{path}.curriculum", domain.curriculum, CURRICULA, "curriculum")
    if domain.curriculum == "gate" and domain.train_tasks < TIERS:
        yield Problem(
            f"{path}.train_tasks",
            f'must be at least {TIERS} for curriculum = "gate": it cuts them into tiers',
        )
    if domain.params_json and not _is_object(domain.params_json):
        yield Problem(f"{path}.params_json", "must be a JSON object", 'for example {"min_digits":2}')


def _phase(path: str, phase: PhaseSpec, known: Known) -> Iterator[Problem]:
    yield from _choice(f"{path}.algorithm", phase.algorithm, known.algorithms, "algorithm")
    yield from _choice(f"{path}.optimizer.schedule", phase.optimizer.schedule, SCHEDULES, "schedule")
    if not 0 < phase.optimizer.lr <= LARGEST_LR:
        yield Problem(f"{path}.optimizer.lr", f"must be in (0, {LARGEST_LR:g}], is {phase.optimizer.lr:g}")
    for name, beta in (("beta1", phase.optimizer.beta1), ("beta2", phase.optimizer.beta2)):
        if not 0 <= beta < 1:
            yield Problem(f"{path}.optimizer.{name}", f"must be in [0, 1), is {beta:g}")
    demo = phase.algorithm in known.from_demonstrations
    if phase.algorithm in known.algorithms and demo != (phase.source == Purpose.PURPOSE_DEMO):
        wanted = "demo" if demo else "policy"
        yield Problem(f"{path}.source", f"must be {wanted} for {phase.algorithm}")
    elif phase.source == Purpose.PURPOSE_DEMO:
        yield from _oracle_mix(path, phase)
    else:
        yield from _acting(path, phase)
    yield from _size(path, phase)


def _acting(path: str, phase: PhaseSpec) -> Iterator[Problem]:
    if phase.tasks_per_group != 1:
        yield Problem(
            f"{path}.tasks_per_group",
            "must be 1 where the policy acts: advantages compare samples of one task",
        )
    if phase.samples_per_task < 2:
        yield Problem(f"{path}.samples_per_task", "must be at least 2: a single sample has no advantage")
    if phase.oracle_mix:
        yield Problem(
            f"{path}.oracle_mix", "has a meaning only where an oracle acts", "source = demo, or leave it out"
        )
    if phase.publish_every > phase.steps:
        yield Problem(f"{path}.publish_every", f"is more than the phase's {phase.steps} steps")


def _oracle_mix(path: str, phase: PhaseSpec) -> Iterator[Problem]:
    mixes = list(phase.oracle_mix)
    if not mixes:
        yield Problem(
            f"{path}.oracle_mix",
            "a phase of demonstrations needs the oracle's styles",
            "for example [{until = 1.0, styles = {tool = 1.0}}]",
        )
        return
    untils = [mix.until for mix in mixes]
    if untils != sorted(set(untils)):
        yield Problem(f"{path}.oracle_mix", "values of until must rise")
    if untils[-1] != 1.0:
        yield Problem(
            f"{path}.oracle_mix[{len(mixes) - 1}].until", "must be 1.0: the last mix runs to the end"
        )
    for index, mix in enumerate(mixes):
        weights = list(mix.styles.values())
        if not weights or min(weights) < 0 or not 0 < sum(weights) < math.inf:
            yield Problem(
                f"{path}.oracle_mix[{index}].styles", "needs weights of 0 or more, one of them above 0"
            )


def _size(path: str, phase: PhaseSpec) -> Iterator[Problem]:
    """Published groups are written down until they are settled, in one value of bounded size."""
    bound = Credits(phase.max_staleness, phase.groups_per_step).bound
    needed = bound * (COMMAND_BYTES + TASK_BYTES * phase.tasks_per_group)
    if needed > MOST_LEDGER_BYTES:
        yield Problem(
            f"{path}.groups_per_step",
            f"with max_staleness {phase.max_staleness} and {phase.tasks_per_group} tasks per group, {bound} groups "
            "under way do not fit the job's ledger",
            "smaller groups_per_step, max_staleness or tasks_per_group",
        )


def _evaluation(evaluation: EvalSpec) -> Iterator[Problem]:
    if not 0 <= evaluation.temperature <= 10:
        yield Problem("eval.temperature", f"must be in [0, 10], is {evaluation.temperature:g}")
    if evaluation.tasks_per_domain > 1_000_000:
        yield Problem("eval.tasks_per_domain", "must be at most 1000000")
    if evaluation.during_tasks > evaluation.tasks_per_domain:
        yield Problem(
            "eval.during_tasks", f"must be at most tasks_per_domain ({evaluation.tasks_per_domain})"
        )
    if evaluation.samples_per_task > 1024:
        yield Problem("eval.samples_per_task", "must be at most 1024")


def _rollout(spec: JobSpec) -> Iterator[Problem]:
    rollout = spec.rollout
    if not 0 < rollout.temperature <= 10:
        yield Problem("rollout.temperature", f"must be in (0, 10], is {rollout.temperature:g}")
    if not 0 < rollout.top_p <= 1:
        yield Problem("rollout.top_p", f"must be in (0, 1], is {rollout.top_p:g}")
    if rollout.max_tokens_per_turn > rollout.max_tokens:
        yield Problem("rollout.max_tokens_per_turn", f"must be at most max_tokens ({rollout.max_tokens})")
    if rollout.max_observation_bytes < 16:
        yield Problem("rollout.max_observation_bytes", "must be at least 16")
    if not 0 < rollout.group_deadline_s < math.inf:
        yield Problem("rollout.group_deadline_s", "must be a positive number of seconds")
    longest = spec.policy.random.max_positions
    if spec.policy.HasField("random") and rollout.max_tokens > longest:
        yield Problem("rollout.max_tokens", f"must be at most the policy's max_positions ({longest})")


def _trainer(spec: JobSpec, known: Known) -> Iterator[Problem]:
    engine = spec.trainer.engine
    yield from _choice("trainer.engine", engine, known.engines, "engine")
    if spec.trainer.HasField("megatron") and engine != "megatron":
        why = f"are options of the engine megatron, the job asks for {engine}"
        yield Problem("trainer.megatron", why, 'trainer.engine = "megatron"')


def _accept(spec: JobSpec) -> Iterator[Problem]:
    accept, names = spec.accept, [domain.name for domain in spec.domains]
    for name, least in sorted(accept.min_pass.items()):
        yield from _choice(f"accept.min_pass.{name}", name, names, "domain")
        if not 0 <= least <= 1:
            yield Problem(f"accept.min_pass.{name}", f"must be in [0, 1], is {least:g}")
    for field, value in (("min_mean_pass", accept.min_mean_pass), ("max_drop", accept.max_drop)):
        if not 0 <= value <= 1:
            yield Problem(f"accept.{field}", f"must be in [0, 1], is {value:g}")
    if (accept.min_pass or accept.min_mean_pass or accept.max_drop) and not spec.eval.after:
        yield Problem("accept", "needs the evaluation after training", "eval.after = true")
    if accept.max_drop and not spec.eval.before:
        yield Problem("accept.max_drop", "needs the evaluation before training", "eval.before = true")


def _gates(spec: JobSpec) -> Iterator[Problem]:
    gates, names = spec.gates, [domain.name for domain in spec.domains]
    for name, least in sorted(gates.min_pass.items()):
        yield from _choice(f"gates.min_pass.{name}", name, names, "domain")
        if not 0 <= least <= 1:
            yield Problem(f"gates.min_pass.{name}", f"must be in [0, 1], is {least:g}")
    bounded = bool(gates.min_pass) or gates.HasField("max_drop")
    if (bounded or gates.action in ("hold", "rollback", "stop")) and not spec.eval.every:
        yield Problem("gates", "judges evaluations on the way", "set eval.every above 0")
    if gates.HasField("max_drop") and gates.against == "before" and not spec.eval.before:
        yield Problem("gates.against", "needs the evaluation before training", "eval.before = true")
    if gates.action != "alarm" and not bounded:
        yield Problem("gates.action", "has nothing to act on", "set gates.min_pass or gates.max_drop")
    if gates.against != "accepted" and not gates.HasField("max_drop"):
        yield Problem("gates.against", "is what max_drop compares with", "set gates.max_drop")
    if gates.collapse_groups != COLLAPSE_GROUPS and gates.on_collapse == OFF:
        yield Problem("gates.collapse_groups", "is for a watch that is off", "leave gates.on_collapse out")
    for name, value, usual in (
        ("lr_factor", gates.lr_factor, 1),
        ("max_rollbacks", gates.max_rollbacks, MAX_ROLLBACKS),
    ):
        if value != usual and not rolls_back(gates):
            yield Problem(f"gates.{name}", "is applied by rollbacks", 'action or on_collapse = "rollback"')


def _choice(field: str, value: str, allowed: Iterable[str], what: str) -> Iterator[Problem]:
    names = list(allowed)
    if value not in names:
        guess = nearest(value, names)
        hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(names))}"
        yield Problem(field, f"no {what} named {value!r}", hint)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
