"""Defaults of `[gates]`, and what follows from them."""

from __future__ import annotations

from temper.api.job.v1.spec_pb2 import GateSpec, JobSpec

ALARM, HOLD, ROLLBACK, STOP, OFF = "alarm", "hold", "rollback", "stop", "off"
MIN_SAMPLES, COLLAPSE_GROUPS, MAX_ROLLBACKS = 16, 8, 3


def filled_in(gates: GateSpec) -> GateSpec:
    """With every default; a fall that is not bounded stays so."""
    filled = GateSpec()
    filled.CopyFrom(gates)
    filled.action = gates.action or ALARM
    filled.against = gates.against or "accepted"
    filled.min_samples = gates.min_samples or MIN_SAMPLES
    filled.on_collapse = gates.on_collapse or ALARM
    filled.collapse_groups = gates.collapse_groups or COLLAPSE_GROUPS
    filled.lr_factor = gates.lr_factor or 1.0
    filled.max_rollbacks = gates.max_rollbacks or MAX_ROLLBACKS
    return filled


def judges(gates: GateSpec) -> bool:
    """Whether evaluations get verdicts: there is a bound, or a rollback needs to know what is good."""
    return bool(gates.min_pass) or gates.HasField("max_drop") or rolls_back(gates)


def rolls_back(gates: GateSpec) -> bool:
    """Whether training may be sent back without anybody asking."""
    return ROLLBACK in (gates.action, gates.on_collapse)


def looks(spec: JobSpec) -> int:
    """Evaluations that may be judged against a reference: the error that is allowed is spread over them."""
    steps = sum(phase.steps for phase in spec.phases)
    on_the_way = (steps - 1) // spec.eval.every if spec.eval.every else 0
    return max(1, on_the_way + spec.eval.after)
