"""Checks that need only the asset's files."""

from __future__ import annotations

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from temper.qa.checks.base import Finding, Subject, error, warning
from temper.qa.digest import Tree, digest, read_tar, write_tar
from temper.qa.manifest import MANIFEST, Limits, Source, of_tree
from temper.runtime.errors import Rejected


@error("static.manifest")
async def manifest(subject: Subject) -> Finding:
    """`env.toml` parses without unknown keys, and its entry file is there."""
    try:
        parsed = of_tree(subject.tree)
    except Rejected as refused:
        return Finding(False, str(refused))
    paths = {entry.path for entry in subject.tree}
    if parsed.runtime.entry not in paths:
        return Finding(False, f"runtime.entry {parsed.runtime.entry!r} is not in the asset")
    return Finding(True, f"{parsed.name} {parsed.version}, {len(paths)} files")


@error("static.digest")
async def reproducible(subject: Subject) -> Finding:
    """Unpacking and packing again gives the same bytes and the digest it is registered under."""
    tree = read_tar(subject.bundle)
    again = digest(tree, subject.params_json)
    if again != subject.digest:
        return Finding(False, f"files give {again}, registered as {subject.digest}")
    if write_tar(tree) != subject.bundle:
        return Finding(False, "the bundle is not in its normal form: register it again")
    return Finding(True, again)


@warning("static.licence")
async def licence(subject: Subject) -> Finding:
    """Every bundled file is covered by a source that names its licence."""
    bare = _uncovered(subject.tree, subject.manifest.sources)
    if bare:
        return Finding(False, f"no [[sources]] entry for {', '.join(bare[:5])}")
    return Finding(True, f"{subject.manifest.licence}; {len(subject.manifest.sources)} sources")


@error("static.tool_schema")
async def tool_schema(subject: Subject) -> Finding:
    """Each tool has its own name and a valid JSON schema of an object."""
    names = [tool.name for tool in subject.manifest.tools]
    if len(set(names)) < len(names):
        return Finding(False, f"two tools have one name: {', '.join(names)}")
    for tool in subject.manifest.tools:
        try:
            Draft202012Validator.check_schema(tool.parameters)
        except SchemaError as wrong:
            return Finding(False, f"tools.{tool.name}.parameters: {wrong.message}")
        if tool.parameters.get("type") != "object":
            return Finding(False, f'tools.{tool.name}.parameters: type must be "object"')
    return Finding(True, ", ".join(names) or "no tools")


@error("static.limits_declared")
async def limits_declared(subject: Subject) -> Finding:
    """Times, memory, processes, output and network are stated, not left to a host's default."""
    missing = [
        f"limits.{name}" for name in Limits.model_fields if getattr(subject.manifest.limits, name) is None
    ]
    if subject.manifest.network is None:
        missing.append("network.mode")
    if missing:
        return Finding(False, f"not declared: {', '.join(missing)}")
    return Finding(True, f"all {len(Limits.model_fields)} limits and the network mode")


def _uncovered(tree: Tree, sources: tuple[Source, ...]) -> list[str]:
    covers = [source.path.rstrip("/") for source in sources]
    return [
        entry.path
        for entry in tree
        if entry.path != MANIFEST  # it states its own licence
        and not any(entry.path == path or entry.path.startswith(f"{path}/") for path in covers)
    ]


STATIC = (manifest, reproducible, licence, tool_schema, limits_declared)
