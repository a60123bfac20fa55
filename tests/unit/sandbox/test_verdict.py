import pytest

from temper.sandbox.engine.base import Evidence, Outcome
from temper.sandbox.engine.verdict import Counters, Ending, judge, measure

NOTHING = Evidence()
OOM = Evidence(oom_kills=1)
FORKS = Evidence(refused_forks=2)


@pytest.mark.parametrize(
    ("ending", "evidence", "disk_full", "truncated", "outcome"),
    [
        (Ending.FINISHED, NOTHING, False, False, Outcome.OK),
        (Ending.FINISHED, NOTHING, False, True, Outcome.OUTPUT_TRUNCATED),
        (Ending.OUTPUT, NOTHING, False, True, Outcome.OUTPUT_TRUNCATED),
        (Ending.FINISHED, NOTHING, True, True, Outcome.DISK_FULL),
        (Ending.FINISHED, FORKS, True, False, Outcome.PIDS_EXCEEDED),
        (Ending.FINISHED, OOM, False, False, Outcome.OOM_KILLED),
        (Ending.DIED, OOM, False, False, Outcome.OOM_KILLED),
        (Ending.DIED, FORKS, False, False, Outcome.SANDBOX_DIED),
        (Ending.MEMORY, OOM, True, True, Outcome.OOM_KILLED),
        (Ending.WALL, OOM, True, True, Outcome.TIMED_OUT),
        (Ending.CPU, OOM, False, False, Outcome.CPU_EXCEEDED),
    ],
)
def test_the_most_telling_cause_wins(
    ending: Ending, evidence: Evidence, disk_full: bool, truncated: bool, outcome: Outcome
) -> None:
    assert judge(ending, evidence, disk_full=disk_full, truncated=truncated) is outcome


def test_counters_are_read_as_differences_and_never_negative() -> None:
    before = Counters(cpu_s=5.0, oom_kills=3, refused_forks=9, throttled_s=1.0)
    after = Counters(cpu_s=6.5, peak_memory_bytes=77, oom_kills=4, refused_forks=9, throttled_s=0.5)
    assert measure(before, after, 2.0) == Evidence(2.0, 1.5, 77, 1, 0, 0.0)
