"""Which files of a directory make a policy; nothing here reads a pickle or lets one through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temper.client.jobfile.problems import Problem

_KEPT = (".json", ".safetensors", ".txt", ".model", ".jinja")
_REQUIRED = ("config.json", "tokenizer.json", "temper_chat.json")
_REQUIRED_OF_TOKENIZER = ("tokenizer.json", "temper_chat.json")
_WEIGHTS = (".safetensors",)


def policy_files(directory: Path, field: str, *, weights: bool) -> tuple[dict[str, Path], list[Problem]]:
    """Files by name, and what is missing. `weights`: whether weights and their config must be among them."""
    if not directory.is_dir():
        kind = "is a file, not a directory" if directory.exists() else "does not exist"
        return {}, [Problem(field, f"{directory} {kind}", "paths are relative to the job file")]
    files = {
        path.name: path for path in sorted(directory.iterdir()) if path.is_file() and path.suffix in _KEPT
    }
    if not weights:
        files = {name: path for name, path in files.items() if path.suffix not in _WEIGHTS}
    required = _REQUIRED if weights else _REQUIRED_OF_TOKENIZER
    problems = [
        Problem(
            field, f"{directory} has no {name}", "a Hugging Face directory with temper_chat.json is expected"
        )
        for name in required
        if name not in files
    ]
    if weights and not any(path.suffix in _WEIGHTS for path in files.values()):
        problems.append(Problem(field, f"{directory} has no *.safetensors", _weights_hint(directory)))
    return files, problems + _unreadable(files, field)


def vocabulary_problems(
    files: Mapping[str, Path], field: str, *, vocab_size: int | None = None
) -> list[Problem]:
    """Whether every id of tokenizer.json fits: below `vocab_size`, or that of config.json where none is given."""
    size: Any = _object(files["config.json"]).get("vocab_size") if vocab_size is None else vocab_size
    tokenizer = _object(files["tokenizer.json"])
    added = [
        each["id"] for each in tokenizer.get("added_tokens", []) if isinstance(each, dict) and "id" in each
    ]
    vocabulary = tokenizer["model"].get("vocab", {})
    ids = [*added, *vocabulary.values()] if isinstance(vocabulary, dict) else [*added, len(vocabulary) - 1]
    ids = [
        each for each in ids if isinstance(each, int)
    ]  # what else is wrong with it, the rollout engine says
    if not isinstance(size, int) or not ids or max(ids) < size:
        return []
    message = f"has {size} tokens, but tokenizer.json has ids up to {max(ids)}"
    return [Problem(field, message, f"vocab_size must be at least {max(ids) + 1}")]


def _unreadable(files: Mapping[str, Path], field: str) -> list[Problem]:
    """Files that would only fail in a worker, minutes later."""
    found: list[Problem] = []
    for name in _REQUIRED:
        if name not in files:
            continue
        try:
            content = _object(files[name])
        except ValueError as error:
            found.append(Problem(field, f"{files[name]} is not a JSON object: {error}"))
            continue
        if name == "tokenizer.json" and not isinstance(content.get("model"), dict):
            found.append(
                Problem(field, f"{files[name]} has no model", "a tokenizer of the tokenizers library")
            )
    return found


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError if it holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}")  # noqa: TRY004 - content of a file, no argument
    return value


def _weights_hint(directory: Path) -> str:
    pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pt"))
    return "pickled weights are refused: convert them to safetensors" if pickled else "weights are missing"
