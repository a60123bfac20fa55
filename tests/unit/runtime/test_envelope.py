from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.envelope import Envelope, decode, encode, parse, type_of
from temper.runtime.errors import Rejected

visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
# Milliseconds since the epoch, as the headers carry them.
times = st.integers(1, 4_000_000_000_000).map(lambda ms: ms / 1000)


@given(
    st.builds(
        Envelope,
        id=visible,
        type=visible,
        source=visible,
        subject=st.just("") | visible,
        time=times,
        deadline=st.none() | times,
        fence=st.none() | st.integers(1, 2**63),
        attempt=st.integers(1, 100),
        traceparent=st.none() | visible,
    )
)
def test_an_envelope_survives_its_headers(envelope: Envelope):
    decoded = decode(encode(envelope))
    assert decoded.time == pytest.approx(envelope.time, abs=0.0011)
    assert decoded.deadline == (
        None if envelope.deadline is None else pytest.approx(envelope.deadline, abs=0.001)
    )
    for name in ("id", "type", "source", "subject", "fence", "attempt", "traceparent"):
        assert getattr(decoded, name) == getattr(envelope, name)


def test_headers_are_cloudevents_in_binary_mode():
    envelope = Envelope(
        "g-1", "a.B", "scheduler/1", "job7", 1_772_366_400.25, 1_772_366_430.5, 41, 2, "00-ab-cd-01"
    )
    assert encode(envelope) == {
        "ce-specversion": "1.0",
        "ce-id": "g-1",
        "ce-type": "a.B",
        "ce-source": "scheduler/1",
        "ce-subject": "job7",
        "ce-time": "2026-03-01T12:00:00.250Z",
        "temper-deadline": "1772366430.500",
        "temper-fence": "41",
        "temper-attempt": "2",
        "traceparent": "00-ab-cd-01",
    }


def test_what_is_not_said_is_not_sent():
    assert set(encode(Envelope("x", "y"))) == {"ce-specversion", "ce-id", "ce-type", "ce-source"}


def test_the_broker_knows_the_attempt_better():
    assert decode(encode(Envelope("x", "y", attempt=2)), attempt=7).attempt == 7


@pytest.mark.parametrize("headers", [None, {}, {"ce-id": "x"}, {"ce-type": "x"}])
def test_a_message_without_its_attributes_is_rejected(headers: dict[str, str] | None):
    with pytest.raises(Rejected):
        decode(headers)


@pytest.mark.parametrize("name", ["ce-time", "temper-deadline", "temper-fence", "temper-attempt"])
def test_a_malformed_attribute_is_rejected(name: str):
    with pytest.raises(Rejected, match="malformed"):
        decode({**encode(Envelope("x", "y")), name: "soon"})


def test_a_deadline_passes():
    envelope = Envelope("x", "y", deadline=10.0)
    assert not envelope.expired(10.0)
    assert envelope.expired(10.1)
    assert not Envelope("x", "y").expired(1e12)


def test_a_body_is_parsed_as_what_it_says_it_is():
    message = StringValue(value="hi")
    envelope = Envelope("x", type_of(message))
    assert parse(envelope, message.SerializeToString(), StringValue) == message
    with pytest.raises(Rejected, match="expected"):
        parse(envelope, message.SerializeToString(), Int64Value)
    with pytest.raises(Rejected, match="body is not"):
        parse(envelope, b"\xff\xff\xff", StringValue)
