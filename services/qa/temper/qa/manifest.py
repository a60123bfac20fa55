"""`env.toml`, read strictly: what an environment is, offers, may use, and promises.

    name, version, description, domain, owner, licence, tags, sources     identity and provenance
    runtime, tools, limits, network                                       what a sandbox host needs
    reward, verifier, oracle                                              what is promised, and tested by admission
    params, families                                                      variants

An unknown key is `Rejected` with its path and the nearest valid name. Limits may be absent here; the check
`static.limits_declared` refuses that with a name of its own.
"""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from temper.qa.digest import Tree, find
from temper.runtime.complaints import rejection
from temper.runtime.config import Section
from temper.runtime.errors import Rejected

MANIFEST = "env.toml"

Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)?$", max_length=128)
]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
Text = Annotated[str, StringConstraints(min_length=1)]


class Source(Section):
    """Where a file, or a library that makes the tasks, comes from."""

    path: Text
    """File or folder of the asset, or the name of an installed package."""
    licence: Text
    """SPDX expression."""
    origin: Text
    """Address, or who wrote it."""


class Runtime(Section):
    """How the environment's own code is loaded."""

    entry: Text
    """File with `class Environment`."""
    requires: tuple[str, ...] = ()
    """Packages that must be importable on the host."""


class Reward(Section):
    """Range of the verifier's verdicts."""

    min: float
    """Floor: what doing nothing earns."""
    max: float
    """What a solved task earns."""
    components: dict[str, float] = {}
    """Weight of each part, by name, where `score` returns parts instead of a number."""

    @model_validator(mode="after")
    def _ordered(self) -> Reward:
        if not float("-inf") < self.min < self.max < float("inf"):
            raise ValueError("min must be less than max, and both finite")
        if not all(0 < weight < float("inf") for weight in self.components.values()):
            raise ValueError("components have weights above 0")
        return self


class Verifier(Section):
    """How answers are judged."""

    kind: Literal["answer", "tests", "state"] = "answer"
    """Answer equivalence, test run, or check of a final state."""
    deterministic: bool
    """Whether the same final state always gets the same reward."""


class Oracle(Section):
    """Solutions that the environment can show."""

    styles: tuple[Literal["tool", "direct"], ...] = ()
    """`direct` answers at once, `tool` works with the tools first."""


class Limits(Section):
    """Bounds of the environment's code and of one tool call."""

    setup_s: float | None = Field(default=None, gt=0)
    """Import and constructor, seconds."""
    task_s: float | None = Field(default=None, gt=0)
    """One task, seconds."""
    verify_s: float | None = Field(default=None, gt=0)
    """One verdict, seconds."""
    tool_wall_s: float | None = Field(default=None, gt=0)
    """One tool call, seconds."""
    tool_memory_bytes: int | None = Field(default=None, gt=0)
    """Memory of a sandbox, bytes."""
    tool_pids: int | None = Field(default=None, gt=0)
    """Processes of a sandbox."""
    tool_output_bytes: int | None = Field(default=None, gt=0)
    """Output kept of one tool call, bytes."""


class NetworkHost(Section):
    """One name that the agent's sandbox may reach."""

    host: Text
    """`pypi.org`, or `*.example.com` for every name below it."""
    ports: tuple[int, ...] = (80, 443)
    """Ports."""
    secret: Text | None = None
    """Secret of the sandbox host that is put into requests outside; the agent never sees it."""
    approve: bool = False
    """Whether a person must say yes to each name and port first."""


class Network(Section):
    """What the agent's sandbox may reach."""

    mode: Literal["none", "allow", "open"]
    """`none`: nothing, not even names. `allow`: the names in `hosts`. `open`: any public name, where the host's operator approved it."""
    hosts: tuple[Text | NetworkHost, ...] = ()
    """Names, or tables of `host`, `ports`, `secret`, `approve`."""


class Approval(Section):
    """What needs a person's word before it runs."""

    tools: tuple[Text, ...] = ()
    """Patterns of tool names, such as `shell` or `*`."""


class Tool(Section):
    """A tool offered to the policy."""

    name: Text
    """Name that the policy calls it by."""
    kind: Literal["python", "shell", "files", "submit"]
    """Which of the sandbox's tools it is."""
    description: Text
    """One sentence."""
    parameters: dict[str, Any]
    """JSON Schema of the arguments object."""
    degrade: str = ""
    """What the policy reads when the host cannot run the tool; without it the sample is masked."""


class Param(Section):
    """A parameter of the environment."""

    default: Any
    """Value of the asset's own variant; an override has the same type."""
    description: Text
    """One sentence."""


class Families(Section):
    """One asset that holds many environments, each with a name of its own."""

    prefix: Text
    """Put in front of a family's name, e.g. `rg/`."""
    parameter: Text
    """Parameter that receives the family's name."""
    names: tuple[Text, ...]
    """Every family."""
    open: bool = False
    """Whether the family itself, not this file, says which parameters there are."""


class Manifest(Section):
    """All of `env.toml`."""

    name: Name
    version: Version
    description: Text
    domain: Text
    owner: Text
    licence: Text
    tags: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    runtime: Runtime
    reward: Reward
    verifier: Verifier
    oracle: Oracle = Oracle()
    limits: Limits = Limits()
    network: Network | None = None
    approval: Approval = Approval()
    tools: tuple[Tool, ...] = ()
    params: dict[str, Param] = {}
    families: Families | None = None

    def environments(self) -> tuple[str, ...]:
        """Names that this asset registers."""
        if self.families is None:
            return (self.name,)
        return tuple(self.families.prefix + family for family in self.families.names)


def parse(text: str) -> Manifest:
    """Read a manifest; Rejected names the key at fault and the nearest valid one."""
    try:
        return Manifest.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise Rejected(f"not TOML: {error}", field=MANIFEST) from None
    except ValidationError as error:
        refused = rejection(error, Manifest)
        raise Rejected(refused.message, field=f"{MANIFEST}: {refused.field}", hint=refused.hint) from None


def of_tree(tree: Tree) -> Manifest:
    """The manifest of an asset's files."""
    try:
        return parse(find(tree, MANIFEST).decode())
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8: {error}", field=MANIFEST) from None
