"""Between text and tokens. Each text is encoded once, on its way in; what the policy emits is never re-encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from temper.rollout.chat import ROLES, CallSyntax, ChatFormat, read_chat
from temper.runtime.errors import Rejected


@dataclass(frozen=True, slots=True)
class ToolText:
    """The policy calls a tool."""

    text: str
    """TOOL_TEXT, unparsed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy gives its final answer."""

    text: str
    """Whatever it wrote."""


class Codec:
    """Tokenizer and chat format of one policy."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat) -> None:
        # Text from environments and tools that happens to spell a role token stays text.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._ids = {role: _single_id(tokenizer, role, chat.tokens[role]) for role in ROLES}
        self.call_syntax: CallSyntax = chat.call_syntax
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> Codec:
        """From the files of a policy directory by name."""
        for name in ("tokenizer.json", "temper_chat.json"):
            if name not in files:
                raise Rejected(
                    f"the policy has no {name}", hint="copy it from examples/policies/byte or write one"
                )
        try:
            tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
        except ValueError as broken:
            raise Rejected(f"tokenizer.json cannot be read: {broken}") from None
        return cls(tokenizer, read_chat(files["temper_chat.json"]))

    @property
    def stops(self) -> tuple[int, ...]:
        """Tokens that end a turn."""
        return (self._ids["end"],)

    def prompt(self, text: str) -> list[int]:
        """The opening: ``<bos><user>TEXT<end><assistant>``."""
        ids = self._ids
        return [ids["bos"], ids["user"], *self._encode(text), ids["end"], ids["assistant"]]

    def observation(self, text: str) -> list[int]:
        """A tool's answer: ``<result>TEXT<end><assistant>``."""
        ids = self._ids
        return [ids["result"], *self._encode(text), ids["end"], ids["assistant"]]

    def call(self, tool_text: str) -> list[int]:
        """``<call>TOOL_TEXT<end>``: an oracle's action."""
        return [self._ids["call"], *self._encode(tool_text), self._ids["end"]]

    def answer(self, text: str) -> list[int]:
        """``TEXT<end>``: an oracle's last action."""
        return [*self._encode(text), self._ids["end"]]

    def read_turn(self, tokens: Sequence[int]) -> ToolText | Answer | None:
        """What a turn says; None when it has no end. Words before ``<call>`` are thought, and ignored."""
        if not tokens or tokens[-1] != self._ids["end"]:
            return None
        body = list(tokens[:-1])
        if self._ids["call"] in body:
            return ToolText(self._decode(body[body.index(self._ids["call"]) + 1 :]))
        return Answer(self._decode(body))

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


def _single_id(tokenizer: Tokenizer, role: str, content: str) -> int:
    found = tokenizer.token_to_id(content)
    if found is None:
        raise Rejected(
            f"temper_chat.json: {content!r} is not a token of tokenizer.json", field=f"tokens.{role}"
        )
    return found


def clip(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8: head and tail, with a mark where the middle was."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    mark = b"..."
    head = (limit - len(mark) + 1) // 2
    tail = limit - len(mark) - head
    kept = raw[:head] + mark + (raw[-tail:] if tail else b"")
    return kept.decode(errors="ignore")
