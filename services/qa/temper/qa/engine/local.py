"""Twin of a sandbox host inside this process: no isolation at all, so only for environments you wrote yourself.

It runs the asset's real code and the real verifier; only processes, limits and the wire are missing. Tests of checks and
of assets use it, and an author may, before a platform is up.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.sandbox.v1.sandbox_pb2 import (
    FinishRequest,
    FinishResponse,
    MaterializeResponse,
    OracleAction,
    StepRequest,
    StepResponse,
    TaskView,
    ToolCall,
    ToolSpec,
)
from temper.qa.digest import Tree, find
from temper.qa.manifest import Manifest, of_tree
from temper.runtime.errors import Rejected

# What environment code raises for its own reasons; anything else is a bug of this twin.
FAILURES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, TypeError, ValueError)
HOST = "local"


class LocalProbe:
    """Environments from `load(env)`, which fetches an asset's files."""

    def __init__(self, load: Callable[[EnvRef], Awaitable[Tree]]) -> None:
        self._load = load
        self._open: dict[str, tuple[Manifest, Any]] = {}
        self._scopes: dict[str, dict[str, Any]] = {}

    async def backend(self) -> str:
        return HOST

    async def materialize(
        self, env: EnvRef, split: str, indices: Sequence[int], style: str = ""
    ) -> MaterializeResponse:
        manifest, environment = await self._environment(env)
        try:
            tasks = [_view(environment, split, index, style) for index in indices]
        except FAILURES as error:
            raise Rejected(f"task(): {error!r}", field="env") from None
        return MaterializeResponse(
            tasks=tasks,
            tools=[
                ToolSpec(
                    name=tool.name,
                    description=tool.description,
                    parameters_schema_json=json.dumps(tool.parameters),
                )
                for tool in manifest.tools
            ],
            reward_min=manifest.reward.min,
            reward_max=manifest.reward.max,
            host=HOST,
        )

    async def step(self, request: StepRequest) -> StepResponse:
        scope = self._scopes.setdefault(request.session_id, {})
        code = str(json.loads(request.call.arguments_json)["code"])
        try:
            return StepResponse(host=HOST, observation=_run(code, scope))
        except (*FAILURES, SyntaxError) as error:
            return StepResponse(host=HOST, observation=repr(error), is_error=True)

    async def finish(self, request: FinishRequest) -> FinishResponse:
        self._scopes.pop(request.session_id, None)
        if request.abandon:
            return FinishResponse(infra_error="abandoned", host=HOST)
        manifest, environment = await self._environment(request.env)
        transcript = [
            {
                "name": entry.call.name,
                "arguments": json.loads(entry.call.arguments_json),
                "observation": entry.observation,
            }
            for entry in request.transcript
        ]
        answer = request.answer if request.HasField("answer") else None
        try:
            task = environment.task(request.split, request.task_index)
            reward = _weighed(manifest, environment.score(task, answer, transcript))
        except FAILURES as error:
            return FinishResponse(infra_error=f"verifier_error: {error!r}", host=HOST)
        if not (math.isfinite(reward) and manifest.reward.min <= reward <= manifest.reward.max):
            return FinishResponse(infra_error=f"verifier_error: reward {reward} out of range", host=HOST)
        return FinishResponse(reward=reward, solved=reward >= manifest.reward.max, host=HOST)

    async def _environment(self, env: EnvRef) -> tuple[Manifest, Any]:
        if env.digest not in self._open:
            tree = await self._load(env)
            manifest = of_tree(tree)
            module = ModuleType(f"environment_{env.digest[:12]}")
            source = find(tree, manifest.runtime.entry)
            try:
                exec(compile(source, manifest.runtime.entry, "exec"), module.__dict__)  # noqa: S102 - see the module's docstring
                environment = module.Environment(json.loads(env.params_json))
            except FAILURES as error:
                raise Rejected(f"{env.name} does not start: {error!r}", field="env") from None
            self._open[env.digest] = (manifest, environment)
        return self._open[env.digest]


def _weighed(manifest: Manifest, found: Any) -> float:
    """The number, or the weighted sum of the parts that the manifest names."""
    if not isinstance(found, dict):
        return float(found)
    weights = manifest.reward.components
    if found.keys() != weights.keys():
        raise ValueError(f"components {sorted(found)} are not those declared: {sorted(weights)}")
    return round(sum(weights[name] * float(value) for name, value in found.items()), 9)


def _view(environment: Any, split: str, index: int, style: str) -> TaskView:
    with contextlib.redirect_stdout(io.StringIO()):  # environment code may print
        task = environment.task(split, index)
        actions = environment.oracle(task, style) if style else []
    return TaskView(
        task_index=index,
        prompt=task["prompt"],
        tags={key: str(value) for key, value in task.get("tags", {}).items()},
        oracle=[_action(action) for action in actions or []],
    )


def _action(action: dict[str, Any]) -> OracleAction:
    if "answer" in action:
        return OracleAction(answer=action["answer"])
    call = action["call"]
    return OracleAction(call=ToolCall(name=call["name"], arguments_json=json.dumps(call["arguments"])))


def _run(code: str, scope: dict[str, Any]) -> str:
    """What a read-eval-print loop shows: everything printed, then the value of a last expression."""
    *setup, last = code.rstrip().split("\n")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec("\n".join(setup), scope)  # noqa: S102 - see the module's docstring
        try:
            value = eval(last, scope)  # noqa: S307 - as above
        except SyntaxError:
            exec(last, scope)  # noqa: S102 - as above
            value = None
    return out.getvalue() + ("" if value is None else str(value))
