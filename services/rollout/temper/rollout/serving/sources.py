"""Where new weights come from: a directory below the root, or a manifest that a trainer published, whole or a delta."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator
from tokenizers import Tokenizer

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.rollout.publication import Weights, fetch_weights, policy_files, read_manifest
from temper.rollout.serving.decode import read_token_bytes
from temper.rollout.serving.directory import Model, digest_of, read_model
from temper.rollout.serving.schema import Body
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import NotFound, Rejected


class ManifestRef(Body):
    """A ``WeightManifest`` in object storage, as a policy record names it."""

    key: str = Field(min_length=1, max_length=1024)
    """Key in the store that ``[blobs]`` names."""
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    """Of the manifest; it has the checksums of everything else."""
    size: int | None = Field(default=None, ge=0)
    """Bytes; checked where it is given."""


class SourceBody(Body):
    """What a body says about new weights: one of the two."""

    directory: str | None = Field(default=None, min_length=1)
    """Hugging Face directory on the server, below ``serving.weights_root``."""
    manifest: ManifestRef | None = None
    """Published weights, full or a delta; tokenizer and chat template stay as they are."""
    version: int | None = Field(default=None, ge=0)
    """Above the current one; left out: the next, or the manifest's."""

    @model_validator(mode="after")
    def _one(self) -> SourceBody:
        if (self.directory is None) == (self.manifest is None):
            raise ValueError("give directory or manifest, and not both")
        return self


@dataclass(frozen=True, slots=True)
class Found:
    """New weights, read and checked, not loaded yet."""

    model: Model
    """Of the same tokens as what serves."""
    version: int | None
    """What a manifest says; a directory says nothing."""
    weights: Weights | None
    """What the next delta may build on: the published form, kept where deltas come."""


class Sources:
    """Reads new weights. ``open_store`` is called when the first manifest is asked for."""

    def __init__(self, root: Path, open_store: Callable[[], BlobStore]) -> None:
        self._root, self._open_store = root.resolve(), open_store
        self._store: BlobStore | None = None

    async def read(self, body: SourceBody, now: Model, held: Weights | None) -> Found:
        """Raises ``Rejected`` for what is missing, partial, altered, or of other tokens than ``now``."""
        if body.directory is not None:
            found = Found(await self._from_directory(body.directory), None, None)
        else:
            assert body.manifest is not None, "the body has one of the two"
            found = await self._from_manifest(body.manifest, now, held)
        if found.model.tokens != now.tokens:
            field = "manifest" if body.manifest else "directory"
            raise Rejected("its tokenizer differs from the one that serves", field=field)
        return found

    async def _from_directory(self, directory: str) -> Model:
        try:
            return await asyncio.to_thread(read_model, self._inside(directory))
        except Rejected as wrong:
            raise Rejected(wrong.message, field="directory", hint=wrong.hint) from None

    async def _from_manifest(self, ref: ManifestRef, now: Model, held: Weights | None) -> Found:
        try:
            self._store = self._store or self._open_store()
            size = len(await self._store.read(ref.key)) if ref.size is None else ref.size
            blob = BlobRef(key=ref.key, sha256=ref.sha256, size=size)
            manifest = await read_manifest(self._store, blob)
            record = PolicyRecord(version=manifest.version, manifest=blob)
            weights = await fetch_weights(self._store, record, held)
            files = await policy_files(self._store, weights)
            tokens = now.tokens
            if "tokenizer.json" in weights.manifest.files:
                raw = await self._store.get(weights.manifest.files["tokenizer.json"])
                tokens = read_token_bytes(Tokenizer.from_buffer(raw))
        except (Rejected, NotFound) as wrong:
            raise Rejected(wrong.message, field="manifest", hint=wrong.hint) from None
        except ValueError as broken:
            raise Rejected(f"its tokenizer.json cannot be read: {broken}", field="manifest") from None
        digest = await asyncio.to_thread(digest_of, files.config, weights.shards)
        model = replace(now, config=files.config, shards=weights.shards, tokens=tokens, digest=digest)
        return Found(model, manifest.version, weights if manifest.delta or held is not None else None)

    def _inside(self, directory: str) -> Path:
        """A directory below the root. Raises ``Rejected`` for any other."""
        try:
            path = (self._root / directory).resolve()
        except (ValueError, OSError) as wrong:  # a NUL, a name that is too long, a loop of links
            raise Rejected(f"{directory!r} is no path: {wrong}", field="directory") from None
        if not path.is_relative_to(self._root):
            raise Rejected(
                f"{directory} does not lie below {self._root}",
                field="directory",
                hint="serving.weights_root says where weights may come from",
            )
        return path
