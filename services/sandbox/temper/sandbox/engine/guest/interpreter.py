"""The persistent Python of one sandbox: a code string in, what a REPL would print out.

Standard output and error are pipes the host reads; the reply on the socket says only that the code has ended, and
how. The policy's code shares this process and can say anything on that socket, so the host takes from it nothing
that judges the policy: limits and outcomes come from the kernel's own counts.
"""

import _ast
import builtins
import os
import socket
import sys
import traceback
import types
from typing import Any, Final

from temper.sandbox.engine.guest import wire

_TREE_ONLY: Final = _ast.PyCF_ONLY_AST
"""What `ast.parse` asks for; the module around it is large, and each sandbox would pay for its pages at its fork and its end."""
_MAX_ERROR: Final = 2000
"""Characters of error text; a longer one keeps its beginning."""


def serve(connection: socket.socket, search_path: list[str]) -> None:
    """Answer requests `{"id", "code"}` with `{"id", "error"}` until the host hangs up."""
    namespace = fresh_main()
    sys.path[:] = ["", *search_path]
    own_process = os.getpid()
    while (received := wire.receive(connection)) is not None:
        request, _ = received
        error = run(request["code"], namespace)
        flush()
        if os.getpid() != own_process:  # the code forked and its child came back here
            os._exit(0)
        wire.send(connection, {"id": request["id"], "error": error})


def fresh_main() -> dict[str, Any]:
    """An empty `__main__` of this process; returns its names."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]
    return main.__dict__


def run(code: str, namespace: dict[str, Any]) -> str | None:
    """Execute `code`; print the value of a trailing expression. Returns a short error text, or None."""
    try:
        body, tail = _split(code)
        exec(body, namespace)  # noqa: S102 - running the policy's code is what this place is for
        if tail is not None:
            _show(eval(tail, namespace), namespace)  # noqa: S307 - as above
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt end the code, not the session
        return describe(error)
    return None


def _split(code: str) -> tuple[types.CodeType, types.CodeType | None]:
    tree: Any = compile(code, "<code>", "exec", _TREE_ONLY)
    tail = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        expression = _ast.Expression(tree.body.pop().value)
        tail = compile(expression, "<code>", "eval")
    return compile(tree, "<code>", "exec"), tail


def _show(value: object, namespace: dict[str, Any]) -> None:
    if value is not None:
        namespace["_"] = value
        print(repr(value))  # noqa: T201 - the sandbox's output is this program's purpose


def describe(error: BaseException) -> str:
    """`Name: message (line n)`: what a policy can use, without the frames of this file."""
    lines = traceback.format_exception_only(type(error), error)
    text = next((line for line in reversed(lines) if line.strip()), type(error).__name__).strip()
    line = error.lineno if isinstance(error, SyntaxError) else _line(error)
    suffix = f" (line {line})" if line else ""
    return text[:_MAX_ERROR] + suffix


def _line(error: BaseException) -> int | None:
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == "<code>"), None)


def flush() -> None:
    """Push out what was printed, whatever the code has done to the streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except BaseException:  # noqa: BLE001, S110 - the code may have put anything in their place
            pass
