"""The kubernetes backend and its cluster: what is asked for, extended, lost and reclaimed. Over the strict double."""

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from tests.conformance.sandbox.conftest import LIMITS
from tests.conformance.sandbox.kubernetes_double import TOKEN, Cluster

from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.engine.base import Command, Outcome
from temper.sandbox.engine.kubernetes import Access, KubernetesBackend, PodSettings
from temper.sandbox.engine.kubernetes.resources import OWNER, PLACE

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None, reason="the double runs its pods with bwrap, as root"
)
WAIT_S = 60.0


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    yield made
    await made.close()


def backend(cluster: Cluster, path: Path, token_file: str = "", lease_s: float = 600.0) -> KubernetesBackend:
    access = Access(cluster.url, token_file or cluster.token_file, "", "sandboxes")
    return KubernetesBackend(
        slots=2, state_dir=path, access=access, pods=PodSettings("host", "gvisor"), lease_s=lease_s
    )


async def test_nothing_it_asks_for_is_refused_and_nothing_is_left(cluster: Cluster, tmp_path: Path) -> None:
    made = backend(cluster, tmp_path)
    await made.start()
    sandbox = await made.create("a", LIMITS)
    assert (await sandbox.python("6 * 7", LIMITS)).stdout == b"42\n"
    await sandbox.destroy()
    await made.close()
    assert cluster.refused == []
    assert all(not objects for objects in cluster.objects.values())
    assert cluster.pods == {}


async def test_the_double_refuses_a_field_that_is_not_there(cluster: Cluster) -> None:
    claim = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": "a"},
        "spec": {"warmPoolRef": {"name": "p"}, "templateRef": {"name": "t"}},
    }
    path = f"{cluster.url}/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/n/sandboxclaims"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session, session.post(path, json=claim, headers=headers) as answer:
        assert answer.status == 400
        assert "templateRef" in json.loads(await answer.text())["message"]


async def test_a_token_that_is_not_known_is_the_operators_mistake(cluster: Cluster, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("other")
    with pytest.raises(Rejected, match="401"):
        await backend(cluster, tmp_path / "s", str(wrong)).start()


async def test_a_cluster_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    access = Access("http://127.0.0.1:1", "", "", "n")
    made = KubernetesBackend(slots=1, state_dir=tmp_path, access=access, pods=PodSettings("host"))
    with pytest.raises(Unavailable, match="does not answer"):
        await made.start()


async def test_a_pod_that_is_gone_is_a_sandbox_that_died(cluster: Cluster, tmp_path: Path) -> None:
    made = backend(cluster, tmp_path)
    await made.start()
    sandbox = await made.create("a", LIMITS)
    [pod] = cluster.pods.values()
    await cluster._end(pod)
    await eventually(lambda: not sandbox.alive, within_s=WAIT_S)
    result = await sandbox.execute(Command(("true",)), LIMITS)
    assert result.outcome is Outcome.SANDBOX_DIED
    await made.close()


async def test_claims_are_extended_while_they_are_held(cluster: Cluster, tmp_path: Path) -> None:
    made = backend(cluster, tmp_path, lease_s=0.0)  # so each look extends
    await made.start()
    await made.create("a", LIMITS)
    [claim] = cluster.objects["sandboxclaims"].values()
    first = claim["spec"]["lifecycle"]["shutdownTime"]
    await eventually(lambda: claim["spec"]["lifecycle"]["shutdownTime"] > first, within_s=WAIT_S)
    await made.close()


async def test_what_a_dead_owner_left_is_reclaimed_and_what_a_living_one_has_is_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    first = backend(cluster, tmp_path)
    await first.start()
    await first.create("a", LIMITS)
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - a link that only stat resolves
    place = (tmp_path / "kubernetes-place").read_text()
    [held] = cluster.objects["sandboxclaims"].values()
    left = {"metadata": {"name": "left", "labels": {OWNER: f"{namespace}-1-1", PLACE: place}}, "spec": {}}
    cluster.objects["sandboxclaims"]["left"] = left
    second = backend(cluster, tmp_path)
    await second.start()
    assert list(cluster.objects["sandboxclaims"]) == [held["metadata"]["name"]]
    await second.close()
    await first.close()
