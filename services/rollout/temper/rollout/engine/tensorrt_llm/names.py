"""The vendor's names that this engine uses, looked up once, at start.

A release that lacks one of them is refused there with the list of what is missing: better than an ``AttributeError`` in
the middle of a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from temper.runtime.errors import Rejected

OLDEST = (1, 2)  # the first release with AsyncLLM.setup_async and WorkerExtension.update_weights

_HINT = "run in the vendor's container image; the package index has no wheel that installs without it"

SAMPLING_FIELDS = frozenset(
    {
        "max_tokens",
        "end_id",
        "pad_id",
        "stop_token_ids",
        "include_stop_str_in_output",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "logprobs",
        "return_generation_logits",
        "detokenize",
        "add_special_tokens",
    }
)
LAUNCH_FIELDS = frozenset(
    {
        "model",
        "skip_tokenizer_init",
        "dtype",
        "tensor_parallel_size",
        "load_format",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "max_input_len",
        "enable_chunked_prefill",
        "kv_cache_config",
    }
)

# (module, name, member or "" for its fields, parameters that are passed)
_NEEDED: tuple[tuple[str, str, str, frozenset[str]], ...] = (
    ("tensorrt_llm._torch.async_llm", "AsyncLLM", "setup_async", frozenset()),
    ("tensorrt_llm._torch.async_llm", "AsyncLLM", "shutdown", frozenset()),
    ("tensorrt_llm._torch.async_llm", "AsyncLLM", "collective_rpc", frozenset({"method", "args"})),
    (
        "tensorrt_llm._torch.async_llm",
        "AsyncLLM",
        "generate_async",
        frozenset({"inputs", "sampling_params", "streaming", "cache_salt"}),
    ),
    ("tensorrt_llm.llmapi.llm_args", "TorchLlmArgs", "", LAUNCH_FIELDS),
    (
        "tensorrt_llm.llmapi",
        "KvCacheConfig",
        "",
        frozenset({"enable_block_reuse", "free_gpu_memory_fraction", "dtype"}),
    ),
    ("tensorrt_llm.llmapi", "SamplingParams", "", SAMPLING_FIELDS),
    ("tensorrt_llm.llmapi", "RequestOutput", "abort", frozenset()),
    ("tensorrt_llm.llmapi", "RequestOutput", "aresult", frozenset()),
    ("tensorrt_llm.llmapi.rlhf_utils", "WorkerExtension", "update_weights", frozenset({"ipc_handles"})),
    ("tensorrt_llm._torch.utils", "get_device_uuid", "", frozenset()),
)


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor's names, found and checked. Their types are the vendor's: ``Any`` here."""

    version: str
    """Of the package."""
    async_llm: Any
    """The engine's class."""
    sampling_params: Any
    """Class of a request's options."""
    kv_cache_config: Any
    """Class of the cache's options."""
    worker_extension: Any
    """Class whose methods the workers run by name."""
    device_uuid: Any
    """From a CUDA device's number to the name under which a worker looks for its handles."""


def find_library() -> Library:
    """Import and check. Raises ``Rejected`` that says what is missing."""
    if find_spec("tensorrt_llm") is None:
        raise Rejected("tensorrt_llm is not installed", field="engine.name", hint=_HINT)
    version = str(getattr(import_module("tensorrt_llm"), "__version__", "unknown"))
    if _release(version) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise Rejected(f"tensorrt_llm {version} is older than {wanted}", field="engine.name", hint=_HINT)
    modules = {module: _imported(module) for module, *_ in _NEEDED}
    missing = sorted({lack for row in _NEEDED for lack in _lacks(modules[row[0]], *row)})
    if missing:
        raise Rejected(f"tensorrt_llm {version} lacks {', '.join(missing)}", field="engine.name", hint=_HINT)
    return Library(
        version,
        _get(modules, "tensorrt_llm._torch.async_llm", "AsyncLLM"),
        _get(modules, "tensorrt_llm.llmapi", "SamplingParams"),
        _get(modules, "tensorrt_llm.llmapi", "KvCacheConfig"),
        _get(modules, "tensorrt_llm.llmapi.rlhf_utils", "WorkerExtension"),
        _get(modules, "tensorrt_llm._torch.utils", "get_device_uuid"),
    )


def parameters(owner: Any, member: str) -> frozenset[str]:
    """Names that a class's method, or for "" its constructor, takes; what ``**kwargs`` passes on is looked up in the bases."""
    fields = getattr(owner, "model_fields", None)
    if not member and isinstance(fields, Mapping):
        return frozenset(map(str, fields))
    names: set[str] = set()
    for base in inspect.getmro(owner):
        function = vars(base).get(member or "__init__")
        if function is None:
            continue
        found = inspect.signature(function).parameters.values()
        names.update(each.name for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
        if not any(each.kind is each.VAR_KEYWORD for each in found):
            break
    return frozenset(names)


def _imported(module: str) -> ModuleType | None:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        return None


def _lacks(
    found: ModuleType | None, module: str, name: str, member: str, passed: frozenset[str]
) -> list[str]:
    if found is None:
        return [module]
    owner = getattr(found, name, None)
    if owner is None:
        return [f"{module}.{name}"]
    if member and not hasattr(owner, member):
        return [f"{name}.{member}"]
    if not passed:
        return []
    taken = parameters(owner, member)
    return [f"{name}.{member or '__init__'}({each}=)" for each in passed - taken]


def _get(modules: Mapping[str, ModuleType | None], module: str, name: str) -> Any:
    return getattr(modules[module], name)


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number; (0,) for what is not a version."""
    head = version.split(".")[:2]
    return tuple(int(part) for part in head) if all(part.isdigit() for part in head) else (0,)
