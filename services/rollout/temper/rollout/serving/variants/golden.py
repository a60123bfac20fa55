"""Files that an admission rests on: a corpus of texts, and a golden set of tasks with checks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.rollout.serving.directory import Model
from temper.runtime.errors import Rejected

_CHECKS = ("equals", "contains", "regex")


@dataclass(frozen=True, slots=True)
class Task:
    """One task. Example line: ``{"prompt": "2+2=", "equals": "4", "max_tokens": 4}``."""

    prompt: tuple[int, ...]
    """Ids."""
    kind: str
    """``equals``, ``contains`` or ``regex``."""
    wanted: str
    """What is looked for, in the output without surrounding white space."""
    max_tokens: int
    """Most output tokens."""

    def score(self, text: str) -> float:
        """1 if the output passes, else 0."""
        match self.kind:
            case "equals":
                return float(text.strip() == self.wanted)
            case "contains":
                return float(self.wanted in text)
            case _:
                return float(re.search(self.wanted, text) is not None)


def read_corpus(path: Path, model: Model, limit: int) -> tuple[list[list[int]], str]:
    """Sequences of ids, one per line of text (at most ``limit`` ids each), and the file's SHA-256."""
    raw = _read(path, "--corpus")
    lines = [line for line in raw.decode(errors="replace").splitlines() if line.strip()]
    sequences = [model.encode(line, special=True)[:limit] for line in lines]
    found = [ids for ids in sequences if len(ids) > 1]
    if not found:
        raise Rejected(f"{path} has no line of two tokens or more", field="--corpus")
    return found, hashlib.sha256(raw).hexdigest()


def read_golden(path: Path, model: Model) -> tuple[list[Task], str]:
    """Tasks, one JSON object per line, and the file's SHA-256."""
    raw = _read(path, "--golden")
    tasks = [
        _task(line, f"{path}:{number}", model)
        for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1)
        if line.strip()
    ]
    if not tasks:
        raise Rejected(f"{path} has no task", field="--golden")
    return tasks, hashlib.sha256(raw).hexdigest()


def _task(line: str, where: str, model: Model) -> Task:
    try:
        content: Any = json.loads(line)
    except ValueError as broken:
        raise Rejected(f"{where} is not JSON: {broken}", field="--golden") from None
    kinds = [kind for kind in _CHECKS if isinstance(content, dict) and isinstance(content.get(kind), str)]
    if len(kinds) != 1:
        raise Rejected(f"{where}: one of {', '.join(_CHECKS)} is needed, as a text", field="--golden")
    wanted, limit = content[kinds[0]], content.get("max_tokens", 64)
    if not isinstance(limit, int) or limit < 1:
        raise Rejected(f"{where}: max_tokens must be a whole number above 0", field="--golden")
    if kinds[0] == "regex":
        try:
            re.compile(wanted)
        except re.error as broken:
            raise Rejected(f"{where}: regex: {broken}", field="--golden") from None
    return Task(tuple(_prompt(content, where, model)), kinds[0], wanted, limit)


def _prompt(content: Mapping[str, Any], where: str, model: Model) -> Sequence[int]:
    prompt, messages = content.get("prompt"), content.get("messages")
    if isinstance(prompt, str) and messages is None:
        return model.encode(prompt, special=True)
    if isinstance(messages, list) and messages and prompt is None:
        if model.dialogue is None:
            raise Rejected(f"{where}: the model has no chat template", field="--golden")
        return model.dialogue.write(messages, [])
    raise Rejected(f"{where}: either prompt (text) or messages (list) is needed", field="--golden")


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error.strerror}", field=field) from None
