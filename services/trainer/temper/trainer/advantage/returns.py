"""Token-level estimators: discounted returns (REINFORCE++, arXiv 2501.03262) and GAE (1506.02438).

Sequences here are action tokens only: observations in between are left out beforehand, which is the same as carrying value and
advantage through them unchanged.
"""

from collections.abc import Sequence

import numpy as np

from temper.trainer.advantage.base import Floats, whiten


def token_rewards(reward: float, kl: Floats, *, beta: float) -> Floats:
    """``-β·kl_t`` for every action token, plus the sample's reward at the last one."""
    out = -beta * kl
    if out.size:
        out[-1] += reward
    return out


def discounted(rewards: Floats, *, gamma: float) -> Floats:
    """``R_t = x_t + gamma·R_{t+1}`` over one sequence ``[token]``."""
    out = np.empty_like(rewards)
    running = 0.0
    for t in range(rewards.size - 1, -1, -1):
        running = rewards[t] + gamma * running
        out[t] = running
    return out


def gae(rewards: Floats, values: Floats, *, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """Advantages and returns ``[token]`` of one sequence; not whitened."""
    advantages = np.empty_like(rewards)
    running, following = 0.0, 0.0
    for t in range(rewards.size - 1, -1, -1):
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * lam * running
        advantages[t] = running
        following = values[t]
    return advantages, advantages + values


def reinforce_pp(
    rewards: Sequence[float], kl: Sequence[Floats], *, beta: float, gamma: float
) -> list[Floats]:
    """[token] advantages of every sequence: discounted returns, whitened over the whole batch."""
    returns = [
        discounted(token_rewards(r, k, beta=beta), gamma=gamma) for r, k in zip(rewards, kl, strict=True)
    ]
    if not returns:
        return []
    flat = whiten(np.concatenate(returns))
    return np.split(flat, np.cumsum([r.size for r in returns])[:-1])
