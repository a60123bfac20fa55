"""`BubblewrapBackend`: the namespaces backend's slots, groups and init, with walls built by `bwrap`."""

import shutil
from dataclasses import replace
from typing import Any, Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Capabilities, Limits
from temper.sandbox.engine.bubblewrap import arguments
from temper.sandbox.engine.guest import root
from temper.sandbox.engine.launcher import Launcher, base_python, guest_environment
from temper.sandbox.engine.namespaces import NamespacesBackend
from temper.sandbox.engine.slots import guest_basis

_PROGRAM: Final = "bwrap"


class BubblewrapBackend(NamespacesBackend):
    """Sandboxes in `bwrap`. Parameters as of the namespaces backend."""

    STANDS_BY = False  # the outer program needs to know who comes

    async def start(self) -> None:
        """As the namespaces backend's; also Unavailable without the program."""
        if shutil.which(_PROGRAM) is None:
            raise Unavailable("bwrap is not installed", hint="apt-get install bubblewrap")
        self._write_etc()
        await super().start()

    def _write_etc(self) -> None:
        etc = self._state_dir / "boxed" / "etc"
        shutil.rmtree(etc.parent, ignore_errors=True)
        (etc / "alternatives").mkdir(parents=True)
        root.write_etc(str(etc.parent), [self._uid(slot) for slot in range(self._slots)])

    def _describe(self) -> Capabilities:
        described = super()._describe()
        notes = [*described.notes, "each sandbox starts a program and an interpreter: slower than namespaces"]
        enforced = described.enforced
        if self._user_namespace:
            enforced -= {"inodes"}
            notes.append("without root: bytes of files are limited, their number is not")
        return replace(described, backend="bubblewrap", enforced=enforced, notes=tuple(notes))

    def _make_launcher(self) -> Launcher:
        # Not isolated itself: bwrap does that, and its own children die with it, as it dies with the launcher.
        return Launcher({"isolated": False}, guest_environment(base_python(), "/work"))

    def _request(self, slot: int, limits: Limits) -> dict[str, Any]:
        python = base_python()
        paths = list(self._readonly_paths)
        if not python.prefix.startswith("/usr"):
            paths.append(python.prefix)
        program = arguments.command(
            shutil.which(_PROGRAM) or _PROGRAM,
            python,
            self._state_dir.resolve() / "boxed" / "etc",
            paths,
            limits.disk_bytes,
            user_namespace=self._user_namespace,
        )
        return {
            **super()._request(slot, limits),
            **guest_basis("/work"),
            "inodes": limits.inodes,
            "isolated": True,
            "boxed": True,
            "directory": "/work",
            "shared": list(self.SHARED),
            "program": program,
        }
