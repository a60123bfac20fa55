"""The torch engine: one process, a policy and, where a job has one, a reward model beside it; packed micro-batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.engine.base import (
    DEFAULT_MICRO_BATCH,
    HEAD,
    JUDGE,
    OPTIMIZER,
    REFERENCE,
    WEIGHTS,
    EngineState,
    NamedTensor,
    OptimizerSettings,
    PhaseStart,
    StepOutcome,
    Teacher,
)
from temper.trainer.engine.torch import storage
from temper.trainer.engine.torch.mixture import Balance
from temper.trainer.engine.torch.model import Decoder, DecoderConfig, parse_config, require_teacher
from temper.trainer.engine.torch.optimizers import Optimizers
from temper.trainer.engine.torch.trainee import Trainee
from temper.trainer.samples import Batch, Sample


class TorchEngine:
    """``Engine`` on torch. Not thread-safe: one call at a time."""

    def __init__(self, *, device: str = "cpu", micro_batch_tokens: int = 0) -> None:
        self._device = torch.device(device)
        self._budget = micro_batch_tokens or DEFAULT_MICRO_BATCH
        self._generator = torch.Generator()
        self._policy: Trainee | None = None
        self._judge: Trainee | None = None
        self._judge_version = 0

    @property
    def name(self) -> str:
        """Vendor, build and numeric mode."""
        return f"torch/{torch.__version__} fp32"

    @property
    def policy(self) -> Trainee:
        """What rollout workers get. Raises Rejected before build, load or restore."""
        if self._policy is None:
            raise Rejected("the engine holds no policy yet", hint="call build, load or restore first")
        return self._policy

    @property
    def judge(self) -> Trainee:
        """The reward model. Raises Rejected when there is none."""
        if self._judge is None:
            raise Rejected("the job has no reward model yet", hint="train one in an earlier phase")
        return self._judge

    @property
    def model(self) -> Decoder:
        """The policy's decoder."""
        return self.policy.model

    def close(self) -> None:
        """See ``Engine``: nothing is held outside."""

    # ------------------------------------------------------------- weights in and out

    def build(self, config: Mapping[str, Any], *, seed: int) -> None:
        """See ``Engine``."""
        self._adopt(config)
        self._generator.manual_seed(seed)
        self.model.cpu().initialise(self._generator)
        self.model.to(self._device)

    def load(self, config: Mapping[str, Any], weights: Sequence[bytes]) -> None:
        """See ``Engine``."""
        self._adopt(config)
        storage.assign(self.model, weights, tied=self.model.cfg.tied)

    def _adopt(self, config: Mapping[str, Any]) -> None:
        self._policy = self._trainee(Decoder(parse_config(dict(config))))
        self._judge, self._judge_version = None, 0

    def _trainee(self, model: Decoder) -> Trainee:
        return Trainee(model.to(self._device), self._device, self._budget)

    def _twin(self, weights: Sequence[bytes], shape: DecoderConfig | None = None) -> Decoder:
        """Another decoder, of the policy's shape unless it has its own."""
        shape = shape or self.model.cfg
        twin = Decoder(shape).to(self._device)
        storage.assign(twin, weights, tied=shape.tied)
        return twin

    def _weights(self, model: Decoder) -> dict[str, Tensor]:
        return storage.named_weights(model, tied=model.cfg.tied)

    def export(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        return storage.export(self._weights(self.model))

    def export_judge(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        trunk = {name: p for name, p in self._weights(self.judge.model).items() if name != "lm_head.weight"}
        (score,) = storage.head_weights(self.judge.model).values()
        return storage.export({**trunk, "score.weight": score})

    # ------------------------------------------------------------- phases

    def check_teacher(self, config: Mapping[str, Any]) -> None:
        """See ``Engine``."""
        require_teacher(parse_config(dict(config)), self.model.cfg)

    def begin(self, phase: PhaseStart) -> None:
        """See ``Engine``."""
        policy = self.policy
        policy.forget()
        policy.beta = phase.kl_beta
        if phase.needs.reference:
            teacher = phase.teacher or Teacher([storage.encode(self._weights(policy.model))])
            shape = None if teacher.config is None else parse_config(dict(teacher.config))
            policy.reference = self._twin(teacher.weights, shape).requires_grad_(requires_grad=False)
        policy.model.value_head = None
        if phase.needs.values:
            policy.model.grow_head(bias=True)
        if phase.needs.scores:
            self._grow_judge()

    def _grow_judge(self) -> None:
        """A reward model begins as the policy with a head; one that is there goes on, with a fresh optimizer."""
        if self._judge is None:
            self._judge = self._trainee(self._twin([storage.encode(self._weights(self.model))]))
            self._judge.model.grow_head(bias=False)
        self._judge.forget()

    # ------------------------------------------------------------- snapshots

    def snapshot(self) -> EngineState:
        """See ``Engine``."""
        files = self._parts(self.policy)
        if self._judge is not None:
            files |= {JUDGE + name: data for name, data in self._parts(self._judge).items()}
        rng = self._generator.get_state().numpy().tobytes().hex()
        facts = {
            "rng": rng,
            "engine": self.name,
            "kl_beta": self.policy.beta,
            "balance": self.policy.balance.facts(),
            "judge_version": self._judge_version,
        }
        if self.policy.reference is not None and self.policy.reference.cfg != self.model.cfg:
            facts["reference"] = asdict(self.policy.reference.cfg)
        return EngineState(files, facts)

    def _parts(self, trainee: Trainee) -> dict[str, bytes]:
        parts = {
            WEIGHTS: self._weights(trainee.model),
            OPTIMIZER: trainee.optimizers.tensors() if trainee.optimizers is not None else {},
            REFERENCE: self._weights(trainee.reference) if trainee.reference is not None else {},
            HEAD: storage.head_weights(trainee.model),
        }
        return {name: storage.encode(part) for name, part in parts.items() if part}

    def restore(self, config: Mapping[str, Any], state: EngineState) -> None:
        """See ``Engine``."""
        self.load(config, [state.files[WEIGHTS]])
        shape = state.facts.get("reference")
        self._refill(self.policy, state.files, shape and DecoderConfig(**shape))
        self.policy.beta = float(state.facts.get("kl_beta", 0.0))
        self.policy.balance = Balance.from_facts(state.facts.get("balance", {}))
        self._judge_version = int(state.facts.get("judge_version", 0))
        theirs = {n.removeprefix(JUDGE): data for n, data in state.files.items() if n.startswith(JUDGE)}
        if theirs:
            self._judge = self._trainee(self._twin([theirs[WEIGHTS]]))
            self._refill(self._judge, theirs)
        if "rng" in state.facts:  # an engine that draws no numbers leaves it out
            raw = bytearray.fromhex(str(state.facts["rng"]))
            self._generator.set_state(torch.frombuffer(raw, dtype=torch.uint8))

    def _refill(
        self, trainee: Trainee, files: Mapping[str, bytes], reference: DecoderConfig | None = None
    ) -> None:
        """Everything of a trainee but its weights; the reference has the policy's shape unless it has its own."""
        if REFERENCE in files:
            trainee.reference = self._twin([files[REFERENCE]], reference).requires_grad_(requires_grad=False)
        if HEAD in files:
            storage.assign_head(trainee.model, files[HEAD])
        if OPTIMIZER in files:
            named = storage.decode(files[OPTIMIZER], what=OPTIMIZER)
            trainee.optimizers = Optimizers.restored(trainee.model, named)

    # ------------------------------------------------------------- forward

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """See ``Engine``."""
        return self.policy.logprobs(samples)

    def judged(self, samples: Sequence[Sample]) -> tuple[NDArray[np.float32], int]:
        """See ``Engine``."""
        return self.judge.scores(samples), self._judge_version

    # ------------------------------------------------------------- step

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """See ``Engine``."""
        if not batch.trainable():
            return StepOutcome({"loss": 0.0, "lr": optimizer.lr}, 0, 0, skipped="no valid action tokens")
        needs = algorithm.needs(settings)
        if needs.scores and self._judge is None:
            self._grow_judge()
        trainee = self.judge if needs.scores else self.policy
        outcome = trainee.step(batch, algorithm, settings, optimizer)
        if needs.scores and not outcome.skipped:
            self._judge_version += 1
        return outcome
