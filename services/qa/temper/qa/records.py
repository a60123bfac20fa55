"""Names of environments: as people write them, as keys of the bucket, as keys of the log.

| who      | form                                                                                     |
| -------- | ---------------------------------------------------------------------------------------- |
| people   | `rg/chain_sum`, `rg/chain_sum@1.0.0`                                                     |
| bucket   | `rg.chain_sum.1-0-0.own`, or 12 hex digits of the parameters' SHA-256 instead of `own`   |
| log      | `rg-chain_sum`                                                                           |

A bucket's key allows letters, digits, `_`, `-` and dots between tokens. Names are lower case, so `D` stands for a dot.
Watchers need not parse keys: the record holds name, version, digest and parameters.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.qa.v1.qa_pb2 import EnvironmentRecord
from temper.runtime.errors import Rejected

BUCKET = "environments"
OWN = "own"


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for. Example: `Wish("rg/gcd", None, '{"max_terms":2}')`."""

    name: str
    """Environment."""
    version: str | None
    """Exact version; None for the newest."""
    params_json: str
    """Parameters that differ from the asset's own."""


def wish(text: str, params_json: str = "") -> Wish:
    """Read `name` or `name@version`."""
    name, sign, version = text.partition("@")
    if not name or (sign and not version):
        raise Rejected(f"{text!r} names no environment", field="name", hint="write name or name@version")
    return Wish(name, version or None, params_json)


def folder(name: str, version: str = "") -> str:
    """Prefix of the keys of an environment, or of one version of it; ends with a dot."""
    tokens = name.replace(".", "D").replace("/", ".")
    return f"{tokens}.{version.replace('.', '-')}." if version else f"{tokens}."


def own_key(name: str, version: str) -> str:
    """Key of the variant with the asset's own parameters."""
    return folder(name, version) + OWN


def variant_key(name: str, version: str, params_json: str) -> str:
    """Key of a variant with other parameters."""
    return folder(name, version) + hashlib.sha256(params_json.encode()).hexdigest()[:12]


def is_own(key: str) -> bool:
    """Whether `key` is that of an asset's own variant."""
    return key.rpartition(".")[2] == OWN


def log_key(name: str) -> str:
    """Key on the log topic `verdicts`."""
    return name.replace("/", "-").replace(".", "-")


def shown(env: EnvRef) -> str:
    """`name@version` for people."""
    return f"{env.name}@{env.version}"


def order(record: EnvironmentRecord) -> tuple[int, ...]:
    """Sort key of versions: newest last."""
    return tuple(int(part) for part in record.env.version.split("."))
