"""What clients may send: closed models, so that an option nobody honours is refused by name instead of ignored.

Fields are OpenAI's where OpenAI has them; ``top_k``, ``min_p``, ``repetition_penalty``, ``stop_token_ids``, ``priority``,
``request_class``, ``variant`` and ``trajectory`` are ours (``extra_body`` of the client).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from temper.rollout.serving.stops import LONGEST_STOP, MOST_STOPS

RequestClass = Literal["interactive", "batch", "research", "training"]
VariantName = Literal["standard", "fast"]
MOST_CHOICES = 128
MOST_TOP = 20  # alternatives per token, OpenAI's limit

Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """A request body: unknown keys are refused, numbers stay what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Routed(Body):
    """Which copy of the model answers."""

    request_class: RequestClass | None = None
    """Who asks: ``interactive`` may be answered by an admitted fast variant, all others get the standard one."""
    variant: VariantName | None = None
    """Overrides the choice by class."""
    trajectory: str | None = Field(default=None, min_length=1, max_length=256)
    """Id of the conversation: it stays on one replica and, in a canary, on one version."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher is admitted first."""


class Drawn(Routed):
    """How tokens are drawn: what the two OpenAI routes share."""

    model: str
    """As listed by ``/v1/models``."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus."""
    top_k: int | None = Field(default=None, ge=-1)
    """Keep the k likeliest; 0 or -1 keeps all."""
    min_p: float | None = Field(default=None, ge=0, lt=1)
    """Relative floor."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    """1 is off."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Once per token seen in the output."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Per occurrence in the output."""
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=1024
    )
    """Token id (as text) to addend."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most output tokens; the context limit ends it sooner."""
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    """Choices per prompt; choice i with a seed draws from stream (seed, i)."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    """Same seed, weights and prompt: same output."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    """Texts that end the output and are not part of it."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    """Ids that end the output, besides the model's own."""
    stream: bool | None = None
    """Server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with ``stream``."""
    user: str | None = Field(default=None, max_length=256)
    """Requests of different users share no cache."""

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Drawn:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed with stream = true only")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    """A last chunk with the token counts."""


class CompletionBody(Drawn):
    """``POST /v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    """One prompt or several, as text or as ids."""
    logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    """Report logprobs, with this many alternatives."""
    echo: Literal[False] | None = None
    """The prompt is not part of the output."""
    best_of: Literal[1] | None = None
    """Every output that is made is returned."""
    suffix: None = None
    """Nothing is filled in before a suffix."""


class FunctionSpec(Body):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name."""
    description: str | None = None
    """For the model."""
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments."""
    strict: Literal[False] | None = None
    """Arguments are not constrained while they are drawn."""


class ToolSpec(Body):
    """A tool."""

    type: Literal["function"]
    """The only kind."""
    function: FunctionSpec
    """What can be called."""


class NamedFunction(Body):
    """A function by name."""

    name: str
    """Name."""


class NamedChoice(Body):
    """``tool_choice`` that names a function."""

    type: Literal["function"]
    """The only kind."""
    function: NamedFunction
    """Which."""


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    """Only text is understood."""
    text: str
    """The piece."""


class CalledFunction(Body):
    """A call that the assistant made."""

    name: str
    """Function."""
    arguments: str
    """JSON object, as text."""


class MadeCall(Body):
    """A call in an assistant's message."""

    id: str
    """Named by the tool's answer."""
    type: Literal["function"] = "function"
    """The only kind."""
    function: CalledFunction
    """What was called."""
    index: int | None = None
    """Its place, as streams give it."""


class ChatMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks."""
    content: str | list[TextPart] | None = None
    """What is said."""
    name: str | None = None
    """Of the speaker or tool, for templates that show it."""
    tool_calls: list[MadeCall] | None = None
    """Calls of an assistant."""
    tool_call_id: str | None = None
    """The call that a tool's message answers."""
    refusal: None = None
    """Sent back by clients that echo a message."""
    annotations: None = None
    """As above."""
    audio: None = None
    """As above."""
    function_call: None = None
    """As above."""


class TextFormat(Body):
    """``response_format``."""

    type: Literal["text"]
    """Only free text: outputs are not constrained by a grammar."""


class ChatBody(Drawn):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    """The conversation."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Same as ``max_tokens``."""
    logprobs: bool | None = None
    """Report logprobs."""
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    """Alternatives per token; only with ``logprobs``."""
    tools: list[ToolSpec] | None = Field(default=None, min_length=1, max_length=128)
    """What the model may call."""
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    """``required`` or a name begins the call for the model; its arguments are drawn freely."""
    parallel_tool_calls: bool | None = None
    """False ends the output after one call."""
    response_format: TextFormat | None = None
    """Only ``text``."""
    store: Literal[False] | None = None
    """Nothing is stored."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is allowed with logprobs = true only")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are one thing; give one of them")
        if self.tools is None and self.tool_choice not in (None, "none"):
            raise ValueError("tool_choice is allowed with tools only")
        if isinstance(self.tool_choice, NamedChoice):
            wanted = self.tool_choice.function.name
            if wanted not in {each.function.name for each in self.tools or ()}:
                raise ValueError(f"tool_choice names {wanted!r}, which is not among tools")
        return self
