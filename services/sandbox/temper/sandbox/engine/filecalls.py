"""The file calls of a sandbox whose trees are open on the host. Whatever may take long runs in a thread of its own."""

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence

from temper.sandbox.engine import archive, trees, watching
from temper.sandbox.engine.base import Change, Command, CommandResult, Edit, FileInfo, Limits, Match, Sink
from temper.sandbox.engine.files import Files


class FileCalls(ABC):
    """See the module. A subclass says where the files are and when the sandbox is gone."""

    @abstractmethod
    def _reach(self) -> Files:
        """The open trees. Raises Unavailable once the sandbox is gone."""

    @abstractmethod
    def _died(self) -> "asyncio.Future[None]":
        """Done when the sandbox is gone."""

    @abstractmethod
    async def execute(self, command: Command, limits: Limits, sink: Sink | None = None) -> CommandResult:
        """Run a program inside."""

    async def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, creating directories. Raises Rejected, Exhausted."""
        self._reach().put(path, content, mode)

    async def get_file(self, path: str, max_bytes: int) -> tuple[bytes, bool]:
        """The file's first bytes, and whether there are more. Raises Rejected."""
        return self._reach().get(path, max_bytes)

    async def stat(self, path: str) -> FileInfo:
        """What lies at a path. Raises Rejected."""
        return trees.stat(self._reach(), path)

    async def list_files(self, path: str, depth: int = 1) -> list[FileInfo]:
        """Entries below a directory. Raises Rejected."""
        return await asyncio.to_thread(trees.entries, self._reach(), path, depth)

    async def make_directory(self, path: str) -> None:
        """Make it with its parents. Raises Rejected, Exhausted."""
        self._reach().make_directory(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove an entry. Raises Rejected."""
        await asyncio.to_thread(trees.remove, self._reach(), path, recursive=recursive)

    async def put_tree(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Unpack a tar stream. Raises Rejected, Exhausted."""
        with tempfile.TemporaryFile() as file:
            await archive.collect(file, chunks)
            return await asyncio.to_thread(archive.unpack, self._reach(), path, file)

    async def get_tree(self, path: str) -> AsyncIterator[bytes]:
        """A tree as a tar stream. Raises Rejected."""
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(archive.pack, self._reach(), path, file)
            file.seek(0)
            while chunk := file.read(archive.CHUNK):
                yield chunk

    async def patch(self, path: str, edits: Sequence[Edit]) -> FileInfo:
        """Replace texts in a file. Raises Rejected, Exhausted."""
        trees.patch(self._reach(), path, edits)
        return await self.stat(path)

    async def search(self, pattern: str, path: str = "", limit: int = 100) -> list[Match]:
        """Lines that match, found by a program inside under the sandbox's own limits. Raises Rejected."""
        place = self._reach().absolute(path)
        found = await self.execute(trees.grep(pattern, place, limit), trees.SEARCH_LIMITS)
        return trees.matches(found, limit)

    async def watch(self, path: str) -> AsyncIterator[Change]:
        """Changes below a directory until the sandbox ends. Raises Rejected."""
        with watching.Watcher(self._reach(), path) as watcher:
            while (changes := await watcher.next(self._died())) is not None:
                for change in changes:
                    yield change
