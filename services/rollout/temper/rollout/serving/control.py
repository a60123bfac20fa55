"""Routes that change what serves: weights, pause, canary, feedback. And the few that only tell."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from prometheus_client.exposition import choose_encoder
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from temper.rollout.engine.base import SwapPolicy
from temper.rollout.serving.canary.state import Canary, Plan
from temper.rollout.serving.front import Front
from temper.rollout.serving.schema import Body
from temper.rollout.serving.sources import SourceBody


class WeightsBody(SourceBody):
    """``POST /v1/weights``."""

    policy: Literal["keep", "recompute", "requeue", "abort", "wait"] = "keep"
    """What happens to running sequences."""


class CanaryBody(SourceBody):
    """``POST /v1/canary``: what to try, as in ``/v1/weights``, and the fields of the plan."""

    steps: list[float] = Field(default=[0.05, 0.25, 0.5])
    """Shares of the traffic."""
    min_samples: int = Field(default=100, ge=1)
    """Judged trajectories of either version per step."""
    margin: float = Field(default=0.05, gt=0, lt=1)
    """How much lower the success rate may be."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Chance of a wrong conclusion over all looks."""
    max_p95_ratio: float | None = Field(default=1.5, ge=1)
    """Latency guard; null for none."""
    max_cost_ratio: float | None = Field(default=None, ge=1)
    """Cost guard; null for none."""
    approve: bool = False
    """Whether a human has to approve."""


class CanaryAction(Body):
    """``POST /v1/canary/approve``, ``/abort`` and ``/release``."""

    reason: str = Field(default="asked for", max_length=512)
    """For the record."""


class FeedbackBody(Body):
    """``POST /v1/feedback``: what became of a trajectory."""

    trajectory: str = Field(min_length=1, max_length=256)
    """As given with its requests."""
    success: bool | None
    """Whether it reached its goal; null when nobody knows (never counted as a failure)."""
    latency_s: float | None = None
    """Seconds from start to end."""
    cost: float | None = None
    """In any one unit."""


async def weights(front: Front, request: Request) -> Response:
    """Load a directory or a published manifest as the new standard weights, swap at a step edge, check with a probe."""
    body = await front.read(request, WeightsBody)
    loaded = await front.fleet.update(body, SwapPolicy(body.policy))
    return JSONResponse(asdict(loaded))


async def pause(front: Front, _: Request) -> Response:
    """Stop stepping; new requests are told to come back, running ones wait."""
    await front.fleet.pause()
    return JSONResponse({"paused": True})


async def resume(front: Front, _: Request) -> Response:
    """Step again."""
    await front.fleet.resume()
    return JSONResponse({"paused": False})


async def start_canary(front: Front, request: Request) -> Response:
    """Load a candidate and give it the first share of the trajectories."""
    body = await front.read(request, CanaryBody)
    given: dict[str, Any] = body.model_dump(exclude={*SourceBody.model_fields, "steps"})
    plan = Plan(steps=tuple(body.steps), **given)
    return JSONResponse(_canary(await front.fleet.start_canary(body, plan)))


async def show_canary(front: Front, _: Request) -> Response:
    """The last canary with its evidence."""
    return JSONResponse(_canary(front.fleet.known_canary()))


async def approve_canary(front: Front, request: Request) -> Response:
    """A human agrees to the promotion."""
    await front.read(request, CanaryAction)
    return JSONResponse(_canary(front.fleet.approve()))


async def abort_canary(front: Front, request: Request) -> Response:
    """Back to the old version, at any point while it is loaded."""
    body = await front.read(request, CanaryAction)
    return JSONResponse(_canary(front.fleet.abort(body.reason)))


async def release_canary(front: Front, request: Request) -> Response:
    """Let go of the old version after a promotion."""
    await front.read(request, CanaryAction)
    return JSONResponse(_canary(front.fleet.release()))


async def feedback(front: Front, request: Request) -> Response:
    """Tell what became of a trajectory; the canary moves on it."""
    body = await front.read(request, FeedbackBody)
    canary = front.fleet.outcome(
        body.trajectory, success=body.success, latency_s=body.latency_s, cost=body.cost
    )
    return JSONResponse(_canary(canary))


async def models(front: Front, _: Request) -> Response:
    """What can be named in ``model``."""
    names = [front.name] + ([f"{front.name}:fast"] if front.fleet.fast is not None else [])
    return JSONResponse({"object": "list", "data": [_model(front, name) for name in names]})


async def model(front: Front, request: Request) -> Response:
    """One model."""
    name = request.path_params["name"]
    front.lane_of(name)
    return JSONResponse(_model(front, name))


async def health(front: Front, _: Request) -> Response:
    """200 while it can answer, 503 while it cannot; says why."""
    standard = front.fleet.standard
    status = "ok" if standard.alive and not standard.paused else "paused" if standard.alive else "stopped"
    said = {
        "status": status,
        "version": standard.version,
        "replicas": len(standard.engines),
        "replicas_alive": sum(engine.alive for engine in standard.engines),
        "variant_fast": front.fleet.fast is not None,
    }
    return JSONResponse(said, 200 if status == "ok" else 503)


async def metrics(front: Front, request: Request) -> Response:
    """Prometheus exposition."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(front.metrics.registry), media_type=content_type)


def _model(front: Front, name: str) -> dict[str, Any]:
    lane = front.lane_of(name)
    return {
        "id": name,
        "object": "model",
        "created": front.started,
        "owned_by": "temper",
        "max_model_len": lane.max_context,
        "version": lane.version,
        "digest": lane.model.digest,
    }


def _canary(canary: Canary) -> dict[str, Any]:
    judgement = canary.judge()
    return {
        "name": canary.name,
        "phase": canary.phase.value,
        "reason": canary.reason,
        "share": canary.share,
        "step": canary.step,
        "verdict": judgement.verdict.value,
        "evidence": list(judgement.reasons),
        "samples": {"baseline": canary.baseline.judged, "canary": canary.canary.judged},
        "success_rate": {"baseline": canary.baseline.success_rate, "canary": canary.canary.success_rate},
        "plan": asdict(canary.plan),
    }
