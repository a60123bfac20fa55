"""The examples of the contract: what every implementation in every language must read and write alike."""

import importlib.util
import re
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

GOLDEN = Path(__file__).parents[2] / "proto" / "golden"
_spec = importlib.util.spec_from_file_location("generate", GOLDEN / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)
MESSAGES = {descriptor.full_name: descriptor for descriptor in generate.messages()}


def decoded(name):
    return GetMessageClass(MESSAGES[name]).FromString((GOLDEN / f"{name}.binpb").read_bytes())


def test_every_message_of_the_contract_has_an_example_and_nothing_else_has():
    declared: set[str] = set()
    for path in (GOLDEN.parent / "temper").rglob("*.proto"):
        text = path.read_text()
        (package,) = re.findall(r"^package (.*);", text, re.MULTILINE)
        declared |= {f"{package}.{name}" for name in re.findall(r"^message (\w+)", text, re.MULTILINE)}
    assert declared == set(MESSAGES)
    assert {path.stem for path in GOLDEN.glob("*.binpb")} == declared
    assert {path.stem for path in GOLDEN.glob("*.json")} == declared


@pytest.mark.parametrize("name", MESSAGES)
def test_binary_and_json_are_one_message(name):
    binary = decoded(name)
    text = (GOLDEN / f"{name}.json").read_text()
    assert json_format.Parse(text, GetMessageClass(MESSAGES[name])()) == binary


@pytest.mark.parametrize("name", MESSAGES)
def test_encoding_what_was_decoded_gives_the_same_bytes(name):
    assert decoded(name).SerializeToString(deterministic=True) == (GOLDEN / f"{name}.binpb").read_bytes()


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_is_set_and_none_is_unknown(name):
    message = decoded(name)
    present = {field.name for field, _ in message.ListFields()}
    chosen = {oneof.fields[-1].name for oneof in MESSAGES[name].oneofs}
    alone = {field.name for field in MESSAGES[name].fields if field.containing_oneof is None}
    assert present == alone | chosen


def test_drift_between_contract_and_examples_fails():
    assert generate.main(["--check"]) == 0


def test_a_field_that_changes_its_number_is_seen():
    name = "temper.api.common.v1.IndexRange"
    data = bytearray((GOLDEN / f"{name}.binpb").read_bytes())
    data[0] = (9 << 3) | (data[0] & 7)
    broken = GetMessageClass(MESSAGES[name]).FromString(bytes(data))
    assert broken != json_format.Parse((GOLDEN / f"{name}.json").read_text(), type(broken)())
