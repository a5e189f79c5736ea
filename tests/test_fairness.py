"""Whether two sides did the same work, and what is said about it."""

import pytest
from plausible import means_only, result

from tensorprimat.analysis.fairness import judge
from tensorprimat.core.identity import FIELDS, signature
from tensorprimat.core.records import ModelShape


def changed(original, **config):
    return original.model_copy(update={"training_config": original.training_config.model_copy(update=config)})


def test_the_same_work_in_the_same_way_is_identical_whatever_the_vendor():
    fairness = judge(result("h100"), result("mi300x"))
    assert fairness.verdict == "identical"
    assert {difference.weight for difference in fairness.differences} == {"context"}
    assert fairness.unknown == ()


def test_what_is_not_stated_of_the_configuration_makes_it_like_for_like():
    fairness = judge(result("h100"), changed(result("mi300x"), micro_batch_size=None))
    assert fairness.verdict == "like_for_like"
    assert [d.values for d in fairness.differences if d.field == "micro_batch_size"] == [("1", None)]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"precision": "fp8"}, "precision BF16 against FP8"),
        ({"tensor_model_parallel_size": 4}, "tensor parallel 1 against 4"),
        ({"micro_batch_size": 2}, "micro batch size 1 against 2"),
        ({"num_gpus": 16}, "GPUs 8 against 16"),
        ({"recompute": "full"}, None),
    ],
)
def test_another_configuration_is_named_in_the_sentence(config, named):
    base = result("h100")
    fairness = judge(changed(base, recompute="none"), changed(base, **{"recompute": "none", **config}))
    assert fairness.verdict == "own_configuration"
    assert fairness.sentence.startswith("Same work; own configuration: ")
    assert (named or "recompute none against full") in fairness.sentence


@pytest.mark.parametrize("config", [{"sequence_length": 2048}, {"global_batch_size": 8}])
def test_another_sequence_length_or_batch_is_not_comparable(config):
    assert judge(result("h100"), result("mi300x", **config)).verdict == "not_comparable"


def test_the_known_case_of_a_six_fold_speed_up_is_not_comparable():
    nvidia = result("h100", global_batch_size=8, sequence_length=8192, tensor_model_parallel_size=4, precision="fp8")
    amd = result("mi300x", global_batch_size=128, sequence_length=2048, tensor_model_parallel_size=1)
    fairness = judge(nvidia, amd)
    assert fairness.verdict == "not_comparable"
    assert "sequence length 8192 against 2048" in fairness.sentence
    assert "global batch size 8 against 128" in fairness.sentence
    assert "faster" not in fairness.sentence
    assert "slower" not in fairness.sentence


def test_a_tiny_model_is_not_comparable_with_the_real_one():
    fairness = judge(result("cpu", preset="tiny"), result("h100", sequence_length=128, global_batch_size=8))
    assert fairness.verdict == "not_comparable"
    assert "preset tiny against full" in fairness.sentence


def test_a_log_without_a_shape_is_not_taken_for_the_tiny_model():
    log = result("mi300x", sequence_length=128, global_batch_size=8)
    log = log.model_copy(update={"model": log.model.model_copy(update={"shape": None, "preset": None})})
    assert judge(result("cpu", preset="tiny"), log).verdict == "not_comparable"


def test_a_log_without_a_shape_against_the_real_model_names_what_is_unknown():
    log = result("mi300x")
    log = log.model_copy(update={"model": log.model.model_copy(update={"shape": None, "preset": None})})
    fairness = judge(result("h100"), log)
    assert fairness.verdict == "own_configuration"
    assert fairness.unknown == ("model shape",)
    assert fairness.sentence.startswith("Same work only if what is not stated on both sides agrees: model shape")


def test_an_unknown_sequence_length_is_never_like_for_like():
    fairness = judge(result("h100"), changed(result("mi300x"), sequence_length=None))
    assert fairness.verdict == "own_configuration"
    assert "sequence length" in fairness.unknown


def test_old_files_that_state_nothing_are_judged_without_an_error():
    fairness = judge(means_only(), means_only("mi300x"))
    assert fairness.verdict == "own_configuration"
    assert set(fairness.unknown) == {"model shape", "sequence length", "global batch size", "precision"}


def test_a_window_that_no_sequence_reaches_is_no_difference():
    full = result("h100", model="mistral", sequence_length=2048)
    shape = full.model.shape
    assert shape is not None
    assert shape.sliding_window == 4096
    unlimited = full.model.model_copy(update={"shape": shape.model_copy(update={"sliding_window": None})})
    assert judge(full, full.model_copy(update={"model": unlimited})).verdict == "identical"
    longer = changed(full, sequence_length=8192)
    other = longer.model_copy(update={"model": unlimited})
    assert judge(longer, other).verdict == "not_comparable"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"optimizer": "adam"}, {"optimizer": "AdamW"}), ({"data": "mock"}, {"data": "synthetic"})],
)
def test_two_names_of_one_thing_are_equal(ours, theirs):
    base = result("h100")
    assert judge(changed(base, **ours), changed(base, **theirs)).verdict == "identical"


def test_versions_and_timing_are_context():
    base = result("h100")
    other = changed(base, framework_version="25.11", versions={"torch": "2.9"})
    assert judge(base, other).verdict == "identical"
    assert [d.field for d in judge(base, changed(base, versions={"torch": "2.8"})).differences] == []
    pair = judge(changed(base, versions={"torch": "2.8"}), changed(base, versions={"torch": "2.9"}))
    assert [(d.field, d.weight) for d in pair.differences] == [("versions", "context")]


def test_every_number_of_the_shape_decides():
    base = result("h100")
    for name, value in ModelShape.model_fields.items():
        old = getattr(base.model.shape, name)
        new = (not old) if value.annotation is bool else (old or 1000) + 1
        shape = base.model.shape.model_copy(update={name: new})
        other = base.model_copy(update={"model": base.model.model_copy(update={"shape": shape})})
        assert judge(base, other).verdict == "not_comparable", name


def test_the_signature_covers_every_field():
    named = sum(field.identifies for field in FIELDS)
    assert len(signature(result("h100"))) == named + 2  # platform and device
    assert len({field.key for field in FIELDS}) == len(FIELDS)
