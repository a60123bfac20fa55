"""Where the tools are served over HTTP and to whom: the options of `--http`, read and checked before anything is made."""

import argparse
import ipaddress
import math
import re
import socket
from dataclasses import dataclass
from typing import Final

from temper.runtime.config import read_secret
from temper.runtime.errors import Rejected

SESSIONS: Final = 8
MOST_SESSIONS: Final = 256
IDLE_S: Final = 1800.0
MOST_IDLE_S: Final = 86_400.0
_BACKLOG: Final = 128
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")
_OWN_WAY_OUT: Final = "such as 127.0.0.1:8765, [::1]:8765, or port 0 for any that is free"
_ONLY_HTTP: Final = ("token_file", "sessions", "idle")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What was asked for. Example: `HttpOptions("127.0.0.1", 8765, None, 8, 1800.0)`."""

    host: str
    """Address or name of this machine."""
    port: int
    """0 for any that is free."""
    token: str | None
    """What clients must show; None lets in whoever reaches the address."""
    sessions: int
    """Most sessions, and so sandboxes, at once."""
    idle_s: float
    """Seconds without a request after which a session ends."""


def http_options(arguments: argparse.Namespace) -> HttpOptions | None:
    """The options of `--http`; None without it. Raises Rejected, Unavailable for a token that cannot be read."""
    if arguments.http is None:
        for name in _ONLY_HTTP:
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise Rejected("has no effect on standard input and output", field=option, hint="add --http")
        return None
    host, port = _address(arguments.http)
    sessions = SESSIONS if arguments.sessions is None else arguments.sessions
    idle_s = IDLE_S if arguments.idle is None else arguments.idle
    if not 1 <= sessions <= MOST_SESSIONS:
        raise Rejected(f"{sessions} is not within 1 and {MOST_SESSIONS}", field="--sessions")
    if not (math.isfinite(idle_s) and 1 <= idle_s <= MOST_IDLE_S):
        raise Rejected(f"{idle_s:g} is not within 1 and {MOST_IDLE_S:g} seconds", field="--idle")
    return HttpOptions(host, port, _token(arguments), sessions, idle_s)


def listen(options: HttpOptions) -> socket.socket:
    """A listening socket. Raises Rejected if there is none to be had, or if anybody could reach it without a token."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a name"
        raise Rejected(
            f"{options.host!r} is no address of this machine: {reason}", field="--http", hint=_OWN_WAY_OUT
        ) from None
    if options.token is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise Rejected(
            f"{options.host} can be reached from other machines, and there is no token",
            field="--token-file",
            hint="name a file with a token that clients must show, or listen on 127.0.0.1",
        )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise Rejected(
            f"cannot listen on {options.host}:{options.port}: {error.strerror}",
            field="--http",
            hint="another port, or 0 for any that is free",
        ) from None
    listening.setblocking(False)
    return listening


def url(listening: socket.socket) -> str:
    """Where clients find the tools."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/mcp" if ":" in host else f"http://{host}:{port}/mcp"


def _address(text: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 0xFFFF:
        raise Rejected(f"{text!r} is not HOST:PORT", field="--http", hint=_OWN_WAY_OUT)
    return found["six"] or found["host"], int(found["port"])


def _token(arguments: argparse.Namespace) -> str | None:
    try:
        token = read_secret(arguments.token_file, field="--token-file")
    except UnicodeDecodeError:
        token = "\0"  # noqa: S105 - what no token is
    if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise Rejected(
            f"{arguments.token_file} holds more than one word of ASCII",
            field="--token-file",
            hint="write one, such as `openssl rand -hex 32` prints",
        )
    return token
