import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.sandbox.engine.guest import wire

MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=4), max_size=5
)


@given(MESSAGES, st.integers(1, 7))
def test_messages_survive_any_cutting_of_the_stream(messages: list[wire.Message], size: int) -> None:
    stream = b"".join(wire.encode(message) for message in messages)
    decoder = wire.Decoder()
    seen = [
        message
        for start in range(0, len(stream), size)
        for message in decoder.feed(stream[start : start + size])
    ]
    assert seen == messages


@pytest.mark.parametrize(
    "frame", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01{", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x02\xff\xff"]
)
def test_nonsense_is_refused(frame: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.Decoder().feed(frame)


def test_descriptors_travel_with_their_message() -> None:
    here, there = socket.socketpair()
    with here, there:
        read_end, write_end = os.pipe()
        wire.send(here, {"a": 1}, [write_end])
        os.close(write_end)
        received = wire.receive(there)
        assert received is not None
        message, (descriptor,) = received
        os.write(descriptor, b"x")
        os.close(descriptor)
        assert (message, os.read(read_end, 10)) == ({"a": 1}, b"x")
        assert not os.get_inheritable(read_end)
        os.close(read_end)


def test_the_end_of_the_stream_is_none() -> None:
    here, there = socket.socketpair()
    here.close()
    with there:
        assert wire.receive(there) is None


def test_a_message_over_the_limit_is_refused_by_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = wire.encode({"a": "x" * 100})
    monkeypatch.setattr(wire, "MAX_MESSAGE", 50)
    with pytest.raises(wire.Malformed, match="over the limit"):
        wire.encode({"a": "x" * 100})
    with pytest.raises(wire.Malformed, match="over the limit"):
        wire.Decoder().feed(frame)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_a_frame_is_plain_json_to_everybody_else(value: object) -> None:
    frame = wire.encode({"value": value})
    assert json.loads(frame[4:]) == {"value": value}
    assert wire.decode(json.dumps({"value": value}, separators=(",", ":")).encode()) == {"value": value}


@pytest.mark.parametrize(
    "body", [b"{} {}", b"{}x", b"", b"  ", b"[]", b"1", b'{"a":', b"\xff{}", b"nonsense"]
)
def test_what_is_not_one_object_is_no_message(body: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.decode(body)
