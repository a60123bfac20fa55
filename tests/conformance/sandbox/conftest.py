"""One suite over every backend. A test is skipped only by a capability that the backend itself does not declare."""

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.sandbox.engines import NoEngine, docker_engine

from temper.runtime.errors import Unavailable
from temper.sandbox.engine import cgroups
from temper.sandbox.engine.base import Backend, Isolation, Limits, Sandbox
from temper.sandbox.engine.bubblewrap import BubblewrapBackend
from temper.sandbox.engine.fake import FakeBackend
from temper.sandbox.engine.gvisor import GvisorBackend
from temper.sandbox.engine.namespaces import NamespacesBackend
from temper.sandbox.engine.process import ProcessBackend

SLOTS = 6
LIMITS = Limits(
    memory_bytes=192 << 20,
    pids=32,
    wall_s=30.0,
    output_bytes=4096,
    disk_bytes=8 << 20,
    open_files=64,
    grace_s=0.05,
)
NO_GROUPS = cgroups.Layout(cgroups.Mode.NONE, {}, "left out by the test")
MAKERS: dict[str, Callable[[Path], Backend]] = {
    "namespaces": lambda path: NamespacesBackend(slots=SLOTS, state_dir=path, first_uid=310_000),
    "no-cgroups": lambda path: NamespacesBackend(
        slots=SLOTS, state_dir=path, first_uid=320_000, layout=NO_GROUPS
    ),
    "bubblewrap": lambda path: BubblewrapBackend(slots=SLOTS, state_dir=path, first_uid=340_000),
    "process": lambda path: ProcessBackend(slots=SLOTS, state_dir=path),
    "fake": lambda _: FakeBackend(slots=SLOTS),
}
CONTAINERS = ("docker", "gvisor", "kubernetes")
"""Backends whose commands cost a tenth of a second: a module asks for them by `BACKENDS = ALL`."""
ALL = (*MAKERS, *CONTAINERS)
EVERYWHERE = os.environ.get("TEMPER_TEST_SANDBOXES") == "all"
"""Whether every module runs on every backend: minutes more."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module runs on the backends it names in `BACKENDS`; by default on those whose sandboxes are cheap.

    TEMPER_TEST_SANDBOXES=all runs every module on all of them.
    """
    if "backend" in metafunc.fixturenames:
        names = getattr(metafunc.module, "BACKENDS", ALL if EVERYWHERE else tuple(MAKERS))
        metafunc.parametrize("backend", names, indirect=True, scope="module")


@pytest.fixture(scope="session")
def docker_url() -> Iterator[str]:
    try:
        with docker_engine() as url:
            yield url
    except NoEngine as reason:
        pytest.skip(str(reason))


async def _make(name: str, path: Path, request: pytest.FixtureRequest, stack: AsyncExitStack) -> Backend:
    if name == "docker":
        from temper.sandbox.engine.docker import DockerBackend

        url: str = request.getfixturevalue("docker_url")
        return DockerBackend(slots=SLOTS, state_dir=path, url=url, runtime="", first_uid=350_000)
    if name == "gvisor":
        return GvisorBackend(slots=SLOTS, state_dir=path, first_uid=360_000)
    if name == "kubernetes":
        return await _on_a_double(path, stack)
    return MAKERS[name](path)


async def _on_a_double(path: Path, stack: AsyncExitStack) -> Backend:
    from tests.conformance.sandbox.kubernetes_double import Cluster

    from temper.sandbox.engine.kubernetes import Access, KubernetesBackend
    from temper.sandbox.engine.kubernetes.resources import PodSettings

    if os.geteuid() != 0 or not shutil.which("bwrap"):
        pytest.skip("the double of a cluster runs its pods with bwrap, as root")
    cluster = Cluster()
    await cluster.start()
    stack.push_async_callback(cluster.close)
    access = Access(cluster.url, cluster.token_file, "", "sandboxes")
    return KubernetesBackend(slots=SLOTS, state_dir=path, access=access, pods=PodSettings("host"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        made = await _make(request.param, tmp_path_factory.mktemp(request.param), request, stack)
        try:
            await made.start()
        except Unavailable as error:
            pytest.skip(str(error))
        yield made
        await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(backend: Backend) -> AsyncIterator[Sandbox]:
    made = await backend.create("test", LIMITS)
    yield made
    await made.destroy()


@pytest.fixture
def programs(backend: Backend) -> None:
    if not backend.capabilities.programs:
        pytest.skip("this backend declares that it runs no real programs")


@pytest.fixture
def sessions(backend: Backend) -> None:
    if not backend.capabilities.sessions:
        pytest.skip("this backend declares no sessions")


@pytest.fixture
def isolated(backend: Backend) -> None:
    if backend.capabilities.isolation < Isolation.NAMESPACE:
        pytest.skip(f"this backend declares isolation {backend.capabilities.isolation.name}")


@pytest.fixture
def shared_kernel(backend: Backend) -> None:
    if backend.capabilities.isolation > Isolation.NAMESPACE:
        pytest.skip("this backend declares a kernel of its own, whose calls are not the host's")


@pytest.fixture
def filtered(backend: Backend) -> None:
    if not backend.capabilities.filtered:
        pytest.skip("this backend declares no filter of our own")


@pytest.fixture
def enforces(backend: Backend) -> Callable[[str], None]:
    def require(field: str) -> None:
        if field not in backend.capabilities.enforced:
            pytest.skip(f"this backend does not declare that it enforces {field}")

    return require
