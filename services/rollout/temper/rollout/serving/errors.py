"""Errors as HTTP, in the shape that OpenAI's clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from temper.runtime.errors import Conflict, Exhausted, NotFound, Rejected, Stale, TemperError, Unavailable

B = TypeVar("B", bound=BaseModel)
RETRY_AFTER_S = 1


class Late(Unavailable):
    """The request's own deadline passed: doing the same again would take as long."""


class TooLong(Rejected):
    """The prompt does not fit the context: some clients of OpenAI's cut it and ask again when they read the code."""


def status_of(error: TemperError) -> int:
    """HTTP status by class."""
    match error:
        case NotFound():
            return 404
        case Rejected():
            return 400
        case Conflict() | Stale():
            return 409
        case Exhausted():
            return 429
        case Late():
            return 504
        case _:
            return 503


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}


def body_of(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The ``error`` object."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: TemperError) -> dict[str, Any]:
    """The ``error`` object of a temper error, with the way out in its message."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    code = None
    if status_of(error) == 404 and error.field == "model":
        code = "model_not_found"
    if isinstance(error, TooLong):
        code = "context_length_exceeded"
    return body_of(status_of(error), message, param=error.field, code=code)


def respond(error: TemperError) -> Response:
    """The whole response."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == 504:
        headers["X-Should-Retry"] = "false"  # OpenAI's clients would wait as long again
    return JSONResponse(describe(error), status, headers)


async def on_temper_error(_: Request, error: Exception) -> Response:
    """Handler for the application."""
    assert isinstance(error, TemperError)
    return respond(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message, headers = error.detail, error.headers or {}
    if error.status_code == 404:
        message = f"there is no route {request.url.path}; GET /openapi.json lists them"
    if error.status_code == 405:
        message = f"{request.url.path} takes {headers.get('Allow', 'another method')}, not {request.method}"
    return JSONResponse(body_of(error.status_code, message), error.status_code, headers)


async def on_failure(_: Request, __: Exception) -> Response:
    """A bug: the traceback is in the log, the client gets no details."""
    return JSONResponse(body_of(500, "internal error; the server's log says more"), 500)


def parse(kind: type[B], raw: bytes, defaults: Mapping[str, str] | None = None) -> B:
    """A request body; ``defaults`` fill in what it leaves out.

    Raises ``Rejected`` naming the field at fault, unknown and unsupported ones too.
    """
    try:
        content: Any = json.loads(raw, parse_constant=_refuse_constant)
        if b"\\u" in raw:
            json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as broken:
        raise Rejected(f"the body is not JSON: {broken}") from None
    if not isinstance(content, dict):
        raise Rejected("the body must be a JSON object")
    for key in [each for each, value in content.items() if value is None and each not in kind.model_fields]:
        del content[key]  # an option that asks for nothing: some clients send all they know
    for key, value in (defaults or {}).items():
        if content.get(key) is None:
            content[key] = value
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise _rejection(error.errors(), content) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _rejection(details: Sequence[Any], content: Mapping[str, Any]) -> Rejected:
    """The first field at fault. Where it may be one of several things, what comes closest to what was sent is told."""
    first = details[0]["loc"][:1]
    told = [
        (_path(each["loc"], content, missing=each["type"] == "missing"), each)
        for each in details
        if each["loc"][:1] == first
    ]
    field, detail = max(told, key=lambda each: each[0].count(".") + each[0].count("["))
    if detail["type"] == "extra_forbidden":
        return Rejected(f"{field} is not an option here: unknown, or not supported", field=field)
    if detail["type"] == "missing":
        return Rejected(f"{field} must be given", field=field)
    messages = [each["msg"].removeprefix("Value error, ") for path, each in told if path == field]
    message = " or ".join(dict.fromkeys(text[:1].lower() + text[1:] for text in messages))
    return Rejected(f"{field}: {message}" if field else message, field=field or None)


def _path(location: Sequence[int | str], content: Any, *, missing: bool) -> str:
    """The part of pydantic's location that exists in what was sent: names of union members are not the client's words."""
    path = ""
    here: Any = content
    for number, part in enumerate(location):
        if _holds(here, part):
            here = here[part]
        elif not (missing and number == len(location) - 1):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _holds(here: Any, part: int | str) -> bool:
    if isinstance(here, dict):
        return part in here
    return isinstance(here, list) and isinstance(part, int) and part < len(here)
