"""The registry: records in the bucket `environments`, bundles in object storage.

Reads come from a copy that a watch keeps; writes compare and set, and are applied again when somebody else was first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import BlobRef, EnvRef
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord
from temper.qa import records, state
from temper.qa.digest import Tree, digest, read_tar, write_tar
from temper.qa.manifest import Manifest, of_tree
from temper.qa.params import effective
from temper.qa.records import Wish, is_own, own_key, shown, variant_key
from temper.runtime.blobs import BlobStore, content_key
from temper.runtime.bus.base import Deleted, Entry, KeyValue, Settled
from temper.runtime.clock import Clock
from temper.runtime.complaints import nearest
from temper.runtime.errors import Conflict, NotFound, Rejected, Unavailable

CACHED_ASSETS = 32
ATTEMPTS = 20  # compare-and-set rounds against other writers of one record
READY_S = 30.0  # the first watch of a bucket of hundreds of records takes milliseconds


@dataclass(frozen=True, slots=True)
class Asset:
    """An unpacked bundle."""

    manifest: Manifest
    """Its manifest."""
    tree: Tree
    """Its files."""
    data: bytes
    """The tar."""


class Registry:
    """Environments by name, version and parameters."""

    def __init__(self, bucket: KeyValue, blobs: BlobStore, clock: Clock) -> None:
        self._bucket = bucket
        self._blobs = blobs
        self._clock = clock
        self._records: dict[str, EnvironmentRecord] = {}
        self._revisions: dict[str, int] = {}
        self._assets: OrderedDict[str, Asset] = OrderedDict()
        self._settled = asyncio.Event()

    # ------------------------------------------------------------ reading
    async def follow(self) -> None:
        """Keep the copy up to date, for ever."""
        async for item in self._bucket.watch():
            match item:
                case Settled():
                    self._settled.set()
                case Entry(key, value, revision):
                    self._learn(key, EnvironmentRecord.FromString(value), revision)
                case Deleted(key, _):
                    self._records.pop(key, None)

    async def ready(self) -> None:
        """Wait for the first full copy; Unavailable if the bucket cannot be read in time."""
        try:
            async with self._clock.timeout(READY_S):
                await self._settled.wait()
        except TimeoutError:
            raise Unavailable(f"the bucket {records.BUCKET!r} did not answer in {READY_S:g} s") from None

    def all(self) -> list[tuple[str, EnvironmentRecord]]:
        """Every variant by key; copies that the caller may keep."""
        return sorted((key, _copy(record)) for key, record in self._records.items())

    def by_digest(self, wanted: str) -> list[str]:
        """Keys of the variants with one digest."""
        return [key for key, record in self._records.items() if record.env.digest == wanted]

    def keys_of(self, name: str, version: str) -> list[str]:
        """Keys of every variant of one version, sorted."""
        prefix = records.folder(name, version)
        return sorted(key for key in self._records if key.startswith(prefix))

    def own(self, name: str, version: str | None) -> EnvironmentRecord:
        """The asset's own variant: of `version`, or the newest that is not quarantined.

        Raises NotFound for an unknown name, with the nearest one, or an unknown version, with those that exist.
        """
        found = [record for key, record in self._records.items() if is_own(key) and record.env.name == name]
        if not found:
            names = {record.env.name for record in self._records.values()}
            guess = nearest(name, names)
            hint = f"did you mean {guess!r}?" if guess else "`temper env list` shows them"
            raise NotFound(f"no environment is named {name!r}", field="name", hint=hint)
        if version is not None:
            found = [record for record in found if record.env.version == version] or _no_version(
                found, version
            )
        usable = [record for record in found if record.state != state.QUARANTINED]
        return _copy(max(usable or found, key=records.order))

    async def asset(self, bundle: BlobRef) -> Asset:
        """The files of a bundle. Rejected if they are missing, damaged or no asset."""
        if bundle.sha256 not in self._assets:
            data = await self._blobs.get(bundle)
            tree = read_tar(data)
            self._assets[bundle.sha256] = Asset(of_tree(tree), tree, data)
            while len(self._assets) > CACHED_ASSETS:
                self._assets.popitem(last=False)
        self._assets.move_to_end(bundle.sha256)
        return self._assets[bundle.sha256]

    async def find(self, wish: Wish) -> tuple[str, EnvironmentRecord]:
        """Key and record of the variant that a wish means; a record that is not stored yet is a draft."""
        own = self.own(wish.name, wish.version)
        asset = await self.asset(own.env.bundle)
        params_json = effective(asset.manifest, wish.name, wish.params_json)
        if params_json == own.env.params_json:
            return own_key(own.env.name, own.env.version), own
        key = variant_key(own.env.name, own.env.version, params_json)
        if key in self._records:
            return key, _copy(self._records[key])
        return key, _variant(own, asset.tree, params_json)

    # ------------------------------------------------------------ writing
    async def register(self, bundle: BlobRef) -> list[EnvironmentRecord]:
        """Add every environment of a bundle as a draft. Registering the same again changes nothing.

        Raises Rejected if one of them exists in this version with another digest.
        """
        asset = await self.asset(bundle)
        normal = write_tar(asset.tree)
        if normal != asset.data:  # whatever packed it: the registry keeps the one form that names the content
            bundle = await self._blobs.put(content_key(normal, prefix="bundles"), normal)
        drafts = [self._draft(asset, bundle, name) for name in asset.manifest.environments()]
        for draft in drafts:
            self._check_unchanged(draft)
        return list(await asyncio.gather(*(self._create(draft) for draft in drafts)))

    async def change(self, key: str, fallback: EnvironmentRecord, change: state.Change) -> EnvironmentRecord:
        """Apply `change` to the record at `key` (or to `fallback` if there is none) against other writers.

        Nothing is written when it changes nothing. Raises Conflict if others keep winning.
        """
        for _ in range(ATTEMPTS):
            entry = await self._bucket.get(key)
            record = EnvironmentRecord.FromString(entry.value) if entry else _copy(fallback)
            before = record.SerializeToString(deterministic=True)
            change(record)
            if entry and record.SerializeToString(deterministic=True) == before:
                self._learn(key, record, entry.revision)
                return _copy(record)
            record.revision += 1
            try:
                return await self._write(key, record, entry.revision if entry else None)
            except Conflict:
                continue
        raise Conflict(f"{key} changes faster than it can be written", hint="try again")

    async def change_existing(self, key: str, change: state.Change) -> None:
        """Apply `change` to a record that is known; one that is gone is left alone."""
        if key in self._records:
            await self.change(key, self._records[key], change)

    async def _write(self, key: str, record: EnvironmentRecord, revision: int | None) -> EnvironmentRecord:
        value = record.SerializeToString(deterministic=True)
        if revision is None:
            written = await self._bucket.create(key, value)
        else:
            written = await self._bucket.update(key, value, revision)
        self._learn(key, record, written)
        return _copy(record)

    async def _create(self, draft: EnvironmentRecord) -> EnvironmentRecord:
        key = own_key(draft.env.name, draft.env.version)
        present = self._records.get(key)
        if present is not None:
            return _copy(present)
        try:
            return await self._write(key, draft, None)
        except Conflict:  # another instance registers the same asset at the same time
            entry = await self._bucket.get(key)
            self._learn(key, EnvironmentRecord.FromString(entry.value), entry.revision) if entry else None
            self._check_unchanged(draft)
            return _copy(self._records.get(key, draft))

    def _check_unchanged(self, draft: EnvironmentRecord) -> None:
        present = self._records.get(own_key(draft.env.name, draft.env.version))
        if present is not None and present.env.digest != draft.env.digest:
            raise Rejected(
                f"{shown(draft.env)} is registered with digest {present.env.digest[:12]}, not {draft.env.digest[:12]}",
                field="version",
                hint="versions never change: raise version in env.toml",
            )

    def _draft(self, asset: Asset, bundle: BlobRef, name: str) -> EnvironmentRecord:
        manifest = asset.manifest
        params_json = effective(manifest, name, "")
        record = EnvironmentRecord(
            env=EnvRef(
                name=name,
                version=manifest.version,
                digest=digest(asset.tree, params_json),
                bundle=bundle,
                params_json=params_json,
            ),
            state=state.DRAFT,
            description=manifest.description,
            domain=manifest.domain,
            owner=manifest.owner,
            licence=manifest.licence,
            revision=1,
        )
        record.registered_at.FromNanoseconds(int(self._clock.now() * 1e9))
        return record

    def _learn(self, key: str, record: EnvironmentRecord, revision: int) -> None:
        """Older news than what is known changes nothing: the watch lags behind own writes."""
        if revision >= self._revisions.get(key, 0):
            self._records[key] = _copy(record)
            self._revisions[key] = revision


def _variant(own: EnvironmentRecord, tree: Tree, params_json: str) -> EnvironmentRecord:
    record = _copy(own)
    record.env.params_json = params_json
    record.env.digest = digest(tree, params_json)
    record.ClearField("report")
    record.ClearField("live")
    if record.state != state.QUARANTINED:
        record.state = state.DRAFT
        record.reason = ""
    return record


def _no_version(found: Sequence[EnvironmentRecord], version: str) -> list[EnvironmentRecord]:
    known = ", ".join(record.env.version for record in sorted(found, key=records.order))
    raise NotFound(f"{found[0].env.name} has no version {version}", field="name", hint=f"known: {known}")


def _copy(record: EnvironmentRecord) -> EnvironmentRecord:
    copy = EnvironmentRecord()
    copy.CopyFrom(record)
    return copy
