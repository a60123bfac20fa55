"""The persistent Python of a container: requests on standard input, answers on the stream that was standard error.

What the code prints, on either stream, goes to standard output; each answer is followed there by the mark that came with
the request, since the two streams may arrive in any order. The host takes from both nothing that judges the policy.
"""

import contextlib
import fcntl
import os
import sys
from typing import Any, Final

from temper.sandbox.engine.guest import interpreter, wire

_ANSWERS: Final = 3


def main() -> None:
    """Serve until the host hangs up. The first answer says which process this is."""
    requests = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _ANSWERS + 1)
    os.dup2(2, _ANSWERS, inheritable=False)
    os.dup2(1, 2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, stream in ((1, "stdout"), (2, "stderr")):
        text = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - a descriptor that stays
        setattr(sys, stream, text)
        setattr(sys, f"__{stream}__", text)
    for name in ("PWD", "OLDPWD"):  # left by a shell on the way here
        os.environ.pop(name, None)
    namespace = interpreter.fresh_main()
    own = os.getpid()
    _answer({"pid": own})
    decoder = wire.Decoder()
    while data := os.read(requests, 1 << 16):
        for request in decoder.feed(data):
            error = interpreter.run(request["code"], namespace)
            interpreter.flush()
            if os.getpid() != own:  # the code forked and its child came back here
                os._exit(0)
            with contextlib.suppress(OSError):  # the code has closed it: then nothing is lost either
                os.write(1, request["mark"].encode())
            _answer({"id": request["id"], "error": error})


def _answer(message: dict[str, Any]) -> None:
    frame = wire.encode(message)
    while frame:
        frame = frame[os.write(_ANSWERS, frame) :]
