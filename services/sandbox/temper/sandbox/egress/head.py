"""The head of an HTTP/1.1 request, read strictly: what two parsers could read in two ways is refused. Pure.

Source: RFC 9110, RFC 9112. Names of TLS: RFC 8446, RFC 6066.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

MAX_HEAD: Final = 32 << 10
"""Bytes of a request's head."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_HOP: Final = {
    b"connection",
    b"expect",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
}
"""Headers between two hops; they end here."""

Headers = tuple[tuple[bytes, bytes], ...]


_TLS_RECORDS: Final = range(20, 25)
"""Types of records. Source: RFC 8446, RFC 6520."""


class BadRequest(ValueError):  # noqa: N818 - named as HTTP names it
    """No request, or one that could be read in two ways."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request. Example: `Head(b"GET", "pypi.org", 80, b"/simple/", False, (), 0, False)`."""

    method: bytes
    """CONNECT for a tunnel."""
    host: str
    """Name asked for."""
    port: int
    """Port asked for."""
    path: bytes
    """Path and query; empty for a tunnel."""
    tls: bool
    """The proxy itself has to speak TLS to the server."""
    headers: Headers
    """As sent, without those between two hops and without Host."""
    length: int = 0
    """Bytes of the body, when it is not chunked."""
    chunked: bool = False
    """The body is chunked."""

    @property
    def tunnel(self) -> bool:
        """Whether bytes are passed on unread."""
        return self.method == b"CONNECT"

    def forward(self, injected: tuple[bytes, bytes] | None) -> bytes:
        """The head for the server; `injected` replaces whatever was sent under its name."""
        default = 443 if self.tls else 80
        name = f"[{self.host}]" if ":" in self.host else self.host
        authority = name if self.port == default else f"{name}:{self.port}"
        lines = [self.method + b" " + self.path + b" HTTP/1.1", b"Host: " + authority.encode("ascii")]
        dropped = injected[0].lower() if injected else b""
        lines += [name + b": " + value for name, value in self.headers if name.lower() != dropped]
        if injected:
            lines.append(injected[0] + b": " + injected[1])
        return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def read(raw: bytes) -> Head:
    r"""The head in `raw`, which ends with an empty line. Raises BadRequest."""
    lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[2] not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise BadRequest("the first line is no request line")
    method, target, _ = parts
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise BadRequest("the first line is no request line")
    headers = tuple(_header(line) for line in lines[1:])
    host, port, path, tls = _authority(target) if method == b"CONNECT" else _locate(target)
    length, chunked = _framing(headers)
    kept = tuple(each for each in headers if each[0].lower() not in _dropped(headers))
    return Head(method, host, port, path, tls, kept, length, chunked)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequest("a line is no header")
    return name, value.strip(b" \t")


def _dropped(headers: Headers) -> set[bytes]:
    """Those between two hops, also by name in Connection, and Host, which the target decides."""
    named = b",".join(value for name, value in headers if name.lower() == b"connection")
    listed = {word.strip().lower() for word in named.split(b",")} - {b"content-length", b"transfer-encoding"}
    return _HOP | listed | {b"host"}


def _framing(headers: Headers) -> tuple[int, bool]:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings and (lengths or codings != [b"chunked"]):
        raise BadRequest("the body's end can be read in two ways")
    if len(lengths) > 1 or (lengths and not re.fullmatch(rb"[0-9]{1,15}", lengths[0])):
        raise BadRequest("the body's length can be read in two ways")
    return (int(lengths[0]) if lengths else 0), bool(codings)


def _authority(target: bytes) -> tuple[str, int, bytes, bool]:
    host, colon, port = target.decode("ascii").rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or set(host) & set("/@?#"):
        raise BadRequest("a tunnel needs host:port")
    return host.strip("[]") if host.startswith("[") else host, int(port), b"", False


def _locate(target: bytes) -> tuple[str, int, bytes, bool]:
    """`http://host/path` by way of the proxy, or `/tls/host/path` for a base URL whose TLS the proxy speaks."""
    text = target.decode("ascii")
    tls = text.startswith("/tls/")
    url = f"https://{text.removeprefix('/tls/')}" if tls else text
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadRequest("the target is no URL") from None
    if parts.scheme not in ({"https"} if tls else {"http"}) or not parts.hostname or "@" in parts.netloc:
        raise BadRequest("the target is neither http://host/path nor /tls/host/path")
    query = f"?{parts.query}" if parts.query else ""
    path = (parts.path or "/") + query
    return parts.hostname, port or (443 if tls else 80), path.encode("ascii"), tls


def hides_name(record: bytes) -> bool:
    """Whether TLS begins in pieces, so that the name could come in a later one: other records first, or a hello over several.

    Nothing that speaks TLS in earnest does; a server puts such pieces together.
    """
    if len(record) < 5 or record[0] not in _TLS_RECORDS or record[1] != 3:
        return False
    body = _number(record, 3)
    if record[0] != 22 or body < 4 or len(record) < 9 or record[5] != 1:
        return True
    return 4 + (record[6] << 16) + _number(record, 7) > min(body, len(record) - 5)


def server_name(record: bytes) -> str | None:
    """The name in the first record of a TLS connection; None if it has none, or is no TLS. Never raises."""
    try:
        return _server_name(record)
    except (IndexError, UnicodeDecodeError):
        return None


def _server_name(record: bytes) -> str | None:
    if record[0] != 22 or record[5] != 1:  # handshake, ClientHello
        return None
    at = 9 + 2 + 32  # headers, version, random
    at += 1 + record[at]  # session id
    at += 2 + _number(record, at)  # cipher suites
    at += 1 + record[at]  # compression
    end = at + 2 + _number(record, at)
    at += 2
    while at + 4 <= min(end, len(record)):
        kind, size = _number(record, at), _number(record, at + 2)
        if kind == 0:
            length = _number(record, at + 7)
            return record[at + 9 : at + 9 + length].decode("ascii")
        at += 4 + size
    return None


def _number(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]
