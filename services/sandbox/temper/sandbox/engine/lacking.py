"""What a backend says that cannot do something: a refusal that names the capability, before anything has begun.

A backend inherits from these and overrides what it can; whatever it overrides it declares in its `Capabilities`.
"""

from collections.abc import AsyncIterator, Sequence

from temper.runtime.errors import Rejected
from temper.sandbox.engine.command import Sink
from temper.sandbox.engine.entries import Change, Edit, FileInfo, Match
from temper.sandbox.engine.interactive import ProcessInfo, Session, SessionSpec


def refusal(capability: str) -> Rejected:
    """The error for something that the backend at hand does not do."""
    return Rejected(
        f"this backend has no {capability}", field="capability", hint="choose a backend that declares it"
    )


class LackingSandbox:
    """Refuses everything that is optional in a sandbox."""

    async def open_session(self, spec: SessionSpec, sink: Sink | None = None) -> Session:
        """Refused."""
        raise refusal("sessions")

    async def list_processes(self) -> list[ProcessInfo]:
        """Refused."""
        raise refusal("processes")

    async def signal(self, pid: int, number: int) -> None:
        """Refused."""
        raise refusal("processes")

    async def stat(self, path: str) -> FileInfo:
        """Refused."""
        raise refusal("trees")

    async def list_files(self, path: str, depth: int = 1) -> list[FileInfo]:
        """Refused."""
        raise refusal("trees")

    async def make_directory(self, path: str) -> None:
        """Refused."""
        raise refusal("trees")

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Refused."""
        raise refusal("trees")

    async def put_tree(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Refused."""
        raise refusal("trees")

    def get_tree(self, path: str) -> AsyncIterator[bytes]:
        """Refused."""
        raise refusal("trees")

    async def patch(self, path: str, edits: Sequence[Edit]) -> FileInfo:
        """Refused."""
        raise refusal("trees")

    async def search(self, pattern: str, path: str = "", limit: int = 100) -> list[Match]:
        """Refused."""
        raise refusal("trees")

    def watch(self, path: str) -> AsyncIterator[Change]:
        """Refused."""
        raise refusal("trees")

    async def snapshot(self) -> str:
        """Refused."""
        raise refusal("snapshots")

    async def restore(self, snapshot: str) -> None:
        """Refused."""
        raise refusal("snapshots")
