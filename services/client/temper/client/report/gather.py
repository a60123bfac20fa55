"""Everything that a report shows, asked of the three APIs and of nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from temper.api.rollout.v1 import rollout_pb2
from temper.client.report import questions
from temper.client.report.tokens import Decoder, Part
from temper.client.sdk.aio import AsyncClient
from temper.client.sdk.types import BlobRef, Environment, Instance, Job, Table
from temper.runtime.errors import TemperError

TASKS_SHOWN = 3  # per domain, each before and after


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step. Example: `Step(3, "rl", "grpo", metrics={"loss": .1}, …)`."""

    step: int
    """Number, from 1."""
    phase: str
    """Name of its phase."""
    algorithm: str
    """Algorithm."""
    version: int
    """Policy version it produced."""
    samples: int
    """Samples trained on."""
    action_tokens: int
    """Tokens that the policy wrote."""
    total_tokens: int
    """Tokens that went through the model."""
    metrics: Mapping[str, float]
    """loss, entropy, …"""
    reward: Mapping[str, float]
    """Mean reward by domain."""
    error: Mapping[str, float]
    """Standard error of that mean by domain."""
    staleness: float
    """Mean versions behind."""
    seconds: Mapping[str, float]
    """wait, data, compute, publish."""
    finished_at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One evaluation episode. Example: `Episode(17, "before", 0.0, False, version=0, parts=[…])`."""

    task: int
    """Task index."""
    point: str
    """`before` or `after`."""
    reward: float
    """Reward."""
    solved: bool
    """Whether it got the most."""
    version: int
    """Policy version."""
    parts: tuple[Part, ...]
    """Prompt, calls, results, answer."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of state or a notice. Example: `Event(1.7e9, "warning", "trainer resumed from step 12")`."""

    time: float
    """Unix time."""
    level: str
    """`info`, `warning`, `error`."""
    message: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Material:
    """All of it. Parts that could not be had are empty, and `missing` says why."""

    job: Job
    """The job."""
    job_file: str | None
    """As it was written."""
    steps: tuple[Step, ...]
    """Optimizer steps."""
    episodes: Mapping[str, tuple[Episode, ...]]
    """By domain; those of one task before and after stand next to each other."""
    environments: tuple[Environment, ...]
    """Variants that the job ran."""
    instances: tuple[Instance, ...]
    """Live services."""
    workers: tuple[Mapping[str, Any], ...]
    """Rollout workers with their engine."""
    events: tuple[Event, ...]
    """What happened."""
    missing: tuple[str, ...]
    """What could not be had."""


class Gatherer:
    """Asks for everything; a part that fails is left out and named, a missing job is an error."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._missing: list[str] = []

    async def gather(self, job_file: str | None = None) -> Material:
        """Everything about the job. Raises TemperError if the job itself cannot be had."""
        job = await self._client.jobs.get(self._job_id)
        errors = _by(await self._rows("intervals of rewards", questions.ERRORS, 100_000), "step")
        steps = tuple(_step(row, errors) for row in await self._rows("steps", questions.STEPS, 100_000))
        workers = tuple(await self._rows("workers", questions.WORKERS, 1000))
        events = tuple(_event(row) for row in await self._rows("events", questions.EVENTS, 1000))
        return Material(
            job=job,
            job_file=job_file,
            steps=steps,
            episodes=await self._episodes(job),
            environments=await self._environments(job),
            instances=await self._instances(),
            workers=workers,
            events=events,
            missing=tuple(self._missing),
        )

    async def _rows(self, what: str, sql: str, limit: int) -> list[dict[str, Any]]:
        try:
            table: Table = await self._client.query.sql(
                sql, parameters={"job": self._job_id}, max_rows=limit, timeout_s=30.0, fresh=True
            )
        except TemperError as error:
            self._missing.append(f"{what}: {error}")
            return []
        return table.records()

    async def _episodes(self, job: Job) -> dict[str, tuple[Episode, ...]]:
        rows = await self._rows("trajectories", questions.SAMPLES, 100_000)
        chosen = {domain: choose(own) for domain, own in _by(rows, "domain").items()}
        if not chosen:
            return {}
        try:
            decoder = await self._decoder(job)
            tables = await self._tables(row for own in chosen.values() for row in own)
        except TemperError as error:
            self._missing.append(f"trajectories: {error}")
            return {}
        order = [str(each["name"]) for each in job.spec.get("domains", [])]
        return {
            domain: tuple(_episode(row, tables, decoder) for row in chosen[domain])
            for domain in sorted(chosen, key=order.index)
        }

    async def _tables(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, rollout_pb2.GroupTable]:
        """Token arrays of the groups that the rows come from."""
        refs = {
            row["group_id"]: BlobRef(row["table_key"], row["table_sha256"], row["table_bytes"])
            for row in rows
        }
        return {
            group: rollout_pb2.GroupTable.FromString(await self._client.artifacts.download(ref))
            for group, ref in refs.items()
        }

    async def _decoder(self, job: Job) -> Decoder:
        policy = job.spec["policy"]
        files = policy.get("checkpoint", policy.get("random", {})).get("files", {})
        names = ("tokenizer.json", "temper_chat.json")
        contents = [await self._client.artifacts.download(_ref(files[name])) for name in names]
        return Decoder(*contents)

    async def _environments(self, job: Job) -> tuple[Environment, ...]:
        found: list[Environment] = []
        for domain in job.spec.get("domains", []):
            resolved = domain.get("resolved", {})
            name = f"{resolved['name']}@{resolved['version']}" if resolved else domain["env"]
            try:
                params = json.loads(domain.get("params_json") or "{}")
                found.append(await self._client.environments.get(name, params=params))
            except TemperError as error:
                self._missing.append(f"environment {name}: {error}")
        return tuple(found)

    async def _instances(self) -> tuple[Instance, ...]:
        try:
            return tuple(await self._client.platform.services())
        except TemperError as error:
            self._missing.append(f"services: {error}")
            return ()


def choose(rows: list[dict[str, Any]], count: int = TASKS_SHOWN) -> list[dict[str, Any]]:
    """Samples of the most telling tasks, before and after: learnt first, then lost, then the rest."""
    tasks = {task: own for task, own in _by(rows, "task_index").items() if len(_points(own)) == 2}

    def rank(task: int) -> tuple[int, int]:
        points = _points(tasks[task])
        kind = (bool(points["before"]["solved"]), bool(points["after"]["solved"]))
        return {(False, True): 0, (True, False): 1, (True, True): 2, (False, False): 3}[kind], task

    ranked = sorted(tasks, key=rank)
    # One of each kind where there is one, so that the page shows failures as well as successes.
    kinds = {rank(task)[0]: task for task in reversed(ranked)}
    picked = [kinds[kind] for kind in sorted(kinds)][:count]
    picked += [task for task in ranked if task not in picked][: count - len(picked)]
    return [_points(tasks[task])[point] for task in picked for point in ("before", "after")]


def _points(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["eval_point"]: row for row in rows}


def _by(rows: Iterable[dict[str, Any]], key: str) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _step(row: Mapping[str, Any], errors: Mapping[int, list[dict[str, Any]]]) -> Step:
    behind = {int(key): int(count) for key, count in _object(row["staleness"]).items()}
    total = sum(behind.values())
    mean = sum(key * count for key, count in behind.items()) / total if total else math.nan
    return Step(
        step=int(row["step"]),
        phase=row["phase_name"],
        algorithm=row["algorithm"],
        version=int(row["version"]),
        samples=int(row["samples"]),
        action_tokens=int(row["action_tokens"]),
        total_tokens=int(row["total_tokens"]),
        metrics=_object(row["metrics"]),
        reward=_object(row["domain_reward"]),
        error={each["domain"]: _number(each["error"]) for each in errors.get(int(row["step"]), ())},
        staleness=mean,
        seconds={name: float(row[f"{name}_s"]) for name in ("wait", "data", "compute", "publish")},
        finished_at=float(row["finished_at"]),
    )


def _object(value: object) -> dict[str, float]:
    """A map that travelled as JSON text; a value that is no number (nan as null) is left out."""
    parsed = json.loads(value) if isinstance(value, str) else value
    items = parsed.items() if isinstance(parsed, dict) else ()
    return {str(key): float(item) for key, item in items if item is not None}


def _number(value: object) -> float:
    """A float that may have travelled as null or text; nan then."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _event(row: Mapping[str, Any]) -> Event:
    message = str(row["message"])
    if row["kind"] == "state":
        message = f"{row['state']}{f': {message}' if message else ''}"
    return Event(float(row["time"]), str(row["level"]) or "info", message)


def _episode(
    row: Mapping[str, Any], tables: Mapping[str, rollout_pb2.GroupTable], decoder: Decoder
) -> Episode:
    tokens = tables[row["group_id"]].samples[int(row["position"])]
    return Episode(
        task=int(row["task_index"]),
        point=row["eval_point"],
        reward=float(row["reward"]),
        solved=bool(row["solved"]),
        version=int(row["min_version"]),
        parts=tuple(decoder.parts(tokens.token_ids, tokens.mask)),
    )


def _ref(values: Mapping[str, Any]) -> BlobRef:
    return BlobRef(values["key"], values["sha256"], int(values["size"]))
