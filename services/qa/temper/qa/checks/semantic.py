"""Checks of the verifier: it pays for solving the task, for nothing else, and always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temper.qa.checks.base import (
    FLOOR_MARGIN,
    ORACLE_MARGIN,
    TOLERANCE,
    Finding,
    Subject,
    error,
    listed,
    mean_reward,
    warning,
)
from temper.qa.episodes import Episode

REPEATS = 10  # 0 flips in 10: flip probability below .26 with 95 % confidence
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
LEAST_ORDER = 0.5  # Spearman's rank correlation


@error("semantic.oracle_max")
async def oracle_max(subject: Subject) -> Finding:
    """The oracle earns the maximum (less .1) on every task, and its tool calls work.

    A style that solves only some tasks is judged on those; one style must solve all of them.
    """
    measured, best = subject.measured, subject.manifest.reward.max
    solved_by: dict[str, int] = {}
    for style in measured.styles:
        episodes = await measured.oracle(style)
        solved_by[style] = len(episodes)
        checked = [*episodes, *(await measured.worked_answers())] if style == "tool" else episodes
        low = [
            each for each in checked if each.reward is None or each.reward < best - ORACLE_MARGIN - TOLERANCE
        ]
        if low:
            return Finding(False, f"{len(low)} of {len(checked)}: {_disappointment(style, low[0], best)}")
        broken = [each for each in episodes if each.tool_error]
        if broken:
            shown = broken[0].observations[-1]
            return Finding(
                False, f"style {style}: a tool call of task {broken[0].task_index} fails: {shown:.120}"
            )
    wanted = len(measured.indices)
    told = ", ".join(f"{style} {count}/{wanted}" for style, count in solved_by.items()) or "no oracle styles"
    if max(solved_by.values(), default=0) < wanted:
        return Finding(False, f"no oracle for all of {wanted} tasks: {told}")
    return Finding(True, f"oracle earns {best:g}: {told}")


@error("semantic.floor_gap")
async def floor_gap(subject: Subject) -> Finding:
    """Agents that know nothing earn the declared floor, and far less than the oracle."""
    floor = subject.manifest.reward.min
    means = {agent: mean_reward(episodes) for agent, episodes in (await subject.measured.floor()).items()}
    agent, worst = max(means.items(), key=lambda each: each[1])
    told = ", ".join(f"{name} {mean:.3g}" for name, mean in means.items())
    if worst > floor + FLOOR_MARGIN + TOLERANCE:
        return Finding(False, f"agent {agent} earns {worst:.3g} above the floor of {floor:g} ({told})")
    styles = subject.measured.styles
    oracles = [mean_reward(await subject.measured.oracle(style)) for style in styles]
    if oracles and max(oracles) - worst < ORACLE_MARGIN:
        return Finding(False, f"the oracle earns {max(oracles):.3g}, agent {agent} {worst:.3g}")
    return Finding(True, f"floor {floor:g}: {told}")


@error("semantic.canary_floor")
async def canary_floor(subject: Subject) -> Finding:
    """A canary string and the instruction itself are no answers.

    The echo may earn the share of the instruction that is the answer, so its bound is half of the way to the maximum.
    """
    floor, best = subject.manifest.reward.min, subject.manifest.reward.max
    played = await subject.measured.quoting()
    canary, echo = mean_reward(played["canary"]), mean_reward(played["echo"])
    told = f"canary {canary:.3g}, echo {echo:.3g}, floor {floor:g}"
    if canary > floor + FLOOR_MARGIN + TOLERANCE or echo > (floor + best) / 2:
        return Finding(False, told)
    return Finding(True, told)


@error("semantic.verifier_determinism")
async def verifier_determinism(subject: Subject) -> Finding:
    """One final state, judged ten times, gets one reward."""
    view = await subject.measured.first_solution()
    index, answer = (view.task_index, view.oracle[-1].answer) if view else (0, "")
    play = subject.measured.player.answer
    episodes = await asyncio.gather(*(play("verify", index, answer) for _ in range(REPEATS)))
    rewards = {episode.reward for episode in episodes}
    if len(rewards) > 1 or None in rewards:
        return Finding(False, f"{len(rewards)} different verdicts on one state in {REPEATS} tries: {rewards}")
    return Finding(True, f"0 flips in {REPEATS}")


@warning("semantic.partial_order")
async def partial_order(subject: Subject) -> Finding:
    """A truncated answer earns between floor and maximum, and more of it never less (rank correlation >= .5)."""
    episodes = await subject.measured.truncated(SHARES)
    if not episodes:
        return Finding(True, "no oracle to truncate")
    rewards = [subject.manifest.reward.min if each.reward is None else each.reward for each in episodes]
    order = spearman(SHARES, rewards)
    told = f"rewards {listed(rewards)} for shares {listed(SHARES)}, rank correlation {order:.2f}"
    return Finding(order >= LEAST_ORDER, told)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation with average ranks for ties; 0 if either is constant."""
    return _pearson(_ranks(one), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    """Average rank of each value, from 0."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _pearson(one: Sequence[float], other: Sequence[float]) -> float:
    mean_one, mean_other = sum(one) / len(one), sum(other) / len(other)
    pairs = [(a - mean_one, b - mean_other) for a, b in zip(one, other, strict=True)]
    spread = (sum(a * a for a, _ in pairs) * sum(b * b for _, b in pairs)) ** 0.5
    return sum(a * b for a, b in pairs) / spread if spread else 0.0


def _disappointment(style: str, episode: Episode, best: float) -> str:
    earned = episode.infra_error if episode.reward is None else f"{episode.reward:g}"
    return f"style {style}: task {episode.task_index} earns {earned} of {best:g} for {episode.answer!r:.60}"


SEMANTIC = (oracle_max, floor_gap, canary_floor, verifier_determinism, partial_order)
