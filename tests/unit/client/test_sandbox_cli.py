"""`temper sandbox` against slips of the hand: what is wrong is named, and no traceback is shown."""

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any, Self

import pytest

from temper.client.cli.broker import Broker
from temper.client.cli.output import cell
from temper.client.cli.terminal import _listen
from temper.runtime.errors import Rejected


@pytest.mark.parametrize(
    "line",
    [
        ("ls", "h/n", "--depth", "-1"),
        ("ls", "h/n", "--depth", "99999999999"),
        ("snapshot", "h/n", "--step", "-1"),
        ("rollback", "h/n", "--", "-1"),
        ("rollback", "h/n", "4294967296"),
    ],
)
def test_a_number_that_does_not_fit_is_wrong_input(temper: Any, line: tuple[str, ...]) -> None:
    said = temper("sandbox", *line)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_a_text_that_is_no_utf_8_is_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            return

    async def work(_: Any) -> None:
        "/work/\udcff".encode()

    monkeypatch.setattr(Broker, "client", lambda _: Client())
    with pytest.raises(Rejected, match=r"is not UTF-8.*directory"):
        Broker().run(work)


def test_what_the_bus_says_is_no_data(temper: Any) -> None:
    said = temper("sandbox", "create", "--bus-url", "nats://127.0.0.1:1")
    assert said.code == 3
    assert said.out == ""
    assert "no broker at nats://127.0.0.1:1" in said.err


@pytest.mark.parametrize("content", [b"", b"ls\n"])
async def test_a_shell_reads_a_file_as_its_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    source = tmp_path / "keys"
    source.write_bytes(content)
    with source.open("rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        keys: asyncio.Queue[bytes] = asyncio.Queue()
        _listen(asyncio.get_running_loop(), keys)
    typed = b"".join([keys.get_nowait() for _ in range(keys.qsize())])
    assert typed == content + b"\x04"


def test_null_is_such_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listen() -> bytes:
        keys: asyncio.Queue[bytes] = asyncio.Queue()
        _listen(asyncio.get_running_loop(), keys)
        return keys.get_nowait()

    with open(os.devnull, encoding="utf-8") as null:  # noqa: PTH123 - a device, not a path of ours
        monkeypatch.setattr("sys.stdin", null)
        assert asyncio.run(listen()) == b"\x04"


def test_a_term_leaves_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    class Client:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            left.append("disconnected")

    async def work(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(Broker, "client", lambda _: Client())
    with pytest.raises(SystemExit) as ended:
        Broker().run(work)
    assert ended.value.code == 143
    assert left == ["disconnected"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("two\nlines", r"two\nlines"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\u202eb", r"a\u202eb"),
        ("é ü 中 --x", "é ü 中 --x"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_a_name_of_a_sandbox_cannot_write_on_the_terminal(name: str, shown: str) -> None:
    assert cell(name) == shown
    assert cell([name]) == shown
    assert cell({"path": name}) == f"path={shown}"
