"""What the processes of a sandbox are told, and in which order."""

import os
import signal

import pytest

from temper.sandbox.engine.guest import processes


def test_parents_are_told_before_their_children(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        told.append((pid, number))
        if pid == 40:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    processes.send({4000, 40, 7, 333}, signal.SIGTERM)
    assert told == [(7, 15), (40, 15), (333, 15), (4000, 15)]  # one that is gone stops nobody
