"""Where the image of a pool comes from, and making sure that the engine has it."""

import asyncio
import contextlib
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.docker.client import MISSING, Client
from temper.sandbox.engine.guest import root

_HOST: Final = "temper-host"
_DIRECTORIES: Final = ("dev", "etc", "proc", "root", "sbin", "sys", "tmp", "usr", "var", "work")
# The engine gives a tmpfs the mode of the directory that it covers.
_MODES: Final = {"work": 0o700, "tmp": 0o1777}
_LINKS: Final = ("bin", "lib", "lib64")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """One of three sources, or none of them. Example: `ImageSource(name="python:3.12-slim")`."""

    name: str = ""
    """An image by name; pulled if the engine has it not."""
    dockerfile: str = ""
    """A Dockerfile, built with its directory as context; the image's own name is then `name` or one by content."""
    rootfs: str = ""
    """A tar of a root directory, imported under `name` or one by content."""

    @property
    def own_programs(self) -> bool:
        """Whether sandboxes see this host's programs, read-only, instead of an image's."""
        return not (self.name or self.dockerfile or self.rootfs)


async def ensure(client: Client, source: ImageSource, uids: Sequence[int], place: str) -> str:
    """Have the image; returns its name. Raises Rejected, Unavailable. `place` tells apart the services of one engine."""
    if source.dockerfile:
        return await _build(client, source)
    if source.rootfs:
        return await _imported(client, source)
    if source.name:
        await _pulled(client, source.name)
        return source.name
    content = await asyncio.to_thread(_host_root, uids)
    name = f"{_HOST}:{place[:12]}-{_digest(content)}"
    if not await _there(client, name):
        await _import(client, content, name)
    return name


async def drop(client: Client, name: str) -> None:
    """Remove the image of this host's programs; one that is still in use stays."""
    with contextlib.suppress(MISSING, Unavailable):
        await client.call(client.api.remove_image, name)


async def _there(client: Client, name: str) -> bool:
    try:
        await client.call(client.api.inspect_image, name)
    except MISSING:
        return False
    return True


async def _pulled(client: Client, name: str) -> None:
    if await _there(client, name):
        return
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    try:
        await client.call(client.api.pull, repository, tag=tag)
    except (MISSING, Unavailable) as error:
        raise Rejected(
            f"the engine has no image {name!r} and cannot pull it: {error}", field="docker.image"
        ) from error


async def _build(client: Client, source: ImageSource) -> str:
    path = Path(source.dockerfile)
    content = await asyncio.to_thread(_content, path, "docker.dockerfile")
    name = source.name or f"temper-built:{_digest(content)}"

    def run() -> str:
        lines = client.api.build(
            path=str(path.parent), dockerfile=path.name, tag=name, rm=True, forcerm=True, decode=True
        )
        return next((line["error"] for line in lines if "error" in line), "")

    failure: str = await client.call(run)
    if failure:
        raise Rejected(f"{source.dockerfile} does not build: {failure}", field="docker.dockerfile")
    return name


async def _imported(client: Client, source: ImageSource) -> str:
    content = await asyncio.to_thread(_content, Path(source.rootfs), "docker.rootfs")
    name = source.name or f"temper-root:{_digest(content)}"
    if not await _there(client, name):
        await _import(client, content, name)
    return name


def _content(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error.strerror}", field=field) from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


async def _import(client: Client, content: bytes, name: str) -> None:
    repository, _, tag = name.rpartition(":")
    await client.call(client.api.import_image_from_data, content, repository=repository, tag=tag)


def _host_root(uids: Sequence[int]) -> bytes:
    """A root of mount points and a small /etc; the programs are mounted from this host."""
    content = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=content, mode="w") as out:
        for name in _DIRECTORIES:
            _add(out, name, tarfile.DIRTYPE, mode=_MODES.get(name, 0o755))
        for name in _LINKS:
            path = Path("/") / name
            _add(out, name, tarfile.SYMTYPE if path.is_symlink() else tarfile.DIRTYPE, f"usr/{name}")
        _add(out, "var/tmp", tarfile.SYMTYPE, "/tmp")  # noqa: S108 - the sandbox's own
        etc = Path(scratch) / "etc"
        etc.mkdir()
        root.write_etc(scratch, uids)
        for path in sorted(etc.iterdir()):
            if path.is_symlink():
                _add(out, f"etc/{path.name}", tarfile.SYMTYPE, str(path.readlink()))
            else:
                info = tarfile.TarInfo(f"etc/{path.name}")
                info.size = path.stat().st_size
                with path.open("rb") as file:
                    out.addfile(info, file)
    return content.getvalue()


def _add(out: tarfile.TarFile, name: str, kind: bytes, target: str = "", *, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    info.linkname = target if kind == tarfile.SYMTYPE else ""
    out.addfile(info)
