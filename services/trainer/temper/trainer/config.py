"""Settings of the trainer service. ``trainer.toml`` beside this service's README says the same with comments."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from temper.runtime.config import Section, ServiceConfig


class EngineConfig(Section):
    """Defaults of training engines; a job names its engine itself."""

    threads: int = Field(default=1, ge=1)
    """Threads of one tensor operation."""
    micro_batch_tokens: int = Field(default=0, ge=0)
    """Tokens that go through the model at once when the job does not say; 0 is the engine's own choice."""


class WorkerConfig(Section):
    """How a worker trains."""

    jobs: int = Field(default=1, ge=1)
    """Jobs trained at once."""
    patience_s: float = Field(default=60.0, gt=0)
    """Seconds to keep trying while the log, the object store or the broker is away; then the job is handed back."""
    stall_s: float = Field(default=120.0, gt=0)
    """Seconds without a single new group after which the log says what is waited for, again and again."""
    poll_s: float = Field(default=1.0, gt=0)
    """Longest wait of one read of the event log, seconds."""


class PublicationConfig(Section):
    """Published policy versions."""

    keep_versions: int = Field(default=4, ge=2)
    """Newest versions kept in the object store, with what they build on; version 0 stays until the job's data is deleted."""
    full_every: int = Field(default=1, ge=1, le=64)
    """Every which publication holds full weights, the others what changed since the one before; 1: every one."""
    delta: Literal["xor", "overwrite"] = "xor"
    """How changes are stored: ``xor`` is smaller, ``overwrite`` quicker."""
    delta_max_ratio: float = Field(default=0.5, gt=0, le=1)
    """Bytes of a delta over those of the weights above which full weights are published instead."""


class SnapshotsConfig(Section):
    """Snapshots for recovery."""

    keep: int = Field(default=2, ge=2)
    """Newest snapshots kept in the object store, so that one broken file is not the end."""
    memory_dir: str = ""
    """Directory in memory (tmpfs) for snapshots that survive the process; empty: none."""
    memory_every: int = Field(default=1, ge=1)
    """Steps between snapshots in memory."""
    memory_keep: int = Field(default=2, ge=1)
    """Newest snapshots kept in memory."""
    disk_dir: str = ""
    """Directory on a disk of this machine for snapshots that survive its restart; empty: none."""
    disk_every: int = Field(default=5, ge=1)
    """Steps between snapshots on the disk."""
    disk_keep: int = Field(default=2, ge=1)
    """Newest snapshots kept on the disk."""

    @model_validator(mode="after")
    def _have_places(self) -> Self:
        """A level is a directory of its own; settings of a level that has none would do nothing."""
        fields = type(self).model_fields
        for level in ("memory", "disk"):
            directory = str(getattr(self, f"{level}_dir"))
            if directory and not directory.startswith("/"):
                raise ValueError(f"{level}_dir must be an absolute path, not {directory!r}")
            for name in (f"{level}_every", f"{level}_keep"):
                if not directory and getattr(self, name) != fields[name].default:
                    raise ValueError(f"{name} has no effect without {level}_dir")
        if self.memory_dir and self.memory_dir == self.disk_dir:
            raise ValueError("memory_dir and disk_dir must differ")
        return self


class TrainerConfig(ServiceConfig):
    """The whole file."""

    engine: EngineConfig = EngineConfig()
    """Defaults of training engines."""
    worker: WorkerConfig = WorkerConfig()
    """How a worker trains."""
    publication: PublicationConfig = PublicationConfig()
    """Published policy versions."""
    snapshots: SnapshotsConfig = SnapshotsConfig()
    """Snapshots for recovery."""
