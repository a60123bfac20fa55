"""Lanes over HTTP: who answers whom, canaries that end either way, and fast variants that come and go with their evidence."""

from pathlib import Path
from typing import Any

from tests.unit.rollout.serving.world import Served, fake_engine, served, write_directory

from temper.runtime.testing import eventually

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
PLAN: dict[str, Any] = {
    "directory": "next", "version": 5, "steps": [0.5], "min_samples": 15, "margin": 0.4, "max_p95_ratio": None,
}  # fmt: skip


async def version_for(server: Served, trajectory: str) -> str:
    answer = await server.post("/v1/chat/completions", CHAT | {"trajectory": trajectory})
    return answer.json()["system_fingerprint"].split("-")[1]


async def tell(server: Served, trajectory: str, *, success: bool) -> dict[str, Any]:
    return (
        await server.post("/v1/feedback", {"trajectory": trajectory, "success": success, "latency_s": 1.0})
    ).json()


async def canary_until_it_ends(server: Served, *, works: bool) -> dict[str, Any]:
    for number in range(400):
        name = f"t{number}"
        version = await version_for(server, name)
        assert await version_for(server, name) == version, "a trajectory stays with its version"
        said = await tell(server, name, success=works or version == "v0")
        if said["phase"] != "running":
            return said
    raise AssertionError("the canary did not end")


async def test_a_good_canary_is_promoted_and_can_still_be_undone(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory) as server:
        assert (await server.http.get("/v1/canary")).status_code == 404
        assert (await server.post("/v1/canary", PLAN)).json()["share"] == 0.5
        assert (await server.post("/v1/canary", PLAN)).status_code == 409
        assert (await server.post("/v1/weights", {"directory": "next"})).status_code == 409
        said = await canary_until_it_ends(server, works=True)
        assert said["phase"] == "promoted"
        assert await version_for(server, "anybody") == "v5"
        assert (await server.post("/v1/canary/abort", {"reason": "regret"})).json()["phase"] == "aborted"
        assert await version_for(server, "anybody") == "v0", "the old version was loaded all along"


async def test_a_promoted_canary_that_is_released_lets_the_old_version_go(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory) as server:
        await server.post("/v1/canary", PLAN)
        await canary_until_it_ends(server, works=True)
        old = server.front.fleet.candidate
        assert old is not None
        assert (await server.post("/v1/canary/release", {})).status_code == 200
        assert (await server.post("/v1/canary/release", {})).status_code == 409
        await eventually(lambda: not old.alive)
        assert (await server.post("/v1/canary/abort", {})).status_code == 409
        assert await version_for(server, "anybody") == "v5"


async def test_a_bad_canary_degrades_by_itself(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory) as server:
        await server.post("/v1/canary", PLAN)
        candidate = server.front.fleet.candidate
        assert candidate is not None
        said = await canary_until_it_ends(server, works=False)
        assert said["phase"] == "failed"
        assert {await version_for(server, f"n{number}") for number in range(12)} == {"v0"}
        await eventually(lambda: not candidate.alive)


async def test_an_open_canary_can_be_aborted_and_training_never_sees_it(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory) as server:
        await server.post("/v1/canary", PLAN)
        body = {"tokens": [1], "sampling": {"max_tokens": 1}}
        versions = {
            (await server.post("/v1/generate", body | {"trajectory": f"t{number}"})).json()["version"]
            for number in range(12)
        }
        assert versions == {0}
        assert (await server.post("/v1/canary/abort", {})).json()["phase"] == "aborted"
        assert (await server.post("/v1/feedback", {"trajectory": "t", "success": True})).status_code == 200


async def test_interactive_requests_get_the_fast_variant_and_all_others_the_standard_one(
    directory: Path,
) -> None:
    async with served(directory) as server:
        await server.front.fleet.add_fast(server.model, fake_engine)
        assert [each.id for each in (await server.client.models.list()).data] == ["tiny", "tiny:fast"]

        async def variant(body: dict[str, Any] | None = None, **headers: str) -> str:
            answer = await server.post("/v1/chat/completions", CHAT | (body or {}), **headers)
            return answer.json()["system_fingerprint"].split("-")[0]

        assert await variant() == "fast"
        assert await variant({"request_class": "batch"}) == "standard"
        assert await variant(None, **{"x-temper-request-class": "research"}) == "standard"
        assert await variant({"variant": "standard"}) == "standard"
        assert await variant({"model": "tiny:standard"}) == "standard"
        assert await variant({"model": "tiny:fast", "request_class": "batch"}) == "fast"
        assert (
            await variant(None, **{"x-temper-request-class": "batch", "x-temper-variant": "fast"}) == "fast"
        )
        clash = await server.post(
            "/v1/chat/completions", CHAT | {"model": "tiny:fast", "variant": "standard"}
        )
        assert clash.status_code == 400

        body = {"tokens": [1], "sampling": {"max_tokens": 1}}
        assert (await server.post("/v1/generate", body)).json()["variant"] == "standard"
        assert (await server.post("/v1/generate", body | {"variant": "fast"})).status_code == 400
        fast = (
            await server.post("/v1/generate", body | {"variant": "fast", "request_class": "research"})
        ).json()
        assert (fast["variant"], fast["for_training"]) == ("fast", False)


async def test_a_fast_variant_leaves_with_the_weights_it_was_admitted_for(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory) as server:
        await server.front.fleet.add_fast(server.model, fake_engine)
        fast = server.front.fleet.fast
        assert fast is not None
        await server.post("/v1/weights", {"directory": "next"})
        refused = await server.post("/v1/chat/completions", CHAT | {"variant": "fast"})
        assert refused.status_code == 400
        answer = await server.post("/v1/chat/completions", CHAT)
        assert answer.json()["system_fingerprint"].startswith("standard-v1")
        await eventually(lambda: not fast.alive)


async def test_replicas_share_the_work_and_a_conversation_stays(directory: Path) -> None:
    async with served(directory, replicas=3) as server:
        for number in range(12):
            content = {"messages": [{"role": "user", "content": f"{number} " * 40}]}
            await server.post("/v1/chat/completions", CHAT | content | {"trajectory": f"t{number}"})
        placed = server.front.fleet.standard.placed
        assert sum(placed) == 12
        assert max(placed) <= 6
        for _ in range(4):
            await server.post("/v1/chat/completions", CHAT | {"trajectory": "t0"})
        moved = [
            after - before for before, after in zip(placed, server.front.fleet.standard.placed, strict=True)
        ]
        assert sorted(moved) == [0, 0, 4]


async def test_a_dead_replica_gets_nothing_and_no_replica_is_said(directory: Path) -> None:
    async with served(directory, replicas=2) as server:
        engines = server.front.fleet.standard.engines
        await engines[0].close()
        for number in range(6):
            answer = await server.post("/v1/chat/completions", CHAT | {"trajectory": f"t{number}"})
            assert answer.status_code == 200
        health = (await server.http.get("/health")).json()
        assert (health["status"], health["replicas_alive"]) == ("ok", 1)
        assert server.front.fleet.standard.placed[0] == 0
        await engines[1].close()
        assert (await server.http.get("/health")).status_code == 503
        refused = await server.post("/v1/chat/completions", CHAT)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"


async def test_new_weights_pass_over_a_dead_replica_and_are_refused_without_any(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory, replicas=2) as server:
        one, two = server.front.fleet.standard.engines
        await one.close()
        said = await server.post("/v1/weights", {"directory": "next"})
        answer = await server.post("/v1/chat/completions", CHAT)
        await two.close()
        none = await server.post("/v1/weights", {"directory": "next"})
    assert (said.status_code, said.json()["version"], said.json()["replicas_agree"]) == (200, 1, True)
    assert answer.json()["system_fingerprint"].startswith("standard-v1-")
    assert none.status_code == 503
    assert "no replica" in none.json()["error"]["message"]


async def test_weights_are_not_kept_twice(directory: Path) -> None:
    write_directory(directory.parent / "next", seed=3)
    async with served(directory) as server:
        assert server.front.fleet.standard.model.shards == ()
        await server.post("/v1/weights", {"directory": "next"})
        assert server.front.fleet.standard.model.shards == ()
