"""kill -9 of any rank of a Megatron group at random instants: nothing changes but the time.

`TEMPER_TEST_KILLS` is the number of kills of each layout, `TEMPER_TEST_KILL_SEED` picks their instants.
"""

import os
import random
import signal
import threading

import pytest
from tests.unit.trainer.test_torch_engine import config, group_batch, step, weights

from temper.trainer.engine import make_engine
from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.megatron import MegatronEngine

pytest.importorskip("megatron.core", reason="needs megatron-core: pip install 'temper-rl[megatron]'")

KILLS = int(os.environ.get("TEMPER_TEST_KILLS", "4"))
SEED = int(os.environ.get("TEMPER_TEST_KILL_SEED", "0"))
STEPS = 5
LAYOUTS = {
    "tensor": {"tensor_parallel": 2},
    "data": {"data_parallel": 2},
    "distributed optimizer": {"data_parallel": 2, "distributed_optimizer": True},
}
pytestmark = [pytest.mark.faults, pytest.mark.timeout(60 + 120 * KILLS)]


def train(engine):
    """What some steps report, and the whole state that they lead to: weights, moments and step counts."""
    said = [
        step(engine, group_batch(number), optimizer=OptimizerSettings(lr=1e-3))
        for number in range(1, STEPS + 1)
    ]
    return said, weights(engine), engine.snapshot()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_killed_at_random_instants_change_nothing_but_the_time(layout):
    engine = make_engine("megatron", micro_batch_tokens=512, megatron=LAYOUTS[layout])
    assert isinstance(engine, MegatronEngine)
    engine.build(config(), seed=1)
    step(engine, group_batch(0))
    begin, chance = engine.snapshot(), random.Random(SEED)
    undisturbed = train(engine)
    for _ in range(KILLS):
        engine.restore(config(), begin)
        before, victim = engine.restarts, chance.choice(engine.pids)
        killer = threading.Timer(chance.uniform(0.0, 0.8), os.kill, (victim, signal.SIGKILL))
        killer.start()
        disturbed = train(engine)
        killer.join()
        assert weights(engine) == undisturbed[1]
        assert disturbed == undisturbed
        assert engine.restarts == before + 1
    engine.close()
