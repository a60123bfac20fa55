"""`docs/guides/environments.md`: its example works, and it names every key and every check."""

import re
from pathlib import Path
from typing import Any

import pytest

from temper.qa import manifest
from temper.qa.checks.runner import STAGES

PAGE = (Path(__file__).parents[3] / "docs/guides/environments.md").read_text()
TABLES = {
    "": manifest.Manifest,
    "[[sources]] ": manifest.Source,
    "[runtime] ": manifest.Runtime,
    "[reward] ": manifest.Reward,
    "[verifier] ": manifest.Verifier,
    "[oracle] ": manifest.Oracle,
    "[limits] ": manifest.Limits,
    "[network] ": manifest.Network,
    "[approval] ": manifest.Approval,
    "[[tools]] ": manifest.Tool,
    "[params.NAME] ": manifest.Param,
    "[families] ": manifest.Families,
}
SUBTABLES = {re.sub(r"\W|NAME", "", name) for name in TABLES}


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def environment() -> Any:
    scope: dict[str, Any] = {}
    exec(block("python"), scope)
    return scope["Environment"]({key: param.default for key, param in declared().params.items()})


def declared() -> manifest.Manifest:
    return manifest.parse(block("toml"))


def test_the_example_declares_all_that_admission_wants() -> None:
    limits = declared().limits
    assert all(getattr(limits, name) is not None for name in manifest.Limits.model_fields)
    assert declared().network is not None


@pytest.mark.parametrize("split", ["train", "heldout", "eval"])
def test_the_examples_oracle_solves_its_tasks_and_doing_nothing_does_not(
    environment: Any, split: str
) -> None:
    for index in range(20):
        task = environment.task(split, index)
        assert task == environment.task(split, index)
        (action,) = environment.oracle(task, "direct")
        assert environment.score(task, action["answer"], []) == declared().reward.max
        for answer in (None, "", task["prompt"]):
            assert environment.score(task, answer, []) == declared().reward.min


def test_the_examples_splits_share_no_task(environment: Any) -> None:
    train, heldout = (
        {environment.task(split, i)["prompt"] for i in range(200)} for split in ("train", "heldout")
    )
    assert not train & heldout


def test_every_key_of_a_manifest_is_on_the_page() -> None:
    wanted = {
        prefix + key
        for prefix, table in TABLES.items()
        for key in table.model_fields
        if prefix or key not in SUBTABLES
    }
    section = PAGE.partition("## Keys of")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)) == wanted


def test_every_check_is_on_the_page_in_its_order() -> None:
    section = PAGE.partition("## What admission checks")[2]
    assert re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE) == [
        check.id for stage in STAGES for check in stage
    ]
