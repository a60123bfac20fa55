"""From the name in the config to an engine. Vendors are imported here, when they are asked for."""

from __future__ import annotations

from importlib.util import find_spec

from temper.rollout.config import EngineConfig
from temper.rollout.engine.base import Engine
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected


def make_engine(config: EngineConfig, clock: Clock) -> Engine:
    """An engine that is not started yet. Raises ``Rejected`` when its vendor is not installed."""
    if config.name == "fake":
        from temper.rollout.engine.fake import FakeEngine

        return FakeEngine(
            clock, slots=config.slots, max_context=config.max_context, step_seconds=config.step_seconds
        )
    if find_spec("torch") is None:
        raise Rejected("torch is not installed", field="engine.name", hint="pip install 'temper-rl[rollout]'")
    from temper.rollout.engine.torch.engine import TorchEngine

    return TorchEngine(
        slots=config.slots,
        max_context=config.max_context,
        prefill_tokens=config.prefill_tokens,
        kept_tokens=config.kept_tokens,
        threads=config.threads,
        batch_invariant=config.batch_invariant,
        monotonic=clock.monotonic,
    )
