"""A strict double of the parts of ``tensorrt_llm`` that the engine may use, for machines without a GPU.

Names, fields and parameters are those of the 1.3 sources; anything else is an ``AttributeError`` or a ``TypeError``. It
keeps the vendor's traps too: greedy unless told otherwise, stop tokens cut from the output, ``ignore_eos`` that drops the
stop list, logprobs of sampled token and alternatives in one dict, partial updates taken silently, an update that must be
finalised, requests refused while the weights are torn. The model is the made-up one of the fake engine.
"""

import asyncio
import hashlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.conformance.rollout.tensorrt_fields import KvCacheConfig, SamplingParams, TorchLlmArgs

from temper.rollout.engine.base import Request
from temper.rollout.engine.book import BLOCK, Book
from temper.rollout.engine.drawn import log_softmax
from temper.rollout.engine.made_up import draw, made_up_logits
from temper.rollout.engine.tensorrt_llm.weights import Shared

UUIDS = ("GPU-double-0", "GPU-double-1")


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: torch.Tensor | None = None


class RequestOutput:
    """A request in flight and its result, as in the real one: a stream, or awaited whole."""

    def __init__(
        self, owner: "LLM", request_id: int, prompt: list[int], params: SamplingParams, salt: str
    ) -> None:
        self.request_id, self.prompt_token_ids = request_id, prompt
        self.outputs = [CompletionOutput(0)]
        self.cached_tokens = 0
        self.finished = False
        self._owner, self._params, self._salt = owner, params, salt
        self._logits: list[torch.Tensor] = []
        self._aborted = False
        self._news: asyncio.Queue[bool] = asyncio.Queue()

    def abort(self) -> None:
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    async def aresult(self) -> "RequestOutput":
        while not self.finished:
            await self._news.get()
        return self

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished and self._news.empty():
            raise StopAsyncIteration
        await self._news.get()
        return self

    def step(self, fingerprint: int, vocab: int) -> None:
        """One token, or the end."""
        if self._aborted:
            self.outputs[0].token_ids.append(
                0
            )  # a token whose logprob did not make it, as the real one may bring
            self._end("cancelled")
            return
        token = self._draw(fingerprint, vocab)
        out, params = self.outputs[0], self._params
        stops = [] if params.ignore_eos else params.stop_token_ids or []
        longest = min(params.max_tokens, self._owner.args.max_seq_len - len(self.prompt_token_ids))
        if token in stops:
            out.stop_reason = token
            if not params.include_stop_str_in_output:
                del out.token_ids[-1]
        if token in stops or (token == params.end_id and not params.ignore_eos):
            self._end("stop")
        elif len(out.token_ids) >= longest:
            self._end("length")
        else:
            self._news.put_nowait(False)

    def _draw(self, fingerprint: int, vocab: int) -> int:
        out, params = self.outputs[0], self._params
        tokens = [*self.prompt_token_ids, *out.token_ids]
        logits = made_up_logits(tokens, len(tokens), fingerprint, vocab)
        stream = Request("", (0,), params.as_sampling(), params.seed or 0, 0)
        token = draw(logits, stream, tokens, len(out.token_ids)).token
        raw = log_softmax(logits)
        if params.logprobs is not None:
            ranked = sorted(range(vocab), key=lambda each: -raw[each])[: params.logprobs]
            out.logprobs.append({each: Logprob(float(raw[each])) for each in {*ranked, token}})
        if params.return_generation_logits:
            self._logits.append(torch.from_numpy(logits.copy()).float())
            out.generation_logits = torch.stack(self._logits)
        out.token_ids.append(token)
        return token

    def _end(self, reason: str) -> None:
        self.outputs[0].finish_reason = reason
        self.finished = True
        self._news.put_nowait(True)


class LLM:
    """What AsyncLLM inherits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = TorchLlmArgs(*args, **kwargs)
        assert self.args.load_format == "dummy"
        assert self.args.skip_tokenizer_init
        self._workers = [WorkerExtension(self, rank) for rank in range(self.args.tensor_parallel_size)]
        self._active: list[RequestOutput] = []
        self._ids = itertools.count(1)
        self._book = Book(1 << 12)
        self._blocks: dict[int, list[Any]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._shutdown = False

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._shutdown:
            raise RuntimeError("LLM is shutting down")
        params = sampling_params or SamplingParams()
        if params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        assert isinstance(inputs, list)
        assert all(isinstance(token, int) for token in inputs)
        if not inputs:
            raise ValueError("prompt_token_ids is empty")
        if len(inputs) > self.args.max_input_len or len(inputs) >= self.args.max_seq_len:
            raise ValueError("prompt length exceeds max_input_len or max_seq_len")
        assert all(worker.ready for worker in self._workers), "served with weights that were not finalised"
        result = RequestOutput(self, next(self._ids), list(inputs), params, cache_salt or "")
        if self.args.kv_cache_config.enable_block_reuse:
            self._reuse(result)
        self._active.append(result)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run(), name="tensorrt-double")
        return result

    def shutdown(self) -> None:
        self._shutdown = True

    def reset_prefix_cache(self) -> None:
        self._book.forget()

    def _reuse(self, result: RequestOutput) -> None:
        tokens = result.prompt_token_ids
        blocks = self._book.match(result._salt, tokens, (len(tokens) - 1) // BLOCK)
        result.cached_tokens = BLOCK * len(blocks)
        while len(blocks) < len(tokens) // BLOCK:
            blocks.append(self._book.take())
        for index in range(len(tokens) // BLOCK):
            self._book.publish(blocks, index, result._salt, tokens[index * BLOCK : (index + 1) * BLOCK])
        self._blocks[result.request_id] = blocks

    async def _run(self) -> None:
        while self._active:
            await asyncio.sleep(0)
            worker = self._workers[0]
            for result in self._active[: self.args.max_batch_size]:
                result.step(worker.fingerprint, worker.vocab)
            for result in self._active:
                if result.finished:
                    self._book.drop(self._blocks.pop(result.request_id, []))
            self._active = [result for result in self._active if not result.finished]


class AsyncLLM(LLM):
    def __init__(
        self,
        placement_groups: list[Any] | None = None,
        placement_bundle_indices: list[list[int]] | None = None,
        per_worker_gpu_share: float | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        kwargs["orchestrator_type"] = "ray"
        kwargs["allreduce_strategy"] = "NCCL"
        kwargs.setdefault("ray_worker_extension_cls", "tensorrt_llm.llmapi.rlhf_utils.WorkerExtension")
        super().__init__(*args, **kwargs)
        self._async_initialized = False
        self._paused = False

    async def setup_async(self) -> "AsyncLLM":
        self._async_initialized = True
        return self

    async def collective_rpc(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        unique_reply_rank: int | None = None,
        target_ranks: int | list[int] | None = None,
    ) -> list[Any]:
        assert self._async_initialized, "setup_async was not awaited"
        while self._active:  # the decorator of every control action drains
            await asyncio.gather(*(each.aresult() for each in list(self._active)))
            await asyncio.sleep(0)
        return [getattr(worker, method)(*args, **kwargs or {}) for worker in self._workers]

    def generate_async(self, *args: Any, **kwargs: Any) -> RequestOutput:
        if self._paused:
            raise RuntimeError("AsyncLLM is paused. Call resume_generation() before submitting new requests.")
        return super().generate_async(*args, **kwargs)

    async def pause_generation(self) -> None:
        self._paused = True

    async def resume_generation(self) -> None:
        self._paused = False


class WorkerExtension:
    """What each worker runs by name."""

    def __init__(self, owner: LLM, rank: int) -> None:
        self._owner, self.device_id = owner, rank
        self._weights: dict[str, torch.Tensor] = {}
        self.ready, self.fingerprint, self.vocab = False, 0, 0

    def update_weights(self, ipc_handles: dict[str, list[tuple[str, Any]]] | None = None) -> None:
        self.ready = False
        if ipc_handles is not None:
            if get_device_uuid(self.device_id) not in ipc_handles:
                raise ValueError(f"Device UUID {get_device_uuid(self.device_id)} not found in ipc_handles")
            for name, (function, args) in ipc_handles[get_device_uuid(self.device_id)]:
                arguments = list(args)
                arguments[6] = self.device_id
                self._weights[name] = function(*arguments)
            return
        # the bytes that the fake engine would hash, so that both give the same policy
        digest = hashlib.sha256()
        for name in sorted(self._weights):
            digest.update(name.encode() + self._weights[name].contiguous().numpy().tobytes())
        self.fingerprint = int.from_bytes(digest.digest()[:8], "big")
        self.vocab = len(self._weights["model.embed_tokens.weight"])
        self._owner.reset_prefix_cache()
        self.ready = True

    def abort_update_weights(self, reason: str = "trainer-initiated abort") -> None:
        self._weights.clear()

    def reset_prefix_cache(self) -> None:
        self._owner.reset_prefix_cache()


def get_device_uuid(device_id: int) -> str:
    return UUIDS[device_id]


def share_in_process(library: Any, tensors: Mapping[str, torch.Tensor], workers: int) -> Shared:
    """In place of CUDA IPC: a handle is a function and seven arguments, of which the last is the device."""

    def handle(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
        return (lambda *args: args[0]), (tensor, None, None, None, None, None, None)

    return Shared(
        {
            library.device_uuid(rank): [(name, handle(each)) for name, each in tensors.items()]
            for rank in range(workers)
        },
        tuple(tensors.values()),
    )


def modules(version: str = "1.3.0") -> dict[str, types.ModuleType]:
    """The package, ready for ``sys.modules``."""
    contents: dict[str, dict[str, Any]] = {
        "tensorrt_llm": {"__version__": version, "LLM": LLM, "SamplingParams": SamplingParams},
        "tensorrt_llm._torch": {},
        "tensorrt_llm._torch.async_llm": {"AsyncLLM": AsyncLLM},
        "tensorrt_llm._torch.utils": {"get_device_uuid": get_device_uuid},
        "tensorrt_llm.llmapi": {
            "LLM": LLM,
            "KvCacheConfig": KvCacheConfig,
            "SamplingParams": SamplingParams,
            "RequestOutput": RequestOutput,
        },
        "tensorrt_llm.llmapi.llm_args": {"TorchLlmArgs": TorchLlmArgs},
        "tensorrt_llm.llmapi.rlhf_utils": {"WorkerExtension": WorkerExtension},
    }
    made = {}
    for name, names in contents.items():
        module = types.ModuleType(name)
        module.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]  # find_spec asks that it is there
        module.__path__ = []  # a package
        vars(module).update(names)
        made[name] = module
    return made


@contextmanager
def installed(version: str = "1.3.0") -> Iterator[dict[str, types.ModuleType]]:
    """The double as ``tensorrt_llm``, for as long as the block lasts."""
    made = modules(version)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield made
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
