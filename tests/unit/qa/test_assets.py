"""The built-in environments: deterministic, disjoint splits, oracles that are right."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.qa.subjects import asset

from temper.api.common.v1.common_pb2 import EnvRef
from temper.qa import params
from temper.qa.digest import digest
from temper.qa.engine.local import LocalProbe
from temper.qa.manifest import of_tree
from temper.runtime.errors import Rejected

QUICK = {
    "calc": ("calc", "{}"),
    "chain_sum": (
        "rg/chain_sum",
        '{"min_terms":2,"max_terms":3,"min_digits":2,"max_digits":3,"binary":true}',
    ),
    "products": ("rg/products", '{"min_terms":2,"max_terms":2,"min_digits":2,"max_digits":3,"binary":true}'),
}


def environment(name: str, overrides: str) -> tuple[LocalProbe, EnvRef]:
    tree = asset("calc" if name == "calc" else "reasoning_gym")
    manifest = of_tree(tree)
    effective = params.effective(manifest, name, overrides)

    async def load(_):
        return tree

    env = EnvRef(name=name, version=manifest.version, digest=digest(tree, effective), params_json=effective)
    return LocalProbe(load), env


def calc(**overrides):
    """The environment object itself."""
    tree = asset("calc")
    module = {}
    exec(compile(next(e.content for e in tree if e.path == "env.py"), "env.py", "exec"), module)
    return module["Environment"](json.loads(params.effective(of_tree(tree), "calc", json.dumps(overrides))))


@pytest.mark.parametrize("quick", QUICK)
async def test_splits_share_no_prompt(quick):
    probe, env = environment(*QUICK[quick])
    prompts = {}
    for split, count in (("train", 600), ("heldout", 128), ("eval", 128)):
        reply = await probe.materialize(env, split, range(count))
        prompts[split] = {view.prompt for view in reply.tasks}
    assert not prompts["train"] & prompts["eval"]
    assert not prompts["train"] & prompts["heldout"]
    assert not prompts["heldout"] & prompts["eval"]


@pytest.mark.parametrize("quick", QUICK)
async def test_tasks_are_the_same_on_every_host(quick):
    one, env = environment(*QUICK[quick])
    other, _ = environment(*QUICK[quick])
    assert await one.materialize(env, "train", [5, 3, 900], "tool") == await other.materialize(
        env, "train", [5, 3, 900], "tool"
    )


@pytest.mark.parametrize("quick", QUICK)
async def test_the_tool_oracle_hands_the_expression_over_and_answers_what_it_sees(quick):
    probe, env = environment(*QUICK[quick])
    for view in (await probe.materialize(env, "train", range(20), "tool")).tasks:
        call, answer = view.oracle
        assert json.loads(call.call.arguments_json)["code"] in view.prompt
        assert str(eval(json.loads(call.call.arguments_json)["code"])) == answer.answer


@given(st.integers(0, 10**12), st.sampled_from(["train", "heldout", "eval"]))
def test_calc_pays_the_exact_value_however_it_is_written(index, split):
    env = calc()
    task = env.task(split, index)
    right = task["private"]["answer"]
    assert task["prompt"].endswith("=")
    assert env.score(task, right, []) == 1.0
    assert env.score(task, f" {right}.0\n", []) == 1.0
    assert env.score(task, str(int(right) + 1), []) == 0.0


@given(st.one_of(st.none(), st.text(max_size=80)))
def test_calc_never_fails_on_an_answer(answer):
    env = calc()
    task = env.task("train", 0)
    assert env.score(task, answer, []) in (0.0, 1.0)


@pytest.mark.parametrize("answer", ["NaN", "Infinity", "sNaN", "1e999999", "9" * 65, "", "4 4"])
def test_calc_pays_nothing_for_numbers_that_are_none(answer):
    env = calc()
    assert env.score(env.task("train", 1), answer, []) == 0.0


def test_calc_forms_say_what_is_drawn():
    env = calc(forms=["(n+n)*n"], low=2, high=9)
    prompt = env.task("train", 0)["prompt"]
    assert (prompt[0], prompt[-1], prompt.count("+")) == ("(", "=", 1)


@pytest.mark.parametrize(
    "wrong", [{"forms": ["__import__('os')"]}, {"forms": []}, {"low": 9, "high": 2}, {"forms": ["n[/]n"]}]
)
def test_calc_refuses_parameters_that_make_no_expression(wrong):
    with pytest.raises(ValueError, match=r"forms|low"):
        calc(**wrong)


async def test_a_family_refuses_a_parameter_that_it_does_not_have():
    probe, env = environment("rg/chain_sum", '{"max_term":3}')
    with pytest.raises(Rejected, match="did you mean 'max_terms'"):
        await probe.materialize(env, "train", [0])


def test_every_family_of_the_library_is_listed():
    from reasoning_gym.factory import DATASETS

    listed = of_tree(asset("reasoning_gym")).families
    assert listed is not None
    assert set(listed.names) == set(DATASETS)
