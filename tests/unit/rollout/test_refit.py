"""Weights of a dead owner, or other weights than announced; each test is named by the report it answers."""

import pytest
from safetensors.numpy import save
from tests.unit.rollout.test_publication import A, entry

from temper.api.trainer.v1.trainer_pb2 import WeightManifest
from temper.rollout.publication import Weights, build_on
from temper.rollout.state import Offer, Worker
from temper.runtime.errors import Rejected


def test_nemo_rl_3944_what_an_owner_before_the_restart_sends_is_refused():
    worker = Worker(slots=1, policies=1)
    assert worker.announce("a", 4, "old owner", fence=7)
    worker.loaded("a", 4)
    assert worker.announce("a", 4, "restarted", fence=8) is False  # the same version again: nothing to load
    assert worker.announce("a", 9, "the dead one", fence=7) is False
    assert worker.wanted("a") is None
    assert worker.announce("a", 5, "restarted", fence=8)
    assert worker.wanted("a") == 5


def test_nemo_rl_3944_a_delta_streamed_for_another_base_is_refused():
    base = Weights(WeightManifest(version=3, tensors=[entry("a", A)]), "digest of 3", (save({"a": A}),), 0)
    later = WeightManifest(version=5, base_version=4)
    later.base_manifest.sha256 = "digest of 4"
    with pytest.raises(Rejected, match="a delta on another version 4"):
        build_on(base, later, "digest of 5", [])


def test_trl_5312_weights_that_are_not_those_announced_are_never_served():
    worker = Worker(slots=1, policies=1)
    worker.announce("a", 1, "d1", fence=1)
    worker.loaded("a", 1)
    worker.announce("a", 2, "d2", fence=1)
    worker.load_failed("a", 2, "tensor x does not match its checksum")
    assert worker.jobs["a"].served == 1  # and it says so, instead of drifting off in silence
    assert "checksum" in worker.complaints()["a"]
    bounded = Offer("g", "a", 1, True, 0)
    assert not worker.offer(bounded)  # on-policy work is not done with the version before
    worker.announce("a", 3, "d3", fence=1)
    worker.loaded("a", 3)
    assert worker.offer(bounded)
