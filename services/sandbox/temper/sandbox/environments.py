"""Environments on this host: bundles fetched once, one worker process per bundle, calls with deadlines.

A worker that is late is killed; the next call starts another. Its crash, its lateness and an answer outside its own
declared range are failures of the infrastructure: the caller gets `Unavailable` or `VerifierError`, never a score of 0.
"""

import asyncio
import importlib.util
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.errors import Rejected, TemperError
from temper.sandbox import bundle, manifest
from temper.sandbox.convert import merge_limits
from temper.sandbox.engine.base import Limits
from temper.sandbox.manifest import Manifest
from temper.sandbox.verification import BadSpec, Spec, parse
from temper.sandbox.workers import Settings, VerifierError, WorkerProcess, remove_homes

Fetch = Callable[[common_pb2.BlobRef], Awaitable[bytes]]
_KEPT: Final = 256
"""Environments, with their parameters, that are not read anew for each call."""
ROUNDING = 1e-9
"""Share of the reward range that a weighted sum may be off."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict of the environment's verifier."""

    reward: float
    components: Mapping[str, tuple[float, float]]
    """(value, weight) by name; empty for rewards of one piece."""


class EnvironmentHost:
    """Environments by digest. Knows workers and bundles, nothing of sandboxes."""

    def __init__(self, fetch: Fetch, settings: Settings) -> None:
        self._fetch = fetch
        self._settings = settings
        self._bundles: dict[str, asyncio.Task[tuple[Path, manifest.Manifest]]] = {}
        self._workers: OrderedDict[str, WorkerProcess] = OrderedDict()
        self._known: OrderedDict[tuple[str, str, str], Environment] = OrderedDict()
        remove_homes(settings.cache)

    async def open(self, env: common_pb2.EnvRef) -> "Environment":
        """The environment, its manifest read; its code is not loaded yet. Raises Rejected, Unavailable."""
        digest = env.bundle.sha256
        known = self._known.get((digest, env.digest, env.params_json))
        if known is not None:
            return known
        task = self._bundles.get(digest)
        if task is None:
            task = asyncio.create_task(self._unpack(env.bundle))
            self._bundles[digest] = task
        try:
            path, declared = await asyncio.shield(task)
        except TemperError:
            self._bundles.pop(digest, None)
            raise
        made = Environment(self, env.digest, _params(env.params_json), path, declared)
        self._known[digest, env.digest, env.params_json] = made
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return made

    async def _unpack(self, ref: common_pb2.BlobRef) -> tuple[Path, manifest.Manifest]:
        target = self._settings.cache / ref.sha256
        if not target.is_dir():
            content = await self._fetch(ref)  # checks size and hash
            target = await asyncio.to_thread(bundle.unpack, content, ref.sha256, self._settings.cache)
        declared = manifest.read(target / "env.toml")
        _require(declared.requires)
        return target, declared

    def worker(self, path: Path, entry: str) -> "WorkerProcess":
        """The live worker of a bundle, started if there is none."""
        key = path.name
        worker = self._workers.pop(key, None)
        if worker is None or not worker.alive:
            self._make_room()
            worker = WorkerProcess(path, entry, self._settings)
        self._workers[key] = worker
        return worker

    def _make_room(self) -> None:
        for key, worker in list(self._workers.items()):
            if len(self._workers) < self._settings.max_workers:
                return
            if worker.idle or not worker.alive:
                del self._workers[key]
                worker.kill()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, for tests and the doctor."""
        return [worker.pid for worker in self._workers.values()]

    async def close(self) -> None:
        """End every worker."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()


class Environment:
    """One variant of an environment: calls into its worker, checked on the way back."""

    def __init__(
        self,
        host: EnvironmentHost,
        digest: str,
        params: dict[str, Any],
        path: Path,
        declared: manifest.Manifest,
    ) -> None:
        self._host = host
        self._digest = digest
        self._params = params
        self._path = path
        self.manifest = declared
        """What it declares."""
        self._limits: dict[Limits, Limits] = {}

    def limits(self, default: Limits) -> Limits:
        """Those of its sandboxes: `default` with its own numbers."""
        found = self._limits.get(default)
        if found is None:
            found = self._limits[default] = merge_limits(self.manifest.limits(default), sandbox_pb2.Limits())
        return found

    async def tasks(self, split: str, indices: Sequence[int], styles: Sequence[str]) -> list[dict[str, Any]]:
        """`{"prompt", "tags", "oracle"}` of each. Raises Rejected if its code fails, Unavailable if it hangs or dies."""
        request = {"op": "tasks", "split": split, "indices": list(indices), "styles": list(styles)}
        try:
            views = await self._call(request, self.manifest.task_s * (1 + len(indices) / 16))
        except VerifierError as error:
            raise Rejected(f"the environment cannot make this task: {error}", field="env") from error
        if not isinstance(views, list) or not all(_is_view(view) for view in cast("list[Any]", views)):
            raise Rejected("the environment made a task without a prompt", field="env")
        return cast("list[dict[str, Any]]", views)

    async def verification(self, split: str, index: int, answer: str) -> Spec:
        """How the final state of this task is judged. Raises VerifierError, Unavailable."""
        request = {"op": "verification", "split": split, "index": index, "answer": answer}
        try:
            return parse(await self._call(request, self.manifest.verify_s))
        except BadSpec as error:
            raise VerifierError(str(error)) from error

    async def score(
        self,
        split: str,
        index: int,
        answer: str,
        transcript: list[dict[str, Any]],
        run: dict[str, Any] | None = None,
    ) -> Judgement:
        """A finite reward in the declared range; `run` is what the host saw of a verifier. Raises VerifierError, Unavailable."""
        request: dict[str, Any] = {"op": "score", "split": split, "index": index}
        request |= {"answer": answer, "transcript": transcript}
        if run is not None:
            request["run"] = run
        return judged(self.manifest, await self._call(request, self.manifest.verify_s))

    async def _call(self, request: dict[str, Any], timeout_s: float) -> Any:
        worker = self._host.worker(self._path, self.manifest.entry)
        await worker.open(self._digest, self._params, self.manifest.setup_s)
        return await worker.call({**request, "digest": self._digest}, timeout_s)


def judged(declared: Manifest, found: Any) -> Judgement:
    """What a verifier said, held against what its environment declares. Raises VerifierError."""
    weights = declared.reward_weights
    parts = cast("dict[str, float]", found) if isinstance(found, dict) else {}
    if parts.keys() != weights.keys():
        given, wanted = ", ".join(sorted(parts)) or "none", ", ".join(sorted(weights)) or "none"
        raise VerifierError(f"the reward has components {given}, declared are {wanted}")
    reward = sum(weights[name] * value for name, value in parts.items()) if parts else found
    low, high = declared.reward_min, declared.reward_max
    if not isinstance(reward, float) or not math.isfinite(reward):
        raise VerifierError(f"the reward is {reward!r}, not a finite number")
    slack = ROUNDING * (high - low) if parts else 0.0  # .7 + .2 + .1 is not quite 1
    if not low - slack <= reward <= high + slack:
        raise VerifierError(f"the reward {reward} is outside the declared range [{low}, {high}]")
    reward = high if reward >= high - slack else max(reward, low)
    return Judgement(reward, {name: (value, weights[name]) for name, value in parts.items()})


def _require(packages: Sequence[str]) -> None:
    """Rejected if one cannot be imported here; its top level is looked up, nothing is imported."""
    missing = [name for name in packages if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        raise Rejected(
            f"this sandbox host lacks {', '.join(missing)}",
            field="env.toml: runtime.requires",
            hint="install it where the sandbox service runs, then `temper env check NAME --force`",
        )


def _params(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise Rejected(f"not JSON: {error}", field="env.params_json") from None
    if not isinstance(value, dict):
        raise Rejected("must be an object", field="env.params_json")
    return cast("dict[str, Any]", value)


def _is_view(view: Any) -> bool:
    return isinstance(view, dict) and isinstance(cast("dict[str, Any]", view).get("prompt"), str)
