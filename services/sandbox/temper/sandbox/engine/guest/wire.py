"""Messages between host, launcher, init and interpreter: 4 bytes of length, then JSON; descriptors ride along.

Both ends are temper's own code, but the interpreter shares its process with the policy's code: the host treats
what comes from there as untrusted, hence the size limit and the shape check.
"""

import _socket
import array
import json
import socket
import struct
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final, cast

MAX_MESSAGE: Final = 64 << 20
"""Bytes. A longer message closes the connection."""

_PIECE: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")
MAX_DESCRIPTORS: Final = 32
"""Of one message."""
# As plain numbers: members of an enumeration are looked up by Python.
_UNIX, _STREAM, _CLOSED_ON_EXEC = int(socket.AF_UNIX), int(socket.SOCK_STREAM), int(socket.MSG_CMSG_CLOEXEC)
_SPACE: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)

Message = dict[str, Any]

# The two routines in C that `json` wraps. In a process that was just forked every Python function on the way costs pages
# that the kernel must copy, and this is on the way of each sandbox several times.
_scan: Callable[[str, int], tuple[object, int]] = json.decoder.scanner.c_make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]  # as json.decoder uses it


def _unknown(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


_make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]  # as json.encoder uses it
_pieces: Callable[[Message, int], Sequence[str]] = _make(
    None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, True
)


class Malformed(ValueError):  # noqa: N818 - named like the tree it cannot import
    """What came is no message. A ValueError, since this file cannot import temper's tree."""


def encode(message: Message) -> bytes:
    """One frame."""
    body = "".join(_pieces(message, 0)).encode()
    if len(body) > MAX_MESSAGE:
        raise Malformed(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """The inverse of `encode` without its length."""
    try:
        text = body.decode()
        value, end = _scan(text, 0)
    except (
        StopIteration,
        ValueError,
        RecursionError,
    ) as error:  # the last: nested deeper than the parser's stack
        raise Malformed("the frame is not JSON") from error
    if end != len(text):
        raise Malformed("something follows the frame's JSON")
    if not isinstance(value, dict):
        raise Malformed("the frame is no object")
    return cast("Message", value)


class Decoder:
    """Bytes in any pieces to messages, for a reader that must not block."""

    def __init__(self, limit: int = 0) -> None:
        """A message of more than `limit` bytes (0: `MAX_MESSAGE`) is refused before it is kept."""
        self._limit = limit or MAX_MESSAGE
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by `data`. Raises Malformed."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._limit:
                raise Malformed(f"a message of {length} bytes is over the limit of {self._limit}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message; blocks until the peer's buffer has taken it."""
    frame = encode(message)
    if descriptors:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sent = connection.sendmsg([frame], rights)
        frame = frame[sent:]
    if frame:
        connection.sendall(frame)


def line(descriptor: int) -> socket.socket:
    """The UNIX stream socket behind a descriptor: without the questions to the kernel that `socket.socket` asks about it."""
    return _socket.socket(_UNIX, _STREAM, 0, descriptor)  # type: ignore[return-value]  # all that is used of it is there


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """Block for one message and the descriptors sent with it; None at the end of the stream."""
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, _SPACE, _CLOSED_ON_EXEC)
    if len(head) < _LENGTH.size:
        head += _exactly(connection, _LENGTH.size - len(head)) if head else b""
        if len(head) < _LENGTH.size:
            return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE:
        raise Malformed(f"a message of {length} bytes is over the limit of {MAX_MESSAGE}")
    body = connection.recv(min(length, _PIECE))
    if len(body) < length:
        body += _exactly(connection, length - len(body)) if body else b""
        if len(body) < length:
            return None
    return decode(body), descriptors(ancillary) if ancillary else []


def descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Those that came with what was received."""
    found = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return list(found)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """`count` bytes, or fewer at the end of the stream."""
    pieces: list[bytes] = []
    while count > 0:
        piece = connection.recv(min(count, _PIECE))
        if not piece:
            break
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
