from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from temper.api.common.v1 import common_pb2 as common
from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.qa.v1 import qa_pb2 as qa
from temper.api.rollout.v1.rollout_pb2 import GroupRecord, SampleSummary
from temper.qa import state
from temper.qa.state import LiveRates


class Life(RuleBasedStateMachine):
    """Any sequence of events keeps the promises of the life cycle."""

    def __init__(self):
        super().__init__()
        self.record = qa.EnvironmentRecord(env=EnvRef(digest="d"), state=state.DRAFT)
        self.withdrawn = False
        self.last_verdict = None

    @rule()
    def begin(self):
        state.begin(self.record)

    @rule()
    def give_up(self):
        state.give_up(self.record)

    @rule(passed=st.booleans())
    def judge(self, passed):
        report = qa.CheckReport(digest="d", checker="1", backend="b", passed=passed)
        state.judge(report, "because")(self.record)
        self.last_verdict = passed

    @rule()
    def quarantine(self):
        state.quarantine("broken")(self.record)
        self.withdrawn = True

    @rule()
    def lift(self):
        state.lift(self.record)
        if self.withdrawn:
            self.last_verdict = None
        self.withdrawn = False

    @invariant()
    def a_quarantine_outlasts_everything_but_its_lifting(self):
        assert (self.record.state == state.QUARANTINED) == self.withdrawn

    @invariant()
    def only_a_passed_report_admits(self):
        if self.record.state == state.ADMITTED:
            assert self.record.report.passed
            assert self.last_verdict is True

    @invariant()
    def a_refusal_has_a_reason(self):
        if self.record.state in (state.REJECTED, state.QUARANTINED):
            assert self.record.reason


TestLife = Life.TestCase


def test_a_verdict_counts_for_one_digest_checker_and_backend():
    record = qa.EnvironmentRecord(env=EnvRef(digest="d"))
    record.report.CopyFrom(qa.CheckReport(digest="d", checker="1", backend="namespaces"))
    assert state.has_verdict(record, "1", "namespaces")
    assert not state.has_verdict(record, "2", "namespaces")
    assert not state.has_verdict(record, "1", "process")
    record.env.digest = "e"
    assert not state.has_verdict(record, "1", "namespaces")


# ---------------------------------------------------------------- live rates
samples = st.builds(
    lambda kind, reward: SampleSummary(
        sample_class=kind,
        solved=kind == common.SAMPLE_CLASS_SCORED and reward == 1.0,
        reward=reward if kind in state.VALID else None,
    ),
    st.sampled_from(
        [common.SAMPLE_CLASS_SCORED, common.SAMPLE_CLASS_AGENT_FAILED, common.SAMPLE_CLASS_INFRA_FAILED]
    ),
    st.sampled_from([0.0, 0.5, 1.0]),
)
groups = st.builds(
    lambda number, purpose, digest, found: GroupRecord(
        group_id=f"job-{number}", purpose=purpose, env=EnvRef(digest=digest), samples=found
    ),
    st.integers(0, 30),
    st.sampled_from([common.PURPOSE_TRAIN, common.PURPOSE_EVAL, common.PURPOSE_DEMO]),
    st.sampled_from(["d1", "d2"]),
    st.lists(samples, max_size=6),
)
histories = st.lists(groups, max_size=20, unique_by=lambda group: group.group_id)


def counted(history):
    rates = LiveRates()
    for place, group in enumerate(history, 1):
        rates.observe(group, str(place))
    return rates


@given(histories)
def test_counts_are_sums_over_valid_samples(history):
    rates = counted(history)
    for digest in ("d1", "d2"):
        seen = [
            sample
            for group in history
            if group.env.digest == digest and group.purpose in state.COUNTED
            for sample in group.samples
        ]
        valid = [sample for sample in seen if sample.sample_class in state.VALID]
        live = rates.rates[digest].message() if digest in rates.rates else qa.LiveRate()
        assert live.n == len(valid)
        assert live.solved == sum(sample.solved for sample in valid)
        assert live.infra_failed == len(seen) - len(valid)
        assert 0.0 <= live.recent <= 1.0


@given(histories, st.data())
def test_repeats_and_restarts_change_nothing(history, data):
    plain = counted(history)
    rates = LiveRates()
    for place, group in enumerate(history, 1):
        rates.observe(group, str(place))
        if data.draw(st.booleans()):
            rates.observe(group, str(place))
        if data.draw(st.booleans()):
            rates = LiveRates.from_json(rates.to_json())
    assert rates.rates == plain.rates
    assert rates.token == plain.token


@given(histories)
def test_changed_rates_are_told_once(history):
    rates = counted(history)
    assert set(rates.take_changed()) == set(rates.rates)
    assert rates.take_changed() == {}


def test_the_recent_rate_follows_a_policy_that_learns():
    rate = state.Rate()
    for _ in range(100):
        rate.add(solved=False, reward=0.0)
    for _ in range(100):
        rate.add(solved=True, reward=1.0)
    assert rate.message().mean_reward == 0.5
    assert rate.recent > 0.8
