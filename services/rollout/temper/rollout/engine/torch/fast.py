"""What makes an engine faster at the price of a promise. The default is none of it: the standard variant."""

from __future__ import annotations

from dataclasses import dataclass

from temper.rollout.engine.torch.drafts import Drafts
from temper.rollout.engine.torch.pages import Sparse
from temper.runtime.errors import Rejected


@dataclass(frozen=True, slots=True)
class Fast:
    """Options of the fast variant."""

    speculation: str = "none"
    """``none``, ``ngram`` or ``suffix``. Outputs keep their distribution; a step's numbers depend on how long drafts are."""
    quantisation: str = "none"
    """``none`` or ``w8a8``. Logprobs are not for training."""
    sparse_threshold: int = 0
    """Decode rows of contexts from so many tokens on read a part of them; 0: never. Their logprobs are not for training."""
    sparse_keep: float = 1 / 16
    """Share of the pages between sink and window that such a row reads."""

    @property
    def quantised(self) -> bool:
        """Whether linear layers are in int8."""
        return self.quantisation == "w8a8"

    @property
    def kv_key(self) -> bytes:
        """What of this shapes keys and values: KV is not shared across it."""
        return repr((self.quantisation, self.sparse())).encode()

    def check(self, *, batch_invariant: bool) -> None:
        """Refuse what contradicts the other options."""
        if self.speculation != "none" and batch_invariant:
            raise Rejected(
                f"{self.speculation} drafts change the last bits of a sample, which batch_invariant forbids",
                field="engine.speculation",
                hint="set engine.batch_invariant = false, or speculation = 'none'",
            )

    def drafts(self) -> Drafts | None:
        """Where drafts come from."""
        return None if self.speculation == "none" else Drafts(self.speculation)

    def sparse(self) -> Sparse | None:
        """When decode is sparse."""
        return Sparse(self.sparse_threshold, self.sparse_keep) if self.sparse_threshold else None
