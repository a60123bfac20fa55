"""The application: every route, its description, and what happens to errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from temper.rollout.serving import control
from temper.rollout.serving.chat import chat
from temper.rollout.serving.control import CanaryAction, CanaryBody, FeedbackBody, WeightsBody
from temper.rollout.serving.errors import on_failure, on_http_error, on_temper_error
from temper.rollout.serving.front import Front
from temper.rollout.serving.gate import Gate
from temper.rollout.serving.schema import ChatBody, CompletionBody
from temper.rollout.serving.text import completions
from temper.rollout.serving.tokens import GenerateBody, ScoreBody, generate, score
from temper.runtime.errors import TemperError

Handler = Callable[[Front, Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Handler, type[BaseModel] | None], ...] = (
    ("GET", "/health", control.health, None),
    ("GET", "/metrics", control.metrics, None),
    ("GET", "/v1/models", control.models, None),
    ("GET", "/v1/models/{name}", control.model, None),
    ("POST", "/v1/completions", completions, CompletionBody),
    ("POST", "/v1/chat/completions", chat, ChatBody),
    ("POST", "/v1/generate", generate, GenerateBody),
    ("POST", "/v1/score", score, ScoreBody),
    ("POST", "/v1/weights", control.weights, WeightsBody),
    ("POST", "/v1/pause", control.pause, None),
    ("POST", "/v1/resume", control.resume, None),
    ("GET", "/v1/canary", control.show_canary, None),
    ("POST", "/v1/canary", control.start_canary, CanaryBody),
    ("POST", "/v1/canary/approve", control.approve_canary, CanaryAction),
    ("POST", "/v1/canary/abort", control.abort_canary, CanaryAction),
    ("POST", "/v1/canary/release", control.release_canary, CanaryAction),
    ("POST", "/v1/feedback", control.feedback, FeedbackBody),
)
"""Method, path, handler, body. The description at ``/openapi.json`` is made from this table."""


def make_app(front: Front, token: str | None) -> Starlette:
    """The ASGI application. ``token``: API key; None for an open server."""
    routes = [Route(path, _bound(front, handler), methods=[method]) for method, path, handler, _ in ROUTES]
    description = describe()

    async def openapi(_: Request) -> Response:
        return JSONResponse(description)

    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    paths = frozenset(path for _, path, _, _ in ROUTES)
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, front.config, front.metrics, token, paths)],
        exception_handlers={
            TemperError: on_temper_error,
            HTTPException: on_http_error,
            Exception: on_failure,
        },
    )


def describe() -> dict[str, Any]:
    """OpenAPI 3.1 of the routes, bodies from the models that parse them."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for method, path, handler, body in ROUTES:
        said = {
            "summary": (handler.__doc__ or "").strip().splitlines()[0],
            "responses": {"200": {"description": "OK"}},
        }
        entry: dict[str, Any] = said
        if body is not None:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[body.__name__] = schema
            ref = {"$ref": f"#/components/schemas/{body.__name__}"}
            entry["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref}}}
        if "{name}" in path:
            entry["parameters"] = [
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths.setdefault(path, {})[method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": "temper rollout", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _bound(front: Front, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(front, request)

    return endpoint
