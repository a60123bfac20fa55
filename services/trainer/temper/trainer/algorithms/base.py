"""What an algorithm is: advantages from rewards, a loss from tokens, and the list of its knobs.

An algorithm is one module of this package that ends in ``ALGORITHM = ...``; adding one edits no other file. It sees flat arrays
of *action tokens* and no engine: padding, packing, micro-batches and devices are the engine's business.

Parts: ``Algorithm`` (the record in the registry), ``Settings`` (validated knobs of one phase), ``Needs`` (what an engine must measure
for it), ``TokenBatch`` (what a loss sees), ``LossTerms`` (what it gives back). What depends on all sequences of an update at once
(whitening, pairs, quantiles) is made beforehand by ``prepare``: see :mod:`.targets`.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from temper.runtime.errors import Rejected
from temper.trainer.advantage import Floats, Scores
from temper.trainer.algorithms.targets import NOTHING_MORE, Measured, Needs, Targets
from temper.trainer.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Totals:
    """Global counts of one optimizer update, summed over micro-batches and ranks before the first backward pass."""

    tokens: int
    """T: action tokens of valid sequences."""
    sequences: int
    """S: valid sequences."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The action tokens of one micro-batch, all sequences one after another. ``[token]`` unless said otherwise."""

    log_pi: Tensor
    """log π of each token, with gradient."""
    log_old: Tensor
    """log π_old: the policy at the start of the step. Equals ``log_pi.detach()`` on the first update of a step."""
    log_mu: Tensor
    """log μ: what the rollout engine said when it drew the token."""
    entropy: Tensor
    """Entropy of the policy at each token."""
    advantage: Tensor
    """Advantage of each token."""
    sequence: Any
    """Integer index of each token's sequence within the micro-batch."""
    lengths: Tensor
    """[sequence] action tokens of each sequence."""
    totals: Totals
    """Global counts of the update this micro-batch is part of."""
    log_ref: Tensor | None = None
    """log π_ref of each token, where the algorithm needs a reference."""
    kl_beta: float = 0.0
    """β of the KL penalty as it stands now: the adaptive controller moves it."""
    keep: Tensor | None = None
    """1 or 0 per token: what ``prepare`` lets through."""
    value: Tensor | None = None
    """V before each token, with gradient, where the algorithm needs a critic."""
    value_old: Tensor | None = None
    """V at the start of the step."""
    returns: Tensor | None = None
    """What V should be."""
    score: Tensor | None = None
    """[sequence] head at the last token, with gradient: a reward model's output."""
    score_weight: Tensor | None = None
    """[sequence] derivative of the loss by ``score``, from ``prepare``."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What a loss function returns."""

    loss: Tensor
    """This micro-batch's share of the step's loss: shares add up."""
    sums: Mapping[str, Tensor]
    """Sums over tokens of metrics that the caller divides by the global token count."""
    maxima: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Largest values over tokens."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated knobs of one phase: every declared parameter and choice has a value."""

    params: Mapping[str, float]
    choices: Mapping[str, str]

    def __getitem__(self, name: str) -> float:
        return self.params[name]


@dataclass(frozen=True, slots=True)
class Param:
    """A numeric knob."""

    default: float
    low: float
    """Smallest allowed value."""
    high: float
    """Largest allowed value."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A named knob."""

    default: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """When a knob does anything."""

    where: Callable[[Settings], bool]
    needs: str
    """The same in words."""


def _above(name: str) -> Effect:
    return Effect(lambda settings: settings.params.get(name, 0.0) > 0.0, f"{name} above 0")


def _is(name: str, *values: str) -> Effect:
    return Effect(lambda settings: settings.choices.get(name) in values, f"{name} = {' or '.join(values)}")


EFFECTIVE: Mapping[str, Effect] = {
    "muon_lr": _is("optimizer", "muon"),
    "kl_target": _above("kl_beta"),
    "kl_horizon": _above("kl_target"),
    "kl_estimator": Effect(
        lambda settings: (
            settings.params.get("kl_beta", 0.0) > 0.0 and settings.choices.get("kl_in", "loss") == "loss"
        ),
        "kl_beta above 0, and the penalty in the loss",
    ),
    "kl_in": _above("kl_beta"),
    "rm_max_disagreement": _above("rm_weight"),
    "rm_refresh": _above("rm_weight"),
    "refill_limit": _above("dynamic_sampling"),
    "correction_cap": _is("correction", "tis_token", "tis_seq"),
    "horizon": _is("aggregation", "seq_mean_token_sum_norm"),
}
"""Knobs that depend on another one."""
OF_RATIO = (
    "clip_low_delta",
    "clip_high_delta",
    "clip_low_ratio",
    "clip_high_ratio",
    "dual_clip",
    "off_policy_delta",
)
OF_RATIO_ALWAYS = ("tau_positive", "tau_negative", "value_clip")
"""Knobs that act on how far the policy has moved within a step; the first ones also on how far it is from μ under ``bypass``."""

Loss = Callable[[TokenBatch, Settings], LossTerms]
Advantages = Callable[[Scores, Settings], Floats]
Prepare = Callable[[Measured, Settings], Targets]


def nothing_more(_: Settings) -> Needs:
    """An algorithm whose loss sees all it needs in a micro-batch."""
    return NOTHING_MORE


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One entry of the registry."""

    name: str
    """Name in job files."""
    summary: str
    """One sentence for listings."""
    loss: Loss
    """From action tokens to the loss."""
    advantages: Advantages
    """From rewards to [sample] advantages."""
    params: Mapping[str, Param] = field(default_factory=dict[str, Param])
    """Numeric knobs."""
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    """Named knobs."""
    check: Callable[[Settings, int], None] | None = None
    """Refuses combinations of settings and max_staleness that make no sense, by raising Rejected."""
    warn: Callable[[Settings], str] | None = None
    """What is allowed and yet most likely a mistake, in words; empty for nothing."""
    effects: Mapping[str, Effect] = field(default_factory=dict[str, Effect])
    """When knobs of this algorithm do anything, beside ``EFFECTIVE``."""
    needs: Callable[[Settings], Needs] = nothing_more
    """What the engine must hold and measure."""
    prepare: Prepare | None = None
    """Called where ``needs(settings).targets``: per step, or per update where ``every_update``."""
    wants_teacher: bool = False
    """Whether the reference is a teacher that the phase names, not the policy at the start of the phase."""
    needs_reward: bool = True
    """False for algorithms that learn from demonstrations: samples without a reward stay valid."""

    def settings(
        self,
        params: Mapping[str, float],
        choices: Mapping[str, str],
        *,
        max_staleness: int,
        path: str = "phase",
    ) -> Settings:
        """Fill in defaults and validate. Raises Rejected naming the field, what is allowed and the nearest name."""
        _refuse_unknown(params, self.params, f"{path}.algorithm_params")
        _refuse_unknown(choices, self.choices, f"{path}.algorithm_choices")
        for name, value in params.items():
            knob = self.params[name]
            if not knob.low <= value <= knob.high:
                raise Rejected(
                    f"{value:g} is not in [{knob.low:g}, {knob.high:g}]",
                    field=f"{path}.algorithm_params.{name}",
                )
        for name, value in choices.items():
            if value not in self.choices[name].allowed:
                allowed = ", ".join(self.choices[name].allowed)
                raise Rejected(f"{value!r} is not one of {allowed}", field=f"{path}.algorithm_choices.{name}")
        settings = Settings(
            params={name: params.get(name, knob.default) for name, knob in self.params.items()},
            choices={name: choices.get(name, knob.default) for name, knob in self.choices.items()},
        )
        if self.check is not None:
            self.check(settings, max_staleness)
        self._refuse_idle(settings, path)
        return settings

    def warning(self, settings: Settings) -> str:
        """What is allowed and yet most likely a mistake, in words; empty for nothing."""
        found = [self.warn(settings)] if self.warn is not None else []
        updates = settings.params.get("mini_batches", 1.0) * settings.params.get("epochs", 1.0)
        bypassed = settings.choices.get("correction") == "bypass"
        still = () if updates > 1 else OF_RATIO_ALWAYS if bypassed else (*OF_RATIO, *OF_RATIO_ALWAYS)
        idle = [name for name in still if name in self.params and settings[name] != self.params[name].default]
        if idle:
            found.append(
                f"{', '.join(idle)}: never acts in a step of one update, where the policy is still where it began; "
                "mini_batches or epochs above 1 make more"
            )
        return "; ".join(each for each in found if each)

    def _refuse_idle(self, settings: Settings, path: str) -> None:
        """A knob that was turned and that another one keeps from having an effect is a mistake."""
        for name, effect in {**EFFECTIVE, **self.effects}.items():
            if name in self.params:
                turned, where = settings.params[name] != self.params[name].default, "algorithm_params"
            elif name in self.choices:
                turned, where = settings.choices[name] != self.choices[name].default, "algorithm_choices"
            else:
                continue
            if turned and not effect.where(settings):
                raise Rejected(
                    f"{name} has no effect here",
                    field=f"{path}.{where}.{name}",
                    hint=f"it needs {effect.needs}",
                )


def _refuse_unknown(given: Mapping[str, object], known: Mapping[str, object], path: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            raise Rejected(f"unknown name {name!r}", field=f"{path}.{name}", hint=hint)
