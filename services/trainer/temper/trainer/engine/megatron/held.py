"""What a group of ranks holds for one job: the policy and, where a job has one, a reward model beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temper.runtime.errors import Rejected
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.engine.base import (
    JUDGE,
    WEIGHTS,
    EngineState,
    OptimizerSettings,
    PhaseStart,
    StepOutcome,
)
from temper.trainer.engine.megatron.group import Group
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.trainee import RemoteTrainee
from temper.trainer.engine.megatron.wire import Frame
from temper.trainer.engine.torch import storage
from temper.trainer.engine.torch.mixture import Balance
from temper.trainer.engine.torch.model import parse_config
from temper.trainer.samples import Batch, Sample

_FREE = frozenset({"max_positions", "init_std"})
"""Of a shape: what a teacher may have otherwise. Rotary tables are as long as the batch."""
_TORCH_TEACHES = 'the Megatron engine takes teachers of the policy\'s shape, trainer.engine = "torch" any of its vocabulary'


class Held:
    """The models of a living group. Everything here can be made again from a state and the changes since."""

    def __init__(
        self, group: Group, options: MegatronOptions, budget: int, config: Mapping[str, Any]
    ) -> None:
        self._group, self._options, self._budget, self._config = group, options, budget, config
        self._cfg = parse_config(dict(config))
        self.policy = self._trainee("policy")
        self._judge: RemoteTrainee | None = None
        self.judge_version = 0

    def _trainee(self, who: str) -> RemoteTrainee:
        return RemoteTrainee(who, self._group, self._options, self._budget, self._config, self._cfg)

    @property
    def judge(self) -> RemoteTrainee:
        """The reward model. Raises Rejected when there is none."""
        if self._judge is None:
            raise Rejected("the job has no reward model yet", hint="train one in an earlier phase")
        return self._judge

    # ------------------------------------------------------------- states

    def fill(self, state: EngineState) -> None:
        """Take up a state. Raises Rejected when files do not fit."""
        self._group.ask(Frame({"op": "clear"}))
        theirs = {n.removeprefix(JUDGE): data for n, data in state.files.items() if n.startswith(JUDGE)}
        self.policy.fill({n: data for n, data in state.files.items() if not n.startswith(JUDGE)})
        self.policy.beta = float(state.facts.get("kl_beta", 0.0))
        self.policy.balance = Balance.from_facts(state.facts.get("balance", {}))
        self.judge_version = int(state.facts.get("judge_version", 0))
        if theirs:
            self._judge = self._trainee("judge")
            self._judge.fill(theirs)

    def state(self, engine: str) -> EngineState:
        """A copy of everything; the name of the engine goes along."""
        files = self.policy.parts()
        if self._judge is not None:
            files |= {JUDGE + name: data for name, data in self._judge.parts().items()}
        facts = {
            "engine": engine,
            "kl_beta": self.policy.beta,
            "balance": self.policy.balance.facts(),
            "judge_version": self.judge_version,
        }
        return EngineState(files, facts)

    # ------------------------------------------------------------- training

    def check_teacher(self, config: Mapping[str, Any]) -> None:
        """See ``Engine``. Ranks hold a reference in the parts in which they hold the policy, so its shape is the policy's."""
        theirs, ours = asdict(parse_config(dict(config))), asdict(self._cfg)
        other = [name for name in ours if name not in _FREE and theirs[name] != ours[name]]
        if other:
            told = ", ".join(f"{name} {theirs[name]} (the policy's is {ours[name]})" for name in other)
            raise Rejected(f"another shape than the policy's: {told}", hint=_TORCH_TEACHES)

    def begin(self, phase: PhaseStart) -> None:
        """See ``Engine``."""
        self.policy.forget()
        self.policy.beta = phase.kl_beta
        if phase.needs.reference:
            self.policy.freeze(None if phase.teacher is None else phase.teacher.weights)
        if phase.needs.values:
            self.policy.grow_head(bias=True)
        if phase.needs.scores:
            self._grow_judge()

    def _grow_judge(self) -> None:
        """A reward model begins as the policy with a head; one that is there goes on, with a fresh optimizer."""
        if self._judge is None:
            self._judge = self._trainee("judge")
            self._judge.fill({WEIGHTS: storage.encode(self.policy.weights("param"))})
            self._judge.grow_head(bias=False)
        else:
            self._judge.forget(keep_head=True)

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """See ``Engine``."""
        scores = algorithm.needs(settings).scores
        if scores and self._judge is None:
            self._grow_judge()
        trainee = self.judge if scores else self.policy
        outcome = trainee.step(batch, algorithm, settings, optimizer)
        if scores and not outcome.skipped:
            self.judge_version += 1
        return outcome

    def judged(self, samples: Sequence[Sample]) -> tuple[NDArray[np.float32], int]:
        """See ``Engine``."""
        return self.judge.scores(samples), self.judge_version
