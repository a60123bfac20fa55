"""The Megatron engine as the service sees it: one policy, spread over rank processes that may die.

What ranks hold can be made again: the engine keeps the last cut of it (a snapshot, or the weights it began with) and every change
since. When a rank is lost the group is started anew, the cut restored, the changes repeated; bit for bit the same on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temper.runtime.errors import Rejected
from temper.runtime.telemetry import get_logger
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.engine.base import (
    DEFAULT_MICRO_BATCH,
    EngineState,
    NamedTensor,
    OptimizerSettings,
    PhaseStart,
    StepOutcome,
)
from temper.trainer.engine.megatron.group import Group, RankLost
from temper.trainer.engine.megatron.held import Held
from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.limits import refuse_optimizer
from temper.trainer.engine.megatron.names import HEAD as LM_HEAD
from temper.trainer.engine.megatron.nursery import Nursery, NurseryLost
from temper.trainer.engine.megatron.trainee import RemoteTrainee
from temper.trainer.engine.torch.model import Decoder, parse_config
from temper.trainer.engine.torch.storage import encode, export, named_weights
from temper.trainer.samples import Batch, Sample

ATTEMPTS = 4
"""Groups that may be lost in one call before the trouble is passed on."""
LONGEST = 32
"""Changes kept before the engine makes a cut by itself: what has to be repeated stays short."""

T = TypeVar("T")
Change = Callable[[Held], Any]


class MegatronEngine:
    """``Engine`` on Megatron-Core. Not thread-safe: one call at a time; ``close`` may come from anywhere."""

    def __init__(
        self,
        options: MegatronOptions,
        *,
        micro_batch_tokens: int = 0,
        threads: int = 1,
        nursery: Nursery | None = None,
    ) -> None:
        """``nursery``: where ranks come from; it outlives the engine. Without one the engine has its own."""
        options.check()
        self._options, self._threads = options, threads
        self._budget = micro_batch_tokens or DEFAULT_MICRO_BATCH
        self._group: Group | None = None
        self._nursery, self._lent = nursery, nursery is not None
        self._held: Held | None = None
        self._cut: tuple[Mapping[str, Any], EngineState] | None = None
        self._since: list[Change] = []
        self._closed = False
        self.restarts = 0
        """Groups that were lost and replaced."""

    @property
    def name(self) -> str:
        """Vendor, build, layout and numeric mode."""
        o = self._options
        layout = f"tp{o.tensor_parallel} pp{o.pipeline_parallel} cp{o.context_parallel} dp{o.data_parallel}"
        return f"megatron-core/{version('megatron-core')} {layout} {o.precision}"

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks; none before there is a policy."""
        return [] if self._group is None else self._group.pids

    def close(self) -> None:
        """End the ranks. A call that is under way fails."""
        self._closed = True
        if self._group is not None:
            self._group.close()
        if self._nursery is not None and not self._lent:
            self._nursery.close()

    # ------------------------------------------------------------- weights in and out

    def build(self, config: Mapping[str, Any], *, seed: int) -> None:
        """See ``Engine``. The same numbers as the torch engine draws from the same seed, whatever the layout."""
        cfg = parse_config(dict(config))
        model = Decoder(cfg)
        model.initialise(torch.Generator().manual_seed(seed))
        self.load(config, [encode(named_weights(model, tied=cfg.tied))])

    def load(self, config: Mapping[str, Any], weights: Sequence[bytes]) -> None:
        """See ``Engine``."""
        self.restore(config, EngineState({f"weights-{i}": data for i, data in enumerate(weights)}))

    def restore(self, config: Mapping[str, Any], state: EngineState) -> None:
        """See ``Engine``. Any layout takes a snapshot of any other, and of the torch engine."""
        self._options.fit(parse_config(dict(config)))
        self._cut, self._since = (dict(config), state), []
        self._held = None
        self._persist(lambda _: None)

    def export(self) -> Iterator[NamedTensor]:
        """See ``Engine``. Ranks give some layers at a time: nobody but the caller ever holds the whole policy."""
        for stage, layers in self._persist(lambda held: list(held.policy.pieces())):
            yield from export(self._persist(partial(_piece, who=_policy, stage=stage, layers=layers)))

    def export_judge(self) -> Iterator[NamedTensor]:
        """See ``Engine``."""
        for stage, layers in self._persist(lambda held: list(held.judge.pieces())):
            part = self._persist(partial(_piece, who=_judge, stage=stage, layers=layers))
            yield from export({name: tensor for name, tensor in part.items() if name != LM_HEAD})
        (score,) = self._persist(lambda held: held.judge.head_weights("weights")).values()
        yield from export({"score.weight": score})

    def snapshot(self) -> EngineState:
        """See ``Engine``. Files have the names and contents of the torch engine's."""
        state = self._persist(lambda held: held.state(self.name))
        assert self._cut is not None
        self._cut, self._since = (self._cut[0], state), []
        return state

    # ------------------------------------------------------------- training

    def check_teacher(self, config: Mapping[str, Any]) -> None:
        """See ``Engine``."""
        self._persist(lambda held: held.check_teacher(config))

    def begin(self, phase: PhaseStart) -> None:
        """See ``Engine``."""
        self._change(lambda held: held.begin(phase))

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """See ``Engine``."""
        return self._persist(lambda held: held.policy.logprobs(samples))

    def judged(self, samples: Sequence[Sample]) -> tuple[NDArray[np.float32], int]:
        """See ``Engine``."""
        return self._persist(lambda held: held.judged(samples))

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        """See ``Engine``. Raises Rejected for an optimizer that this engine does not have."""
        if not batch.trainable():
            return StepOutcome({"loss": 0.0, "lr": optimizer.lr}, 0, 0, skipped="no valid action tokens")
        refuse_optimizer(optimizer)
        return self._change(lambda held: held.step(batch, algorithm, settings, optimizer))

    # ------------------------------------------------------------- recovery

    def _change(self, change: Callable[[Held], T]) -> T:
        """Do something that must be repeated if ranks are lost later."""
        if len(self._since) >= LONGEST:
            self.snapshot()
        found = self._persist(change)
        self._since.append(change)
        return found

    def _persist(self, act: Callable[[Held], T]) -> T:
        """Do something, on a new group if the old one is lost meanwhile."""
        for attempt in range(ATTEMPTS):
            try:
                return act(self._ready())
            except RankLost as error:
                self._held = None
                self._group = None
                self.restarts += 1
                get_logger().warning("trainer.rank_lost", restarts=self.restarts, error=str(error))
                if self._closed or attempt + 1 == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _ready(self) -> Held:
        """The policy on a living group, made again from the cut and the changes since where it has to be."""
        if self._cut is None:
            raise Rejected("the engine holds no policy yet", hint="call build, load or restore first")
        if self._closed:
            raise RankLost("the engine is closed")
        if self._held is None:
            if self._group is None:
                self._group = self._started()
            config, state = self._cut
            held = Held(self._group, self._options, self._budget, config)
            held.fill(state)
            for change in self._since:
                change(held)
            self._held = held
        return self._held

    def _started(self) -> Group:
        """A new group; the nursery that ranks come from stays from one to the next."""
        try:
            if self._nursery is None or not self._nursery.alive:
                self._nursery, self._lent = Nursery(threads=self._threads), False
            group = Group(self._options.ranks, threads=self._threads, nursery=self._nursery)
        except NurseryLost as error:
            raise RankLost(str(error)) from error
        if self._closed:  # meanwhile, by another thread
            group.close()
        return group


def _policy(held: Held) -> RemoteTrainee:
    return held.policy


def _judge(held: Held) -> RemoteTrainee:
    return held.judge


def _piece(
    held: Held, *, who: Callable[[Held], RemoteTrainee], stage: int, layers: range
) -> Mapping[str, Tensor]:
    return who(held).piece("weights", stage, layers)
