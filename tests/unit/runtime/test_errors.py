from __future__ import annotations

import pytest
from google.rpc import code_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.errors import (
    Conflict,
    Exhausted,
    NotFound,
    Rejected,
    Stale,
    TemperError,
    Unavailable,
    disposition,
    from_status,
    from_wire,
    to_status,
)

KINDS = [Rejected, NotFound, Unavailable, Stale, Conflict, Exhausted]
texts = st.text(max_size=40)


@given(
    kind=st.sampled_from(KINDS),
    message=texts,
    field=st.none() | st.text(min_size=1, max_size=40),
    hint=st.none() | st.text(min_size=1, max_size=40),
)
def test_an_error_survives_the_wire(
    kind: type[TemperError], message: str, field: str | None, hint: str | None
):
    there_and_back = from_wire(to_status(kind(message, field=field, hint=hint)))
    assert type(there_and_back) is kind
    assert (there_and_back.message, there_and_back.field, there_and_back.hint) == (message, field, hint)


def test_a_subclass_travels_as_its_kind():
    class Missing(Rejected):
        pass

    assert type(from_wire(to_status(Missing("gone")))) is Rejected


def test_a_bare_error_is_unavailable():
    assert disposition(TemperError("x")).grpc_code == code_pb2.UNAVAILABLE
    assert type(from_wire(to_status(TemperError("x")))) is Unavailable


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (code_pb2.NOT_FOUND, NotFound),
        (code_pb2.UNAUTHENTICATED, Rejected),
        (code_pb2.UNIMPLEMENTED, Rejected),
        (code_pb2.ALREADY_EXISTS, Conflict),
        (code_pb2.DEADLINE_EXCEEDED, Unavailable),
        (code_pb2.INTERNAL, Unavailable),
        (code_pb2.FAILED_PRECONDITION, Stale),
    ],
)
def test_a_foreign_status_becomes_the_nearest_kind(code: int, kind: type[TemperError]):
    assert type(from_wire(status_pb2.Status(code=code, message="x"))) is kind


def test_details_of_another_domain_do_not_choose_the_kind():
    status = to_status(Stale("x"))
    status.details[0].value = status.details[0].value.replace(b"temper", b"strang")
    status.code = code_pb2.UNAVAILABLE
    assert type(from_wire(status)) is Unavailable


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_says_who_retries(kind: type[TemperError]):
    row = disposition(kind("x"))
    assert row.retried == (kind in (Unavailable, Exhausted))
    assert row.outcome == ("term" if issubclass(kind, Rejected) else "ack" if kind is Stale else "nak")


def test_the_text_names_the_field_and_the_way_out():
    assert str(Rejected("must be positive", field="phases[0].steps", hint="try 10")) == (
        "phases[0].steps: must be positive (try 10)"
    )


class Failure:
    """What a grpc.RpcError offers."""

    def __init__(self, number: int, details: str | None, metadata: object) -> None:
        self._number, self._details, self._metadata = number, details, metadata

    def code(self):
        class Code:
            value = (self._number, "a name")

        return Code()

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> object:
        return self._metadata


def test_a_grpc_failure_with_details_is_the_error_that_was_raised():
    raw = to_status(Conflict("x", field="etag")).SerializeToString()
    failure = Failure(code_pb2.ABORTED, "x", (("other", "y"), ("grpc-status-details-bin", raw)))
    error = from_status(failure)
    assert (type(error), error.field) == (Conflict, "etag")


@pytest.mark.parametrize("metadata", [None, (), (("grpc-status-details-bin", "text"),)])
def test_a_grpc_failure_without_details_is_judged_by_its_code(metadata: object):
    error = from_status(Failure(code_pb2.RESOURCE_EXHAUSTED, None, metadata))
    assert (type(error), error.message) == (Exhausted, "a name")
