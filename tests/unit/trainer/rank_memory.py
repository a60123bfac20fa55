"""``python -m tests.unit.trainer.rank_memory CONFIG LAYOUTS TOKENS``: what ranks really keep of one step, as JSON.

Ranks are forks of this process, one after another layout. Kept are weights, gradients and optimizer state (the fullest rank's), and
everything that autograd saves for the backward pass of one full row.
"""

import importlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np

from temper.trainer.engine.megatron import adapter

adapter.install()

import torch  # noqa: E402 - after the adapter, which Megatron needs to be there first


def kept(config, layout, rank, ranks, folder, tokens):
    from safetensors.torch import save_file

    from temper.trainer.algorithms import algorithm
    from temper.trainer.algorithms.base import Totals
    from temper.trainer.algorithms.targets import NOTHING_MORE
    from temper.trainer.engine.megatron.layout import MegatronOptions
    from temper.trainer.engine.megatron.rank.trainee import RankTrainee
    from temper.trainer.engine.megatron.rank.worker import Worker
    from temper.trainer.engine.torch.mixture import Balance
    from temper.trainer.engine.torch.model import Decoder, parse_config
    from temper.trainer.engine.torch.storage import named_weights
    from temper.trainer.engine.torch.updates import Made, Update
    from temper.trainer.samples import Batch, Sample

    torch.set_num_threads(1)
    cfg = parse_config(config)
    worker = Worker(rank, ranks, f"{folder}/rendezvous", 300.0, lambda: None)
    place = worker._lay(MegatronOptions(**layout))
    path = f"{folder}/weights-{rank}.safetensors"
    save_file({n: t.clone() for n, t in named_weights(Decoder(cfg), tied=cfg.tied).items()}, path)
    trainee = RankTrainee(cfg, place, [path], torch.device("cpu"), lambda: None)
    ids = np.arange(tokens) % cfg.vocab_size
    mask = np.arange(tokens) > 0
    sample = Sample(ids, mask, np.zeros(tokens, np.float32), 1.0, True, 0, "a")
    sft = algorithm("sft")
    settings = sft.settings({}, {}, max_staleness=0)
    update = Update(Batch([sample], np.ones(1)), [0], sft, settings, NOTHING_MORE, Made())
    said = {
        "budget": tokens,
        "beta": 0.0,
        "optimizer": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "max_grad_norm": 1.0},
    }
    held = {}
    own = {p.untyped_storage().data_ptr() for p in trainee._policy.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainee.update(update, Totals(tokens=tokens - 1, sequences=1), said, Balance())
    params = list(trainee._policy.parameters())
    state = trainee._moments._torch.state
    moments = sum(v.nbytes for s in state.values() for v in s.values() if torch.is_tensor(v) and v.dim())
    masters = sum(p.nbytes for p in state if not any(p is q for q in params))
    weights, gradients = sum(p.nbytes for p in params), sum(cast(Any, p).main_grad.nbytes for p in params)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": moments + masters,
        "kept": sum(held.values()),
    }


def main():
    config, layouts, tokens = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    warnings.filterwarnings("ignore")
    with adapter.on_cpu():
        importlib.import_module("temper.trainer.engine.megatron.rank.worker")  # before the forks
    found = []
    for layout in layouts:
        ranks = int(np.prod([v for n, v in layout.items() if n.endswith("parallel") and v is not True]))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            pids = []
            for rank in range(ranks):
                if not (pid := os.fork()):
                    with adapter.on_cpu():
                        said = kept(config, layout, rank, ranks, folder, tokens)
                    Path(f"{folder}/said-{rank}").write_text(json.dumps(said))
                    os._exit(0)
                pids.append(pid)
            ended = [os.waitpid(pid, 0)[1] for pid in pids]
            assert not any(ended)
            found.append([json.loads(Path(f"{folder}/said-{rank}").read_text()) for rank in range(ranks)])
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
