"""The backend for a host without privileges: rlimits, a session of its own, a private directory. Isolation "weak".

It keeps honest programs apart and cleans up after them. It does not keep a hostile one in: the host's files, its
network and the other processes of this user are within reach. For trusted environments only.
"""

import os
from pathlib import Path
from typing import Any

from temper.runtime.errors import Unavailable
from temper.sandbox.engine import identity, records
from temper.sandbox.engine.base import Capabilities, Isolation, Limits
from temper.sandbox.engine.discard import discard
from temper.sandbox.engine.launcher import Launcher, base_python, guest_environment
from temper.sandbox.engine.slots import OFFERED, SlotBackend, guest_basis, rlimits


class ProcessBackend(SlotBackend):
    """Sandboxes as plain process trees. `state_dir` is an absolute directory of this service alone."""

    ISOLATED = False
    SHARED = ("/work",)

    def __init__(self, *, slots: int, state_dir: Path) -> None:
        super().__init__(slots, state_dir)
        self._home = self._state_dir / f"work-{identity.instance()}"
        self._record: Path | None = None

    async def start(self) -> None:
        """Reclaim, record, start the launcher. Raises Unavailable."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        records.reclaim(self._state_dir)
        self._record = records.write(self._state_dir, (), (self._home, self._snapshot_home))
        self._home.mkdir(mode=0o700, exist_ok=True)
        await self._restart_launcher()
        self._capabilities = Capabilities(
            "process",
            Isolation.WEAK,
            enforced=frozenset({"wall_s", "output_bytes", "open_files", "file_bytes"}),
            advisory=frozenset({"memory_bytes", "cpu_s"}),
            network_modes=("open",),
            **OFFERED,
            notes=(
                "weak isolation: the host's files and network are within reach; for trusted environments only",
            ),
        )

    def _make_launcher(self) -> Launcher:
        return Launcher({"isolated": False}, guest_environment(base_python(), str(self._home)))

    def _request(self, slot: int, limits: Limits) -> dict[str, Any]:
        work = self._directory(slot)
        return {
            **guest_basis(str(work)),
            "uid": os.geteuid(),
            "owner": None,
            "directory": str(work),
            "shared": [str(work)],
            "rlimits": rlimits(limits, with_memory=True, with_pids=False),
        }

    def _directory(self, slot: int) -> Path:
        return self._home / str(slot)

    def _clear(self, slot: int) -> None:
        discard(self._directory(slot))
        try:
            self._directory(slot).mkdir(mode=0o700)
        except OSError as error:  # the host's failure, never the task's
            raise Unavailable(f"cannot make a directory in {self._home}: {error.strerror}") from error

    async def close(self) -> None:
        """Destroy every sandbox, end the launcher, remove the directories."""
        await super().close()
        discard(self._home)
        if self._record is not None:
            self._record.unlink(missing_ok=True)
            self._record = None
