"""Stop strings: one watcher, fed with text as it is decoded, that says what may be shown and where to cut.

    text in  ->  [released | held]      held: the longest tail that may still become a stop
    a stop completes  ->  everything from its first character on is never shown

The first stop to *complete* wins, the earlier beginning on a tie. So the outcome is a function of the text alone: how
the text was chopped into tokens, or tokens into speculative runs, cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from temper.rollout.serving.decode import Decoder

MOST_STOPS, LONGEST_STOP = 16, 256  # strings, characters: what is held back stays small


class StopWatcher:
    """Watches one output. Example: stops ``("DEFG",)``; ``feed("xDE")`` gives ``"x"``, ``feed("Z")`` gives ``"DEZ"``."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop that completed."""
        self.rest = ""
        """What was fed behind it."""

    def feed(self, text: str) -> str:
        """Text that may be shown now. Nothing more may be fed once a stop has matched."""
        if not self._stops:
            return text
        held = self._held + text
        found = min(
            ((at + len(stop), at, stop) for stop in self._stops if (at := held.find(stop)) >= 0), default=None
        )
        if found is not None:
            end, at, self.matched = found
            self._held, self.rest = "", held[end:]
            return held[:at]
        keep = self._possible_head(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What is held: the output has ended, nothing can complete any more."""
        held, self._held = self._held, ""
        return held

    def _possible_head(self, text: str) -> int:
        """Length of the longest tail of ``text`` that begins a stop."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class Cutter:
    """From token ids to shown text, with the number of tokens that the shown text rests on.

    Ids, logprobs, versions and text are cut at one place: the kept tokens are the fewest whose text covers what is shown.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str]) -> None:
        self._decoder, self._watcher = decoder, StopWatcher(stops)
        self._whole: list[int] = []  # characters complete with each token
        self._begun: list[int] = []  # the same, and the one it ends in
        self._decoded = self._shown = 0
        self.kept = 0
        """Tokens whose text has been released."""

    @property
    def matched(self) -> str | None:
        """The stop string that ended the output."""
        return self._watcher.matched

    def feed(self, token: int) -> str:
        """Text released by one more token."""
        piece = self._decoder.feed(token)
        self._decoded += len(piece)
        self._whole.append(self._decoded)
        self._begun.append(self._decoded + self._decoder.inside)
        return self._release(self._watcher.feed(piece))

    def finish(self) -> str:
        """Text that was held back, now that the output has ended by itself."""
        piece = self._decoder.flush()
        self._decoded += len(piece)
        if self._whole:
            self._whole[-1] = self._begun[-1] = self._decoded
        shown = self._watcher.feed(piece)
        if self.matched is None:
            shown += self._watcher.flush()
        return self._release(shown)

    def _release(self, text: str) -> str:
        self._shown += len(text)
        if self.matched is not None:
            while (self._whole[self.kept - 1] if self.kept else 0) < self._shown:
                self.kept += 1
        else:
            while self.kept < len(self._begun) and self._begun[self.kept] <= self._shown:
                self.kept += 1
        return text
