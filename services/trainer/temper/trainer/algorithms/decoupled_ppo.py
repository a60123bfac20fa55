"""Decoupled PPO (arXiv 2110.00641, 2505.24298): clip against the policy at the start of the step, correct for the one that sampled.

``sg(rho)·`` clipped loss with ``w = π/π_prox`` and ``rho = π_prox/μ`` under a cap. π_prox is recomputed, by a forward pass before the first
update, so the cap and the clip never mix up. ``proximal = "log_linear"`` saves that pass where a step has several updates:
``log π_prox ≈ log μ + alpha·(log π - log μ)``, ``alpha = (v_prox - v_μ)/(v_π - v_μ)`` and 0 where ``v_π = v_μ``. Versions are counted in
updates: after k of a step's n, ``v_π = v_prox + k/n``.
"""

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Choice, Settings
from temper.trainer.algorithms.grpo import CLIPPED, check_clip, clipped
from temper.trainer.algorithms.policy_gradient import algorithm


def corrected(settings: Settings, max_staleness: int) -> None:
    """Without a correction it would be plain PPO under another name."""
    check_clip(settings, max_staleness)
    if settings.choices["correction"] in {"bypass", "none"}:
        raise Rejected(
            "decoupled_ppo is the clip times a correction",
            field="phase.algorithm_choices.correction",
            hint='choose tis_token, tis_seq or icepop, or algorithm = "grpo"',
        )
    updates = settings["mini_batches"] * settings["epochs"]
    if settings.choices["proximal"] == "log_linear" and updates <= 1:
        raise Rejected(
            "the first update of a step is its own proximal policy: with one update there is nothing to approximate",
            field="phase.algorithm_choices.proximal",
            hint="set mini_batches or epochs above 1, or leave proximal out",
        )


ALGORITHM = algorithm(
    "decoupled_ppo",
    "PPO clip against the step's first policy, times capped π_prox/μ.",
    clipped,
    params=CLIPPED,
    advantage="batch",
    checks=corrected,
    named={"proximal": Choice("recomputed", ("recomputed", "log_linear"))},
)
