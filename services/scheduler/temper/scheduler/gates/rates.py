"""What each held-out task did at an evaluation: its share of solved samples, two hexadecimal digits a task.

The digits count 240ths, so shares of up to 6, and of 8, 10, 12, 15, 16, 20, 24, 30 or more samples that divide 240 are exact. ``ff`` is a task
without a valid sample. The text is a part of the job's books, so its length is bounded: what is past the bound is not kept, and compared
without pairs.
"""

from __future__ import annotations

WHOLE = 240
UNKNOWN = "ff"


def put(rates: str, task: int, share: float) -> str:
    """`rates` with the share of `task`; earlier tasks that are not known yet are left open."""
    rates = rates.ljust(2 * task, "f")
    return rates[: 2 * task] + f"{round(share * WHOLE):02x}" + rates[2 * task + 2 :]


def shares(rates: str) -> list[float | None]:
    """Share of each task, by its index; None where it is not known."""
    digits = (rates[at : at + 2] for at in range(0, len(rates), 2))
    return [None if each == UNKNOWN else int(each, 16) / WHOLE for each in digits]


def pairs(before: str, after: str) -> list[float]:
    """Change of each task that both evaluations know."""
    return [
        new - old
        for old, new in zip(shares(before), shares(after), strict=False)
        if old is not None and new is not None
    ]
