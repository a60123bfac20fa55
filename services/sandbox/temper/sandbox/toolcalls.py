"""The standard tools in a bare sandbox: the calls of a session that no environment stands behind.

They go through what an episode's calls go through: `gateway` reads and repairs them, the gate asks a person where one must
be asked, and what is wrong with a call is what the caller reads.
"""

from typing import Final

from temper.api.sandbox.v1 import control_pb2
from temper.sandbox import gateway, tools
from temper.sandbox.convert import merge_limits, result_message
from temper.sandbox.engine.base import CommandResult, Limits, Sandbox
from temper.sandbox.gate import Gate
from temper.sandbox.host import SandboxHost

OFFERED: Final = tuple(tools.STANDARD.values())
"""What can be called."""
_SCOPE: Final = ""


class ToolCalls:
    """See the module."""

    def __init__(self, host: SandboxHost, limits: Limits, gate: Gate, passage: gateway.Gateway) -> None:
        self._host = host
        self._limits = limits
        self._gate = gate
        self._gateway = passage

    async def call_tool(self, request: control_pb2.CallToolRequest) -> control_pb2.CallToolResponse:
        """One call, once. Raises Stale, Exhausted, Unavailable."""
        call = gateway.read(OFFERED, request.call.name, request.call.arguments_json)
        if isinstance(call, gateway.BadCall):
            return _refused(call)
        refusal = await self._gate.bare_tool(request, call)
        if refusal is not None:
            return _refused(refusal)
        if call.tool.kind is tools.Kind.SUBMIT:
            answer = str(call.arguments["answer"])
            return control_pb2.CallToolResponse(observation="submitted", repairs=call.repairs, answer=answer)
        limits = merge_limits(self._limits, request.limits)

        async def work(sandbox: Sandbox) -> CommandResult:
            return await self._gateway.call(_SCOPE, sandbox, call, limits)

        result = await self._host.run(request.session_id, request.command_id, work)
        seen = [tools.observation(result, limits), gateway.told(call.repairs)]
        return control_pb2.CallToolResponse(
            observation="\n".join(part for part in seen if part),
            result=result_message(result, self._host.backend.capabilities.cgroup_mode),
            is_error=tools.is_error(result),
            repairs=call.repairs,
        )


def _refused(call: gateway.BadCall) -> control_pb2.CallToolResponse:
    return control_pb2.CallToolResponse(observation=call.observation, is_error=True, refused=call.kind)
