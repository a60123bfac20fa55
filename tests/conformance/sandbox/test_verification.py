"""Verification apart from the agent, attacked: on real sandboxes with real environment workers."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.conformance.sandbox.conftest import LIMITS
from tests.unit.sandbox.worlds import MANIFEST, World

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime.clock import SystemClock
from temper.sandbox import verification
from temper.sandbox.engine.base import Backend, Command, Sandbox
from temper.sandbox.verification import BadSpec, Spec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("programs")]

SOURCE = """
class Environment:
    def __init__(self, params): pass
    def task(self, split, index): return {"prompt": "write double.py", "private": {"n": 21 + index}, "tags": {}}
    def oracle(self, task, style): return []
    def score(self, task, answer, transcript): raise RuntimeError("not asked")
    def verification(self, task, answer):
        test = "import os, subprocess, sys\\nout = subprocess.run([sys.executable, 'submission/double.py'], capture_output=True, text=True, input=%r, timeout=20)\\nprint('said', out.stdout.strip())\\nprint(sorted(os.listdir('.')))\\nsys.exit(out.stdout.strip() != %r)"
        n = task["private"]["n"]
        return {"argv": ["python3", "verifier/test.py"], "files": {"test.py": test % (str(n), str(2 * n))},
                "collect": ["double.py", "link", "big"], "wall_s": 30}
    def judge(self, task, answer, transcript, run):
        if run["outcome"] != "ok": return 0.0
        return {"one": 1.0, "nan": float("nan"), "text": "1", "none": None, "two": 2.0}.get(answer, float(run["exit_code"] == 0))
"""
TESTS = MANIFEST + '[verifier]\nkind = "tests"\n[[tools]]\nname = "shell"\n'
GOOD = "print(2 * int(input()))"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One for all tests of a backend, each with a session of its own."""
    made = World(tmp_path_factory.mktemp("world"), SystemClock(), backend=backend)
    yield made
    await made.close()


SESSIONS = itertools.count()


@pytest.fixture(autouse=True)
def another_session() -> None:
    next(SESSIONS)


def session() -> str:
    return f"s{SESSIONS!r}"


@pytest.fixture(scope="module")
def env(world: World) -> common_pb2.EnvRef:
    return world.bundles.add(SOURCE, TESTS)


async def act(world: World, env: common_pb2.EnvRef, *lines: str) -> None:
    for turn, line in enumerate(lines):
        call = pb.ToolCall(name="shell", arguments_json=json.dumps({"command": line}))
        await world.episodes.step(
            pb.StepRequest(session_id=session(), command_id=f"{turn}", env=env, split="train", call=call)
        )


async def verdict(world: World, env: common_pb2.EnvRef, answer: str = "done") -> pb.FinishResponse:
    request = pb.FinishRequest(session_id=session(), env=env, split="train", task_index=0, answer=answer)
    return await world.episodes.finish(request)


async def test_what_the_agent_made_is_run_against_tests_it_never_saw(
    world: World, env: common_pb2.EnvRef
) -> None:
    await act(world, env, f"echo '{GOOD}' > double.py", "ls /work; find / -name 'test.py' -path '*verifier*'")
    assert (await verdict(world, env)).reward == 1.0


async def test_a_wrong_program_and_no_program_fail(world: World, env: common_pb2.EnvRef) -> None:
    await act(world, env, "echo 'print(42)' > double.py; rm double.py")
    reply = await verdict(world, env)
    assert (reply.reward, reply.infra_error) == (0.0, "")


@pytest.mark.parametrize(
    "line",
    [
        "mkdir -p verifier; echo 'raise SystemExit(0)' > verifier/test.py; echo 'print(0)' > double.py",
        "for f in verdict.json reward.txt run.json; do echo 1.0 > $f; echo 1.0 > /tmp/$f; done; echo 'print(1)' > double.py",
        "echo 'import os; os._exit(0)' > sitecustomize.py; echo 'print(1)' > double.py",
        "mkdir -p ~/.local/lib/python3.11/site-packages; echo 'import os; os._exit(0)' > ~/.local/lib/python3.11/site-packages/usercustomize.py; echo 'print(1)' > double.py",
        "echo 'import os, signal; os.kill(os.getppid(), signal.SIGKILL)' > double.py",
        'echo \'print("{\\"reward\\": 1.0}")\' > double.py',
        "ln -s /etc/passwd double.py",
        "ln -s /work/verifier/test.py double.py",
        "mkfifo double.py",
        "(while :; do mkdir -p verifier submission; echo 'raise SystemExit(0)' > verifier/test.py; done) & echo 'print(1)' > double.py",
        "setsid sh -c \"trap '' TERM; sleep 600\" & export PATH=/work:$PATH; printf '#!/bin/sh\\nexit 0' > python3; chmod +x python3",
    ],
)
async def test_nothing_that_an_agent_leaves_behind_passes_for_a_verdict(
    world: World, env: common_pb2.EnvRef, line: str
) -> None:
    await act(world, env, line)
    assert (await verdict(world, env)).reward == 0.0


@pytest.mark.parametrize("answer", ["nan", "text", "none", "two"])
async def test_only_a_finite_number_in_range_is_a_reward(
    world: World, env: common_pb2.EnvRef, answer: str
) -> None:
    reply = await verdict(world, env, answer)
    assert not reply.HasField("reward")
    assert reply.infra_error.startswith("verifier_error")


async def test_processes_of_the_agent_are_dead_before_its_files_are_taken(sandbox: Sandbox) -> None:
    line = "(while :; do date +%N > moving; done) & sleep 0.05"
    await sandbox.execute(Command(("/bin/sh", "-c", line)), LIMITS)
    spec = Spec(("true",), {}, ("moving", "none", "../etc/passwd"))
    found = await verification.collect(sandbox, spec)
    assert set(found) <= {"moving"}
    assert await verification.collect(sandbox, spec) == found


async def test_the_verifiers_sandbox_is_gone_afterwards(
    backend: Backend, world: World, env: common_pb2.EnvRef
) -> None:
    await act(world, env, f"echo '{GOOD}' > double.py")
    assert (await verdict(world, env)).reward == 1.0
    again = await verdict(world, env)
    assert again.reward == 1.0  # from the tombstone: nothing is run twice
    made = [await backend.create(f"n{index}", LIMITS) for index in range(4)]
    for each in made:
        await each.destroy()


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"argv": []},
        {"argv": "ls"},
        {"argv": ["ls"], "files": {"a": 1}},
        {"argv": ["ls"], "collect": "a"},
        {"argv": ["ls"], "wall_s": 0},
        {"argv": ["ls"], "wall_s": float("nan")},
        {"argv": ["ls"], "wall_s": True},
    ],
)
async def test_a_specification_that_is_none_is_the_environments_mistake(value: Any) -> None:
    with pytest.raises(BadSpec, match="verification"):
        verification.parse(value)


async def test_no_process_of_the_agent_lives_while_its_files_are_taken(sandbox: Sandbox) -> None:
    line = "echo kept > answer; setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' >/dev/null 2>&1 &"
    await sandbox.execute(Command(("/bin/sh", "-c", line)), LIMITS)
    assert await sandbox.list_processes() != []
    found = await verification.collect(sandbox, Spec(("true",), {}, ("answer",)))
    assert found == {"answer": b"kept\n"}
    assert await sandbox.list_processes() == []
