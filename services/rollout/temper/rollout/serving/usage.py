"""Token counts of a response: what was emitted and shown, never more."""

from __future__ import annotations

from typing import Any

from temper.rollout.serving.generation import Ended
from temper.rollout.serving.params import Choice


class Usage:
    """Counts over the choices of one response; each prompt counts once."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}  # by number: tokens, of these cached
        self._completion = self._accepted = 0

    def add(self, choice: Choice, ended: Ended) -> None:
        """Count one output."""
        tokens = len(choice.request.tokens)
        cached = min(tokens, ended.completion.cached_tokens)
        known = self._prompts.get(choice.prompt)
        # Siblings share the prompt of whichever came first: that one says what was cached before the request.
        self._prompts[choice.prompt] = (tokens, cached if known is None else min(cached, known[1]))
        self._completion += len(ended.completion.tokens)
        self._accepted += ended.completion.drafts_accepted

    def json(self) -> dict[str, Any]:
        """OpenAI's ``usage``."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self._prompts.values())},
            "completion_tokens_details": {"accepted_prediction_tokens": self._accepted},
        }
