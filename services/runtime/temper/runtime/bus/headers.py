"""Header blocks on the wire, in one pass.

They are on the path of every request, and the library's way costs more than everything else that this bus adds to a
message: it checks each name by a regular expression on the way out and character by character on the way in.
"""

from __future__ import annotations

from collections.abc import Mapping

from temper.runtime.errors import Rejected

VERSION = "NATS/1.0\r\n"


def to_block(headers: Mapping[str, str]) -> bytes:
    """`NATS/1.0`, a line per header, an empty line. Rejected if a value would begin a line of its own."""
    text = VERSION + "".join([f"{name}: {value}\r\n" for name, value in headers.items()]) + "\r\n"
    if text.count("\n") != len(headers) + 2 or text.count("\r") != len(headers) + 2:
        raise Rejected("a header value contains a line break", field="headers")
    return text.encode()


def from_lines(raw: bytes) -> dict[str, str]:
    """The headers in a block without its first line; malformed lines are left out."""
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n"):
        name, separator, value = line.partition(":")
        if separator:
            headers[name] = value.strip()
    return headers
