"""What a bare sandbox may reach, from the short texts of `--allow`."""

import pytest
from tests.unit.client.test_sandbox_client import scripted

from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.client.sdk.egress import policy
from temper.runtime.errors import Rejected


def test_each_text_is_a_rule() -> None:
    asked = policy(["pypi.org", "*.x.org:8443", "api.x.org=key", "api.x.org:81=key"])
    assert asked is not None
    assert asked.mode == "allow"
    assert [(each.host, list(each.ports), each.secret) for each in asked.rules] == [
        ("pypi.org", [], ""),
        ("*.x.org", [8443], ""),
        ("api.x.org", [], "key"),
        ("api.x.org", [81], "key"),
    ]
    assert policy("pypi.org") == policy(["pypi.org"])
    assert policy(()) is None


@pytest.mark.parametrize(
    "text", ["", ":80", "x:", "x:0", "x:65536", "x:-1", "x:http", "x:²", "x=", "=key", "x:80="]
)
def test_a_text_that_is_no_rule_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(Rejected, match=r"allow: .*HOST\[:PORT\]\[=SECRET\]"):
        policy([text])


async def test_a_sandbox_asks_for_what_it_may_reach_and_by_default_for_nothing() -> None:
    client, bus = scripted(Acquire=[pb.AcquireResponse(host="h")])
    await client.create("a", lease_s=1, allow="pypi.org")
    await client.create("b", lease_s=1)
    first, second = (request for _, request in bus.sent)
    assert first.egress == policy("pypi.org")
    assert not second.HasField("egress")
