"""The deterministic twin: sandboxes in memory, no process, no clock, the same answers every time.

Python code is worked out by a small evaluator (numbers, strings, names, arithmetic, `print`); programs are a handful of
words (`echo`, `cat`, `true`, `false`, `sleep`). Anything may be scripted with `FakeBackend.script`. It says of itself that it isolates
nothing and runs no real program, so it can stand in for a backend in tests of what lies above, and for nothing else.
"""

import ast
import operator
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox.engine.base import (
    Capabilities,
    Command,
    CommandResult,
    Evidence,
    Fork,
    Isolation,
    Limits,
    Outcome,
    Sink,
    Stream,
)
from temper.sandbox.engine.lacking import LackingSandbox
from temper.sandbox.engine.output import CappedBuffer

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MAX_FORK: Final = 16
_STEP_S: Final = 0.001  # what every command is said to take

Script = Callable[[str], CommandResult | None]


class FakeBackend:
    """Makes `FakeSandbox`es."""

    def __init__(self, *, slots: int = 64) -> None:
        self._slots = slots
        self._script: Script = lambda _: None
        self._snapshots: dict[str, dict[str, bytes]] = {}
        self._taken: list[str] = []
        self.live: set[FakeSandbox] = set()
        """Sandboxes not yet destroyed."""
        self.created = 0
        """Sandboxes ever made."""

    def script(self, script: Script) -> None:
        """Ask `script` first: for code or a command line it gives a result, or None for the evaluator's."""
        self._script = script

    async def start(self) -> None:
        """Nothing to do."""

    @property
    def capabilities(self) -> Capabilities:
        """No isolation; the limits it can make believe."""
        return Capabilities(
            "fake",
            Isolation.NONE,
            enforced=frozenset({"wall_s", "output_bytes", "disk_bytes"}),
            programs=False,
            streaming=True,
            snapshots=("files",),
            max_fork=_MAX_FORK,
        )

    async def create(self, name: str, limits: Limits, network: str = "") -> "FakeSandbox":
        """A fresh one. Raises Exhausted, Rejected."""
        if network not in {"", "none"}:
            raise Rejected(f"this backend has no network {network!r}", field="network", hint="it has: none")
        if len(self.live) >= self._slots:
            raise Exhausted(f"all {self._slots} sandboxes are taken", hint="retry when one is released")
        self.created += 1
        sandbox = FakeSandbox(limits, self._scripted, self.live.discard, self._snapshots, self._taken)
        self.live.add(sandbox)
        return sandbox

    async def fork(self, snapshot: str, names: Sequence[str], limits: Limits) -> list[Fork]:
        """One new sandbox per name with the files of a snapshot. Raises Rejected."""
        files = _known(self._snapshots, snapshot)
        if not 0 < len(names) <= _MAX_FORK:
            raise Rejected(f"cannot fork {len(names)} at once", field="count", hint=f"1 to {_MAX_FORK}")
        forks: list[Fork] = []
        for name in names:
            try:
                sandbox = await self.create(name, limits)
                await sandbox.fill(files)
                forks.append(Fork(name, sandbox))
            except Exhausted as error:
                forks.append(Fork(name, None, error.message))
        return forks

    async def forget(self, snapshot: str) -> None:
        """Drop a snapshot. Idempotent."""
        self._snapshots.pop(snapshot, None)

    def _scripted(self, line: str) -> CommandResult | None:
        return self._script(line)

    async def close(self) -> None:
        """Destroy what is left."""
        for sandbox in list(self.live):
            await sandbox.destroy()


class FakeSandbox(LackingSandbox):
    """Files and names in dictionaries."""

    def __init__(
        self,
        limits: Limits,
        script: Script,
        on_destroyed: Callable[["FakeSandbox"], None],
        snapshots: dict[str, dict[str, bytes]],
        taken: list[str],
    ) -> None:
        self._limits = limits
        self._snapshots = snapshots
        self._taken = taken
        self._script = script
        self._on_destroyed = on_destroyed
        self._files: dict[str, bytes] = {}
        self._names: dict[str, Any] = {}
        self.alive = True
        """Whether a command can still run here."""

    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """One of the words it knows, or the script's answer; its output streams as one chunk."""
        result = await self._execute(command, limits)
        for stream, content in ((Stream.STDOUT, result.stdout), (Stream.STDERR, result.stderr)):
            if sink is not None and content:
                await sink(stream, content)
        return result

    async def _execute(self, command: Command, limits: Limits) -> CommandResult:
        if not self.alive:
            return CommandResult(Outcome.SANDBOX_DIED, error="the sandbox had already died")
        shell = command.argv[:2] == ("/bin/sh", "-c")
        line = command.argv[2] if shell else shlex.join(command.argv)
        scripted = self._script(line)
        return scripted if scripted is not None else self._word(shlex.split(line), command.stdin, limits)

    def _word(self, words: list[str], stdin: bytes, limits: Limits) -> CommandResult:
        match words:
            case ["echo", *rest]:
                return _said(" ".join(rest).encode() + b"\n", limits)
            case ["cat"]:
                return _said(stdin, limits)
            case ["cat", path] if self._key(path) in self._files:
                return _said(self._files[self._key(path)], limits)
            case ["true"]:
                return _said(b"", limits)
            case ["false"]:
                return replace(_said(b"", limits), exit_code=1)
            case ["sleep", seconds] if float(seconds) < limits.wall_s:
                return replace(_said(b"", limits), evidence=Evidence(wall_s=float(seconds)))
            case ["sleep", _]:
                return CommandResult(Outcome.TIMED_OUT, signal=9, evidence=Evidence(wall_s=limits.wall_s))
            case _:
                return CommandResult(
                    Outcome.OK, error="No such file or directory", evidence=Evidence(wall_s=_STEP_S)
                )

    async def python(self, code: str, limits: Limits) -> CommandResult:
        """What a REPL would print, for the little Python it knows."""
        if not self.alive:
            return CommandResult(Outcome.SANDBOX_DIED, error="the sandbox had already died")
        scripted = self._script(code)
        if scripted is not None:
            return scripted
        printed: list[str] = []
        try:
            _Evaluator(self._names, printed).run(code)
            error = None
        except (SyntaxError, NameError, TypeError, ValueError, ArithmeticError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        return replace(_said("".join(printed).encode(), limits), error=error, exit_code=None)

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Keep it. Raises Rejected, Exhausted."""
        used = sum(len(each) for each in self._files.values())
        if used + len(content) > self._limits.disk_bytes:
            raise Exhausted(f"the sandbox's disk is full writing {path!r}", field="path")
        self._files[self._key(path)] = content

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """What was put. Raises Rejected."""
        key = self._key(path)
        if not self.alive:
            raise Unavailable("the sandbox is gone")
        if key not in self._files:
            raise Rejected(f"{path!r}: no such file or directory", field="path")
        return self._files[key][:max_bytes], len(self._files[key]) > max_bytes

    def _key(self, path: str) -> str:
        parts = [part for part in path.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise Rejected(f"{path!r} leaves the sandbox", field="path", hint="name it without '..'")
        if not path.startswith("/"):
            parts.insert(0, "work")
        if len(parts) < 2 or parts[0] not in {"work", "tmp"}:
            raise Rejected(
                f"{path!r} is not a file below a writable directory", field="path", hint="/work, /tmp"
            )
        return "/".join(parts)

    async def snapshot(self) -> str:
        """Keep the files."""
        self._taken.append(name := f"snap-{len(self._taken) + 1}")
        self._snapshots[name] = dict(self._files)
        return name

    async def restore(self, snapshot: str) -> None:
        """As new, with the files of then. Raises Rejected."""
        files = _known(self._snapshots, snapshot)
        await self.reset()
        await self.fill(files)

    async def fill(self, files: Mapping[str, bytes]) -> None:
        """Put these files into a fresh sandbox. Raises Exhausted."""
        for path, content in files.items():
            await self.put_file(f"/{path}", content)

    async def quiesce(self) -> None:
        """The interpreter's names go with its process."""
        self._names.clear()

    async def reset(self) -> None:
        """As new."""
        self._files.clear()
        self._names.clear()

    async def destroy(self) -> None:
        """Gone."""
        self.alive = False
        self._on_destroyed(self)


def _known(snapshots: Mapping[str, dict[str, bytes]], snapshot: str) -> dict[str, bytes]:
    if snapshot not in snapshots:
        raise Rejected(
            f"no snapshot {snapshot!r} here", field="snapshot", hint="it was dropped, or never taken"
        )
    return snapshots[snapshot]


def _said(output: bytes, limits: Limits) -> CommandResult:
    buffer = CappedBuffer(limits.output_bytes)
    buffer.write(output)
    outcome = Outcome.OUTPUT_TRUNCATED if buffer.truncated else Outcome.OK
    evidence = Evidence(wall_s=_STEP_S, cpu_s=_STEP_S)
    return CommandResult(outcome, buffer.value(), truncated=buffer.truncated, exit_code=0, evidence=evidence)


class _Evaluator:
    """Assignments, expressions, `print`, `raise`-free. Powers are left out: they can take for ever."""

    def __init__(self, names: dict[str, Any], printed: list[str]) -> None:
        self._names = names
        self._printed = printed

    def run(self, code: str) -> None:
        body = ast.parse(code).body
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[name] = self._value(value)
                case ast.Expr(value=value):
                    shown = self._value(value)
                    if statement is body[-1] and shown is not None:
                        self._printed.append(f"{shown!r}\n")
                case _:
                    raise SyntaxError("the fake interpreter knows assignments and expressions only")

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in self._names:
                    raise NameError(f"name {name!r} is not defined")
                return self._names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand)
            case ast.Call(func=ast.Name(id="print"), args=arguments):
                self._printed.append(" ".join(str(self._value(each)) for each in arguments) + "\n")
                return None
            case _:
                raise SyntaxError("the fake interpreter knows arithmetic and print only")
