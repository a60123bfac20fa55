"""Environment workers: real processes, each failing in its own way."""

import ast
import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import MANIFEST, SUM, Bundles

from temper.api.common.v1 import common_pb2
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.testing import eventually
from temper.sandbox.environments import (
    Environment,
    EnvironmentHost,
    Judgement,
    Settings,
    VerifierError,
    judged,
)

READING = 1 << 2
"""CAP_DAC_READ_SEARCH: kept where Python or the bundle lie in a directory that only root can enter."""


@pytest.fixture
def bundles() -> Bundles:
    return Bundles()


@pytest_asyncio.fixture
async def host(bundles: Bundles, tmp_path: Path) -> AsyncIterator[EnvironmentHost]:
    made = EnvironmentHost(bundles.fetch, Settings(tmp_path / "bundles", max_workers=2))
    yield made
    await made.close()


async def scored(host: EnvironmentHost, ref: common_pb2.EnvRef, answer: str = "1") -> float:
    return (await (await host.open(ref)).score("train", 1, answer, [])).reward


def scoring(body: str) -> str:
    head = SUM.partition("    def score")[0]
    return f"{head}    def score(self, task, answer, transcript):\n        {body}\n"


async def test_tasks_oracle_and_score_come_from_the_environments_own_code(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    environment = await host.open(bundles.add(params={"offset": 10}))
    views = await environment.tasks("train", [1, 2], ["tool", "direct"])
    assert [view["prompt"] for view in views] == ["1 + 10", "2 + 10"]
    assert views[0]["oracle"][0]["call"]["arguments"] == {"code": "1 + 10"}
    assert views[1]["oracle"] == [{"answer": "12"}]
    assert "private" not in views[0]
    assert await environment.score("train", 1, "11", []) == Judgement(1.0, {})
    assert await environment.score("train", 1, "12", []) == Judgement(0.0, {})


async def test_variants_of_a_bundle_share_a_process_and_nothing_else(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    one = await host.open(bundles.add(params={"offset": 1}))
    two = await host.open(bundles.add(params={"offset": 2}))
    assert (await one.tasks("train", [0], []))[0]["prompt"] == "0 + 1"
    assert (await two.tasks("train", [0], []))[0]["prompt"] == "0 + 2"
    assert len(host.pids) == 1
    assert bundles.fetched == 1


async def test_a_task_is_the_same_after_the_worker_was_killed(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    environment = await host.open(bundles.add())
    before = await environment.tasks("train", [7], [])
    (pid,) = host.pids
    os.kill(pid, 9)
    await eventually(lambda: not host.worker(environment._path, "env.py").alive or host.pids != [pid])
    assert await environment.tasks("train", [7], []) == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return float('nan')", "not a finite number"),
        ("return float('inf')", "not a finite number"),
        ("return 1.5", "outside the declared range"),
        ("return -0.1", "outside the declared range"),
        ("return None", "not a finite number"),
        ("return '1.0'", "not a finite number"),
        ("return {1, 2}", "not JSON serializable"),
        ("raise ValueError('own fault')", r"ValueError: own fault \[env.py:\d+"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
async def test_a_verifier_that_fails_gives_a_typed_error_and_no_score(
    host: EnvironmentHost, bundles: Bundles, body: str, says: str
) -> None:
    with pytest.raises(VerifierError, match=says):
        await scored(host, bundles.add(scoring(body)))


async def test_a_boolean_and_a_whole_number_are_numbers(host: EnvironmentHost, bundles: Bundles) -> None:
    assert await scored(host, bundles.add(scoring("return True"))) == 1.0
    assert await scored(host, bundles.add(scoring("return 0"))) == 0.0


async def test_a_crash_is_unavailable_and_the_next_call_gets_a_new_process(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    ref = bundles.add(scoring("import os; os._exit(0) if answer == 'die' else None; return 1.0"))
    with pytest.raises(Unavailable, match="died"):
        await scored(host, ref, "die")
    assert await scored(host, ref, "live") == 1.0


async def test_verl_288_a_verifier_in_a_busy_loop_is_killed_and_replaced(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    hasty = MANIFEST.replace("verify_s = 60.0", "verify_s = 0.2")
    ref = bundles.add(scoring("\n        while answer == 'hang': pass\n        return 1.0"), hasty)
    await (await host.open(ref)).tasks("train", [1], [])
    (pid,) = host.pids
    with pytest.raises(Unavailable, match=r"did not answer.*verify_s"):
        await scored(host, ref, "hang")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (await (await host.open(ref)).tasks("train", [1], []))[0]["prompt"] == "1 + 0"


async def test_calls_that_wait_behind_one_that_hangs_are_told_that_it_hung(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    hasty = MANIFEST.replace("verify_s = 60.0", "verify_s = 0.2")
    ref = bundles.add(scoring("\n        while True: pass"), hasty)
    await (await host.open(ref)).tasks("train", [1], [])
    failures = await asyncio.gather(*(scored(host, ref) for _ in range(3)), return_exceptions=True)
    assert {str(failure).partition(" (")[0] for failure in failures} == {
        "the environment did not answer within 0.2 s"
    }


async def test_a_package_that_the_host_lacks_is_named(host: EnvironmentHost, bundles: Bundles) -> None:
    lacking = MANIFEST + '\n[runtime]\nrequires = ["json", "no_such_package.part"]\n'
    with pytest.raises(Rejected, match=r"lacks no_such_package\.part") as caught:
        await host.open(bundles.add(manifest=lacking))
    assert caught.value.field == "env.toml: runtime.requires"


@pytest.mark.parametrize("source", ["raise ImportError('nothing here')", "x = 1", "class Environment: pass"])
async def test_an_environment_that_cannot_be_loaded_is_refused(
    host: EnvironmentHost, bundles: Bundles, source: str
) -> None:
    environment = await host.open(bundles.add(source))
    with pytest.raises(Rejected, match="cannot make"):
        await environment.tasks("train", [1], [])


async def test_a_task_without_a_prompt_is_refused(host: EnvironmentHost, bundles: Bundles) -> None:
    environment = await host.open(
        bundles.add(SUM.replace('"prompt": f"{index} + {self.offset}"', '"prompt": 5'))
    )
    with pytest.raises(Rejected, match="without a prompt"):
        await environment.tasks("train", [1], [])


async def peek(host: EnvironmentHost, bundles: Bundles, expression: str) -> str:
    """The value of an expression inside a worker, as a prompt."""
    source = SUM.replace('f"{index} + {self.offset}"', f"str({expression})")
    environment: Environment = await host.open(bundles.add(f"import os, socket\n{source}"))
    return (await environment.tasks("train", [1], []))[0]["prompt"]


async def test_no_secret_of_the_service_reaches_a_worker(
    host: EnvironmentHost, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_SANDBOX__BUS__TOKEN", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    seen = await peek(host, bundles, "dict(os.environ)")
    assert "hush" not in seen
    assert "hush" not in await peek(host, bundles, "open('/proc/self/environ').read()")


async def test_a_worker_has_no_privilege_and_no_network(host: EnvironmentHost, bundles: Bundles) -> None:
    status: Any = await peek(host, bundles, "open('/proc/self/status').read()")
    (capabilities,) = re.findall(r"CapEff:\t(\w+)", status)
    assert int(capabilities, 16) & ~READING == 0
    assert "NoNewPrivs:\t1" in status
    if os.geteuid() == 0:
        assert (
            await peek(
                host, bundles, "os.listdir('/sys/class/net') and open('/proc/net/dev').read().count(':')"
            )
            == "1"
        )


async def test_workers_are_bounded_and_idle_ones_make_room(host: EnvironmentHost, bundles: Bundles) -> None:
    for index in range(4):
        environment = await host.open(bundles.add(f"# {index}\n{SUM}"))
        await environment.tasks("train", [1], [])
    assert len(host.pids) == 2


async def test_a_bundle_that_cannot_be_fetched_may_be_asked_for_again(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    ref = bundles.add()
    kept = bundles.content.pop(ref.bundle.sha256)
    bundles.content[ref.bundle.sha256] = b"broken"
    with pytest.raises(Rejected):
        await host.open(ref)
    bundles.content[ref.bundle.sha256] = kept
    assert (await host.open(ref)).manifest.name == "sum"


@pytest.mark.parametrize("params", ["[1]", "{", "1"])
async def test_parameters_must_be_an_object(host: EnvironmentHost, bundles: Bundles, params: str) -> None:
    ref = bundles.add()
    ref.params_json = params
    with pytest.raises(Rejected, match="params_json"):
        await host.open(ref)


REACHING = """
import os, signal

class Environment:
    def __init__(self, params):
        pass

    def task(self, split, index):
        tried = {"uid": os.getuid(), "kill": _try(os.kill, os.getppid(), 0), "write": _try(open, __file__, "a"),
                 "root": _try(os.setuid, 0), "read": _try(open, __file__)}
        return {"prompt": repr(tried)}

    def score(self, task, answer, transcript):
        return 0.0

def _try(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return type(error).__name__
    return "done"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_an_environment_is_another_user_than_the_service(tmp_path: Path) -> None:
    bundles = Bundles()
    host = EnvironmentHost(bundles.fetch, Settings(tmp_path / "bundles", uid=309_999))
    environment = await host.open(bundles.add(REACHING))
    (view,) = await environment.tasks("train", [0], [])
    assert ast.literal_eval(view["prompt"]) == {
        "uid": 309_999,
        "kill": "PermissionError",
        "write": "PermissionError",
        "root": "PermissionError",
        "read": "done",
    }
    await host.close()


WEIGHED = MANIFEST + "\n[reward.components]\ncorrect = 0.7\nshort = 0.2\npolite = 0.1\n"


async def test_a_reward_of_several_components_is_their_weighted_sum(
    host: EnvironmentHost, bundles: Bundles
) -> None:
    body = 'return {"correct": 1, "short": 0.5, "polite": 0}'
    environment = await host.open(bundles.add(scoring(body), manifest=WEIGHED))
    found = await environment.score("train", 1, "1", [])
    assert found.reward == pytest.approx(0.8)
    assert found.components == {"correct": (1.0, 0.7), "short": (0.5, 0.2), "polite": (0.0, 0.1)}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"correct": 1.0}, "declared are correct, polite, short"),
        (1.0, "has components none"),
        ({"correct": 9.0, "short": 0.0, "polite": 0.0}, "outside the declared range"),
        ({"correct": float("nan"), "short": 0.0, "polite": 0.0}, "not a finite number"),
    ],
)
async def test_components_that_break_the_declaration_are_the_verifiers_failure(
    host: EnvironmentHost, bundles: Bundles, said: object, why: str
) -> None:
    environment = await host.open(bundles.add(manifest=WEIGHED))
    with pytest.raises(VerifierError, match=why):
        judged(environment.manifest, said)


async def test_the_whole_reward_is_not_lost_to_rounding(host: EnvironmentHost, bundles: Bundles) -> None:
    environment = await host.open(bundles.add(manifest=WEIGHED))
    assert judged(environment.manifest, {"correct": 1.0, "short": 1.0, "polite": 1.0}).reward == 1.0


async def test_weights_of_components_are_above_zero(host: EnvironmentHost, bundles: Bundles) -> None:
    with pytest.raises(Rejected, match="above 0"):
        await host.open(bundles.add(manifest=MANIFEST + "\n[reward.components]\na = -1\n"))
