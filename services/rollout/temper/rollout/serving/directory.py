"""A Hugging Face directory on disk, read whole and checked before anything is served from it.

What is looked at: ``config.json``, ``*.safetensors`` (with or without an index), ``tokenizer.json``, and where they are
``tokenizer_config.json``, ``chat_template.jinja``, ``generation_config.json``, ``temper_chat.json``. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from temper.rollout.engine.base import PolicyFiles
from temper.rollout.serving.decode import TokenBytes, read_token_bytes
from temper.rollout.serving.dialogue import Dialogue, read_dialogue
from temper.runtime.errors import Rejected

_HEADER = struct.Struct("<Q")  # a safetensors file starts with the length of its JSON header
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that serving needs of one directory."""

    path: Path
    """Where it lies."""
    config: Mapping[str, Any]
    """``config.json``."""
    shards: tuple[bytes, ...] = field(repr=False)
    """Safetensors files, whole and consistent."""
    tokenizer: Tokenizer = field(repr=False)
    """Text to ids; ids to text is :class:`Decoder`'s."""
    tokens: TokenBytes = field(repr=False)
    """Bytes of each id."""
    dialogue: Dialogue | None = field(repr=False)
    """How a conversation is written; None for a model without a chat template."""
    stop_ids: tuple[int, ...]
    """Ids that end an output unless the request says otherwise."""
    digest: str
    """SHA-256 over config and weights, hex: what admission records refer to."""

    def files(self, version: int) -> PolicyFiles:
        """The directory as what an engine loads."""
        return PolicyFiles(version, self.config, self.shards)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of a text. ``special``: also what the tokenizer puts around every text (a beginning-of-text token)."""
        return self.tokenizer.encode(text, add_special_tokens=special).ids


def read_model(path: Path) -> Model:
    """Read and check a directory. Raises ``Rejected`` naming the file and, for weights, the tensor."""
    try:
        return _read(path)
    except OSError as error:  # no permission, a name that is too long
        where = error.filename or path
        raise Rejected(f"{where} cannot be read: {error.strerror}", field="--model") from None


def _read(path: Path) -> Model:
    if not path.is_dir():
        raise Rejected(f"{path} is not a directory", field="--model", hint="give a Hugging Face directory")
    config = read_json(path, "config.json")
    if config is None:
        raise Rejected(f"{path} has no config.json", field="--model", hint="give a Hugging Face directory")
    shards = _read_shards(path)
    tokenizer = _read_tokenizer(path)
    tokens = read_token_bytes(tokenizer)
    _check_vocabulary(config, tokenizer)
    side = read_json(path, "tokenizer_config.json") or {}
    generation = read_json(path, "generation_config.json") or {}
    dialogue = read_dialogue(path, side, tokenizer)
    stops = _stop_ids(config, generation, side, tokenizer, dialogue)
    return Model(path, config, shards, tokenizer, tokens, dialogue, stops, digest_of(config, shards))


def read_json(path: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in a file of the directory; None if there is no such file."""
    try:
        value: Any = json.loads((path / name).read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as broken:
        raise Rejected(f"{path / name} is not JSON: {broken}", field="--model") from None
    if not isinstance(value, dict):
        raise Rejected(f"{path / name} holds a {type(value).__name__}, not an object", field="--model")
    return value


def _read_shards(path: Path) -> tuple[bytes, ...]:
    index = read_json(path, "model.safetensors.index.json")
    if index is None:
        names = sorted(each.name for each in path.glob("*.safetensors"))
        if not names:
            pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
            hint = "pickled weights are refused: convert them to safetensors" if pickled else None
            raise Rejected(f"{path} has no *.safetensors", field="--model", hint=hint)
        wanted: dict[str, str] = {}
    else:
        wanted = dict(index.get("weight_map", {}))
        names = sorted(set(wanted.values()))
    shards: dict[str, bytes] = {}
    held: dict[str, set[str]] = {}
    for name in names:
        try:
            shards[name] = (path / name).read_bytes()
        except FileNotFoundError:
            tensor = next(each for each, where in wanted.items() if where == name)
            raise Rejected(f"{path / name} is missing; tensor {tensor} is in it", field="--model") from None
        held[name] = set(check_shard(name, shards[name]))
    for tensor, name in wanted.items():
        if tensor not in held[name]:
            raise Rejected(
                f"{path / name}: tensor {tensor} is missing, the index says it is there", field="--model"
            )
    return tuple(shards.values())


def check_shard(name: str, shard: bytes) -> Sequence[str]:
    """Names of a file's tensors. Raises ``Rejected`` naming the first that is cut short."""
    try:
        (length,) = _HEADER.unpack_from(shard)
        if length > min(_LONGEST_HEADER, len(shard) - _HEADER.size):
            raise ValueError("the header is cut short")
        header: Any = json.loads(shard[_HEADER.size : _HEADER.size + length])
        entries = {key: each["data_offsets"] for key, each in header.items() if key != "__metadata__"}
        ends = {key: int(offsets[1]) for key, offsets in entries.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as broken:
        raise Rejected(f"{name} is not a safetensors file: {broken}", field="--model") from None
    body = len(shard) - _HEADER.size - length
    for tensor, end in sorted(ends.items(), key=lambda each: each[1]):
        if end > body:
            raise Rejected(
                f"{name}: tensor {tensor} is cut short, {end - body} bytes are missing",
                field="--model",
                hint="copy the file again",
            )
    return list(ends)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_buffer((path / "tokenizer.json").read_bytes())
    except FileNotFoundError:
        raise Rejected(f"{path} has no tokenizer.json", field="--model") from None
    except ValueError as broken:
        raise Rejected(f"{path / 'tokenizer.json'} cannot be read: {broken}", field="--model") from None


def _check_vocabulary(config: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    size = config.get("vocab_size")
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if not isinstance(size, int) or highest >= size:
        raise Rejected(
            f"tokenizer.json has ids up to {highest}, but config.json says vocab_size {size}",
            field="--model",
            hint="tokenizer and weights are of different models",
        )


def _stop_ids(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    side: Mapping[str, Any],
    tokenizer: Tokenizer,
    dialogue: Dialogue | None,
) -> tuple[int, ...]:
    """Every end that the files name: generation_config.json first, config.json where it is silent."""
    found: list[int] = []
    ends: Any = generation.get("eos_token_id", config.get("eos_token_id"))
    found += [each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int)]
    named: Any = side.get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str) and (number := tokenizer.token_to_id(text)) is not None:
        found.append(number)
    if dialogue is not None:
        found += dialogue.stop_ids
    size = int(config["vocab_size"])
    return tuple(dict.fromkeys(each for each in found if 0 <= each < size))


def digest_of(config: Mapping[str, Any], shards: Sequence[bytes]) -> str:
    """SHA-256 over config and weights, hex: what admission records refer to."""
    whole = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for shard in shards:
        whole.update(hashlib.sha256(shard).digest())
    return whole.hexdigest()
