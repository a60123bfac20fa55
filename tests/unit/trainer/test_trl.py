# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportPrivateUsage=false, reportOptionalMemberAccess=false
"""Losses and gradients against TRL's trainers on the same weights, tokens and advantages."""

import json
import warnings

import numpy as np
import pytest
import torch
from tests.unit.trainer.test_algorithms import begun, gradients, gradients_of, moved, pairs_of, take
from tests.unit.trainer.test_torch_engine import config, engine, group_batch

from temper.trainer.algorithms import algorithm
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch.storage import encode
from temper.trainer.reward_models import classifier
from temper.trainer.samples import Batch, scores
from temper.trainer.weights import safetensors

STILL = OptimizerSettings(lr=0.0, max_grad_norm=1e9)
PAD = 0

# ours: algorithm, params, choices; theirs: arguments of GRPOConfig
SAME = {
    "token mean": (("grpo", {}, {}), {"loss_type": "bnpo"}),
    "sequence mean": (("grpo", {}, {"aggregation": "seq_mean_token_mean"}), {"loss_type": "grpo"}),
    "dapo": (("dapo", {}, {}), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "dr_grpo": (("dr_grpo", {"horizon": 32.0}, {"advantage": "grpo"}), {"loss_type": "dr_grpo"}),
    "cispo": (("cispo", {"clip_high_ratio": 1.3}, {}), {"loss_type": "cispo", "epsilon_high": 1.3}),
    "sapo": (("sapo", {}, {"aggregation": "seq_mean_token_mean"}), {"loss_type": "sapo"}),
    "gspo": (
        ("gspo", {}, {}),
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
        },
    ),
}


@pytest.fixture(scope="module")
def trl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a peer warns of at import is not ours to mend
        return pytest.importorskip("trl", reason="TRL, the peer, is not installed")


def near(batch, made):
    """Rollout probabilities close to the policy's own, so that some ratios are clipped and none is far."""
    rng = np.random.default_rng(5)
    for sample, found in zip(batch.samples, made.logprobs(batch.samples), strict=True):
        drift = rng.normal(0.0, 0.25, size=found.size)
        sample.logprobs[:] = np.where(sample.mask, found + drift, 0.0)
    return batch


def peer(trl, made, directory, arguments):
    """Their trainer around our weights."""
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    (directory / "config.json").write_text(json.dumps(config()))
    named = {
        t.name: torch.frombuffer(bytearray(t.data), dtype=torch.float32).view(t.shape) for t in made.export()
    }
    (directory / "model.safetensors").write_bytes(encode(named))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(40)}, unk_token="0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1")
    settings = {
        "output_dir": str(directory / "out"),
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "beta": 0.0,
        "epsilon": 0.2,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 32,
        **arguments,
    }
    made_by_them = trl.GRPOTrainer(
        model=model,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=trl.GRPOConfig(**settings),
        train_dataset=datasets.Dataset.from_list([{"prompt": "1 2"}]),
        processing_class=tokenizer,
    )
    made_by_them.current_gradient_accumulation_steps = 1
    return made_by_them


def padded(parts, dtype, *, left):
    width = max(len(part) for part in parts)
    out = torch.full((len(parts), width), PAD, dtype=dtype)
    for row, part in zip(out, parts, strict=True):
        place = slice(width - len(part), width) if left else slice(0, len(part))
        row[place] = torch.as_tensor(part, dtype=dtype)
    return out


def inputs(batch, advantages):
    """The same samples as they lay them out: prompts padded on the left, completions on the right."""
    cuts = [int(np.argmax(s.mask)) for s in batch.samples]
    prompts = [s.ids[:c] for s, c in zip(batch.samples, cuts, strict=True)]
    tails = [s.ids[c:] for s, c in zip(batch.samples, cuts, strict=True)]
    acted = [s.mask[c:] for s, c in zip(batch.samples, cuts, strict=True)]
    return {
        "prompt_ids": padded(prompts, torch.long, left=True),
        "prompt_mask": padded([np.ones(len(p)) for p in prompts], torch.long, left=True),
        "completion_ids": padded(tails, torch.long, left=False),
        "completion_mask": padded([np.ones(len(t)) for t in tails], torch.long, left=False),
        "tool_mask": padded(acted, torch.long, left=False),
        "old_per_token_logps": padded(
            [s.logprobs[c:] for s, c in zip(batch.samples, cuts, strict=True)], torch.float32, left=False
        ),
        "advantages": torch.tensor(advantages, dtype=torch.float32),
        "num_items_in_batch": torch.tensor(float(sum(s.actions for s in batch.samples))),
    }


@pytest.mark.parametrize("case", sorted(SAME))
@pytest.mark.filterwarnings("ignore")  # what a peer warns of is not ours to mend
def test_loss_and_gradient_agree_with_trl(trl, case, tmp_path):
    (name, params, choices), arguments = SAME[case]
    made = engine()
    batch = near(group_batch(), made)
    chosen = algorithm(name)
    settings = chosen.settings(params, {**choices, "correction": "bypass"}, max_staleness=1)
    advantages = chosen.advantages(scores(batch.samples), settings)
    outcome = made.step(Batch(batch.samples, advantages), chosen, settings, STILL)
    theirs = peer(trl, made, tmp_path, arguments)
    loss = theirs._compute_loss(theirs.model, inputs(batch, advantages))
    loss.backward()
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    ours = {n: p.grad for n, p in made.model.named_parameters() if p.grad is not None}
    found = {
        n.removeprefix("module."): p.grad for n, p in theirs.model.named_parameters() if p.grad is not None
    }
    assert ours.keys() == found.keys()
    for parameter, gradient in ours.items():
        torch.testing.assert_close(gradient, found[parameter], atol=1e-5, rtol=1e-4, msg=parameter)


# ---------------------------------------------------------------- preferences


def causal(made, directory, name):
    """Our policy as a model of theirs."""
    transformers = pytest.importorskip("transformers")
    where = directory / name
    where.mkdir()
    (where / "config.json").write_text(json.dumps(config()))
    (where / "model.safetensors").write_bytes(safetensors(list(made.export())))
    return transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)


def words():
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    table = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(40)}, unk_token="0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=table, pad_token="0", eos_token="1")


def quiet(directory, **more):
    return {"output_dir": str(directory / "out"), "report_to": [], "use_cpu": True, "bf16": False, **more}


def sides(batch):
    """Chosen samples, then rejected ones, as both see them."""
    found = list(pairs_of(batch.samples))
    return [best for best, _ in found] + [worst for _, worst in found]


def paired(batch):
    rows = sides(batch)
    return {
        "input_ids": padded([s.ids for s in rows], torch.long, left=False),
        "attention_mask": padded([np.ones(s.ids.size) for s in rows], torch.long, left=False),
        "completion_mask": padded([s.mask for s in rows], torch.long, left=False),
    }


def assert_same(ours, theirs):
    found = {n.removeprefix("module."): p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    assert ours.keys() == found.keys()
    for parameter, gradient in ours.items():
        torch.testing.assert_close(gradient, found[parameter], atol=1e-5, rtol=1e-4, msg=parameter)


@pytest.mark.filterwarnings("ignore")  # what a peer warns of is not ours to mend
def test_dpo_agrees_with_trl(trl, tmp_path):
    datasets = pytest.importorskip("datasets")
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "dpo", dpo_beta=0.3)
    reference = causal(made, tmp_path, "reference")
    moved(made)
    outcome = take(made, batch, chosen, settings)
    theirs = trl.DPOTrainer(
        model=causal(made, tmp_path, "policy"),
        ref_model=reference,
        args=trl.DPOConfig(**quiet(tmp_path, beta=0.3, loss_type=["sigmoid"])),
        train_dataset=datasets.Dataset.from_list([{"prompt": "1 2", "chosen": "3", "rejected": "4"}]),
        processing_class=words(),
    )
    loss = theirs._compute_loss(theirs.model, paired(batch), False)
    loss.backward()
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert_same(gradients(made), theirs.model)


@pytest.mark.parametrize("centring", [0.0, 0.01])
@pytest.mark.filterwarnings("ignore")  # what a peer warns of is not ours to mend
def test_a_reward_model_agrees_with_trl(trl, centring, tmp_path):
    transformers, datasets = pytest.importorskip("transformers"), pytest.importorskip("datasets")
    made, batch = engine(), group_batch()
    chosen, settings = begun(made, "reward_model", centring=centring)
    torch.nn.init.normal_(
        made.judge.model.value_head.weight, std=0.3, generator=torch.Generator().manual_seed(1)
    )
    (tmp_path / "config.json").write_text(json.dumps({**classifier(config()), "pad_token_id": PAD}))
    (tmp_path / "model.safetensors").write_bytes(safetensors(list(made.export_judge())))
    outcome = take(made, batch, chosen, settings)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = trl.RewardTrainer(
        model=model,
        args=trl.RewardConfig(**quiet(tmp_path, center_rewards_coefficient=centring or None)),
        train_dataset=datasets.Dataset.from_list([{"chosen": "1 2 3", "rejected": "1 2 4"}]),
        processing_class=words(),
    )
    given = paired(batch)
    del given["completion_mask"]
    loss = theirs.compute_loss(theirs.model, given)
    loss.backward()
    assert outcome.metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    ours = {n.replace("value_head", "score"): g for n, g in gradients_of(made.judge.model).items()}
    assert_same(ours, theirs.model)
