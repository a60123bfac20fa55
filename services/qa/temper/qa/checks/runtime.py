"""Checks that start the environment on the target backend."""

from __future__ import annotations

import asyncio
import math

from temper.qa.checks.base import TOLERANCE, Finding, Subject, error, warning
from temper.qa.episodes import SPLIT, Episode, without_host
from temper.runtime.errors import Rejected

RUNS = 3
SPLITS = ("train", "heldout", "eval")


@error("runtime.startup")
async def startup(subject: Subject) -> Finding:
    """It starts and gives a task of each split, in 3 of 3 runs."""
    player = subject.measured.player
    try:
        replies = await asyncio.gather(*(player.materialize(split, [0]) for split in SPLITS))
    except Rejected as refused:
        return Finding(False, str(refused))
    empty = [
        split for split, reply in zip(SPLITS, replies, strict=True) if not any(t.prompt for t in reply.tasks)
    ]
    if empty:
        return Finding(False, f"no prompt in split {', '.join(empty)}")
    return Finding(True, f"{len(replies)}/{RUNS} runs, splits {', '.join(SPLITS)}")


@error("runtime.seed_control")
async def seed_control(subject: Subject) -> Finding:
    """The same split and index give the same task in 3 runs, and different indices do not all give one."""
    measured = subject.measured
    first = await measured.views()
    again = [await measured.player.materialize(SPLIT, measured.indices) for _ in range(RUNS - 1)]
    for reply in again:
        for one, other in zip(first.tasks, reply.tasks, strict=True):
            if one != other:
                return Finding(False, f"task {one.task_index} differs between two runs")
    if len({view.prompt for view in first.tasks}) == 1 < len(first.tasks):
        return Finding(False, f"{len(first.tasks)} indices give one and the same prompt")
    return Finding(True, f"{len(first.tasks)} tasks equal in {RUNS} runs")


@error("runtime.reward_well_formed")
async def reward_well_formed(subject: Subject) -> Finding:
    """Every episode, of oracles and of agents that answer nonsense, gets one finite verdict in the declared range."""
    low, high = subject.manifest.reward.min, subject.manifest.reward.max
    episodes = await _all_episodes(subject)
    for episode in episodes:
        where = f"agent {episode.agent}, task {episode.task_index}, answer {episode.answer!r:.60}"
        if episode.reward is None:
            return Finding(False, f"no verdict: {episode.infra_error} ({where})")
        if not (math.isfinite(episode.reward) and low - TOLERANCE <= episode.reward <= high + TOLERANCE):
            return Finding(False, f"reward {episode.reward} outside [{low:g}, {high:g}] ({where})")
    return Finding(True, f"{len(episodes)} verdicts in [{low:g}, {high:g}]")


@warning("runtime.episode_determinism")
async def episode_determinism(subject: Subject) -> Finding:
    """Replaying the oracle's actions shows the same observations and earns the same reward, in 3 runs."""
    view = await subject.measured.first_solution()
    if view is None:
        return Finding(True, "no oracle to replay")
    played = await asyncio.gather(*(subject.measured.player.play("replay", view) for _ in range(RUNS)))
    different = {without_host(episode) for episode in played}
    if len(different) > 1:
        return Finding(
            False, f"{len(different)} different outcomes in {RUNS} replays of task {view.task_index}"
        )
    return Finding(True, f"{RUNS} equal replays of {len(view.oracle)} actions")


async def _all_episodes(subject: Subject) -> list[Episode]:
    measured = subject.measured
    oracles = await asyncio.gather(*(measured.oracle(style) for style in measured.styles))
    ignorant = [*(await measured.floor()).values(), *(await measured.quoting()).values()]
    return [episode for group in (*oracles, *ignorant) for episode in group]


RUNTIME = (seed_control, reward_well_formed, episode_determinism)
