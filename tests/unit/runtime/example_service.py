"""A service with one of everything, run as a real process by the tests of the service life cycle."""

import asyncio
import sys
from typing import Any

from pydantic import Field

from temper.api.job.v1 import platform_pb2 as pb
from temper.api.job.v1 import platform_pb2_grpc as pb_grpc
from temper.runtime.config import Section, ServiceConfig
from temper.runtime.errors import Unavailable
from temper.runtime.service import Context, run_service
from temper.runtime.supervisor import Restarts


class WorkConfig(Section):
    mode: str = "wait"
    slots: int = Field(default=2, ge=1)


class ExampleConfig(ServiceConfig):
    work: WorkConfig = WorkConfig()


class Platform(pb_grpc.PlatformServiceServicer):
    async def ListServices(self, request: pb.ListServicesRequest, context: Any) -> pb.ListServicesResponse:
        return pb.ListServicesResponse()


def say(word: str) -> None:
    print(word, flush=True)  # noqa: T201 - the test reads it


async def build(context: Context[ExampleConfig]) -> None:
    context.grpc.add(
        pb_grpc.add_PlatformServiceServicer_to_server, Platform(), "temper.api.job.v1.PlatformService"
    )
    context.presence.reports(lambda: {"slots": context.config.work.slots})

    async def fetch() -> None:
        if context.config.work.mode == "fail":
            raise Unavailable("always")
        if context.config.work.mode == "stop":
            context.stop()
        try:
            await asyncio.Event().wait()
        finally:
            say("tasks-cancelled")

    async def first() -> None:
        say(f"drain-first ready={context.presence.state}")

    async def second() -> None:
        say("drain-second")
        if context.config.work.mode == "drain-fails":
            raise Unavailable("the broker is away")
        if context.config.work.mode == "hang":
            await asyncio.Event().wait()

    context.on_drain("first", first)
    context.on_drain("second", second)
    context.supervisor.start("fetch", fetch, restarts=Restarts(most=1, first_pause_s=0.01))
    say("built")


if __name__ == "__main__":
    sys.exit(run_service("example", ExampleConfig, build))
