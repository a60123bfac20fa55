from buf.validate import validate_pb2 as _validate_pb2
from temper.api.common.v1 import common_pb2 as _common_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as _sandbox_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutputStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_STREAM_UNSPECIFIED: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDOUT: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDERR: _ClassVar[OutputStream]

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_KIND_UNSPECIFIED: _ClassVar[EntryKind]
    ENTRY_KIND_FILE: _ClassVar[EntryKind]
    ENTRY_KIND_DIRECTORY: _ClassVar[EntryKind]
    ENTRY_KIND_LINK: _ClassVar[EntryKind]
    ENTRY_KIND_OTHER: _ClassVar[EntryKind]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_KIND_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_CREATED: _ClassVar[ChangeKind]
    CHANGE_KIND_MODIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_REMOVED: _ClassVar[ChangeKind]
    CHANGE_KIND_LOST: _ClassVar[ChangeKind]
OUTPUT_STREAM_UNSPECIFIED: OutputStream
OUTPUT_STREAM_STDOUT: OutputStream
OUTPUT_STREAM_STDERR: OutputStream
ENTRY_KIND_UNSPECIFIED: EntryKind
ENTRY_KIND_FILE: EntryKind
ENTRY_KIND_DIRECTORY: EntryKind
ENTRY_KIND_LINK: EntryKind
ENTRY_KIND_OTHER: EntryKind
CHANGE_KIND_UNSPECIFIED: ChangeKind
CHANGE_KIND_CREATED: ChangeKind
CHANGE_KIND_MODIFIED: ChangeKind
CHANGE_KIND_REMOVED: ChangeKind
CHANGE_KIND_LOST: ChangeKind

class StartProgramRequest(_message.Message):
    __slots__ = ("session_id", "program_id", "argv", "terminal", "rows", "columns", "stdin", "env", "cwd", "stream")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    program_id: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    terminal: bool
    rows: int
    columns: int
    stdin: bool
    env: _containers.ScalarMap[str, str]
    cwd: str
    stream: bool
    def __init__(self, session_id: _Optional[str] = ..., program_id: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., terminal: bool = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., stdin: bool = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., stream: bool = ...) -> None: ...

class StartProgramResponse(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class RunScriptRequest(_message.Message):
    __slots__ = ("session_id", "program_id", "command_id", "script", "limits", "stream")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    program_id: str
    command_id: str
    script: str
    limits: _sandbox_pb2.Limits
    stream: bool
    def __init__(self, session_id: _Optional[str] = ..., program_id: _Optional[str] = ..., command_id: _Optional[str] = ..., script: _Optional[str] = ..., limits: _Optional[_Union[_sandbox_pb2.Limits, _Mapping]] = ..., stream: bool = ...) -> None: ...

class RunScriptResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _sandbox_pb2.CommandResult
    def __init__(self, result: _Optional[_Union[_sandbox_pb2.CommandResult, _Mapping]] = ...) -> None: ...

class WriteInputRequest(_message.Message):
    __slots__ = ("session_id", "program_id", "command_id", "data")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    program_id: str
    command_id: str
    data: bytes
    def __init__(self, session_id: _Optional[str] = ..., program_id: _Optional[str] = ..., command_id: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteInputResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OutputChunk(_message.Message):
    __slots__ = ("stream", "data")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stream: OutputStream
    data: bytes
    def __init__(self, stream: _Optional[_Union[OutputStream, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadOutputRequest(_message.Message):
    __slots__ = ("session_id", "stream_id", "offset", "wait_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    stream_id: str
    offset: int
    wait_s: float
    def __init__(self, session_id: _Optional[str] = ..., stream_id: _Optional[str] = ..., offset: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ReadOutputResponse(_message.Message):
    __slots__ = ("chunks", "offset", "ended")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[OutputChunk]
    offset: int
    ended: bool
    def __init__(self, chunks: _Optional[_Iterable[_Union[OutputChunk, _Mapping]]] = ..., offset: _Optional[int] = ..., ended: bool = ...) -> None: ...

class ResizeTerminalRequest(_message.Message):
    __slots__ = ("session_id", "program_id", "rows", "columns")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    program_id: str
    rows: int
    columns: int
    def __init__(self, session_id: _Optional[str] = ..., program_id: _Optional[str] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class ResizeTerminalResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SignalProgramRequest(_message.Message):
    __slots__ = ("session_id", "program_id", "signal")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    program_id: str
    signal: int
    def __init__(self, session_id: _Optional[str] = ..., program_id: _Optional[str] = ..., signal: _Optional[int] = ...) -> None: ...

class SignalProgramResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseProgramRequest(_message.Message):
    __slots__ = ("session_id", "program_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    program_id: str
    def __init__(self, session_id: _Optional[str] = ..., program_id: _Optional[str] = ...) -> None: ...

class CloseProgramResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _sandbox_pb2.CommandResult
    def __init__(self, result: _Optional[_Union[_sandbox_pb2.CommandResult, _Mapping]] = ...) -> None: ...

class ListProcessesRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("pid", "parent", "argv", "state", "started_s", "cpu_s", "memory_bytes", "program_id")
    PID_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    parent: int
    argv: _containers.RepeatedScalarFieldContainer[str]
    state: str
    started_s: float
    cpu_s: float
    memory_bytes: int
    program_id: str
    def __init__(self, pid: _Optional[int] = ..., parent: _Optional[int] = ..., argv: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., started_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., program_id: _Optional[str] = ...) -> None: ...

class ListProcessesResponse(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    def __init__(self, processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ...) -> None: ...

class SignalProcessRequest(_message.Message):
    __slots__ = ("session_id", "pid", "signal")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pid: int
    signal: int
    def __init__(self, session_id: _Optional[str] = ..., pid: _Optional[int] = ..., signal: _Optional[int] = ...) -> None: ...

class SignalProcessResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "kind", "size", "mode", "modified_at", "target")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_AT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: EntryKind
    size: int
    mode: int
    modified_at: float
    target: str
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[_Union[EntryKind, str]] = ..., size: _Optional[int] = ..., mode: _Optional[int] = ..., modified_at: _Optional[float] = ..., target: _Optional[str] = ...) -> None: ...

class StatFileRequest(_message.Message):
    __slots__ = ("session_id", "path")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class StatFileResponse(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: FileEntry
    def __init__(self, entry: _Optional[_Union[FileEntry, _Mapping]] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("session_id", "path", "depth")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    depth: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., depth: _Optional[int] = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("entries", "truncated")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FileEntry]
    truncated: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., truncated: bool = ...) -> None: ...

class MakeDirectoryRequest(_message.Message):
    __slots__ = ("session_id", "path")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class MakeDirectoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    recursive: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., recursive: bool = ...) -> None: ...

class RemoveFileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TextEdit(_message.Message):
    __slots__ = ("old", "new", "everywhere")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    old: str
    new: str
    everywhere: bool
    def __init__(self, old: _Optional[str] = ..., new: _Optional[str] = ..., everywhere: bool = ...) -> None: ...

class PatchFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "edits", "command_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    edits: _containers.RepeatedCompositeFieldContainer[TextEdit]
    command_id: str
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., edits: _Optional[_Iterable[_Union[TextEdit, _Mapping]]] = ..., command_id: _Optional[str] = ...) -> None: ...

class PatchFileResponse(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: FileEntry
    def __init__(self, entry: _Optional[_Union[FileEntry, _Mapping]] = ...) -> None: ...

class SearchFilesRequest(_message.Message):
    __slots__ = ("session_id", "pattern", "path", "limit")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pattern: str
    path: str
    limit: int
    def __init__(self, session_id: _Optional[str] = ..., pattern: _Optional[str] = ..., path: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class LineMatch(_message.Message):
    __slots__ = ("path", "line", "text")
    PATH_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    path: str
    line: int
    text: str
    def __init__(self, path: _Optional[str] = ..., line: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class SearchFilesResponse(_message.Message):
    __slots__ = ("matches",)
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[LineMatch]
    def __init__(self, matches: _Optional[_Iterable[_Union[LineMatch, _Mapping]]] = ...) -> None: ...

class FileChange(_message.Message):
    __slots__ = ("kind", "path")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    kind: ChangeKind
    path: str
    def __init__(self, kind: _Optional[_Union[ChangeKind, str]] = ..., path: _Optional[str] = ...) -> None: ...

class WatchFilesRequest(_message.Message):
    __slots__ = ("session_id", "watch_id", "path", "offset", "wait_s", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    watch_id: str
    path: str
    offset: int
    wait_s: float
    close: bool
    def __init__(self, session_id: _Optional[str] = ..., watch_id: _Optional[str] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., wait_s: _Optional[float] = ..., close: bool = ...) -> None: ...

class WatchFilesResponse(_message.Message):
    __slots__ = ("changes", "offset", "ended")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[FileChange]
    offset: int
    ended: bool
    def __init__(self, changes: _Optional[_Iterable[_Union[FileChange, _Mapping]]] = ..., offset: _Optional[int] = ..., ended: bool = ...) -> None: ...

class CallToolRequest(_message.Message):
    __slots__ = ("session_id", "command_id", "call", "limits")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    command_id: str
    call: _sandbox_pb2.ToolCall
    limits: _sandbox_pb2.Limits
    def __init__(self, session_id: _Optional[str] = ..., command_id: _Optional[str] = ..., call: _Optional[_Union[_sandbox_pb2.ToolCall, _Mapping]] = ..., limits: _Optional[_Union[_sandbox_pb2.Limits, _Mapping]] = ...) -> None: ...

class CallToolResponse(_message.Message):
    __slots__ = ("observation", "result", "is_error", "repairs", "refused", "answer")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    observation: str
    result: _sandbox_pb2.CommandResult
    is_error: bool
    repairs: _containers.RepeatedScalarFieldContainer[str]
    refused: str
    answer: str
    def __init__(self, observation: _Optional[str] = ..., result: _Optional[_Union[_sandbox_pb2.CommandResult, _Mapping]] = ..., is_error: bool = ..., repairs: _Optional[_Iterable[str]] = ..., refused: _Optional[str] = ..., answer: _Optional[str] = ...) -> None: ...

class PutTreeRequest(_message.Message):
    __slots__ = ("session_id", "path", "content", "blob")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    content: bytes
    blob: _common_pb2.BlobRef
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., content: _Optional[bytes] = ..., blob: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class PutTreeResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    def __init__(self, entries: _Optional[int] = ...) -> None: ...

class GetTreeRequest(_message.Message):
    __slots__ = ("session_id", "path")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class GetTreeResponse(_message.Message):
    __slots__ = ("content", "blob")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    blob: _common_pb2.BlobRef
    def __init__(self, content: _Optional[bytes] = ..., blob: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("session_id", "step", "command_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step: int
    command_id: str
    def __init__(self, session_id: _Optional[str] = ..., step: _Optional[int] = ..., command_id: _Optional[str] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class ForkRequest(_message.Message):
    __slots__ = ("session_id", "snapshot_id", "fork_session_ids", "lease_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    FORK_SESSION_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    snapshot_id: str
    fork_session_ids: _containers.RepeatedScalarFieldContainer[str]
    lease_s: float
    def __init__(self, session_id: _Optional[str] = ..., snapshot_id: _Optional[str] = ..., fork_session_ids: _Optional[_Iterable[str]] = ..., lease_s: _Optional[float] = ...) -> None: ...

class ForkOutcome(_message.Message):
    __slots__ = ("session_id", "epoch", "error")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    error: str
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class ForkResponse(_message.Message):
    __slots__ = ("forks",)
    FORKS_FIELD_NUMBER: _ClassVar[int]
    forks: _containers.RepeatedCompositeFieldContainer[ForkOutcome]
    def __init__(self, forks: _Optional[_Iterable[_Union[ForkOutcome, _Mapping]]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("session_id", "snapshot_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    snapshot_id: str
    def __init__(self, session_id: _Optional[str] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("session_id", "step")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step: int
    def __init__(self, session_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("step", "snapshot_id", "forgotten")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    step: int
    snapshot_id: str
    forgotten: int
    def __init__(self, step: _Optional[int] = ..., snapshot_id: _Optional[str] = ..., forgotten: _Optional[int] = ...) -> None: ...
