"""Settings of the sandbox service. `sandbox.toml` states every default with a comment."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from temper.runtime.config import Section, ServiceConfig
from temper.sandbox.engine.base import Guarantee, Limits


class GuaranteeConfig(Section):
    """What each sandbox is promised where a request says nothing; 0 promises nothing."""

    memory_bytes: int = Field(default=0, ge=0)
    """Memory reclaimed from others first; the host takes no more sandboxes than it has memory for."""
    cpus: float = Field(default=0.0, ge=0)
    """Cores when everybody wants some."""
    pids: int = Field(default=0, ge=0)
    """Processes and threads."""
    disk_bytes: int = Field(default=0, ge=0)
    """Bytes of writable disk; they lie in memory."""


class LimitsConfig(Section):
    """Limits of a sandbox and of one command, where neither environment nor request says otherwise."""

    memory_bytes: int = Field(default=512 << 20, ge=16 << 20)
    """Kill limit on the memory of all processes of a sandbox, its files included."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores."""
    pids: int = Field(default=256, ge=4)
    """Processes and threads; enough for a compiler."""
    wall_s: float = Field(default=60.0, gt=0)
    """Wall-clock seconds of one command."""
    output_bytes: int = Field(default=65536, ge=256, le=262144)
    """Bytes kept of each output stream of a command; a reply must fit a message of the bus."""
    disk_bytes: int = Field(default=128 << 20, ge=1 << 20)
    """Bytes of /work, and again of /tmp; never more than a quarter of the memory each, so full is ENOSPC, not a kill."""
    open_files: int = Field(default=1024, ge=16)
    """Descriptors of one process."""
    file_bytes: int = Field(default=1 << 30, ge=1 << 12)
    """Size of one file."""
    grace_s: float = Field(default=0.2, ge=0, le=10)
    """Seconds between TERM and KILL at a limit."""
    inodes: int = Field(default=65_536, ge=64)
    """Files and directories of /work, and again of /tmp."""
    guarantee: GuaranteeConfig = GuaranteeConfig()
    """The other number of each resource."""

    def build(self) -> Limits:
        """As the backends take them."""
        values: dict[str, Any] = self.model_dump() | {"guarantee": Guarantee(**self.guarantee.model_dump())}
        return Limits(cpu_s=None, **values)


class ApprovalsConfig(Section):
    """What needs a person's word before it runs. Environments may name more tools."""

    tools: list[str] = []
    """Patterns of tool names, e.g. "shell" or "*"."""
    commands: bool = False
    """Whether `Exec` asks, too."""
    expires_s: float = Field(default=3600.0, gt=0)
    """Seconds a person has; then the answer is no."""
    hold_s: float = Field(default=5.0, gt=0, le=60)
    """Seconds one call waits for the answer before its caller is told to ask again."""


class SecretConfig(Section):
    """A header that is put into requests for some names."""

    name: str = Field(min_length=1)
    """Name that rules use."""
    header: str = Field(min_length=1, pattern=r"[A-Za-z0-9-]+")
    """Name of the header."""
    file: Path
    """File with the value."""
    hosts: list[str] = Field(min_length=1)
    """Names that may get it: "api.example.com" or "*.example.com"."""
    prefix: str = ""
    """Put before the value, e.g. "Bearer "."""


class EgressConfig(Section):
    """What sandboxes may reach where an environment or a caller asks for a network by name."""

    allow_open: bool = False
    """Whether a policy may be "open": any public name."""
    internal: list[str] = []
    """Networks, e.g. "10.1.0.0/16", that allowed names may lead into although they are not public."""
    secrets: list[SecretConfig] = []
    """Secrets that are put into requests outside the sandbox."""


BackendName = Literal["namespaces", "bubblewrap", "docker", "gvisor", "kubernetes", "process", "fake"]


class DockerConfig(Section):
    """The backend `docker`. Without image, Dockerfile and root, sandboxes see this host's programs, read-only."""

    url: str = "unix:///var/run/docker.sock"
    """The engine: unix:///path or tcp://host:port."""
    image: str = ""
    """Image by name, pulled if the engine has it not; with one of the next two, the name to give it."""
    dockerfile: str = ""
    """Dockerfile to build, its directory being the context."""
    rootfs: str = ""
    """Tar of a root directory to import."""
    runtime: str = "auto"
    """OCI runtime that the engine knows; "auto" is runsc where it has it, "" its default."""


class GvisorConfig(Section):
    """The backend `gvisor`."""

    program: str = "runsc"
    """The executable."""
    platform: str = ""
    """How system calls are caught: ptrace, systrap, kvm; "" for the program's own choice."""
    rootfs: str = ""
    """Directory with a root; "" for this host's programs, read-only."""


class KubernetesConfig(Section):
    """The backend `kubernetes`: claims on the agent-sandbox controllers of a cluster."""

    url: str = ""
    """API server; "" for that of the pod the service runs in."""
    token_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
    """File with the bearer token, read for each request."""
    ca_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """File with the certificate authority; the system's where there is none."""
    namespace: str = ""
    """Where sandboxes are made; "" for that of the pod the service runs in."""
    image: str = "python:3.12-slim"
    """Image of the sandboxes: /bin/sh, coreutils, and python3 for the python tool."""
    runtime_class: str = ""
    """RuntimeClass of the sandboxes, such as gvisor or kata; "" for the cluster's default."""
    uid: int = Field(default=1000, ge=1)
    """User inside."""
    node_selector: list[str] = []
    """Labels that a node must have, as label=value."""
    warm: int = Field(default=1, ge=0)
    """Pods that the cluster keeps ready, for each kind of limits."""
    lease_s: float = Field(default=600.0, ge=60)
    """Seconds after which the cluster ends a sandbox that this service has not extended."""
    ready_s: float = Field(default=120.0, gt=0)
    """Longest wait for a pod."""


class SandboxConfig(ServiceConfig):
    """The sandbox service."""

    backend: BackendName = "namespaces"
    """Where commands run. `process` isolates weakly, `fake` runs nothing real."""
    allow_weak: bool = False
    """Whether environments that are not marked trusted may run in a backend of weak isolation."""
    state_dir: Path = Path("/var/lib/temper/sandbox")
    """Directory of this service alone: bundles, records for cleaning up after a kill. Not shared by two services."""
    slots: int = Field(default=64, ge=1, le=4096)
    """Most sandboxes at once."""
    warm: int = Field(default=4, ge=0)
    """Sandboxes kept ready."""
    warm_most: int = Field(default=4, ge=0)
    """Most sandboxes kept ready while tasks are announced that will want one."""
    recycles: int = Field(default=0, ge=0)
    """How often a sandbox may be reset for another session; 0 destroys each after its first."""
    first_uid: int = Field(default=210_000, ge=1000)
    """Uid of slot 0; slot n runs as first_uid + n, environments as first_uid - 1 (as root only)."""
    readonly_paths: list[str] = []
    """Host directories shown inside every sandbox at their own path, read-only."""
    admission_wait_s: float = Field(default=10.0, ge=0)
    """Seconds a new session waits for a free slot before it is refused."""
    lease_s: float = Field(default=300.0, gt=0)
    """Seconds an unused session lives where the caller names no lease."""
    reap_every_s: float = Field(default=1.0, gt=0)
    """Seconds between two looks for overdue leases."""
    env_workers: int = Field(default=8, ge=1)
    """Most environment worker processes."""
    env_memory_bytes: int = Field(default=4 << 30, ge=256 << 20)
    """Address space of an environment worker."""
    approvals: ApprovalsConfig = ApprovalsConfig()
    """What needs a person's word."""
    egress: EgressConfig = EgressConfig()
    """What sandboxes may reach."""
    docker: DockerConfig = DockerConfig()
    """For the backend `docker`."""
    gvisor: GvisorConfig = GvisorConfig()
    """For the backend `gvisor`."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """For the backend `kubernetes`."""
    limits: LimitsConfig = LimitsConfig()
    """Default limits."""
