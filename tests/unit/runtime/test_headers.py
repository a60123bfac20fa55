from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from temper.runtime.bus.headers import VERSION, from_lines, to_block
from temper.runtime.errors import Rejected

names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=20
)
values = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), max_size=30)


@given(st.dictionaries(names, values, max_size=8))
def test_headers_survive_the_wire(headers: dict[str, str]):
    block = to_block(headers)
    assert block.startswith(VERSION.encode())
    assert from_lines(block[len(VERSION) :]) == headers


@given(st.dictionaries(names, values, min_size=1, max_size=8))
def test_the_library_reads_what_we_write(headers: dict[str, str]):
    # The library drops names that it finds odd; it must agree on all others.
    theirs = Client._parse_header_lines(to_block(headers)[len(VERSION) :])
    assert all(headers[name] == value for name, value in theirs.items())
    assert len(theirs) == len(headers)


@pytest.mark.parametrize("value", ["a\nb", "a\r\nevil: yes", "a\rb", "\n"])
def test_a_value_cannot_begin_a_header_of_its_own(value: str):
    with pytest.raises(Rejected, match="line break"):
        to_block({"ce-id": value})


@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b"a:b\r\n\r\n", {"a": "b"}),
        (b"a: b:c\r\n", {"a": "b:c"}),
        (b"no separator\r\na: b\r\n", {"a": "b"}),
        (b"a: \xff\r\n", {"a": "�"}),
        (b"", {}),
    ],
)
def test_foreign_headers_are_read_with_patience(raw: bytes, headers: dict[str, str]):
    assert from_lines(raw) == headers


def test_the_private_names_of_nats_py_that_we_rely_on_are_there():
    assert isinstance(inspect.getattr_static(Client, "_parse_header_lines"), staticmethod)
    assert "force_flush" in inspect.signature(Client._flush_pending).parameters
    private = {"_flush_queue", "_max_pending_size", "_pending", "_pending_data_size", "_reconnection_task"}
    assert private <= set(vars(Client()))
