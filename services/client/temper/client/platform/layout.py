"""The files of a data directory, and what can be wrong with it."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.runtime.embedded import write_secret
from temper.runtime.errors import Rejected

DEFAULT = Path(".temper")
_LEAST_FREE_BYTES = 256 << 20  # a quick start writes about 100 MB


@dataclass(frozen=True, slots=True)
class DataDir:
    """Everything that an embedded platform keeps. Example: `DataDir(Path(".temper"))`."""

    root: Path
    """Absolute path of the directory."""

    @classmethod
    def at(cls, path: Path) -> DataDir:
        """The directory at `path`, which need not exist yet."""
        return cls(path.expanduser().resolve())

    @property
    def token_file(self) -> Path:
        """Bearer token of the gRPC API, mode 0600."""
        return self.root / "token"

    @property
    def broker(self) -> Path:
        """Files of nats-server."""
        return self.root / "nats"

    @property
    def objects(self) -> Path:
        """Object store."""
        return self.root / "objects"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Generated settings of the services."""
        return self.root / "run"

    @property
    def state_file(self) -> Path:
        """What other commands read to find the platform, mode 0600."""
        return self.root / "platform.json"

    @property
    def lock_file(self) -> Path:
        """Locked while a platform runs here."""
        return self.root / "lock"

    def log_file(self, name: str) -> Path:
        """Log of one process."""
        return self.logs / f"{name}.log"

    def private(self, service: str) -> Path:
        """Scratch space of one service."""
        return self.root / service

    def prepare(self) -> None:
        """Make what is missing. Rejected says why a directory cannot be used."""
        if self.root.exists() and not self.root.is_dir():
            raise Rejected(
                f"{self.root} is a file", field="data_dir", hint="give a directory: --data-dir DIR"
            )
        try:
            for directory in (self.root, self.broker, self.objects, self.logs, self.run):
                directory.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            if not self.token_file.exists():
                write_secret(self.token_file, secrets.token_urlsafe(32))
        except OSError as error:
            hint = "give a directory you may write to: --data-dir DIR"
            message = f"{error.filename or self.root} cannot be written: {error.strerror}"
            raise Rejected(message, field="data_dir", hint=hint) from None
        self._check_space()

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state file, whole or not at all."""
        write_secret(self.state_file, json.dumps(state, indent=2))

    def remove_state(self) -> None:
        """The platform is gone."""
        self.state_file.unlink(missing_ok=True)

    def log_tail(self, name: str, lines: int = 8) -> str:
        """The end of a process's log."""
        try:
            text = self.log_file(name).read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _check_space(self) -> None:
        free = os.statvfs(self.root)
        left = free.f_bavail * free.f_frsize
        if left < _LEAST_FREE_BYTES:
            message = f"only {left >> 20} MB are free in {self.root}; {_LEAST_FREE_BYTES >> 20} MB are needed"
            raise Rejected(message, field="data_dir", hint="free some space, or --data-dir on another disk")
