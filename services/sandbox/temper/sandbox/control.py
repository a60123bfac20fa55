"""Direct control of a live sandbox over the bus: the methods of `SandboxControlService`, one message in, one out."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from temper.api.sandbox.v1 import control_pb2 as pb
from temper.runtime.blobs import BlobStore, content_key
from temper.runtime.errors import Stale
from temper.sandbox.branching import Branches
from temper.sandbox.convert import merge_limits, printable, result_message
from temper.sandbox.engine.base import (
    CommandResult,
    Edit,
    FileInfo,
    Limits,
    ProcessInfo,
    Sandbox,
    SessionSpec,
    Stream,
)
from temper.sandbox.engine.entries import ChangeKind, EntryKind
from temper.sandbox.gate import Gate
from temper.sandbox.host import SandboxHost

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
Method = Callable[[Any], Awaitable[Message]]

MAX_INLINE: Final = 512 << 10
_MAX_ENTRIES: Final = 4096
_LEAST_MATCHES: Final = 100
_STREAMS: Final = {Stream.STDOUT: pb.OUTPUT_STREAM_STDOUT, Stream.STDERR: pb.OUTPUT_STREAM_STDERR}
_KINDS: Final = {
    EntryKind.FILE: pb.ENTRY_KIND_FILE,
    EntryKind.DIRECTORY: pb.ENTRY_KIND_DIRECTORY,
    EntryKind.LINK: pb.ENTRY_KIND_LINK,
    EntryKind.OTHER: pb.ENTRY_KIND_OTHER,
}
_CHANGES: Final = {
    ChangeKind.CREATED: pb.CHANGE_KIND_CREATED,
    ChangeKind.MODIFIED: pb.CHANGE_KIND_MODIFIED,
    ChangeKind.REMOVED: pb.CHANGE_KIND_REMOVED,
    ChangeKind.LOST: pb.CHANGE_KIND_LOST,
}


class Control:
    """See the module."""

    def __init__(
        self,
        host: SandboxHost,
        branches: Branches,
        limits: Limits,
        blobs: BlobStore,
        gate: Gate | None = None,
    ) -> None:
        self._host = host
        self._gate = gate or Gate()
        self._branches = branches
        self._limits = limits
        self._blobs = blobs

    def methods(self) -> dict[str, tuple[type[Message], Method]]:
        """Request type and method, by name."""
        return {
            "StartProgram": (pb.StartProgramRequest, self.start_program),
            "RunScript": (pb.RunScriptRequest, self.run_script),
            "WriteInput": (pb.WriteInputRequest, self.write_input),
            "ReadOutput": (pb.ReadOutputRequest, self.read_output),
            "ResizeTerminal": (pb.ResizeTerminalRequest, self.resize_terminal),
            "SignalProgram": (pb.SignalProgramRequest, self.signal_program),
            "CloseProgram": (pb.CloseProgramRequest, self.close_program),
            "ListProcesses": (pb.ListProcessesRequest, self.list_processes),
            "SignalProcess": (pb.SignalProcessRequest, self.signal_process),
            "StatFile": (pb.StatFileRequest, self.stat_file),
            "ListFiles": (pb.ListFilesRequest, self.list_files),
            "MakeDirectory": (pb.MakeDirectoryRequest, self.make_directory),
            "RemoveFile": (pb.RemoveFileRequest, self.remove_file),
            "PatchFile": (pb.PatchFileRequest, self.patch_file),
            "SearchFiles": (pb.SearchFilesRequest, self.search_files),
            "WatchFiles": (pb.WatchFilesRequest, self.watch_files),
            "PutTree": (pb.PutTreeRequest, self.put_tree),
            "GetTree": (pb.GetTreeRequest, self.get_tree),
            "Snapshot": (pb.SnapshotRequest, self.snapshot),
            "Fork": (pb.ForkRequest, self.fork),
            "Restore": (pb.RestoreRequest, self.restore),
            "Rollback": (pb.RollbackRequest, self.rollback),
        }

    def hurry(self) -> None:
        """Answer those who wait for output or changes: a host that stops would wait for them in turn."""
        for session in self._host.sessions:
            with contextlib.suppress(Stale):  # it is being made, and nobody reads from it
                self._host.desk(session.name).hurry()

    async def start_program(self, request: pb.StartProgramRequest) -> pb.StartProgramResponse:
        """Start a program that outlives the call."""
        await self._gate.require_program(request)
        spec = SessionSpec(
            argv=tuple(request.argv),
            terminal=request.terminal,
            rows=request.rows or 24,
            columns=request.columns or 80,
            stdin=request.stdin,
            env=dict(request.env),
            cwd=request.cwd,
            output_bytes=self._limits.output_bytes,
        )
        desk, sandbox = self._host.desk(request.session_id), self._host.sandbox(request.session_id)
        program = await desk.start(sandbox, request.program_id, spec, stream=request.stream)
        return pb.StartProgramResponse(pid=program.pid)

    async def run_script(self, request: pb.RunScriptRequest) -> pb.RunScriptResponse:
        """Run a script in a shell."""
        await self._gate.require_script(request)
        limits = merge_limits(self._limits, request.limits)

        async def work(_: Sandbox) -> CommandResult:
            desk = self._host.desk(request.session_id)
            async with desk.streaming(request.command_id, wanted=request.stream) as sink:
                return await desk.program(request.program_id).run(request.script, limits, sink)

        result = await self._host.run(request.session_id, request.command_id, work)
        return pb.RunScriptResponse(result=self._result(result))

    def _result(self, result: CommandResult) -> Any:
        return result_message(result, self._host.backend.capabilities.cgroup_mode)

    async def write_input(self, request: pb.WriteInputRequest) -> pb.WriteInputResponse:
        """Type into a program, once."""
        await self._gate.require_input(request)

        async def work(_: Sandbox) -> pb.WriteInputResponse:
            await self._host.desk(request.session_id).program(request.program_id).write(request.data)
            return pb.WriteInputResponse()

        return await self._host.run(request.session_id, request.command_id, work)

    async def read_output(self, request: pb.ReadOutputRequest) -> pb.ReadOutputResponse:
        """What a stream has after an offset."""
        desk = self._host.desk(request.session_id)
        window = await desk.window(request.stream_id, request.wait_s)
        chunks, offset, ended = await window.read(request.offset, request.wait_s)
        return pb.ReadOutputResponse(
            chunks=[pb.OutputChunk(stream=_STREAMS[stream], data=data) for stream, data in chunks],
            offset=offset,
            ended=ended,
        )

    async def resize_terminal(self, request: pb.ResizeTerminalRequest) -> pb.ResizeTerminalResponse:
        """Change the size of a terminal."""
        program = self._host.desk(request.session_id).program(request.program_id)
        await program.resize(request.rows, request.columns)
        return pb.ResizeTerminalResponse()

    async def signal_program(self, request: pb.SignalProgramRequest) -> pb.SignalProgramResponse:
        """Signal a program's tree."""
        await self._host.desk(request.session_id).program(request.program_id).signal(request.signal)
        return pb.SignalProgramResponse()

    async def close_program(self, request: pb.CloseProgramRequest) -> pb.CloseProgramResponse:
        """End a program's tree."""
        result = await self._host.desk(request.session_id).close(request.program_id)
        return pb.CloseProgramResponse(result=self._result(result))

    async def list_processes(self, request: pb.ListProcessesRequest) -> pb.ListProcessesResponse:
        """What runs now."""
        desk = self._host.desk(request.session_id)
        found = await self._host.sandbox(request.session_id).list_processes()
        return pb.ListProcessesResponse(
            processes=[_process(each, desk.named(each.session)) for each in found]
        )

    async def signal_process(self, request: pb.SignalProcessRequest) -> pb.SignalProcessResponse:
        """Signal one process."""
        await self._host.sandbox(request.session_id).signal(request.pid, request.signal)
        return pb.SignalProcessResponse()

    async def stat_file(self, request: pb.StatFileRequest) -> pb.StatFileResponse:
        """Look at a path."""
        entry = await self._host.sandbox(request.session_id).stat(request.path)
        return pb.StatFileResponse(entry=_entry(entry))

    async def list_files(self, request: pb.ListFilesRequest) -> pb.ListFilesResponse:
        """List a directory."""
        found = await self._host.sandbox(request.session_id).list_files(request.path, request.depth or 1)
        entries = [_entry(each) for each in found[:_MAX_ENTRIES]]
        return pb.ListFilesResponse(entries=entries, truncated=len(found) > _MAX_ENTRIES)

    async def make_directory(self, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryResponse:
        """Make a directory."""
        await self._host.sandbox(request.session_id).make_directory(request.path)
        return pb.MakeDirectoryResponse()

    async def remove_file(self, request: pb.RemoveFileRequest) -> pb.RemoveFileResponse:
        """Remove an entry."""
        await self._host.sandbox(request.session_id).remove(request.path, recursive=request.recursive)
        return pb.RemoveFileResponse()

    async def patch_file(self, request: pb.PatchFileRequest) -> pb.PatchFileResponse:
        """Change a file, once."""
        edits = [Edit(each.old, each.new, each.everywhere) for each in request.edits]

        async def work(sandbox: Sandbox) -> pb.PatchFileResponse:
            return pb.PatchFileResponse(entry=_entry(await sandbox.patch(request.path, edits)))

        return await self._host.run(request.session_id, request.command_id, work)

    async def search_files(self, request: pb.SearchFilesRequest) -> pb.SearchFilesResponse:
        """Find lines."""
        limit = request.limit or _LEAST_MATCHES
        found = await self._host.sandbox(request.session_id).search(request.pattern, request.path, limit)
        matches = [pb.LineMatch(path=each.path, line=each.line, text=each.text) for each in found]
        return pb.SearchFilesResponse(matches=matches)

    async def watch_files(self, request: pb.WatchFilesRequest) -> pb.WatchFilesResponse:
        """What happened to files after an offset; begins to look at the first call."""
        watches, sandbox = self._host.desk(request.session_id).watches, self._host.sandbox(request.session_id)
        if request.close:
            await watches.close(request.watch_id)
            return pb.WatchFilesResponse(ended=True)
        window = await watches.begin(sandbox, request.watch_id, request.path)
        changes, offset, ended = await window.read(request.offset, request.wait_s)
        found = [pb.FileChange(kind=_CHANGES[each.kind], path=printable(each.path)) for each in changes]
        return pb.WatchFilesResponse(changes=found, offset=offset, ended=ended)

    async def put_tree(self, request: pb.PutTreeRequest) -> pb.PutTreeResponse:
        """Unpack an archive."""
        inline = request.WhichOneof("archive") != "blob"
        content = request.content if inline else await self._blobs.get(request.blob)
        sandbox = self._host.sandbox(request.session_id)
        return pb.PutTreeResponse(entries=await sandbox.put_tree(request.path, _once(content)))

    async def get_tree(self, request: pb.GetTreeRequest) -> pb.GetTreeResponse:
        """Pack a directory; what does not fit a message goes to object storage, named by its content."""
        sandbox = self._host.sandbox(request.session_id)
        content = b"".join([chunk async for chunk in sandbox.get_tree(request.path)])
        if len(content) <= MAX_INLINE:
            return pb.GetTreeResponse(content=content)
        return pb.GetTreeResponse(blob=await self._blobs.put(content_key(content), content))

    async def snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotResponse:
        """Keep the files, once."""

        async def work(_: Sandbox) -> pb.SnapshotResponse:
            return pb.SnapshotResponse(
                snapshot_id=await self._branches.snapshot(request.session_id, request.step)
            )

        return await self._host.run(request.session_id, request.command_id, work)

    async def fork(self, request: pb.ForkRequest) -> pb.ForkResponse:
        """Make new sandboxes of a snapshot."""
        forks = await self._branches.fork(
            request.session_id, request.snapshot_id, list(request.fork_session_ids), request.lease_s
        )
        outcomes = [
            pb.ForkOutcome(session_id=each.name, epoch=each.epoch, error=each.error) for each in forks
        ]
        return pb.ForkResponse(forks=outcomes)

    async def restore(self, request: pb.RestoreRequest) -> pb.RestoreResponse:
        """Put a snapshot back."""
        await self._branches.restore(request.session_id, request.snapshot_id)
        return pb.RestoreResponse()

    async def rollback(self, request: pb.RollbackRequest) -> pb.RollbackResponse:
        """Go back to a step."""
        moment, forgotten = await self._branches.rollback(request.session_id, request.step)
        return pb.RollbackResponse(step=moment.step, snapshot_id=moment.snapshot, forgotten=forgotten)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _entry(info: FileInfo) -> pb.FileEntry:
    return pb.FileEntry(
        path=printable(info.path),
        kind=_KINDS[info.kind],
        size=info.size,
        mode=info.mode,
        modified_at=info.modified_at,
        target=printable(info.target),
    )


def _process(info: ProcessInfo, program: str) -> pb.Process:
    return pb.Process(
        pid=info.pid,
        parent=info.parent,
        argv=info.argv,
        state=info.state,
        started_s=info.started_s,
        cpu_s=info.cpu_s,
        memory_bytes=info.memory_bytes,
        program_id=program,
    )
