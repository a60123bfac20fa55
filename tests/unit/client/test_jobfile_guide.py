"""`docs/guides/job-files.md` says of every key what the model says: path, allowed values, default, meaning."""

import ast
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from temper.client.jobfile import model, parse_job

GUIDE = Path(__file__).parents[3] / "docs/guides/job-files.md"
TABLES = {
    "": model.JobFile,
    "policy": model.Policy,
    "policy.random": model.RandomPolicy,
    "domain": model.Domain,
    "phase": model.Phase,
    "phase.optimizer": model.Optimizer,
    "phase.oracle_mix": model.OracleMix,
    "eval": model.Eval,
    "rollout": model.Rollout,
    "mix": model.Mix,
    "accept": model.Accept,
    "gates": model.Gates,
    "trainer": model.Trainer,
    "trainer.megatron": model.Megatron,
}
TYPES = {
    "string": "text",
    "integer": "whole",
    "number": "number",
    "boolean": "true, false",
    "object": "table",
    "array": "list",
}


def meanings(table: type[model.Table]) -> dict[str, str]:
    """Docstring under each field."""
    (body,) = ast.parse(inspect.getsource(table)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(field.target)] = ast.literal_eval(text.value)
    return found


def allowed(schema: dict[str, Any]) -> str:
    """Type and bounds in words, from the JSON schema of a field."""
    schema = next((each for each in schema.get("anyOf", []) if each.get("type") != "null"), schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    low = {"minimum": "≥ ", "exclusiveMinimum": "> "}
    high = {"maximum": "≤ ", "exclusiveMaximum": "< "}
    bounds = [f"{sign}{number(schema[key])}" for key, sign in (low | high).items() if key in schema]
    return ", ".join([TYPES[schema.get("type", "object")], *bounds])


def number(value: float) -> str:
    power = int(value).bit_length() - 1
    return f"2^{power}" if value == 2**power and power >= 20 else f"{value:g}"


def default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ({}, ()) or isinstance(value, model.Table):
        return "—"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rows(name: str) -> list[str]:
    """Lines of one table of the page."""
    table = TABLES[name]
    schema = table.model_json_schema()["properties"]
    said = meanings(table)
    return [
        f"| `{key}` | {allowed(schema[key])} | {default(field)} | {said[key]} |"
        for key, field in table.model_fields.items()
    ]


def sections() -> dict[str, list[str]]:
    """Rows of the page under each heading that names a table."""
    found: dict[str, list[str]] = {}
    name = None
    for line in GUIDE.read_text().splitlines():
        if heading := re.match(r"^##+ (?:At the top|`\[+(.+?)\]+`)", line):
            name = heading[1] or ""
            found[name] = []
        elif line.startswith("| `") and name is not None:
            found[name].append(line)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_every_key_is_on_the_page_with_its_default_and_meaning(name: str) -> None:
    assert sections()[name] == rows(name)


def test_the_page_describes_no_other_tables() -> None:
    assert set(sections()) == set(TABLES)


def test_the_example_of_the_page_is_a_valid_job_file() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert parse_job(example.encode()).name == tomllib.loads(example)["name"]
