"""What needs a person's word before it runs: tool calls by name, bare commands altogether.

The environment names tools (`[approval] tools`), and so does the host's configuration; either is enough. The question is
about the exact arguments of one call: another call, even with the same arguments, is another question, while a redelivered
one finds its answer.
"""

from collections.abc import Mapping
from typing import Any

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.api.sandbox.v1.approval_pb2 import Approval
from temper.runtime.errors import Rejected
from temper.sandbox import approvals
from temper.sandbox.gatekeeper import Gatekeeper
from temper.sandbox.gateway import BadCall, Checked


class Gate:
    """`tools` are shell patterns of names; `commands` says whether programs, scripts and what is typed ask too.

    Without a gatekeeper nothing asks.
    """

    def __init__(
        self, gatekeeper: Gatekeeper | None = None, tools: tuple[str, ...] = (), *, commands: bool = False
    ) -> None:
        self._gatekeeper = gatekeeper
        self._tools = tools
        self._commands = commands

    async def tool(
        self, request: sandbox_pb2.StepRequest, call: Checked, declared: tuple[str, ...]
    ) -> BadCall | None:
        """None if the call may run. Raises Exhausted while nobody has answered, Rejected if nobody can be asked."""
        if not approvals.needed((*self._tools, *declared), call.tool.name):
            return None
        subject = {
            "tool": call.tool.name,
            "arguments": dict(call.arguments),
            "command_id": request.command_id,
        }
        env = f"{request.env.name}@{request.env.version}"
        record = await self._ask("tool", subject, request.session_id, request.job_id, env)
        if record.state == approvals.GRANTED:
            return None
        return BadCall("not_approved", _told(record))

    async def bare_tool(self, request: control_pb2.CallToolRequest, call: Checked) -> BadCall | None:
        """As `tool`, in a sandbox without an environment; where bare commands ask, so do all tools."""
        if not self._commands and not approvals.needed(self._tools, call.tool.name):
            return None
        subject = {
            "tool": call.tool.name,
            "arguments": dict(call.arguments),
            "command_id": request.command_id,
        }
        record = await self._ask("tool", subject, request.session_id, "", "")
        return None if record.state == approvals.GRANTED else BadCall("not_approved", _told(record))

    async def require_exec(self, request: sandbox_pb2.ExecRequest) -> None:
        """Raises Rejected if a person said no or nothing, Exhausted while there is no answer."""
        subject = {
            "argv": list(request.argv),
            "cwd": request.cwd,
            "env": dict(request.env),
            "stdin": request.stdin.hex(),
            "command_id": request.command_id,
        }
        await self._require(request.session_id, subject, "argv")

    async def require_program(self, request: control_pb2.StartProgramRequest) -> None:
        """As `require_exec`, for a program that outlives its call."""
        subject = {
            "argv": list(request.argv),
            "cwd": request.cwd,
            "env": dict(request.env),
            "terminal": request.terminal,
            "program_id": request.program_id,
        }
        await self._require(request.session_id, subject, "argv")

    async def require_script(self, request: control_pb2.RunScriptRequest) -> None:
        """As `require_exec`, for a script in a shell."""
        subject = {
            "script": request.script,
            "program_id": request.program_id,
            "command_id": request.command_id,
        }
        await self._require(request.session_id, subject, "script")

    async def require_input(self, request: control_pb2.WriteInputRequest) -> None:
        """As `require_exec`, for what is typed: a shell runs it."""
        subject = {
            "input": request.data.hex(),
            "program_id": request.program_id,
            "command_id": request.command_id,
        }
        await self._require(request.session_id, subject, "data")

    async def _require(self, session: str, subject: Mapping[str, Any], field: str) -> None:
        if not self._commands:
            return
        record = await self._ask("exec", subject, session, "", "")
        if record.state != approvals.GRANTED:
            raise Rejected(_told(record).removeprefix("error: "), field=field)

    async def _ask(self, kind: str, subject: Mapping[str, Any], session: str, job: str, env: str) -> Approval:
        if self._gatekeeper is None:
            raise Rejected("this needs approval, and this host asks nobody", field="approval")
        return await self._gatekeeper.ask(kind, subject, session=session, job=job, env=env)


def _told(record: Approval) -> str:
    """What the asker reads."""
    if record.state == approvals.EXPIRED:
        return "error: not approved: nobody answered in time"
    return f"error: not approved{': ' + record.reason if record.reason else ''}"
