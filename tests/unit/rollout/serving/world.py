"""A tiny model directory, an engine that says what a test wants, and a server in the test's own loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import uvicorn
from openai import AsyncOpenAI
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from temper.rollout.chat import byte_chat, byte_tokenizer
from temper.rollout.engine.base import (
    Completion,
    Emitted,
    Engine,
    EngineInfo,
    FinishReason,
    PolicyFiles,
    Request,
    Sink,
    Span,
    Stats,
    SwapPolicy,
    SwapReport,
)
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.serving.app import make_app
from temper.rollout.serving.config import ServingConfig
from temper.rollout.serving.directory import Model, read_model
from temper.rollout.serving.fleet import Fleet
from temper.rollout.serving.front import Front
from temper.rollout.serving.metrics import EngineGauges, ServingMetrics
from temper.rollout.serving.server import bind
from temper.rollout.serving.sources import Sources
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import SystemClock
from temper.runtime.telemetry import new_registry

VOCAB, CONTEXT = 272, 512
TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls %}<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Bytes, three role tokens, and the two marks of a call as ordinary added tokens, as Qwen has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(each, special=True) for each in ("<|end|>", "<|im_start|>", "<|im_end|>")]
    )
    made.add_tokens([AddedToken("<tool_call>"), AddedToken("</tool_call>")])
    return made


def shard(seed: int = 0) -> bytes:
    """Weights for an engine that only hashes them."""
    return save(
        {"model.norm.weight": np.full(4, seed, np.float32), "model.embed.weight": np.ones((4, 4), np.float32)}
    )


def write_directory(path: Path, seed: int = 0, **config: object) -> Path:
    """A Hugging Face directory with a chat template."""
    path.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    made.save(str(path / "tokenizer.json"))
    settings = {"model_type": "qwen3", "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, **config}
    settings.setdefault("eos_token_id", made.token_to_id("<|im_end|>"))
    (path / "config.json").write_text(json.dumps(settings))
    side = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "bos_token": {"content": "<|end|>"}}
    (path / "tokenizer_config.json").write_text(json.dumps(side))
    (path / "model.safetensors").write_bytes(shard(seed))
    return path


def write_byte_directory(path: Path) -> Path:
    """A directory with ``temper_chat.json`` and no template."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_bytes(byte_tokenizer())
    (path / "temper_chat.json").write_bytes(byte_chat())
    settings = {"model_type": "llama", "vocab_size": 264, "max_position_embeddings": CONTEXT}
    (path / "config.json").write_text(json.dumps(settings))
    (path / "model.safetensors").write_bytes(shard())
    return path


class ScriptedEngine:
    """Says ``script`` (ids) to every request, ``chunk`` tokens a step. A step waits for ``gate``."""

    def __init__(self, script: Sequence[int] = (), *, chunk: int = 1) -> None:
        self.script, self.chunk = list(script), chunk
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled: list[str] = []
        self.requests: list[Request] = []
        self.versions: list[int] = [-1]
        self.paused = self.alive = False
        self._open: dict[str, tuple[asyncio.Task[None], asyncio.Future[Completion], list[int]]] = {}

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("scripted", "1", "none", batch_invariant=True, max_context=CONTEXT)

    async def start(self) -> None:
        self.alive = True

    async def close(self) -> None:
        for request_id in list(self._open):
            self.cancel(request_id)
        self.alive = False

    async def load(self, files: PolicyFiles) -> None:
        pass

    async def swap(self, version: int, policy: SwapPolicy = SwapPolicy.KEEP) -> SwapReport:
        self.versions.append(version)
        return SwapReport(version, len(self._open), policy)

    async def pause(self) -> None:
        self.paused = True

    async def resume(self) -> None:
        self.paused = False

    def submit(self, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        self.requests.append(request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        said: list[int] = []
        self._open[request.request_id] = (asyncio.create_task(self._play(request, sink, said)), future, said)
        return future

    def cancel(self, request_id: str) -> None:
        if request_id in self._open:
            self.cancelled.append(request_id)
            self._open[request_id][0].cancel()
            self._finish(request_id, FinishReason.ABORT)

    def release(self, request_id: str) -> None:
        pass

    def stats(self) -> Stats:
        return Stats(
            version=self.versions[-1],
            running=len(self._open),
            waiting=0,
            kept=0,
            slots=8,
            kv_tokens=0,
            generated_tokens=0,
            prefill_tokens=0,
            steps=0,
            busy_seconds=0.0,
            paused=self.paused,
        )

    async def _play(self, request: Request, sink: Sink | None, said: list[int]) -> None:
        script = self.script[: request.sampling.max_tokens]
        for at in range(0, len(script), self.chunk):
            await asyncio.sleep(0)
            await self.gate.wait()
            part = tuple(script[at : at + self.chunk])
            stops = [place for place, token in enumerate(part) if token in request.sampling.stop_token_ids]
            part = part[: stops[0] + 1] if stops else part
            said.extend(part)
            if sink is not None:
                zeros = (-0.5,) * len(part)
                sink(Emitted(request.request_id, part, zeros, zeros, (), self.versions[-1]))
            if stops:
                self._finish(request.request_id, FinishReason.STOP)
                return
        self._finish(request.request_id, FinishReason.LENGTH)

    def _finish(self, request_id: str, reason: FinishReason) -> None:
        _, future, said = self._open.pop(request_id)
        zeros = (-0.5,) * len(said)
        version = self.versions[-1]
        done = Completion(
            request_id=request_id,
            tokens=tuple(said),
            logprobs_raw=zeros,
            logprobs=zeros,
            log_surviving_mass=(0.0,) * len(said),
            weight_versions=(Span(0, len(said), version),) if said else (),
            prefill_versions=(),
            finish=reason,
            cached_tokens=0,
        )
        if not future.done():
            future.set_result(done)


@dataclass(frozen=True, slots=True)
class Served:
    """A server on a free port."""

    front: Front
    url: str
    http: httpx2.AsyncClient
    client: AsyncOpenAI
    model: Model

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        return await self.http.post(path, json=body, headers=headers)

    def ids(self, text: str) -> list[int]:
        return self.model.encode(text, special=False)


def fake_engine(**options: Any) -> Engine:
    return FakeEngine(SystemClock(), slots=8, max_context=CONTEXT, **options)


def store_beside(directory: Path) -> BlobStore:
    """Where a trainer would publish to."""
    return BlobStore(f"file://{directory.parent / 'objects'}")


@asynccontextmanager
async def served(
    directory: Path,
    make_engine: Callable[[], Engine] = fake_engine,
    *,
    token: str | None = None,
    **config: Any,
) -> AsyncIterator[Served]:
    """Serve a directory in this loop, over a real socket."""
    clock = SystemClock()
    settings = ServingConfig.model_validate({"name": "tiny", **config})
    model = read_model(directory)
    sources = Sources(settings.weights_root or directory.parent, lambda: store_beside(directory))
    fleet = Fleet(model, make_engine, clock, replicas=settings.replicas, sources=sources)
    await fleet.start()
    metrics = ServingMetrics(new_registry())
    metrics.registry.register(EngineGauges(fleet.stats))
    front = Front(settings, "tiny", fleet, clock, metrics, 0)
    server = uvicorn.Server(
        uvicorn.Config(make_app(front, token), lifespan="off", log_config=None, timeout_graceful_shutdown=5)
    )
    with bind("127.0.0.1", 0) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        key = token or "none"
        http = httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, verify=False
        )
        plain = httpx2.AsyncClient(timeout=60, verify=False)  # loading certificates takes longer than a test
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=plain)
        try:
            yield Served(front, url, http, client, model)
        finally:
            await client.close()
            await http.aclose()
            server.should_exit = True
            await running
            await fleet.close()
