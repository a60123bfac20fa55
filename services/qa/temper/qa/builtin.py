"""The environments that come with the package, registered at start. Registering again changes nothing."""

from __future__ import annotations

from pathlib import Path

from temper.qa import digest
from temper.qa.registry import Registry
from temper.runtime.blobs import BlobStore, content_key
from temper.runtime.errors import Rejected
from temper.runtime.telemetry import get_logger

ASSETS = Path(__file__).parent / "assets"


def names() -> list[str]:
    """Folders of the assets, sorted."""
    return sorted(path.name for path in ASSETS.iterdir() if (path / "env.toml").is_file())


async def register_all(registry: Registry, blobs: BlobStore) -> int:
    """Upload and register every asset; returns the number of environments.

    An asset whose content changed under the same version stays as it was registered, and the log says so.
    """
    count = 0
    for name in names():
        data = digest.write_tar(digest.read_directory(ASSETS / name))
        ref = await blobs.put(content_key(data, prefix="bundles"), data)
        try:
            count += len(await registry.register(ref))
        except Rejected as refused:
            get_logger().error("builtin.refused", asset=name, error=str(refused))
    return count
