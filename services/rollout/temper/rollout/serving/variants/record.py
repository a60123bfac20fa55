"""Admission records: one JSON file each, signed, found by the digests of both variants.

The signature is HMAC-SHA256 over the canonical JSON without it, with a key that lies beside the records (mode 0600). It
keeps an edited record from admitting anything; who holds the key may admit what they like.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from temper.rollout.config import EngineConfig
from temper.rollout.serving.directory import Model
from temper.runtime.config import read_secret
from temper.runtime.embedded import write_secret
from temper.runtime.errors import Rejected

_FORMAT = 1
_KEY = "admission.key"


@dataclass(frozen=True, slots=True)
class Record:
    """What an admission leaves."""

    standard: str
    """Digest of the standard variant: weights and engine settings."""
    fast: str
    """Digest of the fast one."""
    corpus: str
    """SHA-256 of the corpus file."""
    golden: str
    """SHA-256 of the golden set's file."""
    admitted_at: float
    """Unix seconds."""
    bounds: Mapping[str, float]
    """What had to hold."""
    evidence: Mapping[str, Any]
    """What was measured."""

    @property
    def name(self) -> str:
        """File name."""
        return f"{self.standard[:16]}-{self.fast[:16]}.json"


def variant_digest(model: Model, engine: EngineConfig) -> str:
    """SHA-256 over weights, config and every engine setting: any change of them ends an admission."""
    settings = json.dumps(engine.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(f"{model.digest}\n{settings}".encode()).hexdigest()


class Records:
    """The records in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, record: Record) -> Path:
        """Sign and store. The key is made if there is none."""
        self._directory.mkdir(parents=True, exist_ok=True)
        key_file = self._directory / _KEY
        if not key_file.exists():
            write_secret(key_file, secrets.token_urlsafe(32))
        content = {"format": _FORMAT, **asdict(record)}
        content["signature"] = self._sign(content)
        path = self._directory / record.name
        path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        return path

    def find(self, standard: str, fast: str) -> Record | None:
        """The record that admits this pair; None if there is none. Raises ``Rejected`` for one that was tampered with."""
        path = self._directory / f"{standard[:16]}-{fast[:16]}.json"
        if not path.is_file():
            return None
        record = self._read(path)
        return record if (record.standard, record.fast) == (standard, fast) else None

    def all(self) -> Iterator[tuple[Path, Record]]:
        """Every record, oldest first. Raises ``Rejected`` for one that was tampered with."""
        found = [(path, self._read(path)) for path in self._directory.glob("*.json")]
        yield from sorted(found, key=lambda each: each[1].admitted_at)

    def _read(self, path: Path) -> Record:
        try:
            content: Any = json.loads(path.read_bytes())
            if content.pop("format") != _FORMAT:
                raise ValueError(f"only format {_FORMAT} is understood")
            signature = str(content.pop("signature"))
            expected = self._sign({"format": _FORMAT, **content})
            record = Record(**content)
        except (ValueError, KeyError, TypeError, AttributeError) as broken:
            raise Rejected(
                f"{path} is not an admission record: {broken}", field="serving.fast.records"
            ) from None
        if not hmac.compare_digest(signature, expected):
            raise Rejected(
                f"{path} does not match its signature",
                field="serving.fast.records",
                hint="it was changed, or signed with another key: admit the variant again",
            )
        return record

    def _sign(self, content: Mapping[str, Any]) -> str:
        key = read_secret(self._directory / _KEY, field="serving.fast.records")
        assert key is not None
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
