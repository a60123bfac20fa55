"""How a conversation is written in tokens: the content of ``temper_chat.json`` beside a policy's tokenizer.

An episode is ``<bos><user>PROMPT<end><assistant>``, then turns of the policy: ``ANSWER<end>`` ends it, and
``<call>TOOL_TEXT<end>`` is answered with ``<result>OUTPUT<end><assistant>``. The file names the role tokens and the
syntax of TOOL_TEXT; this module writes and reads both, and the byte-level tokenizer of the shipped policies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from temper.runtime.errors import Rejected

CallSyntax = Literal["compact", "hermes"]
ROLES = ("bos", "user", "assistant", "call", "result", "end")

BYTE_SPECIALS = ("<pad>", "<bos>", "<user>", "<assistant>", "<call>", "<result>", "<end>", "<think>")
"""Ids 256..263 of the byte-level policy; below them an id is a byte. ``<think>`` is reserved."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Role tokens by their text, and how a tool call is spelt.

    Example: ``ChatFormat("compact", {"bos": "<bos>", "user": "<user>", …})``.
    """

    call_syntax: CallSyntax
    """``compact``: ``name payload``; ``hermes``: a JSON object with name and arguments."""
    tokens: Mapping[str, str]
    """Role (one of :data:`ROLES`) to the text of a single token of the vocabulary."""


def read_chat(text: bytes) -> ChatFormat:
    """Parse ``temper_chat.json``. Raises ``Rejected`` naming the key at fault."""
    try:
        raw: Any = json.loads(text)
    except ValueError as broken:
        raise Rejected(f"temper_chat.json is not JSON: {broken}") from None
    if not isinstance(raw, dict) or raw.get("format") != 1:
        raise Rejected("temper_chat.json: only format 1 is understood", field="format")
    syntax = raw.get("call_syntax")
    if syntax not in get_args(CallSyntax):
        raise Rejected(
            f"temper_chat.json: call_syntax {syntax!r} is unknown", hint=f"one of {get_args(CallSyntax)}"
        )
    named = raw.get("tokens")
    tokens: dict[str, Any] = named if isinstance(named, dict) else {}
    missing = [role for role in ROLES if not isinstance(tokens.get(role), str)]
    if missing:
        raise Rejected(f"temper_chat.json: no token is named for {', '.join(missing)}", field="tokens")
    return ChatFormat("hermes" if syntax == "hermes" else "compact", {role: tokens[role] for role in ROLES})


def byte_chat() -> bytes:
    """``temper_chat.json`` of the byte-level policy."""
    chat = {"format": 1, "call_syntax": "compact", "tokens": {role: f"<{role}>" for role in ROLES}}
    return (json.dumps(chat, indent=2) + "\n").encode()


def byte_tokenizer() -> bytes:
    """``tokenizer.json`` of the byte-level policy: 256 bytes, 8 role tokens, no merges."""
    specials = [
        {
            "id": 256 + index,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, content in enumerate(BYTE_SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_alphabet())},
            "merges": [],
        },
    }
    return (json.dumps(tokenizer, indent=1, ensure_ascii=False) + "\n").encode()


def byte_alphabet() -> list[str]:
    """Byte to character, as byte-level tokenizers spell their vocabulary: a printable character for each byte, by GPT-2's rule: printable Latin-1 stays, the others move above 255."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: 256 + index for index, byte in enumerate(others)}
    return [chr(moved.get(byte, byte)) for byte in range(256)]
