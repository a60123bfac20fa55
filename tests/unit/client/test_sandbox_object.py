"""The blocking object over a bus that answers as it is told."""

from typing import Any

import pytest
from tests.unit.client.test_sandbox_client import scripted

from temper.api.sandbox.v1 import control_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.client.sdk.sandbox import MOST_STDIN, Place
from temper.client.sdk.sandboxes import Loop, Sandbox
from temper.runtime.errors import Rejected, Stale


def box(**script: list[Any]) -> tuple[Sandbox, Any]:
    client, bus = scripted(**script)
    return Sandbox(client, Place("h", "a"), Loop()), bus


def test_a_program_that_did_not_start_says_why() -> None:
    failed = pb.ExecResponse(
        result=pb.CommandResult(outcome=pb.OUTCOME_OK, error="No such file or directory")
    )
    ended = control_pb2.ReadOutputResponse(ended=True)
    made, _ = box(Exec=[failed], ReadOutput=[ended], Release=[pb.ReleaseResponse()])
    with made:
        ran = made.run(["nosuch"])
    assert (ran.exit_code, ran.error) == (None, "No such file or directory")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    made, bus = box(Release=[pb.ReleaseResponse()])
    with made, pytest.raises(Rejected, match="wall_s"):
        made.run("true", timeout_s=seconds)
    assert [method for method, _ in bus.sent] == ["Release"]


def test_input_that_fits_no_message_is_told_the_way_out() -> None:
    made, _ = box(Release=[pb.ReleaseResponse()])
    with made, pytest.raises(Rejected, match=r"stdin: .*write it into a file"):
        made.run("cat", stdin=b"x" * (MOST_STDIN + 1))


def test_what_is_closed_stays_closed_and_says_so() -> None:
    made, bus = box(Release=[pb.ReleaseResponse()])
    made.close()
    made.close()
    assert [method for method, _ in bus.sent] == ["Release"]
    for use in (lambda: made.run("true"), lambda: made.files.read("/work/a"), lambda: made.call("python")):
        with pytest.raises(Stale, match="closed"):
            use()


async def test_one_need_may_be_a_text() -> None:
    client, bus = scripted(Acquire=[pb.AcquireResponse(host="h")])
    await client.create("a", lease_s=1, needs="sessions")
    assert list(bus.sent[0][1].needs) == ["sessions"]
