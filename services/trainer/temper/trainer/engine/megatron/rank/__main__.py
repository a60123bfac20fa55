"""``python -m temper.trainer.engine.megatron.rank OPTIONS``: one rank, until the engine is gone.

Standard input is the lifeline: when the service ends, in whatever way, it closes and the rank ends at once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
import warnings
from types import TracebackType

from temper.trainer.engine.megatron import adapter


def _lifeline() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say why, and end at once: others wait for this rank."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Say hello, then answer frames."""
    said = json.loads(sys.argv[1])
    threading.Thread(target=_lifeline, daemon=True).start()
    adapter.install()
    warnings.filterwarnings("ignore")  # Megatron says at import which extensions for GPUs are missing
    import torch

    torch.set_num_threads(int(said["threads"]))
    with adapter.on_cpu():
        from temper.runtime.errors import Rejected
        from temper.trainer.engine.megatron.rank.worker import Worker
        from temper.trainer.engine.megatron.wire import Frame, receive, send

        worker = Worker(said["rank"], said["ranks"], said["rendezvous"], said["deadline_s"])
        sys.excepthook = _last_words  # after torch.distributed, which puts its own there
        line = socket.socket(fileno=said["line"])
        send(line, Frame({"hello": said["rank"]}))
        while True:
            try:
                frame = receive(line)
            except ConnectionError:
                os._exit(0)
            try:
                answer = worker.answer(frame)
            except Rejected as error:
                answer = Frame({"rejected": error.message, "field": error.field, "hint": error.hint})
            send(line, answer)


if __name__ == "__main__":
    main()
