"""The difference of two byte strings of equal length, as small as few changes make it.

Elements of ``width`` bytes are compared; what is kept of those that differ is where they are and what they are:

    kind (1 byte) | number of elements that differ (8) | bytes of the gaps (8) | gaps | values

A gap is the number of equal elements before one that differs, in bytes of base 255: every 255 says "255 more", any other byte ends it.
``overwrite`` stores the new elements as they are, ``xor`` what they differ by, byte plane after byte plane, deflated together with the
gaps: numbers that moved a little share their high bytes, so most of those planes are zeros. The checks are the caller's: it knows the
digests.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from temper.runtime.errors import Rejected

_HEAD = struct.Struct("<BQQ")
_ESCAPE = 255
_FASTEST = 1  # deflate's level: the next ones cost more time than the link they save
Bytes = bytes | bytearray | memoryview


class Kind(IntEnum):
    """How values are stored."""

    XOR = 1
    OVERWRITE = 2


def encode(base: Bytes, new: Bytes, *, width: int, kind: Kind) -> bytes | None:
    """What leads from ``base`` to ``new``; None when nothing differs. Raises ``Rejected`` for unequal lengths."""
    before, after = _elements(base, width), _elements(new, width)
    if before.shape != after.shape:
        raise Rejected(f"a delta needs equal lengths, not {len(base)} and {len(new)} bytes")
    at = _differing(before, after)
    if at.size == 0:
        return None
    gaps = _write_gaps(np.diff(at, prepend=-1) - 1)
    values = after[at]
    if kind is Kind.XOR:
        planes = np.ascontiguousarray((values ^ before[at]).T)
        body = zlib.compress(gaps + planes.tobytes(), _FASTEST)
    else:
        body = gaps + values.tobytes()
    return _HEAD.pack(kind, at.size, len(gaps)) + body


def apply(target: bytearray | memoryview, delta: Bytes, *, width: int) -> None:
    """Turn the base, in place, into what the delta leads to. Raises ``Rejected`` for bytes that are no delta of it."""
    elements = _elements(target, width)
    try:
        kind, count, length = _HEAD.unpack_from(delta)
        body = memoryview(delta)[_HEAD.size :]
        if not 0 < count <= len(elements) or length > count + len(elements):
            raise Rejected("a delta does not fit what it is applied to")
        if Kind(kind) is Kind.XOR:
            body = memoryview(_inflated(body, length + count * width))
        at = np.cumsum(_read_gaps(body[:length]) + 1) - 1
        if len(at) != count or at[-1] >= len(elements):
            raise Rejected("a delta does not fit what it is applied to")
        if Kind(kind) is Kind.XOR:
            elements[at] ^= np.frombuffer(body[length:], np.uint8).reshape(width, count).T
        else:
            elements[at] = np.frombuffer(body[length:], np.uint8).reshape(count, width)
    except (struct.error, zlib.error, ValueError) as broken:
        raise Rejected(f"not a delta: {broken}") from None


def _inflated(packed: memoryview, size: int) -> bytes:
    """Exactly ``size`` bytes; a stream that holds another number is no delta, and never takes more memory than that."""
    stream = zlib.decompressobj()
    data = stream.decompress(packed, size + 1)
    if len(data) != size or not stream.eof:
        raise Rejected("not a delta: it holds another number of bytes than it says")
    return data


def _elements(data: Bytes, width: int) -> NDArray[np.uint8]:
    """The bytes as ``[element, width]``."""
    raw = np.frombuffer(data, np.uint8)
    if width < 1 or raw.size % width:
        raise Rejected(f"{raw.size} bytes are no elements of {width}")
    return raw.reshape(-1, width)


def _differing(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Elements that differ in any bit: compared as whole numbers where there is a number of that width."""
    width = before.shape[1]
    if width in (1, 2, 4, 8):
        number = np.dtype(f"<u{width}")
        return np.flatnonzero(before.view(number)[:, 0] != after.view(number)[:, 0])
    return np.flatnonzero((before != after).any(axis=1))


def _write_gaps(gaps: NDArray[np.int64]) -> bytes:
    more, rest = np.divmod(gaps, _ESCAPE)
    written = np.full(int(more.sum()) + gaps.size, _ESCAPE, np.uint8)
    written[np.cumsum(more + 1) - 1] = rest
    return written.tobytes()


def _read_gaps(written: memoryview) -> NDArray[np.int64]:
    raw = np.frombuffer(written, np.uint8)
    ends = np.flatnonzero(raw != _ESCAPE)
    if raw.size and (ends.size == 0 or ends[-1] != raw.size - 1):
        raise Rejected("a delta's gaps end in the middle of one")
    return _ESCAPE * (np.diff(ends, prepend=-1) - 1) + raw[ends].astype(np.int64)
