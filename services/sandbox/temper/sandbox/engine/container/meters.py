"""Counters of a control group that somebody else makes and removes."""

import contextlib

from temper.sandbox.engine.verdict import Counters
from temper.sandbox.engine.watch import Meter


class LastingMeter:
    """A meter whose last reading stays after its group has gone."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last = Counters()

    def counters(self) -> Counters:
        """The meters now, or as they were last."""
        with contextlib.suppress(OSError):
            self._last = self._meter.counters()
        return self._last

    def reset_peak(self) -> None:
        """Start a new high-water mark."""
        with contextlib.suppress(OSError):
            self._meter.reset_peak()
