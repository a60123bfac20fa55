"""The tree of commands: `temper <noun> <verb>`."""

from __future__ import annotations

from cyclopts import App, Parameter

from temper.client.cli import (
    approvals,
    config,
    doctor,
    env,
    job,
    plan,
    platform,
    policy,
    query,
    running,
    sandbox,
    variant,
)
from temper.client.cli.exits import EPILOGUE


def build() -> App:
    """A fresh command tree."""
    app = App(
        name="temper",
        help="RL post-training for LLM agents: small services, one contract, one command.",
        help_epilogue=EPILOGUE,
        version=_version,
        default_parameter=Parameter(negative=()),  # a flag that is off by default needs no second name
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for group in (
        running,
        doctor,
        job,
        env,
        policy,
        platform,
        approvals,
        sandbox,
        query,
        config,
        variant,
        plan,
    ):
        group.register(app)
    app.register_install_completion_command()
    return app


def _version() -> str:
    from importlib.metadata import version

    return version("temper-rl")
