"""Chat templates give what ``transformers`` gives, in a sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.unit.rollout.serving.world import TEMPLATE, tokenizer

from temper.rollout.serving.dialogue import TemplateDialogue
from temper.rollout.serving.directory import read_model
from temper.runtime.errors import Rejected

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "é": "<&>"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi é <b>"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "and?"},
]
QUIRKY = (
    "{{ bos_token }}{%- for m in messages %}\n"
    "    {%- if m.role == 'skip' %}{% continue %}{% endif %}\n"
    "    {{- '[' ~ m.role ~ ']' ~ m.content | trim }}\n"
    "{%- endfor %}{% if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}\n"
    "{%- if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize("template", [TEMPLATE, QUIRKY])
@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_a_template_is_rendered_as_transformers_renders_it(
    template: str, tools: list[dict[str, Any]]
) -> None:
    judge: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<|end|>")
    expected = judge.apply_chat_template(
        TALK, tools=tools or None, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    dialogue = TemplateDialogue(template, {"bos_token": "<|end|>"}, tokenizer())
    assert dialogue.render(TALK, tools) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% set x = messages.append(1) %}",
        "{{ raise_exception('system role not supported') }}",
        "{{ undefined_thing.attribute }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_a_template_that_reaches_out_or_objects_is_a_refusal(template: str) -> None:
    dialogue = TemplateDialogue(template, {}, tokenizer())
    with pytest.raises(Rejected) as refused:
        dialogue.render(TALK, [])
    assert refused.value.field == "messages"


def test_a_template_file_comes_before_the_configs_and_a_named_list_gives_its_default(directory: Path) -> None:
    side = directory / "tokenizer_config.json"
    side.write_text(
        json.dumps(
            {"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "A"}]}
        )
    )
    dialogue = read_model(directory).dialogue
    assert isinstance(dialogue, TemplateDialogue)
    assert dialogue.render(TALK, []) == "A"
    (directory / "chat_template.jinja").write_text("B")
    dialogue = read_model(directory).dialogue
    assert isinstance(dialogue, TemplateDialogue)
    assert dialogue.render(TALK, []) == "B"


def test_the_byte_policy_writes_an_episode_as_the_rollout_service_does(byte_directory: Path) -> None:
    from temper.rollout.codec import Codec

    model = read_model(byte_directory)
    assert model.dialogue is not None
    files = {name: (byte_directory / name).read_bytes() for name in ("tokenizer.json", "temper_chat.json")}
    codec = Codec.read(files)
    made = [{"id": "c", "function": {"name": "py", "arguments": {"code": "1+1"}}}]
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    tools = [{"type": "function", "function": {"name": "py", "parameters": schema}}]
    written = model.dialogue.write(
        [
            {"role": "user", "content": "2?"},
            {"role": "assistant", "content": "", "tool_calls": made},
            {"role": "tool", "content": "2"},
        ],
        tools,
    )
    assert written == [*codec.prompt("2?"), *codec.call("1+1"), *codec.observation("2")]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "system", "content": "x"}], "messages[0].role"),
        ([{"role": "assistant", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "messages[1].role"),
    ],
)
def test_a_role_that_the_byte_policy_lacks_is_named(
    byte_directory: Path, messages: list[dict[str, Any]], field: str
) -> None:
    dialogue = read_model(byte_directory).dialogue
    assert dialogue is not None
    with pytest.raises(Rejected) as refused:
        dialogue.write(messages, [])
    assert refused.value.field == field
