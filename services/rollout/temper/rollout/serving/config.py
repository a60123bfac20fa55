"""Settings of the HTTP front, section ``[serving]`` of the rollout service. Only ``temper serve rollout --model`` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from temper.rollout.config import RolloutConfig
from temper.runtime.config import Section


class FastConfig(Section):
    """A second, faster copy of the model. It serves only while an admission record speaks for it."""

    model: Path | None = None
    """Directory of distilled weights; none for the standard ones."""
    engine: dict[str, str | int | float | bool] = {}
    """Settings of ``[engine]`` that differ, for example ``{ batch_invariant = false }``."""
    records: Path | None = None
    """Directory of admission records (``temper variant admit``); none for no fast variant."""


class ServingConfig(Section):
    """Address, limits and copies."""

    host: str = "127.0.0.1"
    """Interface to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port; 0 takes a free one."""
    name: str | None = None
    """Name of the model in the API; none for the directory's."""
    replicas: int = Field(default=1, ge=1, le=64)
    """Engines that serve the standard variant, behind a router."""
    token_file: Path | None = None
    """File that holds the API key; none for an open server."""
    max_requests: int = Field(default=256, ge=1)
    """Requests answered at once; one more is told to come back."""
    max_body_bytes: int = Field(default=8 << 20, ge=1 << 10)
    """Largest request body."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds a client may take to send its body."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds an output may take, queueing included."""
    weights_root: Path | None = None
    """Directory that ``/v1/weights`` and ``/v1/canary`` may load from; none for the one that holds the model."""
    default_class: Literal["interactive", "batch", "research"] = "interactive"
    """Class of requests to the OpenAI routes that name none."""
    fast: FastConfig = FastConfig()
    """The fast variant."""


class ServingSettings(RolloutConfig):
    """The rollout service's settings with the front's. Of the others only ``engine``, ``logging`` and the drain timeout count."""

    serving: ServingConfig = ServingConfig()
    """The HTTP front."""
