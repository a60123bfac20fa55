"""Writes `proto/golden/<package>.<Message>.{binpb,json}`: one example of every message, with every field set.

    .venv/bin/python proto/golden/generate.py          write
    .venv/bin/python proto/golden/generate.py --check  compare only; exit 1 and name what differs

A service in another language decodes the binary, compares with the JSON (protobuf's own mapping, proto field names), and
encodes it again. The examples are made from the descriptors, so a new field appears here by itself and nothing is missed:
scalars are derived from the field's number, one entry per list and map, the last field of each oneof.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

HERE = Path(__file__).parent
PROTO = HERE.parent / "temper"
DEEPEST = 6  # nesting after which optional messages stay empty; the contract's own messages are shallower
SECONDS = 1_767_225_600  # 2026-01-01T00:00:00Z


def files() -> Iterator[FileDescriptor]:
    """Descriptors of the contract's files, sorted by path."""
    for path in sorted(PROTO.rglob("*.proto")):
        name = path.relative_to(PROTO.parent).with_suffix("").as_posix().replace("/", ".")
        yield importlib.import_module(f"{name}_pb2").DESCRIPTOR


def messages() -> list[Descriptor]:
    """Every message of the contract; entries of maps are part of their field."""
    return [
        message
        for file in files()
        for message in file.message_types_by_name.values()
        if not message.GetOptions().map_entry
    ]


def example(descriptor: Descriptor, depth: int = 0) -> Message:
    """A message with every field set."""
    message = GetMessageClass(descriptor)()
    if descriptor.file.package == "google.protobuf":
        _well_known(message)
        return message
    for field in descriptor.fields:
        _set(message, field, depth)
    return message


def encodings(descriptor: Descriptor) -> dict[str, bytes]:
    """Content by file name."""
    message = example(descriptor)
    text = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=2, sort_keys=True)
    return {
        f"{descriptor.full_name}.binpb": message.SerializeToString(deterministic=True),
        f"{descriptor.full_name}.json": f"{text}\n".encode(),
    }


def _set(message: Message, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        entries: Any = getattr(message, field.name)
        if value.message_type is None:
            entries[_scalar(key)] = _scalar(value)
        else:
            entries[_scalar(key)].CopyFrom(example(value.message_type, depth + 1))
    elif field.message_type is not None:
        if depth >= DEEPEST:
            return
        nested = example(field.message_type, depth + 1)
        if field.is_repeated:
            getattr(message, field.name).append(nested)
        else:
            getattr(message, field.name).CopyFrom(nested)
    elif field.is_repeated:
        getattr(message, field.name).append(_scalar(field))
    else:
        setattr(message, field.name, _scalar(field))


def _scalar(field: FieldDescriptor) -> Any:
    """A value that tells the field: its name or its number, exact in every encoding."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return b"\x00\xff" + field.name.encode()
        case FieldDescriptor.CPPTYPE_STRING:
            return field.name
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[-1].number
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return field.number + 0.5
        case FieldDescriptor.CPPTYPE_UINT64:
            return 2**63 + field.number  # JSON writes it as text: 2^53 and 2^63 are where others go wrong
        case FieldDescriptor.CPPTYPE_INT64:
            return -(2**62) - field.number
        case FieldDescriptor.CPPTYPE_INT32:
            return -field.number
        case _:
            return 1000 + field.number


def _well_known(message: Any) -> None:
    """Messages of protobuf itself that the contract uses."""
    match message.DESCRIPTOR.name:
        case "Timestamp":
            message.seconds, message.nanos = SECONDS, 123_456_789
        case "Duration":
            message.seconds, message.nanos = 12, 500_000_000
        case "FieldMask":
            message.paths.append("spec.labels")
        case "ListValue":
            message.extend(["text", 1.5, True, None])
        case "Struct":
            message.update({"key": "value"})
        case other:
            raise LookupError(f"no example for google.protobuf.{other}: add one here")


def main(arguments: list[str]) -> int:
    """Write or compare; returns the exit code."""
    wanted = {name: data for message in messages() for name, data in encodings(message).items()}
    present = {path.name for path in HERE.iterdir() if path.suffix in {".binpb", ".json"}}
    stale = sorted(present - set(wanted))
    different = sorted(
        name for name, data in wanted.items() if name not in present or (HERE / name).read_bytes() != data
    )
    if "--check" in arguments:
        for name in (*stale, *different):
            print(f"{name} differs: run proto/golden/generate.py", file=sys.stderr)  # noqa: T201 - a script
        return 1 if stale or different else 0
    for name in stale:
        (HERE / name).unlink()
    for name in different:
        (HERE / name).write_bytes(wanted[name])
    print(f"{len(wanted) // 2} messages, {len(different)} files written, {len(stale)} removed")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
