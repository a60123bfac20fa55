"""Build hook: puts the repository's data files beside the code that reads them, in wheels only.

An editable install reads the same files from the checkout, so it needs no copies.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DataFiles(BuildHookInterface):
    """Adds topology, DDL and each service's default configuration to a standard wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill `force_include` (source path on disk -> path in the wheel) for `version == "standard"`."""
        if version != "standard":
            return
        root = Path(self.root)
        included = build_data["force_include"]
        included[str(root / "proto/topology.toml")] = "temper/runtime/topology.toml"
        included[str(root / "proto/clickhouse")] = "temper/telemetry/clickhouse"
        for defaults in root.glob("services/*/*.toml"):
            service = defaults.parent.name
            included[str(defaults)] = f"temper/{service}/{defaults.name}"
