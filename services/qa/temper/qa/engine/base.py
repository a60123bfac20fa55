"""The seam between admission and the place where environments run: the sandbox contract, as far as a check needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.sandbox.v1.sandbox_pb2 import (
    FinishRequest,
    FinishResponse,
    MaterializeResponse,
    StepRequest,
    StepResponse,
)


class Probe(Protocol):
    """A sandbox host, used exactly as rollouts use it."""

    async def backend(self) -> str:
        """Name of the backend that answers, e.g. `namespaces`. Unavailable if none does."""
        ...

    async def materialize(
        self, env: EnvRef, split: str, indices: Sequence[int], style: str = ""
    ) -> MaterializeResponse:
        """Tasks as the policy would see them, with the oracle's actions if a `style` is given.

        Raises Rejected if the environment itself refuses, Unavailable if no host answers in time.
        """
        ...

    async def step(self, request: StepRequest) -> StepResponse:
        """One tool call; the first of a session acquires the sandbox."""
        ...

    async def finish(self, request: FinishRequest) -> FinishResponse:
        """Verdict on an answer; releases the session."""
        ...
