"""Which files of a directory make a policy; nothing here reads a pickle or lets one through."""

from __future__ import annotations

from pathlib import Path

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
    return files, problems


def _weights_hint(directory: Path) -> str:
    pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pt"))
    return "pickled weights are refused: convert them to safetensors" if pickled else "weights are missing"
