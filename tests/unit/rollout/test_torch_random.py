"""The whole engine under random schedules, every number held against ``transformers`` and a draw of its own.

Requests, turns that go on from others, cancels, deadlines and weight updates come at random steps over a pool that is too
small, with drafts and hits; whatever was read under one version must be what that version alone gives.
"""

import dataclasses
import random
from typing import Any

import pytest
import torch
from tests.unit.rollout.policies import files_of, reference

from temper.rollout.engine.base import Completion, Request, Sampling, Span, SwapPolicy
from temper.rollout.engine.stream import stream_key
from temper.rollout.engine.torch.fast import Fast
from temper.rollout.engine.torch.loop import Loop
from temper.rollout.engine.torch.memory import Budget
from temper.rollout.engine.torch.roster import Limits
from temper.rollout.engine.torch.sample import Ask, verify
from temper.rollout.engine.torch.staging import stage

CONTEXT = 300
LENGTHS = (1, 16, 17, 64, 90, 130, 255, 256, 257, 290)
POLICIES = [policy for policy in SwapPolicy if policy is not SwapPolicy.WAIT]


class Schedule:
    """A loop, what was asked of it, and what came out."""

    def __init__(self, seed: int, family: str, speculation: str) -> None:
        self.random = random.Random(seed)
        self.models = [reference(family, each) for each in (1, 2)]
        exact, units = speculation == "none", self.random.choice([2, 3, 4])
        first, weights = stage(
            files_of(self.models[0]), None, [], Budget(units * 768, 0), 1, batch_invariant=exact
        )
        _, other = stage(files_of(self.models[1]), first, [], Budget(0, 0), 1, batch_invariant=exact)
        self.weights = [weights, other]
        limits = Limits(self.random.choice([2, 5, 9]), self.random.choice([16, 256, 700]), CONTEXT, exact)
        self.loop = Loop(first, limits, units, Fast(speculation=speculation))
        self.loop.swap(self.version(0), SwapPolicy.KEEP)
        self.prompts = [[self.random.randrange(8) for _ in range(290)] for _ in range(2)]
        self.asked: dict[str, tuple[Request, list[int]]] = {}
        self.done: dict[str, Completion] = {}
        self.kept: list[str] = []
        self.ties = 0

    def version(self, number: int) -> Any:
        return dataclasses.replace(self.weights[number % 2], version=number)

    def ask(self, before: list[int], own: list[int], continues: str | None) -> None:
        sampling = Sampling(
            self.random.choice([1, 7, 30]),
            temperature=self.random.choice([0.0, 1.0, 0.6]),
            top_k=self.random.choice([0, 5]),
            repetition_penalty=self.random.choice([1.0, 1.2]),
            stop_token_ids=self.random.choice([(), (3, 5)]),
        )
        deadline = self.random.choice([None, None, None, self.loop.steps + 10.0])
        request = Request(
            f"r{len(self.asked)}",
            tuple(own),
            sampling,
            self.random.randrange(3),
            len(self.asked),
            deadline,
            continues,
            keep=self.random.random() < 0.6,
            group=self.random.choice(["", "g"]),
            priority=self.random.choice([0, 1]),
        )
        self.asked[request.request_id] = request, [*before, *own]
        self.loop.add(request)

    def act(self) -> None:
        chance = self.random.random()
        if chance < 0.35:
            prompt = self.random.choice(self.prompts)[: self.random.choice(LENGTHS)]
            for _ in range(self.random.choice([1, 1, 3])):
                self.ask([], prompt, None)
        elif chance < 0.55 and self.kept:
            name = self.kept.pop(self.random.randrange(len(self.kept)))
            before = [*self.asked[name][1], *self.done[name].tokens]
            own = self.prompts[0][: self.random.choice([1, 3, 20])]
            if len(before) + len(own) < CONTEXT:
                self.ask(before, own, name)
            else:
                self.loop.schedule.release(name)
        elif chance < 0.8:
            for _ in range(self.random.choice([1, 3, 10])):
                self.loop.step()
        elif chance < 0.87 and self.asked:
            self.loop.cancel(self.random.choice(list(self.asked)))
        elif chance > 0.92:
            self.loop.swap(self.version(self.loop.schedule.version + 1), self.random.choice(POLICIES))
        self.collect()

    def collect(self) -> None:
        self.loop.expire(float(self.loop.steps))
        for completion in self.loop.drain()[1]:
            assert completion.request_id not in self.done
            self.done[completion.request_id] = completion
            if completion.request_id in self.loop.schedule.kept:
                self.kept.append(completion.request_id)
        book = self.loop.pool.book()
        assert book.free + book.evictable + book.held == book.total

    def finish(self) -> None:
        for _ in range(5000):
            if not self.loop.step():
                break
            self.collect()
        self.collect()
        assert self.done.keys() == self.asked.keys()
        for name in self.kept:
            self.loop.schedule.release(name)
        assert self.loop.pool.book().held == 0

    def check(self, name: str) -> int:
        """Compares the tokens that one version alone answers for; returns their number."""
        (request, context), done = self.asked[name], self.done[name]
        tokens, at, compared = [*context, *done.tokens], len(context), 0
        for version in {span.version for span in done.weight_versions}:
            logits = self.models[version % 2](torch.tensor([tokens])).logits[0]
            raw = torch.log_softmax(logits, dim=-1)
            for i, token in enumerate(done.tokens):
                if {version} != {said(done.weight_versions, i), said(done.kv_origin_versions, i)}:
                    continue
                assert float(raw[at + i - 1, token]) == pytest.approx(done.logprobs_raw[i], abs=3e-4)
                key = stream_key(request.seed, request.sample_index)
                ask = Ask(request.sampling, key, tokens[: at + i], at)
                (own,) = verify(logits[at + i - 1 : at + i], [ask])
                if own.tokens[0] == token:
                    assert own.processed[0] == pytest.approx(done.logprobs[i], abs=1e-3)
                else:  # a draw at the very edge of two tokens
                    self.ties += 1
                compared += 1
        return compared


def said(spans: tuple[Span, ...], position: int) -> int:
    return next(span.version for span in spans if span.start <= position < span.end)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("family", "speculation"), [("qwen3", "none"), ("llama", "ngram"), ("llama", "suffix")]
)
def test_what_one_version_computed_is_what_it_computes_alone(
    family: str, speculation: str, seed: int
) -> None:
    with torch.inference_mode():
        schedule = Schedule(seed, family, speculation)
        for _ in range(50):
            schedule.act()
        schedule.finish()
        assert sum(schedule.check(name) for name in schedule.done) > 50
        assert schedule.ties <= 1
