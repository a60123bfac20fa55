"""What this engine makes of every field of a request and of every swap policy. What it cannot honour, it refuses.

``docs/guides/tensorrt-llm.md`` prints this table; a test keeps both equal and complete.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from temper.rollout.engine.base import Request, Sampling, SwapPolicy
from temper.runtime.errors import Rejected


@dataclass(frozen=True, slots=True)
class Capability:
    """One row."""

    name: str
    """Field of ``Request`` or ``Sampling``, or value of ``SwapPolicy``."""
    honoured: bool
    """Whether any value is taken; otherwise only the default, which asks for nothing."""
    how: str
    """By what, or why not."""


REQUEST = (
    Capability("request_id", True, "kept by the engine; the vendor numbers its own"),
    Capability("tokens", True, "passed as ids; no tokenizer is loaded"),
    Capability("sampling", True, "see below"),
    Capability("seed", True, "one vendor seed per submission, from (seed, sample_index, tokens so far)"),
    Capability("sample_index", True, "part of the seed; one vendor request per sample"),
    Capability("deadline", True, "watched by the engine, which aborts"),
    Capability("continues", True, "the whole context is sent again; the vendor's block reuse finds its KV"),
    Capability("keep", True, "the engine keeps the ids, the vendor what KV it has room for"),
    Capability("attempt", True, "echoed"),
    Capability("group", True, "members share the prompt by block reuse; there are no drafts to share"),
    Capability("tenant", True, "part of the vendor's `cache_salt`, with the weight version"),
    Capability("priority", True, "order of the engine's own queue; the vendor sees what is admitted"),
    Capability("prompt_logprobs", False, "the vendor scores only what it computes, not a reused prefix"),
    Capability("speculate", True, "no drafts are configured, so it makes no difference"),
)
SAMPLING = (
    Capability("max_tokens", True, "`max_tokens`"),
    Capability("temperature", True, "`temperature`; 0 is `top_k=1`; other than 0 and 1 needs the logits"),
    Capability("top_k", True, "`top_k`; needs the logits"),
    Capability("top_p", True, "`top_p`; needs the logits"),
    Capability("min_p", True, "`min_p`; needs the logits"),
    Capability("stop_token_ids", True, "`stop_token_ids`, kept in the output"),
    Capability(
        "repetition_penalty", False, "the vendor's counts differ, so processed logprobs would be wrong"
    ),
    Capability("presence_penalty", False, "the vendor's counts differ, so processed logprobs would be wrong"),
    Capability(
        "frequency_penalty", False, "the vendor's counts differ, so processed logprobs would be wrong"
    ),
    Capability("logit_bias", False, "the vendor's bias enters the logits, so raw logprobs would be wrong"),
    Capability("top_logprobs", True, "`logprobs`, raw"),
)
POLICIES = (
    Capability(
        "keep", False, "the vendor's update drains; its inner way that does not tells no boundary of versions"
    ),
    Capability("recompute", True, "aborted in the vendor and sent again with the tokens so far"),
    Capability("requeue", True, "aborted in the vendor and sent again with the tokens so far"),
    Capability("abort", True, "aborted in the vendor"),
    Capability("wait", True, "nothing new is sent until what runs has finished"),
)


def refuse_request(request: Request) -> None:
    """Raises ``Rejected`` for the first field that asks for something this engine cannot do."""
    for table, owner in ((REQUEST, request), (SAMPLING, request.sampling)):
        for row in table:
            if not row.honoured and getattr(owner, row.name) != _default(owner, row.name):
                raise Rejected(
                    f"request {request.request_id}: {row.name} is not available on tensorrt_llm: {row.how}"
                )


def refuse_policy(policy: SwapPolicy, running: int) -> None:
    """Raises ``Rejected`` for a policy that cannot be carried out on what runs; with nothing running, all are the same."""
    row = next(each for each in POLICIES if each.name == policy)
    if running and not row.honoured:
        taken = ", ".join(each.name for each in POLICIES if each.honoured)
        raise Rejected(
            f"swap policy {policy.value} is not available on tensorrt_llm: {row.how}",
            hint=f"use one of {taken}",
        )


def table() -> str:
    """All rows in Markdown."""
    rows = ["| field or policy | honoured | how, or why not |", "| --- | --- | --- |"]
    for prefix, part in (("", REQUEST), ("sampling.", SAMPLING), ("swap ", POLICIES)):
        rows += [
            f"| `{prefix}{row.name}` | {'yes' if row.honoured else 'refused'} | {row.how} |" for row in part
        ]
    return "\n".join(rows)


def _default(owner: Request | Sampling, name: str) -> Any:
    found = next(each for each in fields(owner) if each.name == name).default
    assert found is not MISSING, "what may be refused has a default that asks for nothing"
    return found
