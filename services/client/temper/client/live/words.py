"""Numbers as people read them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from temper.client.sdk.types import GateVerdict

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """`95` as `1:35`; a dash for unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float) -> str:
    """`.123` as `12%`."""
    return f"{100 * share:.0f}%"


def interval(value: float, low: float, high: float) -> str:
    """`0.371 [0.31, 0.43]`."""
    return f"{value:.3f} [{low:.2f}, {high:.2f}]"


def sparkline(values: Sequence[float], width: int, low: float = 0.0, high: float = 1.0) -> str:
    """`values` as `width` or fewer blocks; each block is the mean of its share of the values."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    span = (high - low) or 1.0
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(max(round((mean - low) / span * top), 0), top)] for mean in means)


def dropped(reasons: Mapping[str, int]) -> str:
    """`{"DROP_REASON_STALE": 2}` as `2 dropped (2 stale)`."""
    total = sum(reasons.values())
    if not total:
        return "0 dropped"
    parts = ", ".join(f"{count} {reason_word(name)}" for name, count in sorted(reasons.items()) if count)
    return f"{total} dropped ({parts})"


def reason_word(name: str) -> str:
    """`DROP_REASON_STALE` as `stale`."""
    return name.removeprefix("DROP_REASON_").lower()


def verdict_line(verdict: GateVerdict) -> str:
    """`step-40 fail, rollback: calc: pass@1 moved by -0.31 …`."""
    action = f", {verdict.action}" if verdict.action else ""
    return f"{verdict.point} {verdict.verdict.replace('_', ' ')}{action}: {verdict.message}"


def diagnosed(diagnostics: Mapping[str, float]) -> str:
    """How well sampler and trainer agree and what a step was made of: `mismatch k3 0.0012, ess 97%, masked 3%, flat 40%`."""
    said = [f"mismatch k3 {diagnostics['mismatch_k3']:.2g}"] if "mismatch_k3" in diagnostics else []
    for name, word in (("ess", "ess"), ("masked_share", "masked"), ("flat_share", "flat")):
        if name in diagnostics:
            said.append(f"{word} {percent(diagnostics[name])}")
    return ", ".join(said)
