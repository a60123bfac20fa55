"""The table of the guide, from what backends say of themselves."""

from dataclasses import fields
from pathlib import Path

from temper.sandbox.engine.base import Capabilities, Limits

GUIDE = Path(__file__).parents[3] / "docs/guides/sandboxes.md"
BOUNDS = {each.name for each in fields(Limits)} - {"grace_s", "guarantee"}
HEAD = (
    "| backend | isolation | sessions | terminals | trees, watches | snapshots | fork | networks | limits that do not hold "
    "or are the cluster's | `filtered` |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def row(has: Capabilities) -> str:
    """A line of the table."""
    loose = sorted(BOUNDS - has.enforced)
    cells = (
        f"`{has.backend}`",
        has.isolation.name.lower(),
        _word(has.sessions),
        _word(has.terminals),
        _word(has.trees),
        ", ".join(has.snapshots) or "no",
        _word(has.max_fork > 0),
        ", ".join(has.network_modes),
        ", ".join(loose) or "none",
        _word(has.filtered),
    )
    return f"| {' | '.join(cells)} |\n"


def _word(there: bool) -> str:
    return "yes" if there else "no"
