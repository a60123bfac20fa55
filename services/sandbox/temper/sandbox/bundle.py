"""Environment bundles on this host: a tar is checked, unpacked once, and found by the hash of its bytes.

A bundle holds plain files and directories below itself and nothing else. A link, a device, a path that leaves the
bundle or a bundle that grows beyond bounds is refused before anything is written.
"""

import errno
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from temper.runtime.errors import Rejected, Unavailable

MAX_BYTES: Final = 64 << 20
MAX_FILES: Final = 4096


def unpack(content: bytes, digest: str, cache: Path) -> Path:
    """The directory of this bundle below `cache`; unpacks it on first use. Raises Rejected, Unavailable.

    `digest` is the verified sha256 of `content`.
    """
    target = cache / digest
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="unpacking-", dir=cache))
    except OSError as error:
        raise Unavailable(f"cannot write to {cache}: {error.strerror}") from error
    try:
        _write(content, scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:  # another request was first; its copy has the same bytes
            if not target.is_dir():
                raise
    except OSError as error:
        raise Unavailable(f"cannot unpack a bundle: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _write(content: bytes, directory: Path) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member, path in _checked(archive):
                target = directory / path
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None  # a regular file has content
                descriptor = os.open(
                    target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 | member.mode & 0o111
                )
                with os.fdopen(descriptor, "wb") as file:
                    shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError) as error:
        raise Rejected(f"the bundle is not a tar: {error}", field="env.bundle") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Rejected(f"the bundle names a path twice: {error.filename}", field="env.bundle") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise Rejected(f"a header of the bundle is nonsense: {error}", field="env.bundle") from error
    except OSError as error:
        if error.errno in {errno.ENAMETOOLONG, errno.EINVAL}:
            raise Rejected(f"no file can be named {error.filename!r}", field="env.bundle") from error
        raise


def _checked(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    total = 0
    for count, member in enumerate(archive, start=1):
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\0" in member.name:
            raise Rejected(f"{member.name!r} leaves the bundle", field="env.bundle")
        if not (member.isreg() or member.isdir()):
            raise Rejected(
                f"{member.name!r} is neither file nor directory", field="env.bundle", hint="no links"
            )
        total += member.size
        if total > MAX_BYTES or count > MAX_FILES:
            raise Rejected(f"over {MAX_BYTES >> 20} MiB or {MAX_FILES} files", field="env.bundle")
        yield member, path
