"""The episode calls: Materialize, Step, Finish. Environments and sandboxes meet here and nowhere else.

The verifier never runs beside the policy: it lives in the environment's worker process, which no sandbox can see, and it
is asked only after the session's sandbox, with every process and file of the policy, is gone.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.telemetry import get_logger
from temper.sandbox import tools
from temper.sandbox.convert import merge_limits, result_message
from temper.sandbox.engine.base import CommandResult, Isolation, Limits, Sandbox
from temper.sandbox.environments import Environment, EnvironmentHost, VerifierError
from temper.sandbox.host import Purpose, SandboxHost
from temper.sandbox.manifest import Manifest
from temper.sandbox.metrics import Metrics
from temper.sandbox.state import End


class Episodes:
    """See the module."""

    def __init__(
        self,
        host: SandboxHost,
        environments: EnvironmentHost,
        limits: Limits,
        *,
        allow_weak: bool,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._host = host
        self._environments = environments
        self._limits = limits
        self._allow_weak = allow_weak
        self._clock = clock
        self._metrics = metrics
        self._finishing: dict[str, asyncio.Task[sandbox_pb2.FinishResponse]] = {}

    async def materialize(self, request: sandbox_pb2.MaterializeRequest) -> sandbox_pb2.MaterializeResponse:
        """Prompts, tools and, when asked, oracle actions. Raises Rejected, Unavailable."""
        styles = list(request.oracle_styles)
        if styles and len(styles) != len(request.task_indices):
            raise Rejected("one style per task, or none", field="oracle_styles")
        environment = await self._environments.open(request.env)
        views = await environment.tasks(request.split, list(request.task_indices), styles)
        declared = environment.manifest
        return sandbox_pb2.MaterializeResponse(
            tasks=[_task(index, view) for index, view in zip(request.task_indices, views, strict=True)],
            tools=[_tool(each) for each in declared.tools],
            reward_min=declared.reward_min,
            reward_max=declared.reward_max,
            host=self._host.name,
        )

    async def step(self, request: sandbox_pb2.StepRequest) -> sandbox_pb2.StepResponse:
        """One tool call. Raises Rejected, Stale, Exhausted, Unavailable."""
        environment = await self._environments.open(request.env)
        declared = environment.manifest
        tool = _find_tool(declared, request.call.name)
        arguments = _arguments(request.call.arguments_json)
        self._require_isolation(declared)
        sandbox_limits = merge_limits(declared.limits(self._limits), sandbox_pb2.Limits())
        limits = merge_limits(sandbox_limits, request.limits)
        purpose = Purpose(request.job_id, f"{request.env.name}@{request.env.version}")
        await self._host.acquire(request.session_id, sandbox_limits, request.lease_s, purpose)

        async def work(sandbox: Sandbox) -> CommandResult:
            return await tools.run(sandbox, tool, arguments, limits)

        result = await self._host.run(request.session_id, request.command_id, work)
        return sandbox_pb2.StepResponse(
            host=self._host.name,
            observation=tools.observation(result, limits),
            result=result_message(result, self._host.backend.capabilities.cgroup_mode),
            is_error=tools.is_error(result),
        )

    async def finish(self, request: sandbox_pb2.FinishRequest) -> sandbox_pb2.FinishResponse:
        """Destroy the sandbox, verify, score. Idempotent by session id; concurrent repeats share one verification."""
        said = self._host.sessions.farewell(request.session_id)
        if isinstance(said, sandbox_pb2.FinishResponse):
            return said
        task = self._finishing.get(request.session_id)
        if task is None:
            task = asyncio.create_task(self._finish(request))
            self._finishing[request.session_id] = task
            task.add_done_callback(lambda _: self._finishing.pop(request.session_id, None))
        return await asyncio.shield(task)

    async def _finish(self, request: sandbox_pb2.FinishRequest) -> sandbox_pb2.FinishResponse:
        await self._host.end(request.session_id, End.RELEASED if request.abandon else End.FINISHED)
        started = self._clock.monotonic()
        reply = sandbox_pb2.FinishResponse(host=self._host.name)
        if request.abandon:
            reply.infra_error = "abandoned"
        else:
            await self._verify(request, reply)
            reply.verify_s = self._clock.monotonic() - started
            self._metrics.verify_s.observe(reply.verify_s)
        if not _transient(reply):  # a verifier that hung or died may do better when asked again
            await self._host.end(request.session_id, End.FINISHED, reply)
        return reply

    async def _verify(self, request: sandbox_pb2.FinishRequest, reply: sandbox_pb2.FinishResponse) -> None:
        """Fill in the reward, or why there is none. A failure of the verifier is never a score."""
        environment = await self._environments.open(request.env)
        try:
            reward = await self._score(environment, request)
        except VerifierError as error:
            reply.infra_error = f"verifier_error: {error}"
        except Unavailable as error:
            reply.infra_error = f"verifier_timeout: {error.message}"
        else:
            reply.reward = reward
            reply.solved = reward >= environment.manifest.reward_max
        if reply.infra_error:
            self._metrics.verifier_failures.inc()
            get_logger().warning(
                "sandbox.no_verdict",
                session=request.session_id,
                env=request.env.name,
                reason=reply.infra_error,
            )

    async def _score(self, environment: Environment, request: sandbox_pb2.FinishRequest) -> float:
        if not request.HasField("answer"):  # no answer is the agent's failure: the floor, by the contract
            return environment.manifest.reward_min
        transcript = [_entry(each) for each in request.transcript]
        return await environment.score(request.split, request.task_index, request.answer, transcript)

    def _require_isolation(self, declared: Manifest) -> None:
        capabilities = self._host.backend.capabilities
        if capabilities.isolation >= Isolation.NAMESPACE or declared.trusted or self._allow_weak:
            return
        raise Rejected(
            f"environment {declared.name!r} is not trusted and the {capabilities.backend!r} backend isolates weakly",
            field="env",
            hint="use the namespaces backend, or set allow_weak = true on this host",
        )


def _transient(reply: sandbox_pb2.FinishResponse) -> bool:
    return reply.infra_error.startswith("verifier_timeout")


def _task(index: int, view: Mapping[str, Any]) -> sandbox_pb2.TaskView:
    return sandbox_pb2.TaskView(
        task_index=index, prompt=view["prompt"], tags=view["tags"], oracle=_oracle(view["oracle"])
    )


def _oracle(actions: Iterable[Any]) -> list[sandbox_pb2.OracleAction]:
    return [_oracle_action(action) for action in actions]


def _oracle_action(action: Any) -> sandbox_pb2.OracleAction:
    try:
        if "answer" in action:
            return sandbox_pb2.OracleAction(answer=str(action["answer"]))
        call = action["call"]
        arguments = json.dumps(call["arguments"], separators=(",", ":"))
        return sandbox_pb2.OracleAction(
            call=sandbox_pb2.ToolCall(name=call["name"], arguments_json=arguments)
        )
    except (KeyError, TypeError) as error:
        raise Rejected(f"the oracle's action {action!r} is neither call nor answer", field="env") from error


def _tool(tool: tools.Tool) -> sandbox_pb2.ToolSpec:
    return sandbox_pb2.ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters_schema_json=json.dumps(tool.parameters, separators=(",", ":"), sort_keys=True),
    )


def _entry(entry: sandbox_pb2.TranscriptEntry) -> dict[str, Any]:
    call = {"name": entry.call.name, "arguments": _arguments(entry.call.arguments_json)}
    return {"call": call, "observation": entry.observation}


def _find_tool(declared: Manifest, name: str) -> tools.Tool:
    for tool in declared.tools:
        if tool.name == name:
            return tool
    offered = ", ".join(tool.name for tool in declared.tools) or "none"
    raise Rejected(
        f"environment {declared.name!r} offers no tool {name!r}", field="call.name", hint=f"it has: {offered}"
    )


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}", field="call.arguments_json") from None
    if not isinstance(value, dict):
        raise Rejected("must be an object", field="call.arguments_json")
    return cast("dict[str, Any]", value)
