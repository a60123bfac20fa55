"""From the wire to the trainer's own types: log records to ledger arrivals, group tables to samples.

This is where a sample's validity is decided, once: by its terminal class, by its reward, and by whether its arrays keep the
contract. A null or non-finite reward never reaches arithmetic, and a broken sample is masked, never silently trained on.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, GroupTable, SampleSummary, SampleTokens
from temper.runtime.errors import Rejected
from temper.runtime.log.base import LogRecord
from temper.trainer.advantage.base import ALIKE, Component
from temper.trainer.samples import Sample
from temper.trainer.state import Arrival, Drop

CUT_OFF = (common.FINISH_REASON_LENGTH, common.FINISH_REASON_TOOL_LIMIT)
USABLE = (common.SAMPLE_CLASS_SCORED, common.SAMPLE_CLASS_AGENT_FAILED)
NO_REWARD = "NO_REWARD"
INVALID_TOKENS = "INVALID_TOKENS"
OUT_OF_RANGE = "REWARD_OUT_OF_RANGE"
ROUNDING = 1e-9
"""Share of a reward range that a reward may be off."""


def arrival(record: LogRecord) -> tuple[Arrival, GroupRecord]:
    """A log record as the ledger sees it, and the message itself."""
    group = record.message(GroupRecord)
    if group.purpose == common.PURPOSE_EVAL:
        return Arrival(str(record.token), None), group
    return (
        Arrival(
            token=str(record.token),
            index=group.index,
            group_id=group.group_id,
            phase=group.phase,
            min_version=min(
                (sample.min_version for sample in group.samples if sample.action_tokens), default=0
            ),
            dropped=_dropped(group),
            variant=group.env.digest,
            flat=_flat(group),
        ),
        group,
    )


def _flat(group: GroupRecord) -> bool:
    """Whether the usable samples of every task of the group earned the same: there is nothing to compare."""
    by_task: dict[int, list[float]] = {}
    for sample in group.samples:
        if sample.sample_class in USABLE and sample.HasField("reward"):
            by_task.setdefault(sample.task_index, []).append(sample.reward)
    return all(max(rewards) - min(rewards) <= ALIKE for rewards in by_task.values())


def _dropped(group: GroupRecord) -> Drop | None:
    """Why the group cannot be trained on, as far as its record tells."""
    if group.drop_reason != common.DROP_REASON_UNSPECIFIED:
        return Drop(common.DropReason.Name(group.drop_reason))
    if any(s.sample_class == common.SAMPLE_CLASS_STALE for s in group.samples):
        return Drop.STALE  # a sample was stopped because no trainer would take it any more
    if not group.HasField("table") or not any(s.sample_class in USABLE for s in group.samples):
        return Drop.INVALID
    return None


def samples(
    group: GroupRecord, data: bytes, *, first_group: int, needs_reward: bool, vocabulary: int | None = None
) -> list[Sample]:
    """The samples of one group's table. Task groups are numbered from ``first_group``; ``vocabulary`` is the policy's size of it.

    Raises Rejected when the table is not the one that the record describes.
    """
    try:
        table = GroupTable.FromString(data)
    except DecodeError as broken:
        raise Rejected(f"table of {group.group_id} is not a GroupTable: {broken}", field="table") from None
    if table.group_id != group.group_id or len(table.samples) != len(group.samples):
        raise Rejected(f"table of {group.group_id} belongs to another group or attempt", field="table")
    tasks = {index: number for number, index in enumerate(dict.fromkeys(s.task_index for s in group.samples))}
    return [
        _sample(
            record,
            group,
            first_group + tasks[record[0].task_index],
            fault(*record, group, needs_reward=needs_reward, vocabulary=vocabulary),
        )
        for record in zip(group.samples, table.samples, strict=True)
    ]


def broken(found: Sequence[Sample]) -> Mapping[str, int]:
    """Samples that nobody should have sent, by what is wrong with them: an alarm, unlike a sandbox that was lost."""
    ours = (NO_REWARD, OUT_OF_RANGE, INVALID_TOKENS)
    return Counter(sample.reason for sample in found if sample.reason.startswith(ours))


def _sample(record: tuple[SampleSummary, SampleTokens], of: GroupRecord, group: int, reason: str) -> Sample:
    summary, tokens = record
    ids = np.array(tokens.token_ids, dtype=np.int64)
    mask = np.frombuffer(tokens.mask, dtype=np.uint8).astype(np.bool_)
    logprobs = np.array(tokens.logprob_raw, dtype=np.float32)
    if logprobs.size == 0:  # demonstrations carry none
        logprobs = np.zeros(ids.size, dtype=np.float32)
    versions = _versions(tokens) if tokens.versions else None
    if reason:  # an empty sample counts in reports and cannot reach a gradient
        ids, mask, logprobs = ids[:0], mask[:0], logprobs[:0]
    reward = summary.reward if summary.HasField("reward") else math.nan
    cut = summary.finish_reason in CUT_OFF
    parts = {name: Component(part.value, part.weight) for name, part in summary.components.items()}
    return Sample(
        ids,
        mask,
        logprobs,
        reward,
        not reason,
        group,
        of.domain,
        reason,
        cut,
        parts,
        None if reason else versions,
    )


def _versions(tokens: SampleTokens) -> NDArray[np.int64]:
    """[token] version of the policy; spans that leave gaps are found by ``breach``."""
    out = np.zeros(len(tokens.token_ids), dtype=np.int64)
    for span in tokens.versions:
        out[span.start : span.end] = span.version
    return out


def fault(
    summary: SampleSummary,
    tokens: SampleTokens,
    of: GroupRecord,
    *,
    needs_reward: bool,
    vocabulary: int | None = None,
) -> str:
    """Why a sample must not be trained on; empty if it may."""
    if summary.sample_class not in USABLE:
        return common.SampleClass.Name(summary.sample_class).removeprefix("SAMPLE_CLASS_")
    if needs_reward and not (summary.HasField("reward") and math.isfinite(summary.reward)):
        return NO_REWARD
    if needs_reward and of.reward_min < of.reward_max:  # both 0: a record from before ranges were told
        slack = ROUNDING * (of.reward_max - of.reward_min)
        if not of.reward_min - slack <= summary.reward <= of.reward_max + slack:
            return OUT_OF_RANGE
    if needs_reward and not all(math.isfinite(part.value) for part in summary.components.values()):
        return NO_REWARD
    why = breach(tokens)
    if not why and vocabulary is not None and max(tokens.token_ids) >= vocabulary:
        why = "vocabulary"  # of another policy, or of another tokenizer
    return f"{INVALID_TOKENS}/{why}" if why else ""


def breach(tokens: SampleTokens) -> str:
    """In a word, how the arrays break the contract; empty when they keep it."""
    count, actions = len(tokens.token_ids), tokens.mask.count(1)
    if tokens.HasField("for_training") and not tokens.for_training:
        return "not_for_training"  # a fast variant's logprobs would pass for the policy's own
    if count == 0 or len(tokens.mask) != count:
        return "lengths"
    if not actions or tokens.mask[0]:  # nothing predicts a first token
        return "mask"
    arrays = (tokens.logprob_raw, tokens.logprob_processed, tokens.log_surviving_mass)
    if any(len(array) not in (0, count) for array in arrays):
        return "lengths"
    if not all(all(map(math.isfinite, array)) for array in arrays):
        return "logprobs"
    parts = (
        (tokens.versions, count),
        (tokens.weight_versions, actions),
        (tokens.prefill_weight_versions, count - actions),
        (tokens.kv_origin_versions, actions),
    )
    if not all(contiguous([(each.start, each.end) for each in spans], length) for spans, length in parts):
        return "spans"
    return ""


def contiguous(spans: Sequence[tuple[int, int]], count: int) -> bool:
    """Whether version spans cover ``[0, count)`` without gap or overlap; none at all is allowed (demonstrations)."""
    if not spans:
        return True
    at = 0
    for start, end in spans:
        if start != at or end <= start:
            return False
        at = end
    return at == count
