import json
import math
import re
from html.parser import HTMLParser

import pytest
from tests.unit.client.conftest import REPOSITORY
from tests.unit.client.fakes import evaluation, job, table

from temper.api.rollout.v1 import rollout_pb2
from temper.client.report.charts import (
    Chart,
    Pair,
    Score,
    Series,
    draw,
    dumbbells,
    nice_ticks,
    number,
    running_error,
    running_mean,
)
from temper.client.report.gather import choose
from temper.client.report.tokens import Decoder, Part

BYTE = REPOSITORY / "examples/policies/byte"
USER, ASSISTANT, CALL, RESULT, END = 258, 259, 260, 261, 262
EPISODE = [
    257,
    USER,
    *b"6*7=",
    END,
    ASSISTANT,
    CALL,
    *b"6*7",
    END,
    RESULT,
    *b"42",
    END,
    ASSISTANT,
    *b"42",
    END,
]
STEPS = {
    "step": "UInt64",
    "phase_name": "String",
    "algorithm": "String",
    "version": "UInt64",
    "samples": "UInt32",
    "action_tokens": "UInt64",
    "total_tokens": "UInt64",
    "metrics": "String",
    "domain_reward": "String",
    "staleness": "String",
    "wait_s": "Float64",
    "data_s": "Float64",
    "compute_s": "Float64",
    "publish_s": "Float64",
    "skipped": "Bool",
    "finished_at": "Float64",
}
SAMPLES = {
    "domain": "String",
    "eval_point": "String",
    "task_index": "UInt64",
    "position": "UInt32",
    "reward": "Float64",
    "solved": "Bool",
    "class": "String",
    "tool_calls": "UInt32",
    "min_version": "UInt64",
    "group_id": "String",
    "table_key": "String",
    "table_sha256": "String",
    "table_bytes": "UInt64",
}


class Strict(HTMLParser):
    """Fails on a tag that is closed in the wrong place."""

    void = {"meta", "br", "line", "circle", "path", "polygon"}

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag


@pytest.fixture
def decoder() -> Decoder:
    return Decoder((BYTE / "tokenizer.json").read_bytes(), (BYTE / "temper_chat.json").read_bytes())


def test_an_episode_is_read_back_in_parts(decoder):
    mask = bytes(1 if index >= 8 else 0 for index in range(len(EPISODE)))
    parts = decoder.parts(EPISODE, mask)
    assert parts[0] == Part("prompt", "6*7=", acted=False)
    assert [(part.role, part.text) for part in parts[1:]] == [
        ("call", "6*7"),
        ("result", "42"),
        ("answer", "42"),
    ]


def test_every_byte_survives_the_alphabet(decoder):
    text = "äöü €, tab\t and \x00"
    assert decoder.text(list(text.encode())) == text
    assert decoder.text([255]) == "\ufffd"
    assert decoder.text([99_999]) == "<99999>"


def test_other_vocabularies_are_read_too():
    tokenizer = {"model": {"vocab": {"<0x41>": 0, "\u2581the": 1, "Ġcat": 2}}, "added_tokens": []}
    decoder = Decoder(json.dumps(tokenizer).encode(), b'{"tokens": {}}')
    assert decoder.text([0, 1, 2]) == "A the cat"


def test_ticks_are_round_and_cover_the_data():
    assert nice_ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]
    assert nice_ticks(3, 97)[0] <= 3
    assert nice_ticks(3, 97)[-1] >= 97
    assert nice_ticks(5, 5)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.123456, "0.123"), (4321, "4,321"), (43210, "43.2k"), (2e6, "2M")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_the_running_mean_of_a_constant_is_the_constant_and_skips_gaps():
    assert running_mean([0.5, math.nan, 0.5]) == [0.5, 0.5, 0.5]
    errors = running_error([0.1] * 50)
    assert errors[0] == pytest.approx(0.1)
    # Effective sample size of an exponential mean with weight w is (2 - w) / w: here 7.
    assert errors[-1] == pytest.approx(0.1 / math.sqrt(7), rel=1e-3)


def test_a_chart_says_its_values_and_escapes_its_words():
    series = Series("<b>", 0, [(1, 0.5), (2, math.nan), (3, 0.75)], errors=[0.1, math.nan, 0.1], smooth=True)
    svg = draw(Chart("A & B", [series, Series("two", 1, [(1, 0.1)], low=[0.0], high=[0.2])], percent=True))
    Strict().feed(svg)
    assert "A &amp; B" in svg
    assert "<b>" not in svg
    assert "nan" not in svg
    assert "50%" in svg
    assert "10% [0%, 20%]" in svg


def test_a_chart_without_numbers_is_empty():
    assert Chart("x", [Series("a", 0, [(1, math.nan)])]).empty


def test_values_that_do_not_change_are_drawn_over_zero():
    svg = draw(Chart("x", [Series("a", 0, [(1, 1.0), (2, 1.0)])]))
    assert ">0</text>" in svg
    assert ">1</text>" in svg


def test_before_and_after_are_drawn_for_every_domain():
    svg = dumbbells([Pair("calc", 0, Score(0.3, 0.2, 0.4), Score(0.9, 0.8, 1.0)), Pair("gcd", 1, None, None)])
    Strict().feed(svg)
    assert svg.count("<circle") == 2


def test_the_most_telling_tasks_are_chosen():
    def row(task, point, solved):
        return {"task_index": task, "eval_point": point, "solved": solved}

    fates = {0: (0, 0), 1: (1, 1), 2: (0, 1), 3: (0, 1), 4: (1, 0)}
    rows = [row(t, p, s) for t, pair in fates.items() for p, s in zip(("before", "after"), pair, strict=True)]
    rows.append(row(5, "before", 1))
    chosen = choose(rows, 3)
    assert [each["task_index"] for each in chosen] == [2, 2, 4, 4, 1, 1]
    assert [each["eval_point"] for each in chosen] == ["before", "after"] * 3


@pytest.fixture
def told(world):
    """A finished job with steps and one task before and after."""
    files = {name: world.put((BYTE / name).read_bytes()) for name in ("tokenizer.json", "temper_chat.json")}
    done = job(evals=[evaluation("before", "calc", 0.3), evaluation("after", "calc", 0.9, step=3)])
    for name, ref in files.items():
        done.spec.policy.checkpoint.files[name].CopyFrom(ref)
    world.jobs["job-1"] = done
    sample = rollout_pb2.SampleTokens(token_ids=EPISODE, mask=bytes(len(EPISODE)))
    groups = rollout_pb2.GroupTable(samples=[sample])
    ref = world.put(groups.SerializeToString())
    times = [0.2, 0.1, 0.6, 0.1, False]
    world.tables["FROM steps"] = table(
        STEPS,
        *(
            [
                n,
                "rl",
                "grpo",
                n,
                8,
                100,
                400,
                {"entropy": 1.0 / n},
                {"calc": 0.3 * n},
                {"0": 4},
                *times,
                100.0 + n,
            ]
            for n in (1, 2, 3)
        ),
    )
    world.tables["FROM samples"] = table(
        SAMPLES,
        *(
            [
                "calc",
                point,
                4,
                0,
                reward,
                bool(reward),
                "scored",
                1,
                0,
                f"g-{point}",
                ref.key,
                ref.sha256,
                ref.size,
            ]
            for point, reward in (("before", 0.0), ("after", 1.0))
        ),
    )
    return world


def test_a_report_is_one_page_that_fetches_nothing(ask, told, tmp_path, job_file):
    page = tmp_path / "r.html"
    said = ask(
        "report", "job-1", "--file", str(page), "--job-file", str(job_file), "--png", str(tmp_path / "r.png")
    )
    assert said.code == 0, said.err
    html = page.read_text()
    Strict().feed(html)
    assert not re.search(r'(src|href)\s*=\s*["\']?(http|//)|@import|url\(', html)
    for word in ("Reward in training", "pass@1", "Entropy", "Staleness", "Idle share", "Tokens per second"):
        assert word in html
    assert "6*7=" in html
    assert "tool call" in html
    assert "name = &quot;trial&quot;" in html
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_says_what_it_could_not_get(ask, told, tmp_path):
    told.blobs.clear()
    assert ask("report", "job-1", "--file", str(tmp_path / "r.html")).code == 0
    html = (tmp_path / "r.html").read_text()
    assert "Not available" in html
    assert "trajectories:" in html


def test_a_report_of_an_unknown_job_is_an_error(ask, tmp_path):
    assert ask("report", "nothing", "--file", str(tmp_path / "r.html")).code == 2
    assert not (tmp_path / "r.html").exists()
