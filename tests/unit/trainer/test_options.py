"""Every knob of every algorithm, turned away from its default: something changes, or it is refused by name."""

import math
import os
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from tests.unit.trainer.test_torch_engine import config, engine, group_batch
from tests.unit.trainer.world import phase, spec

from temper.api.common.v1.common_pb2 import BlobRef
from temper.runtime.errors import Rejected
from temper.trainer.advantage import Component
from temper.trainer.advantage.scaling import RewardScale
from temper.trainer.algorithms import algorithm, registry
from temper.trainer.algorithms.base import Param
from temper.trainer.algorithms.policy_gradient import COMMON, choices
from temper.trainer.compute import train
from temper.trainer.engine.base import Teacher
from temper.trainer.engine.torch import make
from temper.trainer.plan import PhasePlan, plan

SMALL = {"hidden_size": 16, "head_dim": 4, "num_hidden_layers": 1, "intermediate_size": 16}
MUST = {"allow_unclipped": 1.0, "second_moment": 0.5}
"""What has no default that suits everybody."""
SEVERAL = {"mini_batches": 2.0, "epochs": 2.0}
"""With one update a step, the policy is still where the step began."""

# what else a knob needs to do anything: numbers and words
BESIDE: dict[str, dict[str, float | str]] = {
    "muon_lr": {"optimizer": "muon"},
    "kl_target": {"kl_beta": 0.5},
    "kl_horizon": {"kl_beta": 0.5, "kl_target": 1e-4},
    "kl_estimator": {"kl_beta": 0.5, "kl_in": "loss"},
    "kl_in": {"kl_beta": 0.5},
    "rm_max_disagreement": {"rm_weight": 0.5},
    "rm_refresh": {"rm_weight": 0.5},
    "refill_limit": {"dynamic_sampling": 1.0},
    "horizon": {"aggregation": "seq_mean_token_sum_norm"},
    "overlong_length": {"overlong_length": 12.0, "overlong_buffer": 4.0},
    "overlong_buffer": {"overlong_length": 8.0, "overlong_buffer": 4.0},
    "merge": {"value_coef": 0.0},
    "reward_scale": {"advantage": "rloo"},
    "correction_cap": {"correction": "tis_token"},
}
FOR_DISTILL = {
    "advantage",
    "reward_scale",
    "overlong_length",
    "overlong_buffer",
    "rm_weight",
    "rm_max_disagreement",
    "rm_refresh",
}
TURNED: dict[str, float] = {
    "correction_cap": 1.1,
    "overlong_length": 8.0,
    "overlong_buffer": 3.0,
    "kl_target": 1e-3,
    "rm_max_disagreement": 0.0,
    "rm_refresh": 1.0,
    "off_policy_delta": 0.01,
    "dual_clip": 1.01,
    "conflict_every": 1.0,
    "horizon": 7.0,
    "top_entropy": 0.3,
    "entropy_bonus": 0.2,
    "clip_high_ratio": 1.01,
    "clip_low_ratio": 0.99,
    "value_clip": 1e-3,
    "second_moment": 1e-3,
}


def other(name: str, knob: Param) -> float:
    """A legal value that is not the default."""
    if name in TURNED:
        return TURNED[name]
    if knob.low == 0.0 and knob.high == 1.0 and knob.default in (0, 1) and float(knob.default).is_integer():
        return 1.0 - knob.default if name not in ("gamma", "gae_lambda", "rm_weight") else 0.5
    if name in ("mini_batches", "epochs"):
        return 3.0
    return min(knob.high, max(knob.low, knob.default * 0.5 if knob.default else 0.5 * min(knob.high, 1.0)))


@cache
def samples():
    """Three domains, unlike lengths, some cut off, rewards of two components, one task without a difference."""
    out = []
    for i, one in enumerate(group_batch(seed=3, groups=6, size=3).samples):
        parts = {"right": Component(float(i % 3 == 0), 1.0), "form": Component(float(i % 2), 2.0)}
        reward = 1.0 if one.group == 5 else sum(p.weight * p.value for p in parts.values())
        name = ("calc", "sums", "words")[one.group % 3]
        age = np.full(one.ids.size, 3 - i % 3)
        drawn = np.where(one.mask, one.logprobs - 2.0 * (i % 2), 0.0).astype(np.float32)
        out.append(
            replace(
                one,
                reward=reward,
                components=parts,
                domain=name,
                truncated=i % 5 == 0,
                logprobs=drawn,
                versions=age,
            )
        )
    return out


@dataclass
class Fingerprint:
    """What a knob may change: what is asked of others or kept for later, what is reported, and where the weights end."""

    asked: object
    said: dict[str, float]
    left: dict[str, bytes]


def planned(name: str, params: dict[str, float], choices: dict[str, str]) -> PhasePlan:
    made = phase(algorithm=name, eta=1)
    made.optimizer.lr = 0.01
    made.algorithm_params.update(params)
    made.algorithm_choices.update(choices)
    if registry()[name].wants_teacher:
        made.teacher.files["model.safetensors"].CopyFrom(BlobRef(key="t"))
    job = spec(phase(algorithm="reward_model"), made)
    for domain, share in (("calc", 2.0), ("sums", 1.0), ("words", 1.0)):
        job.domains.add(name=domain, share=share)
    return plan(job)[1]


@cache
def judged():
    """A policy with a reward model beside it, as a snapshot."""
    made = engine(**SMALL)
    judge = planned("reward_model", {}, {})
    made.begin(judge.start(None))
    train(made, judge, samples(), 0)
    return made.snapshot()


@cache
def teacher() -> bytes:
    return engine(seed=9, **SMALL).snapshot().files["weights.safetensors"]


def done(name: str, given: dict[str, float | str]) -> Fingerprint:
    """A step of a phase with these knobs, of several updates."""
    params = {k: v for k, v in given.items() if not isinstance(v, str)}
    words = {k: v for k, v in given.items() if isinstance(v, str)}
    must = {k: v for k, v in (MUST | SEVERAL).items() if k in registry()[name].params}
    one = planned(name, must | params, words)
    made = make()
    made.restore(config() | SMALL, judged())
    made.begin(one.start(Teacher([teacher()]) if one.teacher else None))
    found = train(made, one, samples(), 3, version=3, scale=RewardScale()).metrics
    state = made.snapshot()
    return Fingerprint((one.ledger, state.facts["kl_beta"]), dict(found), dict(state.files))


@cache
def plain(name: str, beside: tuple[tuple[str, float | str], ...]) -> Fingerprint:
    return done(name, dict(beside))


def beside(name: str, knob: str) -> dict[str, float | str]:
    entry = registry()[name]
    known = {**entry.params, **entry.choices}
    found = {k: v for k, v in BESIDE.get(knob, {}).items() if k in known}
    if knob == "kl_estimator" and "kl_in" not in known:
        found.pop("kl_in", None)
    if name == "distill" and knob in FOR_DISTILL:
        found["reward_coef"] = 1.0
    if name == "decoupled_ppo" and knob == "correction":
        found["proximal"] = "recomputed"
    return found


ALIKE = sorted(set(registry()) - {"grpo", "ppo", "sft", "dpo", "reward_model"})
"""What these share with ``grpo`` goes through the same code and is looked at there; all of it under `TEMPER_TEST_OPTIONS=all`."""
EVERYTHING = os.environ.get("TEMPER_TEST_OPTIONS") == "all"


def looked_at(name: str, knob: str) -> bool:
    return EVERYTHING or name not in ALIKE or knob not in {**COMMON, **choices()}


KNOBS = [(n, knob) for n in sorted(registry()) for knob in registry()[n].params if looked_at(n, knob)]
WORDS = [
    (name, knob, value)
    for name in sorted(registry())
    for knob, choice in registry()[name].choices.items()
    for value in choice.allowed
    if value != choice.default and looked_at(name, knob)
]


def differs(a: Fingerprint, b: Fingerprint) -> bool:
    same = {k: v for k, v in a.said.items() if not math.isnan(v)} == {
        k: v for k, v in b.said.items() if not math.isnan(v)
    }
    return not (a.asked == b.asked and same and a.left == b.left)


def check(name: str, knob: str, value: float | str) -> None:
    around = beside(name, knob)
    found, refused = None, ""
    try:
        found = done(name, around | {knob: value})
    except Rejected as error:
        refused = f"{error.field} {error}"
    if found is None:
        assert knob in refused
        return
    assert differs(found, plain(name, tuple(sorted(around.items())))), (
        f"{name}: {knob} = {value} changes nothing"
    )


@pytest.mark.parametrize(("name", "knob"), KNOBS)
def test_no_number_is_without_an_effect(name, knob):
    if knob in MUST and knob == "allow_unclipped":
        return  # it allows; whether it is asked for is tested with the algorithm
    check(name, knob, other(knob, registry()[name].params[knob]))


@pytest.mark.parametrize(("name", "knob", "value"), WORDS)
def test_no_word_is_without_an_effect(name, knob, value):
    check(name, knob, value)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("horizon", 7.0),
        ("muon_lr", 0.1),
        ("refill_limit", 1.0),
        ("kl_horizon", 5.0),
        ("rm_max_disagreement", 0.1),
    ],
)
def test_a_knob_that_another_one_switches_off_is_refused_with_the_way_out(knob, value):
    with pytest.raises(Rejected, match=f"{knob} has no effect here") as caught:
        algorithm("grpo").settings({knob: value}, {}, max_staleness=1)
    assert caught.value.field == f"phase.algorithm_params.{knob}"


def test_knobs_of_the_ratio_are_warned_of_in_a_step_of_one_update():
    assert "clip_high_delta" in planned("grpo", {"clip_high_delta": 0.5}, {}).warning
    assert not planned("grpo", {"clip_high_delta": 0.5, "mini_batches": 2.0}, {}).warning
    assert not planned("grpo", {"clip_high_delta": 0.5}, {"correction": "bypass"}).warning
    assert not planned("dapo", {}, {}).warning
