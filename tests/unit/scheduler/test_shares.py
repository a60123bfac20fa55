# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (a driven world has its trainer and its mixer; announcements are of many kinds)
"""Shares that follow what is left to learn, and domains that rise at another's expense."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.jobs import policy_phase, spec
from tests.unit.scheduler.test_state import World

from temper.api.job.v1.job_pb2 import EvalResult
from temper.api.job.v1.spec_pb2 import MixSpec
from temper.scheduler.mixer import Mixer
from temper.scheduler.shares import ShareController, filled_in, seesaws, water_filled
from temper.scheduler.signals import Tick


def mixed(count=2, **mix):
    domains = [{"name": f"d{i}", "env": "calc", "share": 1} for i in range(count)]
    made = spec(domains=domains, mix={"controller": "learnability", **mix})
    made.mix.CopyFrom(filled_in(made.mix))
    return made


def result(domain, p, n=400, point="step-20"):
    return EvalResult(point=point, domain=domain, n=n, pass_at_1=p)


def test_a_domain_with_nothing_left_to_teach_shrinks_by_a_quarter_at_most():
    control = ShareController(mixed())
    for _ in range(10):
        control.observe("d0", 8, 8)  # always solved: 4p(1-p) = 0
        control.observe("d1", 4, 8)  # half: 1
    assert control.take("step-20", [result("d0", 0.9), result("d1", 0.5)])
    assert control.shares == pytest.approx({"d0": 0.375, "d1": 0.625})


def test_a_domain_that_is_being_forgotten_grows():
    control = ShareController(mixed(max_change=1.0))
    control.take("a", [result("d0", 0.8), result("d1", 0.8)])
    control.take("b", [result("d0", 0.4), result("d1", 0.8)])  # q = .6, best .8: 1 + 2·.2/.8 = 1.5
    assert control.shares == pytest.approx({"d0": 0.6, "d1": 0.4})


def test_an_evaluation_counts_once_and_one_without_samples_not_at_all():
    control = ShareController(mixed())
    assert not control.take("a", [result("d0", 0.0, n=0)])
    assert control.take("a", [result("d0", 0.5)])
    assert not control.take("a", [result("d0", 0.5)])


def test_fixed_shares_stay():
    control = ShareController(mixed(controller="fixed"))
    assert not control.take("a", [result("d0", 0.1), result("d1", 0.9)])
    assert control.shares == {"d0": 0.5, "d1": 0.5}


def test_a_resumed_controller_goes_on_bit_for_bit():
    one = ShareController(mixed(5))
    one.observe("d3", 2, 8)
    one.take("a", [result(f"d{i}", i / 5) for i in range(5)])
    two = ShareController(mixed(5))
    two.resume(json.loads(json.dumps(one.state())))
    for control in (one, two):
        control.observe("d1", 4, 8)
        control.take("b", [result(f"d{i}", 1 - i / 5) for i in range(5)])
    assert one.state() == two.state()


def test_a_domain_that_is_added_keeps_what_is_known_about_the_others():
    control = ShareController(mixed(2))
    control.take("a", [result("d0", 0.8), result("d1", 0.2)])
    control.configure(mixed(3))
    assert control.shares == pytest.approx(dict.fromkeys(("d0", "d1", "d2"), 1 / 3))
    assert control.state()["standing"]["d0"][0] == 0.8


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8)), min_size=2, max_size=40), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_shares_sum_to_one_and_keep_their_bounds(domains, rounds):
    control = ShareController(mixed(len(domains)))
    base = 1 / len(domains)
    for number in range(rounds):
        before = control.shares
        for index, (_, solved) in enumerate(domains):
            control.observe(f"d{index}", (solved + number) % 9, 8)
        control.take(str(number), [result(f"d{i}", p) for i, (p, _) in enumerate(domains)])
        after = control.shares
        assert sum(after.values()) == pytest.approx(1.0)
        for name, share in after.items():
            assert 0.25 * base - 1e-9 <= share <= 4 * base + 1e-9
            assert share == pytest.approx(before[name], rel=0.2500001)


def test_three_hundred_domains_move_and_still_mix_to_within_one_group():
    control = ShareController(mixed(300))
    for index in range(300):
        control.observe(f"d{index}", index % 9, 8)
    control.take("a", [result(f"d{i}", (i % 9) / 8) for i in range(300)])
    shares = control.shares
    mixer = Mixer(shares, 0)
    for _ in range(900):
        mixer.draw()
    assert max(abs(mixer.issued[name] - 900 * share) for name, share in shares.items()) <= 1.0


@given(st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_three_hundred_uneven_domains_keep_floors_and_ceilings_and_resume_bit_for_bit(seed):
    chance = random.Random(seed)
    made = mixed(300)
    made.mix.floor, made.mix.ceiling = chance.uniform(0.1, 0.9), chance.uniform(1.1, 6.0)
    for domain in made.domains:
        domain.share = chance.uniform(0.1, 10.0)
    whole = sum(domain.share for domain in made.domains)
    base = {domain.name: domain.share / whole for domain in made.domains}
    one, other = ShareController(made), ShareController(made)
    for number in range(5):
        before = one.shares
        results = [result(name, chance.random()) for name in base]
        seen = [(name, chance.randint(0, 8)) for name in base if chance.random() < 0.7]
        for control in (one, other):
            for name, solved in seen:
                control.observe(name, solved, 8)
            assert control.take(str(number), results)
        saved = json.loads(json.dumps(other.state()))
        other = ShareController(made)
        other.resume(saved)
        assert other.state() == one.state()
        assert sum(one.shares.values()) == pytest.approx(1.0, abs=1e-12)
        for name, share in one.shares.items():
            low = min(max(made.mix.floor * base[name], 0.1 / 300), before[name] * 1.25)
            high = max(made.mix.ceiling * base[name], 0.1 / 300)
            assert low * (1 - 1e-9) <= share <= high * (1 + 1e-9)
            assert 0.75 - 1e-9 <= share / before[name] <= 1.25 + 1e-9 or before[name] < low


def test_water_fills_in_proportion_between_the_bounds():
    found = water_filled({"a": 8.0, "b": 1.0, "c": 1.0}, {"a": (0.1, 0.5), "b": (0.1, 1.0), "c": (0.1, 1.0)})
    assert found == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})


# ------------------------------------------------------------ seesaw


def test_a_pair_is_told_when_both_moved_beyond_chance():
    before = [result("d0", 0.5), result("d1", 0.8), result("d2", 0.5)]
    after = [result("d0", 0.7), result("d1", 0.6), result("d2", 0.52)]
    (found,) = seesaws(before, after, margin=0.02)
    assert (found.up, found.down) == ("d0", "d1")
    assert (found.gained, found.lost) == (pytest.approx(0.2), pytest.approx(-0.2))


def test_of_three_hundred_domains_chance_makes_no_pairs_and_ruin_few_notices():
    chance = random.Random(2)

    def played(rate):
        return [result(f"d{i}", sum(chance.random() < rate for _ in range(64)) / 64, 64) for i in range(300)]

    told = sum(bool(seesaws(played(0.7), played(0.7), margin=0.0)) for _ in range(20))
    assert told <= 2
    before = [result(f"d{i}", 0.5) for i in range(300)]
    after = [result(f"d{i}", 0.9 if i % 2 else 0.1) for i in range(300)]
    assert len(seesaws(before, after, margin=0.02)) == 8


@pytest.mark.parametrize("n", [20, 0])
def test_what_may_be_chance_is_not_told(n):
    before = [result("d0", 0.5, n), result("d1", 0.8, n)]
    assert not seesaws(before, [result("d0", 0.7, n), result("d1", 0.6, n)], margin=0.02)


def test_an_absent_setting_is_not_a_zero():
    assert filled_in(MixSpec()).kappa == 2.0
    assert filled_in(MixSpec(kappa=0.0)).kappa == 0.0
    assert filled_in(MixSpec(seesaw_margin=0.0)).seesaw_margin == 0.0


# ------------------------------------------------------------ in a job

MIX = {"controller": "learnability", "kappa": 2.0, "maxChange": 0.25, "floor": 0.25, "ceiling": 4.0}
EVAL = {"tasksPerDomain": 6, "every": 2, "before": True, "after": True, "samplesPerTask": 1}


def test_shares_of_a_job_move_after_evaluations_on_the_way_and_are_told():
    world = World(mix=MIX, eval=EVAL, phases=[policy_phase(steps=8)]).run()
    told = [key for key in world.announced if key.startswith("notice/shares/")]
    assert [key.split("/")[2] for key in told] == ["step-2", "step-4", "step-6"]
    shares = world.machine.facts.shares.shares
    assert shares != {"calc": 0.25, "sums": 0.75}
    assert world.machine.facts.sampler._mixer.shares == pytest.approx(shares)


def test_shares_survive_a_crash():
    world = World(mix=MIX, eval=EVAL, phases=[policy_phase(steps=8)])
    world.tell(Tick())
    while "step-2" not in {each.point for each in world.job.evals} or world.machine.facts.points.pending():
        world.round()
    world.save()
    before = world.machine.facts.shares.shares
    world.crash()
    assert world.machine.facts.shares.shares == before
    assert world.machine.facts.sampler._mixer.shares == pytest.approx(before)
    world.run()
    assert world.trainer.record.step == 8


def test_one_domain_that_rose_at_anothers_expense_is_told():
    world = World(mix={**MIX, "controller": "fixed"}, eval={**EVAL, "tasksPerDomain": 400, "every": 0})
    world.chance = Flipped(world)
    world.run()
    (told,) = [each for key, each in world.announced.items() if key.startswith("notice/seesaw/")]
    assert "calc rose by 1.000 while sums fell by 1.000 until after" in told.message


class Flipped:
    """Before training one domain is solved always and the other never, afterwards the other way round."""

    def __init__(self, world):
        self.world = world

    def random(self):
        command = self.world.taken
        return 0.0 if (command.domain == "calc") == (command.eval_point == "after") else 1.0
