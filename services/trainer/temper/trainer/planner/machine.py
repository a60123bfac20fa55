"""What a device holds, computes and moves. Vendors' data sheets; ``efficiency`` is what good kernels reach of the peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIB = 1 << 30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of device in nodes of some."""

    name: str
    memory: int
    """Bytes of one device."""
    flops: float
    """Peak dense bf16 operations per second."""
    node: int
    """Devices of one node."""
    inside: float
    """Bytes per second and direction between devices of a node."""
    outside: float
    """Bytes per second and device between nodes."""
    efficiency: float = 0.6
    """Share of the peak that the products of a large layer reach."""


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            Machine("a100-80g", 80 * GIB, 312 * TERA, 8, 300 * GIGA, 25 * GIGA),
            Machine("h100", 80 * GIB, 989 * TERA, 8, 450 * GIGA, 50 * GIGA, efficiency=0.55),
            Machine("h200", 141 * GIB, 989 * TERA, 8, 450 * GIGA, 50 * GIGA, efficiency=0.55),
            Machine("b200", 180 * GIB, 2250 * TERA, 8, 900 * GIGA, 50 * GIGA, efficiency=0.5),
        )
    }
)
