"""Parameters of an environment: the asset's own, changed by a job, as one canonical JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from temper.qa.manifest import Families, Manifest
from temper.runtime.complaints import nearest
from temper.runtime.errors import Rejected

FIELD = "params_json"


def canonical(values: Mapping[str, Any]) -> str:
    """Sorted keys, no spaces: equal values, equal text. Rejected for what JSON cannot carry: dates, nan, inf."""
    try:
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        hint = "text, finite numbers, true, false, lists and tables"
        raise Rejected(f"cannot be written as JSON: {error}", field=FIELD, hint=hint) from None


def effective(manifest: Manifest, name: str, overrides_json: str) -> str:
    """Every parameter that environment `name` of the asset runs with.

    Raises Rejected for text that is no JSON object, an unknown parameter, or a value of another type than the default.
    """
    overrides = parse(overrides_json)
    values: dict[str, Any] = {key: param.default for key, param in manifest.params.items()}
    families = manifest.families
    for key, value in overrides.items():
        if not (families and families.open):
            _check_known(key, list(values))
        if key in manifest.params:
            _check_type(key, value, manifest.params[key].default)
        values[key] = value
    if families is not None:
        values[families.parameter] = _family(families, name, overrides)
    return canonical(values)


def parse(text: str) -> dict[str, Any]:
    """A JSON object; empty text is the empty object."""
    if not text:
        return {}
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}", field=FIELD) from None
    if not isinstance(values, dict):
        raise Rejected(f"must be a JSON object, got {text[:40]!r}", field=FIELD)
    return values


def _family(families: Families, name: str, overrides: Mapping[str, Any]) -> str:
    family = name.removeprefix(families.prefix)
    if overrides.get(families.parameter, family) != family:
        raise Rejected(f"the environment's name says {family!r}", field=f"{FIELD}.{families.parameter}")
    return family


def _check_known(key: str, known: list[str]) -> None:
    if key in known:
        return
    guess = nearest(key, known)
    hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(known) or 'none'}"
    raise Rejected("unknown parameter", field=f"{FIELD}.{key}", hint=hint)


def _check_type(key: str, value: object, default: object) -> None:
    allowed = (int, float) if isinstance(default, float) else (type(default),)
    if type(value) not in allowed:  # not isinstance: true is no integer here
        wanted, given = type(default).__name__, type(value).__name__
        raise Rejected(f"must be of type {wanted}, got {given}", field=f"{FIELD}.{key}")
