"""The vendor's workers: launched from options, given weights, asked for tokens."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from temper.rollout.engine.base import Request, Sampling
from temper.rollout.engine.tensorrt_llm import sampling as words
from temper.rollout.engine.tensorrt_llm.names import Library
from temper.rollout.engine.tensorrt_llm.weights import Share, buckets
from temper.runtime.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may choose. Each reaches the vendor, or this engine's own queue."""

    slots: int
    """Most sequences in flight: the engine's gate and the vendor's ``max_batch_size``."""
    max_context: int
    """Most tokens of a sequence: ``max_seq_len``; the policy's own limit applies too."""
    prefill_tokens: int
    """Tokens of one step: ``max_num_tokens``."""
    tensor_parallel: int = 1
    """GPUs over which each layer is cut: ``tensor_parallel_size``."""
    dtype: str = "auto"
    """Of the weights."""
    kv_fraction: float = 0.9
    """Share of the GPU memory left after the weights that the KV cache takes: ``free_gpu_memory_fraction``."""
    kv_dtype: str = "auto"
    """Of the KV cache; with ``fp8`` logprobs are marked as not for training."""
    prefix_reuse: bool = True
    """``enable_block_reuse``."""
    logits_bytes: int = 512 << 20
    """Most logits that one request may ship."""
    swap_wait_s: float = 600.0
    """Seconds that a swap or a pause waits for what is in flight."""


class Workers:
    """Running workers of one architecture."""

    def __init__(self, library: Library, llm: Any, home: tempfile.TemporaryDirectory[str]) -> None:
        self._library, self._llm = library, llm
        self._home = home

    @classmethod
    async def launch(
        cls, library: Library, options: Options, config: Mapping[str, Any], max_context: int
    ) -> Workers:
        """Workers with weights of no version, which the first install replaces.

        The vendor reads the architecture from a directory with config.json. No tokenizer is loaded.
        """

        def construct() -> tuple[Any, tempfile.TemporaryDirectory[str]]:
            home = tempfile.TemporaryDirectory(prefix="temper-policy-")
            Path(home.name, "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
            cache = library.kv_cache_config(
                enable_block_reuse=options.prefix_reuse,
                free_gpu_memory_fraction=options.kv_fraction,
                dtype=options.kv_dtype,
            )
            llm = library.async_llm(
                model=home.name,
                skip_tokenizer_init=True,
                dtype=options.dtype,
                tensor_parallel_size=options.tensor_parallel,
                load_format="dummy",
                max_batch_size=options.slots,
                max_num_tokens=max(options.prefill_tokens, options.slots),
                max_seq_len=max_context,
                max_input_len=max_context,
                enable_chunked_prefill=True,
                kv_cache_config=cache,
            )
            return llm, home

        llm, home = await asyncio.to_thread(construct)
        await llm.setup_async()
        return cls(library, llm, home)

    async def shutdown(self) -> None:
        """Stop them."""
        await asyncio.to_thread(self._llm.shutdown)
        self._home.cleanup()

    def generate(
        self, request: Request, tokens: list[int], outputs: int, left: int, version: int, *, streaming: bool
    ) -> Any:
        """The vendor's result object for up to ``left`` tokens after ``tokens``, of which ``outputs`` are output.

        The salt is part of a block's key there: no tenant's blocks serve another, nor one version's another, even if
        the cache were not emptied.
        """
        parameters = self._library.sampling_params(**words.parameters(request, outputs, left))
        return self._llm.generate_async(
            inputs=tokens,
            sampling_params=parameters,
            streaming=streaming,
            cache_salt=f"{version}/{request.tenant}",
        )

    async def install(self, tensors: Mapping[str, Tensor], version: int, share: Share, devices: int) -> None:
        """Update in buckets, finalise, probe. Nothing may be in flight. Raises ``Unavailable`` when it did not work.

        The finalising call with None resets the prefix cache, so no block of the old weights serves a new request.
        """
        try:
            for bucket in buckets(tensors):
                shared = await asyncio.to_thread(share, self._library, bucket, devices)
                await self._llm.collective_rpc("update_weights", args=(dict(shared.handles),))
            await self._llm.collective_rpc("update_weights", args=(None,))
        except (RuntimeError, ValueError) as error:
            if hasattr(self._library.worker_extension, "abort_update_weights"):
                await self._llm.collective_rpc("abort_update_weights")
            raise Unavailable(f"tensorrt_llm: the workers did not take the weights: {error}") from error
        await self._probe(version)

    async def _probe(self, version: int) -> None:
        """One greedy token: its logprob must come, and be finite."""
        probe = Request("probe", (0,), Sampling(1, temperature=0.0), 0, 0)
        result = await self.generate(probe, [0], 0, 1, version, streaming=False).aresult()
        if not words.drawn_tokens(probe.sampling, result.outputs[0], 0):
            raise Unavailable("tensorrt_llm: the probe after an update gave no token")
