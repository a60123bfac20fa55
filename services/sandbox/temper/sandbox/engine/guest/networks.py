"""Network namespaces: one per slot, loopback up, used by one sandbox after another.

Making one costs as much as the rest of a sandbox. It is used again only when no socket is left in it, connections that are
still closing included; otherwise the sandbox gets one of its own.
"""

import os
from typing import NamedTuple

from temper.sandbox.engine.guest import syscalls

_METERS = ("/proc/self/net/sockstat", "/proc/self/net/sockstat6")


class Network(NamedTuple):
    """A network namespace kept for one slot. Example: `Network(9, (10, 11))`."""

    namespace: int
    """Descriptor to enter it by."""
    meters: tuple[int, ...]
    """Its `sockstat` files, held open: each read gives the counts of that moment."""

    def empty(self) -> bool:
        """Whether nothing of an earlier tenant is left, closing connections included. Source: proc_pid_net(5)."""
        return not any(_busy(os.pread(meter, 4096, 0)) for meter in self.meters)


def _busy(text: bytes) -> bool:
    for line in text.splitlines():
        words = line.split()  # TCP: inuse 0 orphan 0 tw 0 alloc 5 mem 0 / TCP6: inuse 0
        if words[:1] in ([b"TCP:"], [b"TCP6:"]):
            return words[2] != b"0" or words[5:7] not in ([], [b"tw", b"0"])
    return False


class Networks:
    """The namespaces kept so far. The launcher moves itself; a child is born where its parent is."""

    def __init__(self) -> None:
        self._kept: dict[int, Network] = {}

    def enter(self, slot: int) -> None:
        """Move this process into a network without sockets: the slot's own, or a new one. Raises OSError."""
        kept = self._kept.get(slot)
        if kept is not None and kept.empty():
            syscalls.enter_network(kept.namespace)
            return
        syscalls.unshare(syscalls.CLONE_NEWNET)
        syscalls.loopback_up()
        if kept is None:
            meters = tuple(_open(path) for path in _METERS if os.path.exists(path))  # noqa: PTH110 - see launcher
            self._kept[slot] = Network(_open("/proc/self/ns/net"), meters)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
