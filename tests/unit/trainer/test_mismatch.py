import pytest

from temper.trainer.mismatch import LEVEL, WINDOW, MismatchWatch


def test_the_slope_is_that_of_a_line():
    watch = MismatchWatch()
    found = {}
    for step in range(10):
        found = watch.add({"mismatch_abs": 0.01 + 0.002 * step})
    assert found["mismatch_slope"] == pytest.approx(0.002)
    assert watch.alarm() == ""


def test_a_high_level_is_an_alarm_at_once():
    watch = MismatchWatch()
    watch.add({"mismatch_abs": 2 * LEVEL})
    assert "over" in watch.alarm()


def test_a_steady_rise_is_an_alarm_before_the_level_is_reached():
    watch = MismatchWatch()
    for step in range(WINDOW):
        watch.add({"mismatch_abs": 0.0015 * step})
    assert watch.values[-1] < LEVEL
    assert "grew" in watch.alarm()


def test_algorithms_without_a_rollout_engine_have_no_mismatch():
    watch = MismatchWatch()
    assert watch.add({"loss": 1.0}) == {}
    assert watch.alarm() == ""
