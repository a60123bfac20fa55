"""`temper.api.job.v1.ArtifactService`: bytes in and out of object storage, in pieces, checked by content."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from temper.api.job.v1 import platform_pb2, platform_pb2_grpc
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Exhausted

CHUNK = 1 << 20  # the contract's limit of one piece


class ArtifactService(platform_pb2_grpc.ArtifactServiceServicer):
    """Uploads are named by their content, so the same bytes are stored once and an upload may be repeated."""

    def __init__(self, blobs: BlobStore, most_bytes: int) -> None:
        self._blobs, self._most_bytes = blobs, most_bytes

    async def Upload(
        self, request_iterator: AsyncIterator[platform_pb2.UploadRequest], context: Any
    ) -> platform_pb2.UploadResponse:
        """Stores the pieces as one object; nothing is visible before the last has come."""
        digest, size = hashlib.sha256(), 0
        with tempfile.NamedTemporaryFile(prefix="temper-upload-") as file:
            async for piece in request_iterator:
                size += len(piece.chunk)
                if size > self._most_bytes:
                    raise Exhausted(
                        f"the upload is larger than {self._most_bytes} bytes",
                        field="chunk",
                        hint="raise max_upload_bytes of the scheduler",
                    )
                digest.update(piece.chunk)
                file.write(piece.chunk)
            file.flush()
            name = digest.hexdigest()
            ref = await self._blobs.put_file(f"sha256/{name[:2]}/{name}", Path(file.name))
        return platform_pb2.UploadResponse(ref=ref)

    async def Download(
        self, request: platform_pb2.DownloadRequest, context: Any
    ) -> AsyncIterator[platform_pb2.DownloadResponse]:
        """The bytes of a reference, after size and checksum have been verified."""
        data = await self._blobs.get(request.ref)
        for start in range(0, len(data), CHUNK):
            yield platform_pb2.DownloadResponse(chunk=data[start : start + CHUNK])
