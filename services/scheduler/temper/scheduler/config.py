"""Settings of the scheduler; `scheduler.toml` beside this package shows each with its reason."""

from __future__ import annotations

from pydantic import Field

from temper.runtime.config import Section, ServiceConfig


class JobsConfig(Section):
    """How jobs are driven."""

    lease_ttl_s: float = Field(default=6.0, gt=0.5)
    """Seconds after which another scheduler takes over the jobs of one that died."""
    look_s: float = Field(default=1.0, gt=0)
    """Seconds between two looks for jobs that nobody drives."""
    beat_s: float = Field(default=1.0, gt=0)
    """Seconds between two progress events of a job."""
    stall_s: float = Field(default=30.0, gt=0)
    """Seconds without any progress after which a notice names what is waited for."""
    reissue_after_s: float = Field(default=120.0, gt=0)
    """Seconds without any progress, live workers present, after which unfinished groups are published again.

    Never less than three group deadlines; not below the broker's duplicate window of 120 s without need."""
    resolve_timeout_s: float = Field(default=30.0, gt=0, le=300)
    """Seconds after which qa is asked again for a job's environments; checks under way go on meanwhile."""
    eval_samples_per_group: int = Field(default=64, ge=1, le=4096)
    """Samples in one evaluation group."""


class NamesConfig(Section):
    """What job files may name in the moments before a live trainer says what it offers."""

    algorithms: list[str] = [
        "sft",
        "grpo",
        "cispo",
        "dapo",
        "decoupled_ppo",
        "distill",
        "dpo",
        "dppo",
        "dr_grpo",
        "gspo",
        "importance",
        "m2po",
        "maxrl",
        "ppo",
        "reinforce_pp",
        "reward_model",
        "rloo",
        "sapo",
    ]
    """Algorithms."""
    engines: list[str] = ["torch"]
    """Engines of the trainer."""


class SchedulerConfig(ServiceConfig):
    """Everything."""

    jobs: JobsConfig = JobsConfig()
    """How jobs are driven."""
    names: NamesConfig = NamesConfig()
    """What job files may name."""
    max_upload_bytes: int = Field(default=8 << 30, ge=1)
    """Largest artifact that a client may upload."""
