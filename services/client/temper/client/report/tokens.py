"""Token ids as text and as the parts of an episode, from `tokenizer.json` and `temper_chat.json` alone.

Enough of the tokenizer file format for decoding: a vocabulary whose pieces are spelled in the byte alphabet of GPT-2 or
as `<0xNN>`, and added tokens. Nothing here encodes, so merges and pre-tokenizers do not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["prompt", "call", "result", "answer", "other"]
_HEX = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an episode. Example: `Part("call", "37*482", acted=True)`."""

    role: Role
    """What it is."""
    text: str
    """Its text, role tokens left out; bytes that are no UTF-8 are replaced."""
    acted: bool
    """Whether the policy wrote it."""


class Decoder:
    """Ids to text. Ids that the files do not know become `<id>`."""

    def __init__(self, tokenizer_json: bytes, chat_json: bytes) -> None:
        tokenizer: dict[str, Any] = json.loads(tokenizer_json)
        chat: dict[str, Any] = json.loads(chat_json)
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        pieces = (
            vocabulary if isinstance(vocabulary, dict) else {item[0]: i for i, item in enumerate(vocabulary)}
        )
        self._bytes = {number: _piece(text) for text, number in pieces.items()}
        self._special = {entry["id"]: str(entry["content"]) for entry in tokenizer.get("added_tokens", [])}
        names: Mapping[str, str] = chat.get("tokens", {})
        ids = {text: number for number, text in self._special.items()}
        self._roles = {ids[token]: role for role, token in names.items() if token in ids}

    def text(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens by their names."""
        return b"".join(self._one(number) for number in ids).decode(errors="replace")

    def parts(self, ids: Sequence[int], mask: bytes) -> list[Part]:
        """An episode as prompt, calls, results and answer. `mask` [token]: 1 where the policy acted."""
        found: list[Part] = []
        role: Role = "other"
        start = 0
        for index, number in enumerate(ids):
            marker = self._roles.get(number)
            if marker is None:
                continue
            self._close(found, role, ids[start:index], mask[start:index])
            role, start = _next_role(marker, role), index + 1
        self._close(found, role, ids[start:], mask[start:])
        return found

    def _close(self, found: list[Part], role: Role, ids: Sequence[int], mask: bytes) -> None:
        if ids:
            found.append(Part(role, self.text(ids), any(mask)))

    def _one(self, number: int) -> bytes:
        if number in self._special:
            return self._special[number].encode()
        return self._bytes.get(number, f"<{number}>".encode())


def _next_role(marker: str, role: Role) -> Role:
    """What follows a role token: `<assistant>` opens an answer until a `<call>` says otherwise."""
    match marker:
        case "user":
            return "prompt"
        case "assistant":
            return "answer"
        case "call":
            return "call"
        case "result":
            return "result"
        case "end":
            return "other"
        case _:
            return role


def _piece(text: str) -> bytes:
    """Bytes of a vocabulary entry."""
    if match := _HEX.fullmatch(text):
        return bytes([int(match.group(1), 16)])
    if all(letter in _FROM_LETTER for letter in text):
        return bytes(_FROM_LETTER[letter] for letter in text)
    return text.replace("\u2581", " ").encode()  # sentencepiece's mark for a space


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in plain)
    return letters | {chr(256 + offset): byte for offset, byte in enumerate(others)}


_FROM_LETTER = _byte_letters()
