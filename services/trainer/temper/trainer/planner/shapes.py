"""Sizes of a dense decoder, read from ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temper.runtime.errors import Rejected


@dataclass(frozen=True, slots=True)
class Shape:
    """What memory and work depend on."""

    hidden: int
    """Width of the residual stream, h."""
    layers: int
    """Decoder layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads."""
    head_dim: int
    """Width of a head."""
    intermediate: int
    """Width of the feed-forward block, f."""
    vocab: int
    """Rows of the embedding, V."""
    tied: bool
    """Whether the output head is the embedding."""
    gated: bool = True
    """Whether the feed-forward block has a gate (SwiGLU): three matrices instead of two."""
    positions: int = 0
    """Learned position embeddings; 0 for rotary ones."""

    @property
    def query_width(self) -> int:
        """All query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """All key heads together."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer that take part in matrix products."""
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        """All of one layer: the matrices and two norms."""
        return self.layer_matrices + 2 * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, positions included."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head(self) -> int:
        """Parameters of the output head that are not the embedding's."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.layers * self.layer_parameters + self.embedding + self.head + self.hidden

    def flops(self, tokens: int, context: int, *, recomputed: bool) -> float:
        """Of one optimizer step over ``tokens`` in sequences of ``context``: forward once, backward twice, and once more if recomputed.

        Two per parameter and token in every product; attention over half the context on average, for scores and for values.
        """
        products = 2 * self.layers * self.layer_matrices
        attention = 2 * 2 * self.layers * self.query_width * context / 2
        head = 2 * self.vocab * self.hidden
        return tokens * ((products + attention) * (4 if recomputed else 3) + head * 3)


def read(config: Mapping[str, Any]) -> Shape:
    """From ``config.json``. Raises Rejected naming the field for what this is not made for."""
    for key, kind in (("num_experts", "experts"), ("num_local_experts", "experts")):
        if int(config.get(key) or 0) > 1:
            raise Rejected(f"models with {kind} are not planned yet", field=f"config.json:{key}")
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    return Shape(
        hidden=hidden,
        layers=_size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=_size(config, "intermediate_size"),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise Rejected(f"must be a whole number above 0, is {value!r}", field=f"config.json:{key}")
    return value
