"""From settings to a running front: model, lanes, admission of the fast one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pydantic import ValidationError

from temper.rollout.config import EngineConfig
from temper.rollout.engine.choose import make_engine
from temper.rollout.serving.config import ServingSettings
from temper.rollout.serving.directory import Model, read_model
from temper.rollout.serving.fleet import Fleet
from temper.rollout.serving.front import Front
from temper.rollout.serving.metrics import EngineGauges, ServingMetrics
from temper.rollout.serving.sources import Sources
from temper.rollout.serving.variants.record import Records, variant_digest
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import Clock
from temper.runtime.config import rejection
from temper.runtime.errors import Rejected
from temper.runtime.telemetry import new_registry


async def start_front(config: ServingSettings, directory: Path, clock: Clock) -> Front:
    """Everything in an absolute directory loaded and ready to answer. Raises ``Rejected`` for a directory or a fast variant that will not do."""
    model = await asyncio.to_thread(read_model, directory)
    serving = config.serving
    fleet = Fleet(
        model,
        lambda: make_engine(config.engine, clock),
        clock,
        replicas=serving.replicas,
        sources=Sources(serving.weights_root or directory.parent, lambda: BlobStore.configured(config.blobs)),
    )
    await fleet.start()
    try:
        if serving.fast.records is not None:
            await _add_fast(fleet, config, model, clock)
    except BaseException:
        await fleet.close()
        raise
    metrics = ServingMetrics(new_registry())
    metrics.registry.register(EngineGauges(fleet.stats))
    name = serving.name or directory.name
    return Front(serving, name, fleet, clock, metrics, int(time.time()))


def fast_engine_config(config: ServingSettings) -> EngineConfig:
    """Engine settings of the fast variant: the standard ones with what differs."""
    values = config.engine.model_dump() | dict(config.serving.fast.engine)
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        wrong = rejection(error, EngineConfig)
        raise Rejected(wrong.message, field=f"serving.fast.engine.{wrong.field}", hint=wrong.hint) from None


async def _add_fast(fleet: Fleet, config: ServingSettings, model: Model, clock: Clock) -> None:
    fast = config.serving.fast
    assert fast.records is not None
    engine = fast_engine_config(config)
    weights = model if fast.model is None else await asyncio.to_thread(read_model, fast.model)
    record = Records(fast.records).find(variant_digest(model, config.engine), variant_digest(weights, engine))
    if record is None:
        raise Rejected(
            f"the fast variant has no admission record in {fast.records} for these weights and settings",
            field="serving.fast.records",
            hint="temper variant admit compares it with the standard one and writes a record",
        )
    await fleet.add_fast(weights, lambda: make_engine(engine, clock))
