"""From token ids to text, a character at a time and never half of one.

A table says which bytes each token stands for; an incremental UTF-8 decoder turns bytes into text. So a character that
is spread over tokens appears when its last byte does, and streaming and not streaming give the same text by construction.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from temper.rollout.chat import byte_alphabet
from temper.runtime.errors import Rejected

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What each token of a vocabulary stands for."""

    table: tuple[bytes, ...] = field(repr=False)
    """Bytes by id; empty for a special token."""
    names: Mapping[int, str]
    """Text of the special tokens by id."""
    drops_first_space: bool
    """Whether the first blank of a text belongs to the tokenizer (SentencePiece's dummy prefix)."""

    def of(self, token: int) -> bytes:
        """Bytes of a token; empty for one that the tokenizer does not know (a padded vocabulary has such)."""
        return self.table[token] if 0 <= token < len(self.table) else b""

    def label(self, token: int) -> str:
        """A token for people: its text, or its name if it is special."""
        return self.names.get(token) or self.of(token).decode(errors="replace")


class Decoder:
    """Decodes one output. ``shown`` gives special tokens a text of their own."""

    def __init__(self, tokens: TokenBytes, shown: Mapping[int, str] | None = None) -> None:
        self._tokens, self._shown = tokens, shown or {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokens.drops_first_space

    @property
    def inside(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._utf8.getstate()[0])

    def feed(self, token: int) -> str:
        """Text that one more token completes."""
        special = self._shown.get(token)
        if special is not None:
            return self._utf8.decode(b"", final=True) + special
        raw = self._tokens.of(token)
        if raw and self._at_start:
            self._at_start = False
            raw = raw.removeprefix(b" ")
        return self._utf8.decode(raw)

    def flush(self) -> str:
        """A replacement character if the output ended inside a character."""
        return self._utf8.decode(b"", final=True)


def read_token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """The table of a byte-level or SentencePiece-like tokenizer. Raises ``Rejected`` for another kind."""
    described: Any = json.loads(tokenizer.to_str())
    kinds = _decoder_kinds(described.get("decoder"))
    added = {each["id"]: each for each in described.get("added_tokens", [])}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    if "ByteLevel" in kinds:
        spell = _spell_byte_level
    elif "ByteFallback" in kinds or "Metaspace" in kinds:
        spell = _spell_pieces
    else:
        raise Rejected(
            f"tokenizer.json: its decoder ({', '.join(kinds) or 'none'}) is not understood",
            field="decoder",
            hint="byte-level and SentencePiece-like tokenizers are",
        )
    for text, number in vocabulary.items():
        if number in added:
            table[number] = b"" if added[number].get("special") else text.encode()
        else:
            table[number] = spell(text)
    names = {number: each["content"] for number, each in added.items() if each.get("special")}
    return TokenBytes(tuple(table), names, drops_first_space="ByteLevel" not in kinds)


_BYTE_OF = {character: bytes((byte,)) for byte, character in enumerate(byte_alphabet())}


def _spell_byte_level(text: str) -> bytes:
    return b"".join([_BYTE_OF.get(each, each.encode()) for each in text])


def _spell_pieces(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes((int(byte[1], 16),)) if byte else text.replace("\u2581", " ").encode()


def _decoder_kinds(decoder: Any) -> list[str]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [kind for each in decoder.get("decoders", []) for kind in _decoder_kinds(each)]
    return [str(decoder.get("type"))]
