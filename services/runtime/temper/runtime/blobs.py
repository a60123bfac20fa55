"""Object storage: bytes under a key, found again only if they are still the same bytes.

`obstore` carries local directories and S3 alike. A write is atomic (a reader sees nothing or all of it) and a read
through a `BlobRef` is checked against size and SHA-256, so a torn or swapped object is `Rejected`, never used.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from temper.api.common.v1.common_pb2 import BlobRef
from temper.runtime.config import BlobsConfig, read_secret
from temper.runtime.errors import Exhausted, NotFound, Rejected, Unavailable

T = TypeVar("T")

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+=-]*")  # as BlobRef.key in the contract
_CHUNK_BYTES = 4 << 20
# Less than the deadline of a call, so that a thread does not outlive it and hold up the end of the process.
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=40)}


def content_key(data: bytes, *, prefix: str = "sha256") -> str:
    """Key that names the content itself: equal bytes, equal key."""
    digest = hashlib.sha256(data).hexdigest()
    return f"{prefix}/{digest[:2]}/{digest}"


class BlobStore:
    """One place of bytes. `BlobStore("file:///data/objects")`, or `BlobStore.configured(config.blobs)` for S3."""

    def __init__(self, url: str, *, timeout_s: float = 60.0, **s3: Any) -> None:
        """`s3`: `access_key_id`, `secret_access_key`, `endpoint`, `region`, `client_options` of the S3 store."""
        self.url = url
        self._timeout_s = timeout_s
        self._local, self._store = _open(url, s3)

    @classmethod
    def configured(cls, config: BlobsConfig) -> BlobStore:
        """The store that a service's configuration names."""
        if not config.url.startswith("s3:"):
            return cls(config.url)
        options: dict[str, Any] = {
            "region": config.region,
            "client_options": {"allow_http": config.allow_http, "connect_timeout": "5s", "timeout": "30s"},
            "retry_config": _RETRIES,
        }
        if config.endpoint:
            options["endpoint"] = config.endpoint
        if key := read_secret(config.access_key_file, field="blobs.access_key_file"):
            options["access_key_id"] = key
        if secret := read_secret(config.secret_key_file, field="blobs.secret_key_file"):
            options["secret_access_key"] = secret
        return cls(config.url, **options)

    async def put(self, key: str, data: bytes) -> BlobRef:
        """Store `data` under `key`, replacing what is there; returns how to find and check it."""
        return await self._run(key, lambda: self._put(key, data))

    async def put_file(self, key: str, path: Path) -> BlobRef:
        """Store a file without holding it in memory."""
        return await self._run(key, lambda: self._put_file(key, path))

    async def get(self, ref: BlobRef) -> bytes:
        """The bytes of `ref`; NotFound if they are missing, Rejected if they are not the ones it names."""
        return await self._run(ref.key, lambda: _verified(ref, self._read(ref.key)))

    async def read(self, key: str) -> bytes:
        """The bytes under `key`, unchecked; NotFound if there are none."""
        return await self._run(key, lambda: self._read(key))

    async def exists(self, key: str) -> bool:
        """Whether there is an object under `key`."""
        return await self._run(key, lambda: self._exists(key))

    async def delete(self, key: str) -> None:
        """Forget the object; deleting nothing is no error."""
        await self._run(key, lambda: self._delete(key))

    async def list(self, prefix: str = "") -> AsyncIterator[BlobRef]:
        """Objects under a folder of keys (`groups/job-1`), sorted within a page; their `sha256` is not known here."""
        pages = iter(obstore.list(self._store, prefix or None, chunk_size=1000))
        while page := await self._run(prefix or "list", lambda: next(pages, None)):
            for meta in sorted(page, key=lambda each: each["path"]):
                yield BlobRef(key=meta["path"], size=meta["size"])

    def local_path(self, key: str) -> Path | None:
        """Where the object lies on this machine's disk (to map it into memory); None for remote stores."""
        _check_key(key)
        return self._local / key if self._local is not None else None

    async def _run(self, key: str, work: Callable[[], T]) -> T:
        """`work` on a thread: hashing and disks would hold up the loop, and a thread is joined before Python ends.

        obstore's own asynchronous calls are not used: their runtime may still call back while the interpreter shuts
        down, which aborts the process.
        """
        _check_key(key)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(_translating, key, work)
        except TimeoutError:
            raise Unavailable(
                f"object storage did not answer within {self._timeout_s:g} s for {key}"
            ) from None

    def _put(self, key: str, data: bytes) -> BlobRef:
        obstore.put(self._store, key, data, use_multipart=False)
        return BlobRef(key=key, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    def _put_file(self, key: str, path: Path) -> BlobRef:
        with path.open("rb") as file:
            digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        obstore.put(self._store, key, path, chunk_size=_CHUNK_BYTES)
        return BlobRef(key=key, sha256=digest, size=size)

    def _read(self, key: str) -> bytes:
        if self._local is not None:
            return (self._local / key).read_bytes()  # one copy less than through the store's buffers
        return obstore.get(self._store, key).bytes().to_bytes()

    def _exists(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._store, key)


def _verified(ref: BlobRef, data: bytes) -> bytes:
    if len(data) != ref.size:
        raise Rejected(f"blob {ref.key} has {len(data)} bytes instead of {ref.size}", field="size")
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise Rejected(f"blob {ref.key} does not match its checksum", field="sha256")
    return data


def _open(url: str, s3: dict[str, Any]) -> tuple[Path | None, LocalStore | S3Store]:
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        root = Path(unquote(parts.path))
        try:
            return root, LocalStore(root, mkdir=True)
        except (BaseError, OSError) as error:
            raise Unavailable(f"cannot open {root}: {error}", field="blobs.url") from None
    if parts.scheme == "s3" and parts.netloc:
        return None, S3Store(parts.netloc, prefix=parts.path.strip("/") or None, **s3)
    raise Rejected(
        f"{url!r} is not a place for objects",
        field="blobs.url",
        hint="file:///directory or s3://bucket/prefix",
    )


def _translating(key: str, work: Callable[[], T]) -> T:
    """Run `work` with obstore's errors as ours: missing is the caller's fault, a full disk is a limit, the rest may pass."""
    try:
        return work()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise NotFound(f"no blob at {key}", field="key") from None
    except (BaseError, OSError) as error:
        if "No space left" in str(error) or "Disk quota" in str(error):
            raise Exhausted("object storage is full", hint="free space under the blobs directory") from None
        raise Unavailable(f"object storage failed for {key}: {error}") from None


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key) or ".." in key.split("/"):
        raise Rejected(
            f"{key!r} is not a blob key", field="key", hint="letters, digits and ._/@+=-, no leading /"
        )
