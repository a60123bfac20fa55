"""Finished sequences that may be continued, with a bound on the KV they hold."""

from __future__ import annotations

from temper.rollout.engine.torch.sequence import Kept


class Shelf:
    """Kept sequences by request id. Over ``limit`` tokens the oldest lose their KV, never their tokens."""

    def __init__(self, limit: int) -> None:
        self.tokens = 0
        self._limit = limit
        self._kept: dict[str, Kept] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._kept

    def put(self, request_id: str, kept: Kept) -> None:
        """Shelve a sequence; evicts KV of older ones while over the limit."""
        self._kept[request_id] = kept
        self.tokens += _held(kept)
        for older in self._kept.values():
            if self.tokens <= self._limit:
                break
            self.tokens -= _held(older)
            older.buffer = None

    def take(self, request_id: str) -> Kept | None:
        """Remove and return a sequence."""
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self.tokens -= _held(kept)
        return kept

    def drop(self, request_id: str) -> None:
        """Forget a sequence."""
        self.take(request_id)


def _held(kept: Kept) -> int:
    return 0 if kept.buffer is None else kept.buffer.shape[3]
