"""Admission finds what is wrong: planted bugs of each class, and the defective families of a library nobody here wrote."""

import importlib
import warnings

import pytest
from tests.unit.qa.subjects import GOOD_CODE, GOOD_MANIFEST, asset, check, double, failed

from temper.qa.checks.base import Check
from temper.qa.checks.runner import STAGES, first_failure
from temper.qa.checks.semantic import spearman

with warnings.catch_warnings():  # the library warns about its own optional parts
    warnings.simplefilter("ignore")
    importlib.import_module("reasoning_gym")

SCORE = 'return 1.0 if answer == task["private"]["answer"] else 0.0'


def test_ids_are_unique_and_grouped():
    checks: list[Check] = [each for stage in STAGES for each in stage]
    assert len({each.id for each in checks}) == len(checks) >= 14
    assert {each.id.partition(".")[0] for each in checks} == {"static", "runtime", "semantic"}


async def test_a_clean_environment_passes_every_check(tmp_path):
    report = await check(double(tmp_path), "double")
    assert report.passed
    assert failed(report) == []
    assert all(result.evidence for result in report.results)


PLANTED = {
    "semantic.floor_gap": SCORE.replace("else 0.0", "else 0.05"),
    "runtime.reward_well_formed": f"int(answer or 0)\n        {SCORE}",
    "semantic.oracle_max": SCORE.replace("1.0 if", "0.8 if"),
    "semantic.canary_floor": SCORE.replace("else 0.0", "else float('canary' in (answer or ''))"),
    "semantic.verifier_determinism": "self.n = getattr(self, 'n', 0) + 1\n        return float(self.n % 2)",
}


@pytest.mark.parametrize("rule", PLANTED)
async def test_a_planted_bug_of_the_verifier_is_found_by_name(rule, tmp_path):
    report = await check(double(tmp_path, code=GOOD_CODE.replace(SCORE, PLANTED[rule])), "double")
    assert not report.passed
    assert rule in failed(report)


@pytest.mark.parametrize("nonsense", ["float('nan')", "float('inf')", "2.0", "-1.0"])
async def test_a_reward_outside_its_range_is_no_reward(nonsense, tmp_path):
    code = GOOD_CODE.replace(SCORE, f"return 1.0 if answer == task['private']['answer'] else {nonsense}")
    assert "runtime.reward_well_formed" in failed(await check(double(tmp_path, code=code), "double"))


async def test_tasks_that_change_between_runs_are_found(tmp_path):
    code = GOOD_CODE.replace(
        "return {", "self.k = getattr(self, 'k', 0) + 1\n        start += self.k\n        return {", 1
    )
    assert "runtime.seed_control" in failed(await check(double(tmp_path, code=code), "double"))


async def test_one_task_for_all_indices_is_found(tmp_path):
    code = GOOD_CODE.replace("index * self.step", "0 * self.step")
    assert "runtime.seed_control" in failed(await check(double(tmp_path, code=code), "double"))


async def test_an_environment_that_does_not_start_has_no_other_verdict(tmp_path):
    report = await check(double(tmp_path, code="import nowhere_to_be_found\n"), "double")
    assert failed(report) == ["runtime.startup"]
    assert not any(result.id.startswith("semantic.") for result in report.results)


async def test_an_environment_without_an_oracle_is_refused(tmp_path):
    code = GOOD_CODE.replace('return [{"answer": task["private"]["answer"]}]', "return []")
    failure = first_failure((await check(double(tmp_path, code=code), "double")).results)
    assert failure is not None
    assert failure.id == "semantic.oracle_max"


async def test_undeclared_limits_stop_before_anything_starts(tmp_path):
    manifest = GOOD_MANIFEST.replace("verify_s = 5.0\n", "").replace('[network]\nmode = "none"\n', "")
    report = await check(double(tmp_path, manifest=manifest), "double")
    failure = first_failure(report.results)
    assert failure is not None
    assert failure.id == "static.limits_declared"
    assert "limits.verify_s, network.mode" in failure.evidence
    assert {result.id.partition(".")[0] for result in report.results} == {"static"}


async def test_a_tool_without_a_valid_schema_is_refused(tmp_path):
    tool = (
        '\n[[tools]]\nname = "python"\nkind = "python"\ndescription = "d"\nparameters = {type = "objekt"}\n'
    )
    manifest = GOOD_MANIFEST.replace("[params.step]", f"{tool}[params.step]")
    assert "static.tool_schema" in failed(await check(double(tmp_path, manifest=manifest), "double"))


async def test_a_file_of_unknown_licence_is_recorded_and_does_not_block(tmp_path):
    report = await check(
        double(tmp_path, manifest=GOOD_MANIFEST.replace('path = "env.py"', 'path = "x"')), "double"
    )
    assert report.passed
    assert failed(report) == ["static.licence"]


async def test_calc_passes():
    assert failed(await check(asset("calc"), "calc")) == []


# ---------------------------------------------------------------- reasoning-gym, as it is
SOUND = [
    "chain_sum",
    "products",
    "gcd",
    "count_bits",
    "graph_color",
    "rubiks_cube",
    "word_sorting",
    "bf",
    "maze",
]


@pytest.mark.parametrize("family", SOUND)
async def test_a_sound_family_is_admitted(family):
    report = await check(asset("reasoning_gym"), f"rg/{family}")
    assert report.passed, failed(report)


DEFECTIVE = {
    "boxnet": ("semantic.oracle_max", "no oracle"),  # answer is None, and no example either
    "rush_hour": ("semantic.oracle_max", "no oracle"),
    "composite": ("runtime.startup", "Must specify at least one dataset"),
    "rearc": ("semantic.floor_gap", "agent empty earns 0.05"),  # pays .05 for an empty answer
    "sentence_reordering": ("semantic.floor_gap", "earns 0.05"),
    "game_of_life_halting": (
        "semantic.floor_gap",
        "agent random earns 1",
    ),  # pays for anything but the word False
    "propositional_logic": ("semantic.floor_gap", "above the floor"),
    "prime_factorization": ("runtime.reward_well_formed", "ValueError"),  # its scorer fails on words
}


@pytest.mark.parametrize("family", DEFECTIVE)
async def test_a_defective_family_is_found_by_what_it_does(family):
    report = await check(asset("reasoning_gym"), f"rg/{family}")
    rule, evidence = DEFECTIVE[family]
    assert not report.passed
    found = next(result for result in report.results if result.id == rule)
    assert not found.passed
    assert evidence in found.evidence


async def test_a_dataset_that_forgets_precedence_is_found_by_working_it_out():
    overrides = '{"min_terms":3,"max_terms":3,"operators":["+","*"],"allow_parentheses":false,"binary":true}'
    report = await check(asset("reasoning_gym"), "rg/basic_arithmetic", overrides)
    assert "semantic.oracle_max" in failed(report)
    without = await check(
        asset("reasoning_gym"), "rg/basic_arithmetic", '{"operators":["+","-"],"allow_parentheses":false}'
    )
    assert without.passed


def test_spearman_is_the_correlation_of_ranks():
    assert spearman([0, 1, 2], [5, 6, 9]) == pytest.approx(1.0)
    assert spearman([0, 1, 2], [9, 6, 5]) == pytest.approx(-1.0)
    assert spearman([0, 1, 2], [4, 4, 4]) == 0.0
    # ranks 0 1 2 3 against 0.5 0.5 2 3: covariance 4.5, variances 5 and 4.5
    assert spearman([0, 1, 2, 3], [0, 0, 1, 2]) == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
