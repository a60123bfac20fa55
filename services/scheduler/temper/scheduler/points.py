"""Evaluation points of a job: which were asked for, what has come back, which results are new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1.job_pb2 import EvalResult
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.scheduler.evaluation import Tally, tallies_from
from temper.scheduler.groups import chunk_of

BEFORE, AFTER = "before", "after"


@dataclass(slots=True)
class Point:
    """One point under way. Example: `Point(step=20, version=20, tallies={"calc": Tally(4, 256)}, manifest=ref)`."""

    step: int
    """Optimizer step at which it was asked for."""
    version: int
    """Policy version that its groups demand at least."""
    tallies: dict[str, Tally]
    """By domain."""
    manifest: BlobRef
    """Of that version's weights."""

    @property
    def complete(self) -> bool:
        """Whether every group has come back."""
        return all(tally.complete for tally in self.tallies.values())


class Points:
    """Asked points are remembered by name for ever; their sums only until their results are saved in the job."""

    def __init__(self) -> None:
        self._asked: list[str] = []
        self._live: dict[str, Point] = {}

    @property
    def asked(self) -> list[str]:
        """Names of all points asked for, oldest first."""
        return list(self._asked)

    def pending(self) -> list[str]:
        """Points whose groups have not all come back."""
        return [name for name, point in self._live.items() if not point.complete]

    def whole(self) -> list[str]:
        """Points whose groups have all come back and whose sums are still held."""
        return [name for name, point in self._live.items() if point.tallies and point.complete]

    def ask(self, name: str, policy: PolicyRecord, commands: Iterable[GroupCommand]) -> None:
        """Open a point with these groups, to measure a published policy."""
        tallies: dict[str, Tally] = {}
        for command in commands:
            tally = tallies.setdefault(command.domain, Tally(groups=0, attempted=0))
            tally.groups += 1
            tally.attempted += len(command.task_indices) * command.samples_per_task
        self._asked.append(name)
        self._live[name] = Point(policy.step, policy.version, tallies, policy.manifest)

    def add(self, record: GroupRecord) -> bool:
        """Count a record; False if it was counted before or belongs to no open point."""
        point = self._live.get(record.eval_point)
        tally = point.tallies.get(record.domain) if point else None
        return tally is not None and tally.add(chunk_of(record.group_id), record.samples)

    def owes(self, command: GroupCommand) -> bool:
        """Whether the record of an evaluation group is still awaited."""
        point = self._live.get(command.eval_point)
        tally = point.tallies.get(command.domain) if point else None
        return tally is not None and chunk_of(command.group_id) not in tally.done

    def point(self, name: str) -> Point:
        """A point whose sums are still held."""
        return self._live[name]

    def results(self, known: Iterable[EvalResult]) -> list[EvalResult]:
        """Results of complete domains that are not among the `known` ones."""
        have = {(result.point, result.domain) for result in known}
        return [
            tally.result(name, domain, point.step)
            for name, point in self._live.items()
            for domain, tally in point.tallies.items()
            if tally.complete and (name, domain) not in have
        ]

    def counts(self) -> tuple[int, int]:
        """(samples done, samples asked for) over the points under way."""
        tallies = [tally for name in self.pending() for tally in self._live[name].tallies.values()]
        done = sum(round(tally.attempted * len(tally.done) / tally.groups) for tally in tallies)
        return done, sum(tally.attempted for tally in tallies)

    def forget(self, saved: Iterable[EvalResult]) -> None:
        """Drop the sums of points whose results are all `saved`."""
        have = {(result.point, result.domain) for result in saved}
        for name in list(self._live):
            if all((name, domain) in have for domain in self._live[name].tallies):
                del self._live[name]

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        return {
            name: {
                "step": point.step,
                "version": point.version,
                "manifest": MessageToDict(point.manifest),
                "tallies": {domain: tally.state() for domain, tally in point.tallies.items()},
            }
            for name, point in self._live.items()
        }

    def resume(self, asked: Iterable[str], state: Mapping[str, Any]) -> None:
        """Continue from what `asked` and `state` gave."""
        self._asked = list(asked)
        self._live = {
            name: Point(
                saved["step"],
                saved["version"],
                tallies_from(saved["tallies"]),
                ParseDict(saved.get("manifest", {}), BlobRef()),
            )
            for name, saved in state.items()
        }
