"""Mistakes of a job file in words: where, what, and the way out."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from temper.runtime.errors import Rejected

_SENTENCES = {
    "missing": "is required",
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. Example: `Problem("phase[0].stepz", "is not a known key", 'did you mean "steps"?')`."""

    path: str
    """Field path in the job file; empty for the file as a whole."""
    message: str
    """What is wrong, as the rest of a sentence that begins with the path."""
    hint: str = ""
    """The way out, where one is known."""

    def __str__(self) -> str:
        line = f"{self.path} {self.message}" if self.path else self.message
        return f"{line} ({self.hint})" if self.hint else line


class JobFileRejected(Rejected):
    """Every mistake of one job file."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        first = problems[0]
        super().__init__(str(self), field=first.path or None, hint=first.hint or None)

    def __str__(self) -> str:
        count = "1 mistake" if len(self.problems) == 1 else f"{len(self.problems)} mistakes"
        return "\n".join([f"{self.source}: {count}", *(f"  {problem}" for problem in self.problems)])


def from_validation(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """One problem for each error that pydantic found."""
    errors: list[dict[str, Any]] = [{**each} for each in error.errors(include_url=False)]
    # A list whose entries are wrong is also reported as too short; the entries' own errors say it better.
    broken = {each["loc"][:depth] for each in errors for depth in range(1, len(each["loc"]))}
    kept = [each for each in errors if each["type"] != "too_short" or each["loc"] not in broken]
    return [_problem(each, root) for each in kept]


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that offers the nearest known word, or all of them when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else f"known: {', '.join(names)}"


def path_of(location: Sequence[int | str]) -> str:
    """`("phase", 0, "steps")` as `phase[0].steps`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _problem(error: dict[str, Any], root: type[BaseModel]) -> Problem:
    kind, location, context = error["type"], error["loc"], error.get("ctx", {})
    if kind == "extra_forbidden":
        owner = _model_at(root, location[:-1])
        names = owner.model_fields if owner else ()
        return Problem(path_of(location), "is not a known key", nearest(str(location[-1]), names))
    if kind == "literal_error":
        hint = _literal_hint(error["input"], context["expected"])
        return Problem(
            path_of(location), f"must be one of {context['expected']}, not {error['input']!r}", hint
        )
    return Problem(path_of(location), _sentence(kind, context, error))


def _sentence(kind: str, context: dict[str, Any], error: dict[str, Any]) -> str:
    given = f", not {_short(error['input'])}"
    for bound, words in _BOUNDS.items():
        if bound in context:
            return f"must be {words} {context[bound]}{given}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}{given}"
    if kind in ("too_short", "too_long"):
        bound = (
            f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        )
        return f"must have {bound} entries"
    if kind == "value_error":
        return str(context["error"])
    sentence = _SENTENCES.get(kind) or str(error["msg"])
    return sentence if kind in ("missing", "string_too_short") else sentence + given


def _literal_hint(value: object, expected: str) -> str:
    words = [word.strip("' ") for word in expected.replace(" or ", ", ").split(",")]
    near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _model_at(root: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model whose table stands at `location`."""
    model: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside `X`, `X | None`, `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    found = (_model_in(argument) for argument in typing.get_args(annotation))
    return next((model for model in found if model), None)
