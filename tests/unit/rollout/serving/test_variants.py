"""Admission: the statistics, the record, and the command from files to a served fast variant."""

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.rollout.serving.world import CONTEXT, fake_engine, write_directory

from temper.rollout.engine.base import Completion, Request, Sink, Stats
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.serving.config import ServingSettings
from temper.rollout.serving.directory import read_model
from temper.rollout.serving.start import start_front
from temper.rollout.serving.variants.__main__ import main
from temper.rollout.serving.variants.admit import Admission, Side, Trial
from temper.rollout.serving.variants.evidence import (
    Bounds,
    Drift,
    Paired,
    Speculation,
    chi_square_tail,
    drift,
    paired,
    same_distribution,
    shortfalls,
)
from temper.rollout.serving.variants.record import Record, Records
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Rejected

GOOD = (Drift(1000, 0.01, 0.1, 0.001), Paired(200, 0.9, 0.9, 0.0, -0.01), Speculation(10, 4, 0.5))


def test_good_evidence_admits_and_each_shortfall_refuses() -> None:
    assert shortfalls(Bounds(), *GOOD) == []
    for place, worse in (
        (0, Drift(1000, 0.03, 0.1, 0.001)),
        (0, Drift(1000, 0.01, 0.3, 0.001)),
        (0, Drift(1000, 0.01, 0.1, 0.01)),
        (0, Drift(10, 0.0, 0.0, 0.0)),
        (0, Drift(1000, math.nan, 0.1, 0.001)),
        (1, Paired(200, 0.9, 0.8, -0.1, -0.12)),
        (1, Paired(200, 0.9, 0.9, 0.0, math.nan)),
        (2, Speculation(10, 4, 1e-9)),
    ):
        parts: list[Any] = list(GOOD)
        parts[place] = worse
        assert len(shortfalls(Bounds(), *parts)) == 1, worse


def test_a_variant_that_does_not_speculate_has_nothing_to_prove_there() -> None:
    untested = Speculation(0, 0, 1.0)
    assert shortfalls(Bounds(), GOOD[0], GOOD[1], untested) == []
    assert "no draft was proposed" in shortfalls(Bounds(), GOOD[0], GOOD[1], untested, must_speculate=True)[0]


def test_drift_of_equal_logprobs_is_zero_and_of_broken_ones_infinite() -> None:
    assert drift([-1.0, -2.0], [-1.0, -2.0]) == Drift(2, 0.0, 0.0, 0.0)
    assert drift([-1.0], [math.nan]).mean == math.inf
    assert drift([], []).mean == math.inf


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=50))
def test_k3_is_never_negative_and_p99_bounds_the_mean(differences: list[float]) -> None:
    found = drift([0.0] * len(differences), differences)
    assert found.k3 >= -1e-12
    assert found.p99 <= max(map(abs, differences)) + 1e-12


def test_no_difference_in_few_tasks_is_no_proof() -> None:
    few = paired([[1.0]] * 20, [[1.0]] * 20)
    many = paired([[1.0]] * 200, [[1.0]] * 200)
    assert few.low < -Bounds().margin < many.low


def test_tasks_not_seeds_are_the_units() -> None:
    once = paired([[1.0]] * 30, [[0.0]] + [[1.0]] * 29)
    often = paired([[1.0] * 8] * 30, [[0.0] * 8] + [[1.0] * 8] * 29)
    assert once == often


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"), [(3.841, 1, 0.05), (16.919, 9, 0.05), (23.209, 10, 0.01)]
)
def test_the_chi_square_tail_agrees_with_the_tables(statistic: float, freedom: int, p: float) -> None:
    assert abs(chi_square_tail(statistic, freedom) - p) < 0.003


def test_the_chi_square_test_tells_different_distributions_from_equal_ones() -> None:
    source = random.Random(3)
    draws = [[(source.choice("aab"), source.choice("xy")) for _ in range(400)] for _ in range(2)]
    other = [(source.choice("ab"), source.choice("xxxy")) for _ in range(400)]
    as_ids = [[tuple(ord(each) for each in pair) for pair in sample] for sample in (*draws, other)]
    assert same_distribution(as_ids[0], as_ids[1]) > 0.001
    assert same_distribution(as_ids[0], as_ids[2]) < 1e-6
    assert same_distribution([(1, 2)] * 50, [(1, 2)] * 50) == 1.0
    assert same_distribution([(1, 1)] * 50, [(2, 2)] * 50) < 1e-6


def record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "standard": "a" * 64, "fast": "b" * 64, "corpus": "c", "golden": "d", "admitted_at": 1.0,
        "bounds": {"margin": 0.02}, "evidence": {"tokens": 5},
    }  # fmt: skip
    return Record(**(values | changes))


def test_a_record_is_found_by_its_digests_and_by_no_others(tmp_path: Path) -> None:
    records = Records(tmp_path / "records")
    path = records.write(record())
    assert records.find("a" * 64, "b" * 64) == record()
    assert records.find("a" * 64, "x" * 64) is None
    assert records.find("a" * 16 + "z" * 48, "b" * 64) is None, "the whole digest counts"
    assert [each for each, _ in records.all()] == [path]
    assert (tmp_path / "records" / "admission.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("change", [{"margin": 0.9}, {"evidence": {}}, {"signature": "00"}])
def test_a_record_that_was_changed_admits_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    records = Records(tmp_path)
    path = records.write(record())
    content = json.loads(path.read_text())
    content["bounds" if "margin" in change else next(iter(change))] = next(iter(change.values()))
    path.write_text(json.dumps(content))
    with pytest.raises(Rejected, match=r"does not match its signature|not an admission record"):
        records.find("a" * 64, "b" * 64)


def files(tmp_path: Path, *, tasks: int = 120, lines: int = 20) -> list[str]:
    (tmp_path / "corpus.txt").write_text(
        "\n".join(f"line {number} of the corpus " * (20 // lines) for number in range(lines))
    )
    golden = [
        json.dumps({"prompt": f"{number}+1=", "regex": ".", "max_tokens": 2}) for number in range(tasks)
    ]
    (tmp_path / "golden.jsonl").write_text("\n".join(golden))
    return ["--corpus", str(tmp_path / "corpus.txt"), "--golden", str(tmp_path / "golden.jsonl")]


def admit(tmp_path: Path, model: Path, *sets: str, tasks: int = 120) -> int:
    options = [
        "admit",
        "--model",
        str(model),
        *files(tmp_path, tasks=tasks),
        "--records",
        str(tmp_path / "records"),
    ]
    for each in ("engine.name=fake", *sets):
        options += ["--set", each]
    return main([*options, "--seeds", "1"])


def settings(tmp_path: Path, **engine: Any) -> ServingSettings:
    fast = {"engine": {"slots": 32}, "records": tmp_path / "records"}
    return ServingSettings.model_validate({"engine": {"name": "fake", **engine}, "serving": {"fast": fast}})


async def test_an_admitted_variant_serves_and_one_without_a_record_is_refused(
    tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SystemClock()
    with pytest.raises(Rejected, match="no admission record"):
        await start_front(settings(tmp_path), directory, clock)
    assert await asyncio.to_thread(admit, tmp_path, directory, "serving.fast.engine={slots=32}") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["admitted"] is True
    assert said["evidence"]["drift"]["mean"] == 0
    front = await start_front(settings(tmp_path), directory, clock)
    assert front.fleet.fast is not None
    await front.fleet.close()
    with pytest.raises(Rejected, match="no admission record"):  # another setting is another variant
        await start_front(settings(tmp_path, max_context=256), directory, clock)
    write_directory(directory, seed=9)
    with pytest.raises(Rejected, match="no admission record"):  # and so are other weights
        await start_front(settings(tmp_path), directory, clock)
    assert main(["list", "--records", str(tmp_path / "records")]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"]["golden"]["tasks"] == 120


def test_distilled_weights_that_drift_are_refused_and_leave_no_record(
    tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_directory(tmp_path / "models" / "small", seed=5)
    assert admit(tmp_path, directory, f"serving.fast.model={other}") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["admitted"] is False
    assert any("drift" in each for each in said["refused_because"])
    assert not list((tmp_path / "records").glob("*.json"))


def test_too_few_tasks_refuse(tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, directory, "serving.fast.engine={slots=32}", tasks=5) == 1
    assert "golden set" in capsys.readouterr().out


class Drafting(FakeEngine):
    """Claims to use drafts; draws from a sharper distribution with them when it is not ``exact``."""

    def __init__(self, *, exact: bool) -> None:
        super().__init__(SystemClock(), slots=64, max_context=CONTEXT)
        self.exact, self.proposed = exact, 0

    def submit(self, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        self.proposed += request.speculate
        if request.speculate and not self.exact and request.sampling.logit_bias:
            request = replace(request, sampling=replace(request.sampling, temperature=0.4))
        return super().submit(request, sink)

    def stats(self) -> Stats:
        return replace(super().stats(), drafts_proposed=self.proposed)


@pytest.mark.parametrize("exact", [True, False])
async def test_speculation_that_changes_the_distribution_is_found_out(
    tmp_path: Path, directory: Path, exact: bool
) -> None:
    model, clock = read_model(directory), SystemClock()
    sides = [Side(model, engine, "d") for engine in (fake_engine(), Drafting(exact=exact))]
    for side in sides:
        await side.engine.start()
        await side.engine.load(model.files(0))
        await side.engine.swap(0)
    _, corpus, _, golden = files(tmp_path, lines=1)
    trial = Trial(Path(corpus), Path(golden), seeds=1, samples=150)
    _, wrong = await Admission(sides[0], sides[1], clock).decide(trial)
    for side in sides:
        await side.engine.close()
    assert [each.partition(":")[0] for each in wrong] == (
        [] if exact else ["speculation changes the distribution"]
    )


def test_a_variant_that_differs_in_nothing_and_wrong_settings_are_mistakes(
    tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, directory) == 2
    assert "nothing tells the fast variant" in capsys.readouterr().err
    assert admit(tmp_path, directory, "serving.fast.engine={slot=3}") == 2
    assert "serving.fast.engine.slot" in capsys.readouterr().err
