"""The TensorRT-LLM engine's own rules, on the strict double: names, refusals, the vendor's traps, torn updates."""

import asyncio
import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from tests.conformance.rollout import tensorrt_double as double
from tests.conformance.rollout.asks import LONG, Watch, ask
from tests.conformance.rollout.engines import CONFIG, CONTEXT, policy, seeded

from temper.rollout.config import EngineConfig, TensorRtConfig
from temper.rollout.engine.base import (
    FinishReason,
    PolicyFiles,
    Request,
    Sampling,
    SwapPolicy,
)
from temper.rollout.engine.choose import make_engine
from temper.rollout.engine.tensorrt_llm import names
from temper.rollout.engine.tensorrt_llm.capabilities import POLICIES, REQUEST, SAMPLING, table
from temper.rollout.engine.tensorrt_llm.engine import TensorRtEngine
from temper.rollout.engine.tensorrt_llm.gate import Gate
from temper.rollout.engine.tensorrt_llm.names import find_library
from temper.rollout.engine.tensorrt_llm.sampling import parameters
from temper.rollout.engine.tensorrt_llm.weights import buckets, read_tensors
from temper.rollout.engine.tensorrt_llm.workers import Options
from temper.runtime.clock import FakeClock, SystemClock
from temper.runtime.errors import Rejected, Unavailable

GUIDE = Path(__file__).parents[3] / "docs/guides/tensorrt-llm.md"


@pytest.fixture
def package():
    with double.installed() as made:
        yield made


async def serving(clock: Any = None, **changes: Any) -> TensorRtEngine:
    fields: dict[str, Any] = {"slots": 4, "max_context": CONTEXT, "prefill_tokens": 64, **changes}
    options = Options(**fields)
    engine = TensorRtEngine(clock or SystemClock(), options, share=double.share_in_process)
    await engine.start()
    await engine.load(policy(1))
    await engine.swap(1)
    return engine


def vendor(engine: TensorRtEngine) -> Any:
    return engine._workers._llm  # type: ignore[union-attr]  # the double, to see what was asked of it


# What must be there.


def test_without_the_package_the_start_is_refused_with_the_way_out():
    with pytest.raises(Rejected, match=r"engine\.name: tensorrt_llm is not installed .*container image"):
        find_library()


@pytest.mark.parametrize("version", ["1.1.0", "0.21.0", "nightly"])
def test_an_old_or_unreadable_release_is_refused_by_version(version: str):
    with double.installed(version), pytest.raises(Rejected, match=f"{version} is older than 1.2"):
        find_library()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tensorrt_llm._torch.async_llm", "AsyncLLM"),
        ("tensorrt_llm.llmapi", "KvCacheConfig"),
        ("tensorrt_llm.llmapi.rlhf_utils", "WorkerExtension"),
        ("tensorrt_llm._torch.utils", "get_device_uuid"),
    ],
)
def test_a_missing_name_is_named(package: dict[str, types.ModuleType], module: str, name: str):
    delattr(package[module], name)
    with pytest.raises(Rejected, match=f"lacks {module}.{name}"):
        find_library()


def test_a_missing_parameter_is_named(package: dict[str, types.ModuleType]):
    @dataclasses.dataclass
    class WithoutDtype:
        enable_block_reuse: bool = True
        free_gpu_memory_fraction: float = 0.9

    class Quiet(double.AsyncLLM):
        def generate_async(self, inputs: Any, sampling_params: Any, streaming: bool) -> Any:
            raise AssertionError

    vars(package["tensorrt_llm.llmapi"])["KvCacheConfig"] = WithoutDtype
    vars(package["tensorrt_llm._torch.async_llm"])["AsyncLLM"] = Quiet
    with pytest.raises(Rejected) as refusal:
        find_library()
    assert "AsyncLLM.generate_async(cache_salt=), KvCacheConfig.__init__(dtype=)" in str(refusal.value)


def test_parameters_behind_kwargs_are_looked_up_in_the_bases():
    assert {"inputs", "cache_salt"} <= names.parameters(double.AsyncLLM, "generate_async")


def test_the_double_refuses_what_the_engine_must_not_use():
    with pytest.raises(TypeError, match="top_a"):
        double.SamplingParams(top_a=1)  # type: ignore[call-arg]  # the point
    with pytest.raises(TypeError, match="use_cuda_graph"):
        double.AsyncLLM(model="m", skip_tokenizer_init=True, load_format="dummy", use_cuda_graph=True)
    assert not hasattr(double.AsyncLLM, "abort_everything")


def test_every_field_that_is_passed_is_looked_for_at_start():
    passed = parameters(Request("r", (1,), Sampling(4, 0.5, 3, 0.9, 0.1), 0, 0), 0, 4)
    assert set(passed) <= names.SAMPLING_FIELDS
    assert set(parameters(Request("r", (1,), Sampling(4, 0.0), 0, 0), 0, 4)) <= names.SAMPLING_FIELDS


# What is honoured.


def test_the_table_has_a_row_for_everything_a_request_or_a_swap_may_say():
    assert [row.name for row in REQUEST] == [field.name for field in dataclasses.fields(Request)]
    assert {row.name for row in SAMPLING} == {field.name for field in dataclasses.fields(Sampling)}
    assert [row.name for row in POLICIES] == [each.value for each in SwapPolicy]


def test_the_guide_prints_the_table():
    assert table() in GUIDE.read_text()


@pytest.mark.parametrize(
    "row", [row for row in (*REQUEST, *SAMPLING) if not row.honoured], ids=lambda row: row.name
)
async def test_what_the_table_refuses_is_refused_with_its_reason(package: Any, row: Any):
    engine = await serving()
    value: Any = {"prompt_logprobs": True, "logit_bias": ((1, 1.0),)}.get(row.name, 1.5)
    with pytest.raises(Rejected, match=row.how.replace(".", r"\.")):
        engine.submit(ask("r", **{row.name: value}))
    await engine.close()


async def test_keep_is_refused_while_something_runs_and_moot_otherwise(package: Any):
    engine = await serving()
    await engine.load(seeded(2))
    assert (await engine.swap(2, SwapPolicy.KEEP)).running == 0
    await engine.load(seeded(3))
    watch = Watch()
    running = engine.submit(ask("r", count=60), watch)
    await watch.first()
    with pytest.raises(Rejected, match="use one of recompute, requeue, abort, wait"):
        await engine.swap(3, SwapPolicy.KEEP)
    assert len((await running).tokens) == 60
    await engine.close()


async def test_sampling_that_ships_too_many_logits_is_refused_with_its_size(package: Any):
    engine = await serving(logits_bytes=64 * 4 * 10)
    assert (await engine.submit(ask("fits", count=10, top_k=3))).tokens
    assert (await engine.submit(ask("plain", count=60))).tokens
    assert (await engine.submit(ask("greedy", count=60, temperature=0.0))).tokens
    with pytest.raises(Rejected, match="logits_mb"):
        engine.submit(ask("over", count=11, top_k=3))
    await engine.close()


async def test_an_eight_bit_cache_marks_logprobs_as_not_for_training(package: Any):
    engine = await serving(kv_dtype="fp8")
    assert not (await engine.submit(ask("r"))).for_training
    await engine.close()


# The vendor's traps.


def test_the_plain_softmax_says_so_and_greedy_says_so():
    assert parameters(ask("r"), 0, 5)["temperature"] == 1.0
    greedy = parameters(ask("r", temperature=0.0, top_p=0.5), 0, 5)
    assert (greedy["top_k"], "temperature" in greedy, "top_p" in greedy) == (1, False, False)


def test_stop_tokens_are_kept_and_the_end_is_ours_alone():
    made = parameters(ask("r", stop_token_ids=(3, 4)), 0, 5)
    assert (made["stop_token_ids"], made["include_stop_str_in_output"], made["end_id"]) == ([3, 4], True, -1)
    assert "ignore_eos" not in made
    assert made["logprobs"] == 0


def test_seeds_differ_by_sample_and_by_where_a_submission_starts():
    seeds = {parameters(ask("r", sample=i), outputs, 5)["seed"] for i in range(20) for outputs in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 1 << 63 for seed in seeds)


async def test_the_vendor_gets_one_request_per_sample_and_never_n(package: Any):
    engine = await serving()
    seen = []
    generate = vendor(engine).generate_async

    def spy(**kwargs: Any) -> Any:
        seen.append(kwargs["sampling_params"])
        return generate(**kwargs)

    vendor(engine).generate_async = spy
    await asyncio.gather(*(engine.submit(ask(f"s{i}", sample=i, group="g")) for i in range(5)))
    assert [params.n for params in seen] == [1] * 5
    assert len({params.seed for params in seen}) == 5
    assert not any(params.detokenize or params.add_special_tokens for params in seen)
    await engine.close()


async def test_options_reach_the_vendor(package: Any):
    engine = await serving(
        slots=3, prefill_tokens=200, tensor_parallel=2, dtype="bfloat16", kv_fraction=0.5, prefix_reuse=False
    )
    args = vendor(engine).args
    assert (args.max_batch_size, args.max_num_tokens, args.tensor_parallel_size) == (3, 200, 2)
    assert (args.max_seq_len, args.max_input_len, args.dtype) == (CONTEXT, CONTEXT, "bfloat16")
    assert (args.kv_cache_config.free_gpu_memory_fraction, args.kv_cache_config.enable_block_reuse) == (
        0.5,
        False,
    )
    await engine.submit(ask("one", LONG))
    assert (await engine.submit(ask("two", LONG))).cached_tokens == 0
    await engine.close()


async def test_block_reuse_is_salted_by_tenant_and_reset_by_an_update(package: Any):
    engine = await serving()
    await engine.submit(ask("a", LONG, tenant="a"))
    assert (await engine.submit(ask("b", LONG, tenant="b"))).cached_tokens == 0
    assert (await engine.submit(ask("a2", LONG, tenant="a"))).cached_tokens == 48
    await engine.load(seeded(2))
    await engine.swap(2)
    assert (await engine.submit(ask("a3", LONG, tenant="a"))).cached_tokens == 0
    await engine.close()


async def test_vllm_9744_no_block_of_one_version_serves_another_even_if_the_cache_is_never_emptied(
    package: Any, monkeypatch: pytest.MonkeyPatch
):
    """The version is in the salt: isolation does not hang on the reset that the finalising call does."""
    monkeypatch.setattr(double.LLM, "reset_prefix_cache", lambda _: None)
    engine = await serving()
    await engine.submit(ask("old", LONG))
    assert (await engine.submit(ask("again", LONG))).cached_tokens == 48
    await engine.load(seeded(2))
    await engine.swap(2)
    assert (await engine.submit(ask("new", LONG))).cached_tokens == 0
    await engine.close()


async def test_a_request_that_the_vendor_aborts_by_itself_ends_as_aborted(package: Any):
    engine = await serving()
    watch = Watch()
    running = engine.submit(ask("r", count=60), watch)
    await watch.first()
    vendor(engine)._active[0].abort()
    done = await running
    assert done.finish is FinishReason.ABORT
    assert done.tokens == watch.tokens
    await engine.close()


async def test_a_submission_that_the_vendor_refuses_fails_alone(package: Any):
    engine = await serving()

    def refuse(**_: Any) -> Any:
        raise ValueError("no room in the queue")

    generate, vendor(engine).generate_async = vendor(engine).generate_async, refuse
    with pytest.raises(Unavailable, match="no room in the queue"):
        await engine.submit(ask("r"))
    vendor(engine).generate_async = generate
    assert (await engine.submit(ask("r"))).tokens
    await engine.close()


async def test_a_release_that_drops_the_sampled_logprob_is_found_by_the_probe(
    package: Any, monkeypatch: pytest.MonkeyPatch
):
    draw = double.RequestOutput._draw

    def without(self: Any, fingerprint: int, vocab: int) -> int:
        token = draw(self, fingerprint, vocab)
        self.outputs[0].logprobs[-1].pop(token)
        return token

    monkeypatch.setattr(double.RequestOutput, "_draw", without)
    engine = TensorRtEngine(SystemClock(), Options(4, CONTEXT, 64), share=double.share_in_process)
    await engine.start()
    await engine.load(policy(1))
    with pytest.raises(Unavailable, match="no logprob of the sampled token"):
        await engine.swap(1)
    await engine.close()


# Weights.


async def test_a_torn_update_serves_nobody_until_a_version_is_whole(package: Any):
    engine = await serving()
    await engine.load(seeded(2))
    await engine.load(seeded(3))
    worker = vendor(engine)._workers[0]

    def tear(ipc_handles: Any) -> None:
        if ipc_handles is None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        type(worker).update_weights(worker, ipc_handles)

    worker.update_weights = tear
    await engine.pause()
    waiting = engine.submit(ask("waits"))
    with pytest.raises(Unavailable, match="did not take the weights: CUDA error"):
        await engine.swap(2)
    with pytest.raises(Unavailable, match="version 2 did not come to its end"):
        await waiting
    with pytest.raises(Unavailable, match="version 2 did not come to its end"):
        engine.submit(ask("late"))
    assert not engine.alive
    del worker.update_weights
    await engine.resume()
    await engine.swap(3)
    assert engine.alive
    assert (await engine.submit(ask("served"))).weight_versions[0].version == 3
    await engine.close()


async def test_weights_go_in_buckets_to_every_device_and_are_finalised_last(package: Any):
    calls: list[Any] = []

    def share(library: Any, tensors: Any, workers: int) -> Any:
        calls.append((sorted(tensors), workers))
        return double.share_in_process(library, tensors, workers)

    options = Options(slots=2, max_context=CONTEXT, prefill_tokens=64, tensor_parallel=2)
    engine = TensorRtEngine(SystemClock(), options, share=share)
    await engine.start()
    await engine.load(policy(1))
    await engine.swap(1)
    assert [workers for _, workers in calls] == [2]
    assert all(worker.ready for worker in vendor(engine)._workers)
    await engine.close()
    portions = list(buckets(load(policy(1).shards[0]), most=8000))
    assert sum(map(len, portions)) == 21
    assert all(len(each) == 1 or sum(t.nbytes for t in each.values()) <= 8000 for each in portions)


def changed(name: str, to: torch.Tensor | None) -> PolicyFiles:
    tensors = load(policy(2).shards[0])
    if to is None:
        del tensors[name]
    else:
        tensors[name] = to
    return PolicyFiles(2, CONFIG, (save(tensors),))


@pytest.mark.parametrize(
    ("name", "to", "words"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "model.layers.1.mlp.up_proj.weight is missing"),
        ("lm_head.weight", None, "lm_head.weight is missing"),
        ("model.embed_tokens.weight", None, "model.embed_tokens.weight is missing"),
        ("model.norm.weight", None, "model.norm.weight of version 2 is not as in the version before"),
        (
            "model.norm.weight",
            torch.ones(7),
            "model.norm.weight of version 2 is not as in the version before",
        ),
        (
            "model.norm.weight",
            torch.full((32,), torch.nan),
            "model.norm.weight has numbers that are not finite",
        ),
        ("model.embed_tokens.weight", torch.ones(3, 32), "has 3 rows, config.json says vocab_size 64"),
    ],
)
def test_a_partial_or_altered_checkpoint_names_the_tensor(name: str, to: torch.Tensor | None, words: str):
    like = {each: tensor.shape for each, tensor in load(policy(1).shards[0]).items()}
    with pytest.raises(Rejected, match=words):
        read_tensors(changed(name, to), like)


def test_a_broken_or_doubled_shard_names_itself():
    whole = policy(1)
    with pytest.raises(Rejected, match="shard 0 is not a safetensors file"):
        read_tensors(PolicyFiles(1, CONFIG, (whole.shards[0][:-40],)), None)
    with pytest.raises(Rejected, match="is in two shards"):
        read_tensors(PolicyFiles(1, CONFIG, whole.shards * 2), None)


# Time and order.


async def test_a_swap_that_cannot_wait_any_longer_says_so_and_the_old_version_serves_on(package: Any):
    clock = FakeClock()
    engine = await serving(clock, swap_wait_s=5.0)
    await engine.load(seeded(2))
    stuck, vendor(engine)._run = vendor(engine)._run, _never
    running = engine.submit(ask("stuck", count=60))
    await clock.settle()
    swapping = asyncio.create_task(engine.swap(2, SwapPolicy.WAIT))
    await clock.advance(6.0)
    with pytest.raises(Unavailable, match="version 2 is not current"):
        await swapping
    vendor(engine)._run = stuck
    vendor(engine)._loop.cancel()
    again = engine.submit(ask("again"))
    assert (await again).weight_versions[0].version == 1
    assert len((await running).tokens) == 60
    await engine.close()


async def _never() -> None:
    await asyncio.Event().wait()


async def test_the_gate_lets_the_urgent_in_first_and_waiting_counts():
    gate = Gate(1, SystemClock().monotonic)
    order: list[str] = []

    async def visit(name: str, priority: int) -> None:
        await gate.enter(priority)
        order.append(name)
        gate.leave()

    early = [asyncio.create_task(visit(f"early{i}", 0)) for i in range(2)]
    await asyncio.sleep(0)
    urgent = asyncio.create_task(visit("urgent", 1))
    later = [asyncio.create_task(visit(f"later{i}", 0)) for i in range(70)]
    await asyncio.sleep(0)
    late = asyncio.create_task(visit("late-urgent", 1))
    gone = asyncio.create_task(visit("gone", 9))
    await asyncio.sleep(0)
    gone.cancel()
    gate.open()
    await asyncio.gather(*early, urgent, *later, late, return_exceptions=False)
    assert order[:3] == ["urgent", "early0", "early1"]
    assert order.index("later3") < order.index("late-urgent") < order.index("later69")
    assert "gone" not in order
    assert gate.inside == 0


# Choosing it.


def test_it_is_chosen_by_name_and_its_options_arrive():
    own = TensorRtConfig(tensor_parallel=4, logits_mb=1, kv_dtype="fp8")
    engine = make_engine(EngineConfig(name="tensorrt_llm", slots=7, tensorrt_llm=own), SystemClock())
    assert isinstance(engine, TensorRtEngine)
    assert (engine._options.slots, engine._options.tensor_parallel) == (7, 4)
    assert (engine._options.logits_bytes, engine._options.kv_dtype) == (1 << 20, "fp8")
    assert engine.info.build == "not started"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            EngineConfig(name="tensorrt_llm", threads=2),
            "engine.threads: has no effect on the engine tensorrt_llm",
        ),
        (EngineConfig(name="tensorrt_llm", step_seconds=1.0), "engine.step_seconds"),
        (EngineConfig(name="torch", tensorrt_llm=TensorRtConfig(dtype="float16")), "engine.tensorrt_llm"),
        (EngineConfig(name="fake", batch_invariant=False), "engine.batch_invariant"),
    ],
)
def test_an_option_without_effect_is_refused(config: EngineConfig, words: str):
    with pytest.raises(Rejected, match=words):
        make_engine(config, SystemClock())
