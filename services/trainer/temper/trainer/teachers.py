"""The policies that phases learn from: checked before anything is trained, fetched when their phase begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected
from temper.trainer.engine.base import Engine, Teacher
from temper.trainer.origin import CONFIG, json_object, weights_among
from temper.trainer.plan import PhasePlan


async def check_teachers(blobs: BlobStore, phases: Sequence[PhasePlan], engine: Engine) -> None:
    """Raises Rejected for one that cannot teach the policy of the engine."""
    for phase in phases:
        config = await _config(blobs, phase)
        if config is not None:
            with told_of(phase):
                engine.check_teacher(config)


async def fetch_teacher(blobs: BlobStore, phase: PhasePlan) -> Teacher | None:
    """The teacher of a phase, whole; None if it has none."""
    if not phase.teacher:
        return None
    return Teacher(await weights_among(blobs, phase.teacher), await _config(blobs, phase))


@contextlib.contextmanager
def told_of(phase: PhasePlan) -> Iterator[None]:
    """What is wrong with the teacher of a phase is told of the field that names it."""
    try:
        yield
    except Rejected as error:
        if not phase.teacher:
            raise
        raise Rejected(error.message, field=_field(phase), hint=error.hint) from error


async def _config(blobs: BlobStore, phase: PhasePlan) -> Mapping[str, Any] | None:
    given = phase.teacher
    return await json_object(blobs, given, CONFIG, _field(phase)) if CONFIG in given else None


def _field(phase: PhasePlan) -> str:
    return f"{phase.path}.teacher"
