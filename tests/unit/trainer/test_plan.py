import pytest
from tests.unit.trainer.world import model, phase, spec

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1.spec_pb2 import CheckpointRef, OptimizerSpec
from temper.runtime.errors import Rejected
from temper.trainer.plan import model_config, plan, scheduled


def curve(steps=10, **optimizer):
    made = OptimizerSpec(lr=1.0, **optimizer)
    return [round(scheduled(made, step, steps), 4) for step in range(steps)]


def test_a_constant_schedule_stays_at_its_peak():
    assert curve() == [1.0] * 10


def test_warm_up_is_linear_and_never_zero():
    assert curve(warmup_steps=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_falling_schedule_ends_near_its_floor(schedule):
    found = curve(schedule=schedule, min_lr_ratio=0.1)
    assert found == sorted(found, reverse=True)
    assert found[0] == 1.0
    assert 0.1 <= found[-1] < 0.2


def test_the_optimizer_defaults_are_those_of_adamw_for_language_models():
    (only,) = plan(spec(phase()))
    tuned = only.tuned(0)
    assert (tuned.beta1, tuned.beta2, tuned.max_grad_norm, tuned.muon_lr) == (0.9, 0.99, 1.0, 0.0)


def test_muon_follows_the_schedule_of_the_phase():
    made = phase(algorithm_choices={"optimizer": "muon"}, algorithm_params={"muon_lr": 0.02})
    made.optimizer.schedule, made.optimizer.min_lr_ratio = "linear", 0.0
    (only,) = plan(spec(made))
    assert only.tuned(0).muon_lr == pytest.approx(0.02)
    assert only.tuned(2).muon_lr == pytest.approx(0.01)


def test_muon_is_refused_with_megatron_before_anything_is_trained():
    job = spec(phase(), phase(algorithm_choices={"optimizer": "muon"}))
    job.trainer.engine = "megatron"
    with pytest.raises(Rejected, match="AdamW only") as caught:
        plan(job)
    assert caught.value.field == "phases[1].algorithm_choices.optimizer"
    job.trainer.engine = "torch"
    assert len(plan(job)) == 2


def test_weights_are_published_as_often_as_asked_and_always_at_the_end():
    (rare,) = plan(spec(phase(steps=5, publish=2)))
    assert [rare.publishes(step) for step in range(1, 6)] == [False, True, False, True, True]
    (last,) = plan(spec(phase(steps=3, publish=0)))
    assert [last.publishes(step) for step in range(1, 4)] == [False, False, True]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (phase(algorithm="grop"), "phases[0].algorithm"),
        (phase(algorithm_params={"horizonn": 3}), "phases[0].algorithm_params.horizonn"),
        (phase(demo=True), "phases[0].source"),
        (phase(algorithm="distill"), "phases[0].teacher"),
        (phase(teacher=CheckpointRef(files={"model.safetensors": BlobRef(key="k")})), "phases[0].teacher"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused_with_its_field(bad, field):
    with pytest.raises(Rejected) as caught:
        plan(spec(bad))
    assert caught.value.field == field


def test_an_unknown_schedule_is_refused():
    made = phase()
    made.optimizer.schedule = "cosin"
    with pytest.raises(Rejected, match="constant, cosine, linear"):
        plan(spec(made))


def test_a_random_model_becomes_a_hugging_face_config():
    config = model_config(model())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["head_dim"] == 8  # Qwen3's default of 128 would be wrong


@pytest.mark.parametrize("shape", [{"heads": 5}, {"kv_heads": 3}])
def test_heads_that_do_not_divide_are_refused(shape):
    with pytest.raises(Rejected, match="not a multiple"):
        model_config(model(**shape))
