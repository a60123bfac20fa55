"""Text and overrides in, a checked `JobFile` out; all mistakes at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from temper.client.jobfile.checks import inconsistencies
from temper.client.jobfile.model import JobFile
from temper.client.jobfile.problems import JobFileRejected, Problem, from_validation, nearest

_INDEX = re.compile(r"\[(\d+)\]")
_FRACTION = re.compile(r"[+-]?\.\d+")  # `.5`, which TOML does not know
_DEEPEST = 16  # keys of an override; the deepest of a job file, in an environment's own tables, needs half
_LARGEST = 1 << 20  # bytes; a job file is a page of text, so more is a wrong file


def load_job(path: Path, overrides: Sequence[str] = (), seed: int | None = None) -> JobFile:
    """Read and check a job file.

    `overrides` are `a.b=c` with TOML values, as in `eval.every=10`, `phase.rl.steps=5`, `domain[0].share=2`.
    Raises JobFileRejected with every mistake.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)  # a device or a pipe may have no end
    except OSError as error:
        raise JobFileRejected(str(path), [Problem("", f"cannot be read: {error.strerror}")]) from None
    if len(raw) > _LARGEST:
        raise JobFileRejected(str(path), [Problem("", "is larger than 1 MiB: this is not a job file")])
    return parse_job(raw, source=str(path), overrides=overrides, seed=seed)


def parse_job(
    raw: bytes, *, source: str = "job", overrides: Sequence[str] = (), seed: int | None = None
) -> JobFile:
    """`load_job` for bytes at hand."""
    document = _document(raw, source)
    problems = [problem for text in overrides if (problem := _override(document, text))]
    if seed is not None:
        document["seed"] = seed
    if problems:
        raise JobFileRejected(source, problems)
    return _validate(document, source)


def _document(raw: bytes, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        problem = Problem("", f"is not text: byte {error.start} is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        problem = Problem("", f"is not TOML: {error}")
    except RecursionError:
        problem = Problem("", "is nested too deeply: this is not a job file")
    raise JobFileRejected(source, [problem])


def _validate(document: dict[str, Any], source: str) -> JobFile:
    try:
        # Arrays of TOML are lists; the frozen model holds tuples. Everything else stays strict.
        job = JobFile.model_validate(_tuples(document))
    except ValidationError as error:
        raise JobFileRejected(source, from_validation(error, JobFile)) from None
    problems = inconsistencies(job)
    if problems:
        raise JobFileRejected(source, problems)
    return job


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        # An environment's own parameters stay as they are written.
        return {key: item if key == "params" else _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _override(document: dict[str, Any], text: str) -> Problem | None:
    """Apply one `a.b=c` in place."""
    path, equals, value = text.partition("=")
    keys = [key for key in _INDEX.sub(r".\1", path.strip()).split(".") if key]
    if not equals or not keys or len(keys) > _DEEPEST:
        return Problem(f"--set {text}", "must have the form a.b=value")
    here: Any = document
    for key in keys[:-1]:
        step = _step(here, key)
        if isinstance(step, Problem):
            return Problem(f"--set {path}", step.message, step.hint)
        here = step
    return _assign(here, keys[-1], toml_value(value.strip()), path)


def _assign(table: Any, key: str, value: Any, path: str) -> Problem | None:
    if not isinstance(table, dict):
        return Problem(f"--set {path}", "does not name a key of a table")
    table[key] = value
    return None


def _step(here: Any, key: str) -> Any:
    """One level down: a key of a table, or an entry of an array by position or by its name."""
    if isinstance(here, dict):
        return here.setdefault(key, {})
    if not isinstance(here, list):
        return Problem("", f"cannot be followed: nothing lies under {key!r}")
    if key.isdigit():
        return (
            here[int(key)]
            if int(key) < len(here)
            else Problem("", f"has no entry {key}: {len(here)} entries")
        )
    named = {str(entry.get("name")): entry for entry in here if isinstance(entry, dict)}
    return named.get(key) or Problem("", f"has no entry named {key!r}", nearest(key, named))


def toml_value(text: str) -> Any:
    """The TOML value, or the text itself where it is not one: `--set name=trial` needs no quotes."""
    try:
        table = tomllib.loads(f"value = {text}")
        return table["value"] if len(table) == 1 else text  # a line break must not smuggle in a second key
    except (tomllib.TOMLDecodeError, RecursionError):
        return float(text) if _FRACTION.fullmatch(text) else text
