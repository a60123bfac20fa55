"""Settings of the qa service; every default stands in `qa.toml` with a comment."""

from __future__ import annotations

from pydantic import Field

from temper.runtime.config import Section, ServiceConfig


class ChecksConfig(Section):
    """Admission checks."""

    tasks: int = Field(default=5, ge=2, le=64)
    """Tasks that oracles and agents play."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Episodes of one environment at a time."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for all checks of one environment; after it there is no verdict."""
    rpc_timeout_s: float = Field(default=60.0, gt=0, le=300)
    """Seconds for one request to the sandbox service."""
    sandbox_wait_s: float = Field(default=15.0, ge=0)
    """Seconds to wait for a sandbox host that is still starting."""


class LiveConfig(Section):
    """Solve rates seen in rollouts."""

    flush_s: float = Field(default=3.0, gt=0)
    """Seconds between two writes of changed rates."""
    batch: int = Field(default=200, ge=1)
    """Most records read at once."""


class QaConfig(ServiceConfig):
    """All of `qa.toml`."""

    checks: ChecksConfig = ChecksConfig()
    """Admission checks."""
    live: LiveConfig = LiveConfig()
    """Solve rates seen in rollouts."""
    builtin: bool = True
    """Register the environments that come with the package."""
