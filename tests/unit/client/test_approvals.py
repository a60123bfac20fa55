import json
from collections.abc import Callable

from tests.unit.client.conftest import Said
from tests.unit.client.fakes import World

from temper.api.sandbox.v1 import approval_pb2 as pb

Ask = Callable[..., Said]


def waiting(world: World, key: str = "abc") -> pb.Approval:
    record = pb.Approval(
        approval_id=key, kind="tool", state=pb.APPROVAL_STATE_PENDING, subject_json='{"name":"shell"}'
    )
    record.expires_at.FromSeconds(1_900_000_000)
    world.approvals.append(record)
    return record


def test_what_waits_is_listed_with_its_subject(ask: Ask, world: World) -> None:
    waiting(world)
    said = ask("approvals", "list", "-o", "json")
    (row,) = json.loads(said.out)
    assert (row["approval_id"], row["state"], row["subject"]) == ("abc", "pending", '{"name":"shell"}')
    assert "abc" in ask("approvals", "list").out


def test_a_yes_is_sent_with_its_author(ask: Ask, world: World) -> None:
    record = waiting(world)
    assert ask("approvals", "grant", "abc", "--reason", "fine").code == 0
    assert (record.state, record.reason) == (pb.APPROVAL_STATE_GRANTED, "fine")
    assert record.resolved_by
    assert "abc" not in ask("approvals", "list").out
    assert "abc" in ask("approvals", "list", "--all").out


def test_a_no_is_a_no_and_a_second_word_is_refused(ask: Ask, world: World) -> None:
    record = waiting(world)
    assert ask("approvals", "deny", "abc").code == 0
    assert record.state == pb.APPROVAL_STATE_DENIED
    said = ask("approvals", "grant", "abc")
    assert said.code != 0
    assert "answered already" in said.err
    assert record.state == pb.APPROVAL_STATE_DENIED
