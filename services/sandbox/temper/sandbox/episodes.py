"""The episode calls: Materialize, Step, Finish. Environments and sandboxes meet here and nowhere else.

The verifier never runs beside the policy: it lives in the environment's worker process, which no sandbox can see, and it
is asked only after the session's sandbox, with every process and file of the policy, is gone.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.telemetry import get_logger
from temper.sandbox import gateway, tools, verification
from temper.sandbox.convert import merge_limits, result_message
from temper.sandbox.engine.base import CommandResult, Isolation, Limits, Sandbox
from temper.sandbox.environments import Environment, EnvironmentHost, Judgement, VerifierError
from temper.sandbox.gate import Gate
from temper.sandbox.host import SandboxHost
from temper.sandbox.manifest import Manifest
from temper.sandbox.metrics import Metrics
from temper.sandbox.phases import End
from temper.sandbox.tenancy import Purpose

_KEPT_ANSWERS: Final = 4096
_KEPT_FINALS: Final = 16
"""Final states, at most 8 MiB each, kept while their verifier may be asked again."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of an agent for its verifier. Example: `Remains(spec, {"answer.py": b"..."})`."""

    spec: verification.Spec | None
    """How it is judged; None if the environment failed to say."""
    files: Mapping[str, bytes]
    """What it made."""
    error: VerifierError | Unavailable | None = None
    """Why there is no spec."""


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
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate or Gate()
        """What needs a person's word."""
        self._host = host
        self._environments = environments
        self._limits = limits
        self._allow_weak = allow_weak
        self._clock = clock
        self._metrics = metrics
        self._finishing: dict[str, asyncio.Task[sandbox_pb2.FinishResponse]] = {}
        self.gateway = gateway.Gateway(clock)
        """What every call goes through."""
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._final: OrderedDict[str, Remains] = OrderedDict()

    async def materialize(self, request: sandbox_pb2.MaterializeRequest) -> sandbox_pb2.MaterializeResponse:
        """Prompts, tools and, when asked, oracle actions. Raises Rejected, Unavailable."""
        styles = list(request.oracle_styles)
        if styles and len(styles) != len(request.task_indices):
            raise Rejected("one style per task, or none", field="oracle_styles")
        environment = await self._environments.open(request.env)
        views = await environment.tasks(request.split, list(request.task_indices), styles)
        declared = environment.manifest
        if declared.tools and not styles:
            limits = environment.limits(self._limits)
            self._host.expect(limits, len(views))
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
        self._require_isolation(declared)
        call = gateway.read(declared.tools, request.call.name, request.call.arguments_json)
        if isinstance(call, gateway.Checked) and call.tool.kind is tools.Kind.SUBMIT:
            return self._submitted(request.session_id, call)
        if request.session_id in self._answers:
            call = gateway.BadCall("submitted", "error: an answer was submitted already")
        if isinstance(call, gateway.BadCall):
            return self._refused(call)
        refusal = await self.gate.tool(request, call, declared.approve)
        if refusal is not None:
            return self._refused(refusal)
        sandbox_limits = environment.limits(self._limits)
        limits = merge_limits(sandbox_limits, request.limits)
        env = f"{request.env.name}@{request.env.version}"
        purpose = Purpose(request.job_id, env, self._host.policy(declared.egress))
        await self._host.acquire(request.session_id, sandbox_limits, request.lease_s, purpose)

        async def work(sandbox: Sandbox) -> CommandResult:
            return await self.gateway.call(purpose.env, sandbox, call, limits)

        result = await self._host.run(request.session_id, request.command_id, work)
        seen = [tools.observation(result, limits), gateway.told(call.repairs)]
        return sandbox_pb2.StepResponse(
            host=self._host.name,
            observation="\n".join(part for part in seen if part),
            result=result_message(result, self._host.backend.capabilities.cgroup_mode),
            is_error=tools.is_error(result),
            repairs=call.repairs,
        )

    def _refused(self, call: gateway.BadCall) -> sandbox_pb2.StepResponse:
        """A bad call is something the policy reads, and costs no sandbox."""
        return sandbox_pb2.StepResponse(
            host=self._host.name,
            observation=call.observation,
            result=sandbox_pb2.CommandResult(outcome=sandbox_pb2.OUTCOME_OK),
            is_error=True,
            refused=call.kind,
        )

    def _submitted(self, session: str, call: gateway.Checked) -> sandbox_pb2.StepResponse:
        """The first answer counts; what a policy submits later is told so."""
        answer = str(call.arguments["answer"])
        first = self._answers.setdefault(session, answer) == answer
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return sandbox_pb2.StepResponse(
            host=self._host.name,
            observation="submitted" if first else "error: an answer was submitted already",
            result=sandbox_pb2.CommandResult(outcome=sandbox_pb2.OUTCOME_OK),
            is_error=not first,
            repairs=call.repairs,
            submitted=True,
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
        started = self._clock.monotonic()
        try:
            final = None if request.abandon else await self._take_final(request)
        finally:
            await self._host.end(request.session_id, End.RELEASED if request.abandon else End.FINISHED)
        reply = sandbox_pb2.FinishResponse(host=self._host.name)
        if request.abandon:
            reply.infra_error = "abandoned"
        else:
            await self._verify(request, reply, final)
            reply.verify_s = self._clock.monotonic() - started
            self._metrics.verify_s.observe(reply.verify_s)
        if not _transient(reply):  # a verifier that hung or died may do better when asked again
            self._final.pop(request.session_id, None)
            await self._host.end(request.session_id, End.FINISHED, reply)
        return reply

    async def _take_final(self, request: sandbox_pb2.FinishRequest) -> Remains | None:
        """What the agent leaves for its verifier: all its processes are dead, then files come out. None if nothing is run."""
        kept = self._final.get(request.session_id)
        if kept is not None:
            return kept
        environment = await self._environments.open(request.env)
        answer = self._answer(request)
        if environment.manifest.verifier == "answer" or answer is None:
            return None
        try:
            spec = await environment.verification(request.split, request.task_index, answer)
        except (VerifierError, Unavailable) as error:
            return Remains(None, {}, error)
        found: dict[str, bytes] = {}
        if self._host.sessions.find(request.session_id) is not None:
            try:
                found = await verification.collect(self._host.sandbox(request.session_id), spec)
            except Unavailable as error:  # it died, and what it made with it
                return Remains(None, {}, error)
        final = self._final[request.session_id] = Remains(spec, found)
        while len(self._final) > _KEPT_FINALS:
            self._final.popitem(last=False)
        return final

    def _answer(self, request: sandbox_pb2.FinishRequest) -> str | None:
        return request.answer if request.HasField("answer") else self._answers.get(request.session_id)

    async def _verify(
        self, request: sandbox_pb2.FinishRequest, reply: sandbox_pb2.FinishResponse, final: Remains | None
    ) -> None:
        """Fill in the reward, or why there is none. A failure of the verifier is never a score."""
        environment = await self._environments.open(request.env)
        try:
            verdict = await self._score(environment, request, final)
        except VerifierError as error:
            reply.infra_error = f"verifier_error: {error}"
        except Unavailable as error:
            reply.infra_error = f"verifier_timeout: {error.message}"
        else:
            reply.reward = verdict.reward
            reply.solved = verdict.reward >= environment.manifest.reward_max
            for name, (value, weight) in verdict.components.items():
                reply.components[name].value, reply.components[name].weight = value, weight
        if reply.infra_error:
            self._metrics.verifier_failures.inc()
            get_logger().warning(
                "sandbox.no_verdict",
                session=request.session_id,
                env=request.env.name,
                reason=reply.infra_error,
            )

    async def _score(
        self, environment: Environment, request: sandbox_pb2.FinishRequest, final: Remains | None
    ) -> Judgement:
        answer = self._answer(request)
        if answer is None:  # no answer is the agent's failure: the floor, by the contract
            return Judgement(environment.manifest.reward_min, {})
        transcript = [_entry(environment.manifest.tools, each) for each in request.transcript]
        run = await self._run(environment, request, final) if final is not None else None
        return await environment.score(request.split, request.task_index, answer, transcript, run)

    async def _run(
        self, environment: Environment, request: sandbox_pb2.FinishRequest, final: Remains
    ) -> dict[str, Any]:
        """The verifier's command, in a sandbox that the agent never had. Raises VerifierError, Unavailable."""
        if final.spec is None:
            assert final.error is not None
            raise final.error
        limits = environment.limits(self._limits)
        name = f"{request.session_id}/verifier"
        try:
            return await verification.run(self._host.backend, name, final.spec, final.files, limits)
        except verification.BadSpec as error:
            raise VerifierError(str(error)) from error

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


def _entry(offered: Sequence[tools.Tool], entry: sandbox_pb2.TranscriptEntry) -> dict[str, Any]:
    """As the tool got it; what was no call is handed on as the text that it was."""
    call = gateway.read(offered, entry.call.name, entry.call.arguments_json)
    checked = isinstance(call, gateway.Checked)
    arguments = dict(call.arguments) if checked else {"text": entry.call.arguments_json}
    name = call.tool.name if checked else entry.call.name
    return {"call": {"name": name, "arguments": arguments}, "observation": entry.observation}
