"""A user's mistake in words: the path of the key, what is wrong, where it came from, and the nearest valid name.

Used for every closed pydantic model that a person fills in: configuration of services, job files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from temper.runtime.errors import Rejected

_SHOWN = 6  # mistakes told at once: the first as the error itself, the others in its hint
_TABLE_ERRORS = {"model_type", "dict_type", "model_attributes_type"}


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` is most likely a misspelling of; None when nothing is close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return close[0] if close else None


def rejection(
    error: ValidationError, model: type[BaseModel], *, sources: Mapping[str, str] | None = None
) -> Rejected:
    """`error` in the words of a user: path, what is wrong, where it came from, the nearest name or what is allowed."""
    lines = [_complaint(each, model, sources or {}) for each in error.errors()]
    field, message, hint = lines[0]
    if len(lines) > 1:
        others = "; ".join(
            f"{path}: {text}{f' ({way})' if way else ''}" for path, text, way in lines[1:_SHOWN]
        )
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        hint = f"{hint}; " if hint else ""
        hint = f"{hint}also wrong: {others}{more}"
    return Rejected(message, field=field, hint=hint)


def _complaint(
    detail: Any, model: type[BaseModel], sources: Mapping[str, str]
) -> tuple[str, str, str | None]:
    location: tuple[int | str, ...] = detail["loc"]
    path = dotted(location)
    origin = sources.get(path) or next(
        (name for key, name in sources.items() if key.startswith(f"{path}.")), None
    )
    where = f" [from {origin}]" if origin else ""
    if detail["type"] == "extra_forbidden":
        valid = _fields_at(model, location[:-1])
        guess = nearest(str(location[-1]), valid)
        hint = f"did you mean {guess!r}?" if guess else f"known here: {', '.join(valid)}"
        return path, f"unknown key{where}", hint
    if detail["type"] == "missing":
        return path, "this key must be given", None
    message: str = "must be a table of keys" if detail["type"] in _TABLE_ERRORS else detail["msg"]
    given = detail.get("input")
    shown = f", got {given!r}" if isinstance(given, (str, int, float, bool)) else ""
    return path, f"{message[:1].lower()}{message[1:]}{shown}{where}", None


def dotted(location: Iterable[int | str]) -> str:
    """`("phases", 0, "steps")` as `phases[0].steps`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Valid keys of the table at `location`; empty when it is not a closed table."""
    here: type[BaseModel] | None = model
    for part in location:
        if here is None or isinstance(part, int):
            continue
        field = here.model_fields.get(part)
        here = _table_type(field.annotation) if field else None
    return list(here.model_fields) if here else []


def _table_type(annotation: Any) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None`, `list[Model]`, `dict[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _table_type(each))), None)
