"""Algorithms by name. Every module of this package that defines ``ALGORITHM`` is one; there is no list to keep."""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm

__all__ = ["Algorithm", "algorithm", "registry"]


@cache
def registry() -> Mapping[str, Algorithm]:
    """All algorithms, by name."""
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(__path__):
        entry = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ALGORITHM", None)
        if isinstance(entry, Algorithm):
            found[entry.name] = entry
    return MappingProxyType(found)


def algorithm(name: str, *, path: str = "phase") -> Algorithm:
    """One algorithm. Raises Rejected with the nearest name if there is none."""
    known = registry()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
        raise Rejected(f"unknown algorithm {name!r}", field=f"{path}.algorithm", hint=hint)
    return known[name]
