"""From the name in the config to an engine. Vendors are imported here, when they are asked for."""

from __future__ import annotations

from importlib.util import find_spec

from temper.rollout.config import EngineConfig
from temper.rollout.engine.base import Engine
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected

# Options that not every engine has. Elsewhere, any value but the default would be without effect: it is refused.
_ONLY = {
    "prefill_tokens": ("torch", "tensorrt_llm"),
    "kv_tokens": ("torch", "fake"),
    "memory_mib": ("torch",),
    "batch_invariant": ("torch",),
    "threads": ("torch",),
    "speculation": ("torch",),
    "quantisation": ("torch",),
    "sparse_threshold": ("torch",),
    "sparse_keep": ("torch",),
    "step_seconds": ("fake",),
    "step_limit_s": ("torch",),
    "tensorrt_llm": ("tensorrt_llm",),
}


def make_engine(config: EngineConfig, clock: Clock) -> Engine:
    """An engine that is not started yet.

    Raises ``Rejected`` when its vendor is not installed, or for an option that would have no effect on it.
    """
    _refuse_idle_options(config)
    if config.name == "tensorrt_llm":
        return _make_tensorrt(config, clock)
    if config.name == "fake":
        from temper.rollout.engine.fake import FakeEngine

        return FakeEngine(
            clock,
            slots=config.slots,
            max_context=config.max_context,
            kv_tokens=config.kv_tokens,
            step_seconds=config.step_seconds,
        )
    _need_torch()
    from temper.rollout.engine.torch.engine import TorchEngine
    from temper.rollout.engine.torch.fast import Fast

    return TorchEngine(
        slots=config.slots,
        max_context=config.max_context,
        prefill_tokens=config.prefill_tokens,
        kv_tokens=config.kv_tokens,
        memory_mib=config.memory_mib,
        threads=config.threads,
        step_limit_s=config.step_limit_s,
        batch_invariant=config.batch_invariant,
        fast=Fast(config.speculation, config.quantisation, config.sparse_threshold, config.sparse_keep),
        monotonic=clock.monotonic,
    )


def _make_tensorrt(config: EngineConfig, clock: Clock) -> Engine:
    _need_torch()
    from temper.rollout.engine.tensorrt_llm.engine import TensorRtEngine
    from temper.rollout.engine.tensorrt_llm.workers import Options

    own = config.tensorrt_llm
    options = Options(
        slots=config.slots,
        max_context=config.max_context,
        prefill_tokens=config.prefill_tokens,
        tensor_parallel=own.tensor_parallel,
        dtype=own.dtype,
        kv_fraction=own.kv_fraction,
        kv_dtype=own.kv_dtype,
        prefix_reuse=own.prefix_reuse,
        logits_bytes=own.logits_mb << 20,
        swap_wait_s=own.swap_wait_s,
    )
    return TensorRtEngine(clock, options)


def _need_torch() -> None:
    if find_spec("torch") is None:
        raise Rejected("torch is not installed", field="engine.name", hint="pip install 'temper-rl[rollout]'")


def _refuse_idle_options(config: EngineConfig) -> None:
    defaults = EngineConfig()
    for name, engines in _ONLY.items():
        if config.name not in engines and getattr(config, name) != getattr(defaults, name):
            raise Rejected(
                f"has no effect on the engine {config.name}",
                field=f"engine.{name}",
                hint=f"leave it out, or choose {' or '.join(engines)}",
            )
