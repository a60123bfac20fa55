"""A published policy as a directory: every file whole and verified before the directory appears."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from temper.client.runs.submit import promoted_files, published_files, to_blob
from temper.client.sdk.aio import AsyncClient
from temper.runtime.errors import Conflict, Rejected


async def export(
    client: AsyncClient, job_id: str, directory: Path, *, reward_model: bool = False, promoted: bool = False
) -> list[dict[str, object]]:
    """Write the files of a job's last policy, its reward model, or what a name (in the place of the job) stands for, into the new `directory`; one record per file.

    Conflict if `directory` holds something already, NotFound if the job has no policy, Rejected if a file's name is no name.
    """
    _require_new(directory)
    if promoted:
        files = await promoted_files(client, job_id)
    else:
        files = await published_files(client, job_id, reward_model=reward_model)
    contents = {name: await client.artifacts.download(to_blob(ref)) for name, ref in sorted(files.items())}
    _write(directory, contents)
    return [{"file": name, "bytes": len(content)} for name, content in contents.items()]


def _require_new(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Conflict(f"{directory} exists and is not empty", field="directory", hint="give a new directory")


def _write(directory: Path, contents: Mapping[str, bytes]) -> None:
    """All files or none: they appear together under the directory's name."""
    for name in contents:
        if Path(name).name != name:
            raise Rejected(f"{name!r} is not the name of a file", field="manifest")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for name, content in contents.items():
            (partial / name).write_bytes(content)
        partial.chmod(0o755)
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
