"""Hugging Face names in and out of Megatron's fused, split parameters, and the frames that carry them; no Megatron needed."""

import socket
import threading

import numpy as np
import pytest
import torch
from tests.unit.trainer.test_torch_engine import config, group_batch

from temper.runtime.errors import Rejected
from temper.trainer.engine import make_engine
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.names import order, part, slots, whole
from temper.trainer.engine.megatron.wire import Frame, pack_batch, receive, send, unpack_batch
from temper.trainer.engine.torch.model import Decoder, parse_config
from temper.trainer.engine.torch.storage import named_weights


def policy(family, tied):
    cfg = parse_config(config(family, tied=tied))
    model = Decoder(cfg)
    model.initialise(torch.Generator().manual_seed(3))
    return cfg, named_weights(model, tied=tied)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_name_comes_back_from_every_layout_with_the_same_numbers(family, tied, stages, parts):
    cfg, named = policy(family, tied)
    found = {}
    for stage in range(stages):
        layers = range(stage * cfg.layers // stages, (stage + 1) * cfg.layers // stages)
        for slot in slots(
            cfg, layers, start=layers.start, first=stage == 0, last=stage == stages - 1, copied=stage > 0
        ):
            shards = [part(slot, named.__getitem__, cfg, rank, parts) for rank in range(parts)]
            assert len({shard.shape for shard in shards}) == 1
            found |= whole(slot, shards, cfg)
    assert found.keys() == named.keys()
    assert all(torch.equal(found[name], named[name]) for name in named)
    assert list(order(cfg)) == list(named)


def test_each_part_of_the_fused_attention_holds_whole_groups():
    cfg, named = policy("qwen3", tied=True)  # 4 heads of 8 in 2 groups
    slot = next(
        s for s in slots(cfg, range(1), start=0, first=True, last=False, copied=False) if s.kind == "qkv"
    )
    second = part(slot, named.__getitem__, cfg, 1, 2)
    query, key, value = (named[name] for name in slot.sources)
    assert torch.equal(second, torch.cat([query[16:], key[8:], value[8:]]))


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("tensor_parallel", 3, "num_attention_heads 4 is not a multiple of 3"),
        ("tensor_parallel", 4, "num_key_value_heads 2 is not a multiple of 4"),
        ("pipeline_parallel", 4, "num_hidden_layers 2 is not a multiple of 4"),
        ("sequence_parallel", True, "tensor_parallel share the sequence"),
        ("data_parallel", 0, "not at least 1"),
        ("precision", "fp8", "not one of fp32, bf16"),
        ("recompute", "selective", "not one of none, full"),
    ],
)
def test_a_layout_that_cannot_work_names_the_constraint(option, value, why):
    with pytest.raises(Rejected, match=why) as caught:
        make_engine("megatron", megatron={option: value}).build(config("qwen3"), seed=0)
    assert caught.value.field == f"trainer.megatron.{option}"


def test_options_of_megatron_are_refused_with_another_engine():
    with pytest.raises(Rejected, match=r"trainer\.megatron: .* asks for torch"):
        make_engine("torch", megatron={"tensor_parallel": 2})


def test_a_layout_counts_its_processes():
    assert MegatronOptions(tensor_parallel=2, pipeline_parallel=3, data_parallel=4).ranks == 24


def test_a_batch_crosses_a_socket_unchanged():
    ours, theirs = socket.socketpair()
    batch = group_batch(3)
    header, blocks = pack_batch(batch)
    writer = threading.Thread(target=send, args=(ours, Frame({"batch": header}, blocks)))
    writer.start()
    frame = receive(theirs)
    writer.join()
    ours.close()
    theirs.close()
    found = unpack_batch(frame.head["batch"], frame.blocks)
    assert np.array_equal(found.advantages, batch.advantages)
    for mine, sent in zip(found.samples, batch.samples, strict=True):
        assert np.array_equal(mine.ids, sent.ids)
        assert np.array_equal(mine.mask, sent.mask)
        assert np.array_equal(mine.logprobs, sent.logprobs)
        assert (mine.reward, mine.valid, mine.group, mine.domain) == (
            sent.reward,
            sent.valid,
            sent.group,
            sent.domain,
        )


def test_a_closed_socket_is_an_error_not_an_empty_frame():
    ours, theirs = socket.socketpair()
    ours.sendall(b"\x05\x00")
    ours.close()
    with pytest.raises(ConnectionError, match="closed"):
        receive(theirs)
    theirs.close()
