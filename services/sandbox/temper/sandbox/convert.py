"""Between the contract's messages and the backends' types. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, Final

from temper.api.sandbox.v1 import sandbox_pb2
from temper.runtime.errors import Rejected
from temper.sandbox.engine.base import FLAGS, Capabilities, CommandResult, Guarantee, Limits, Outcome

_OUTCOMES: Final = {
    Outcome.OK: sandbox_pb2.OUTCOME_OK,
    Outcome.TIMED_OUT: sandbox_pb2.OUTCOME_TIMED_OUT,
    Outcome.CPU_EXCEEDED: sandbox_pb2.OUTCOME_CPU_EXCEEDED,
    Outcome.OOM_KILLED: sandbox_pb2.OUTCOME_OOM_KILLED,
    Outcome.PIDS_EXCEEDED: sandbox_pb2.OUTCOME_PIDS_EXCEEDED,
    Outcome.DISK_FULL: sandbox_pb2.OUTCOME_DISK_FULL,
    Outcome.OUTPUT_TRUNCATED: sandbox_pb2.OUTCOME_OUTPUT_TRUNCATED,
    Outcome.SANDBOX_DIED: sandbox_pb2.OUTCOME_SANDBOX_DIED,
}
_REASONS: Final = {
    "snapshots:processes": "restoring processes needs privileges that a sandbox must not have, and gives back wrong sockets, terminals "
    "and clocks; ask for snapshots:files and start the programs anew"
}
"""Why something is lacking, where no other backend of ours has it either."""
_NAMES: Final = {"cpus": "cpu_milli"}  # the contract counts cores in thousandths
MAX_OUTPUT: Final = 262_144
"""Bytes of one stream in a reply: two of them and the observation fit a message of the bus."""

MOST_WALL_S: Final = 30 * 86_400.0
"""Seconds of one command; as long as the longest lease."""

MAX_ERROR: Final = 4096
"""Characters of what ended a command."""


def merge_limits(default: Limits, asked: sandbox_pb2.Limits) -> Limits:
    """`default` with the numbers that are set in `asked`. Raises Rejected for a command that would never end."""
    if not asked.ByteSize() and default.disk_bytes <= default.memory_bytes // 4:
        return default
    fields: dict[str, Any] = {}
    for name in ("memory_bytes", "pids", "disk_bytes", "output_bytes", "inodes"):
        value = getattr(asked, name)
        if value:
            fields[name] = min(value, MAX_OUTPUT) if name == "output_bytes" else value
    if asked.cpu_milli:
        fields["cpus"] = asked.cpu_milli / 1000
    if not asked.wall_s <= MOST_WALL_S:
        hint = f"at most {MOST_WALL_S:.0f}: a sandbox is not reaped while a command runs in it"
        raise Rejected(f"no bound on a command: {asked.wall_s}", field="limits.wall_s", hint=hint)
    if asked.wall_s > 0:
        fields["wall_s"] = asked.wall_s
    if asked.cpu_s > 0:
        fields["cpu_s"] = asked.cpu_s
    if asked.HasField("guarantee"):
        fields["guarantee"] = _guarantee(default.guarantee, asked.guarantee)
    limits = replace(default, **fields)
    # A full disk shall say ENOSPC before its pages run the sandbox out of memory.
    return replace(limits, disk_bytes=min(limits.disk_bytes, limits.memory_bytes // 4))


def require(has: Capabilities, needs: Iterable[str], limits: Limits) -> None:
    """Refuse what the backend lacks before anything has begun. Raises Rejected naming it."""
    promised = asdict(limits.guarantee)
    missing = [
        *has.missing(needs),
        *(f"guarantee:{name}" for name in promised if promised[name] and name not in has.guarantees),
    ]
    if missing:
        raise Rejected(
            f"the {has.backend} backend lacks {', '.join(missing)}",
            field="needs",
            hint=_REASONS.get(missing[0]) or f"ask a host with another backend; this one has {_offer(has)}",
        )


def _offer(has: Capabilities) -> str:
    """What may be asked of a backend, as `needs` would name it."""
    flags = sorted(flag for flag in FLAGS if has.has(flag))
    forks = [f"fork:{has.max_fork}"] if has.max_fork else []
    named = [f"snapshots:{each}" for each in has.snapshots] + [
        f"network:{each}" for each in has.network_modes
    ]
    kept = [f"enforces:{name}" for name in sorted(has.enforced)]
    return ", ".join([*flags, *named, *forks, *kept]) or "none of them"


def _guarantee(default: Guarantee, asked: sandbox_pb2.Guarantee) -> Guarantee:
    cpus = asked.cpu_milli / 1000 if asked.cpu_milli else default.cpus
    return Guarantee(
        asked.memory_bytes or default.memory_bytes,
        cpus,
        asked.pids or default.pids,
        asked.disk_bytes or default.disk_bytes,
    )


def result_message(result: CommandResult, cgroup_mode: str) -> sandbox_pb2.CommandResult:
    """A result with its evidence."""
    return sandbox_pb2.CommandResult(
        outcome=_OUTCOMES[result.outcome],
        exit_code=result.exit_code,
        signal=result.signal,
        stdout=result.stdout,
        stderr=result.stderr,
        output_truncated=result.truncated,
        wall_s=result.evidence.wall_s,
        cpu_s=result.evidence.cpu_s,
        peak_memory_bytes=result.evidence.peak_memory_bytes,
        cgroup_mode=cgroup_mode,
        error=printable(result.error or "")[:MAX_ERROR],
    )


def printable(text: str) -> str:
    """As it can go over the wire: bytes that were no text (a file's name may be any) are replaced."""
    return text.encode(errors="replace").decode()


def capabilities_message(host: str, slots: int, has: Capabilities) -> sandbox_pb2.GetCapabilitiesResponse:
    """What this host offers."""
    return sandbox_pb2.GetCapabilitiesResponse(
        host=host,
        backend=has.backend,
        isolation=has.isolation.name.lower(),
        enforced=sorted(_NAMES.get(name, name) for name in has.enforced),
        advisory=sorted(_NAMES.get(name, name) for name in has.advisory),
        network_modes=has.network_modes,
        slots=slots,
        cgroup_mode=has.cgroup_mode,
        snapshots=has.snapshots,
        max_fork=has.max_fork,
        features=sorted(flag for flag in FLAGS if has.has(flag)),
        guarantees=sorted(_NAMES.get(name, name) for name in has.guarantees),
        start_cost=has.start_cost.value,
    )
