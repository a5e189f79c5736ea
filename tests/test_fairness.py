"""Verdict levels: the claims that two sides allow, row by row of the table, and claims that were once wrong."""

import math
from pathlib import Path

import numpy as np
import pytest
from each import in_each
from plausible import means_only, result

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.fairness import judge
from tensorprimat.analysis.impossible import impossible
from tensorprimat.analysis.levels import LEVELS
from tensorprimat.analysis.metrics import calculate_metrics
from tensorprimat.analysis.rates import NORMALISED_BY, TIME_TO_TRAIN
from tensorprimat.core.identity import FIELDS, signature, values_of_fields
from tensorprimat.core.result import Model, ModelShape, Reported
from tensorprimat.models import flops, presets
from tensorprimat.models.shape_parts import Experts, LatentAttention
from tensorprimat.storage.store import Loaded


def changed(original, **config):
    return original.model_copy(update={"training_config": original.training_config.model_copy(update=config)})


def with_model(original, **facts):
    return original.model_copy(update={"model": original.model.model_copy(update=facts)})


def rated(original, **rates):
    """Return the same result with these rates and no others, and no steps that would say more."""
    figures = original.performance_metrics
    every = dict.fromkeys((*NORMALISED_BY, "avg_step_time_seconds"))
    return original.model_copy(update={"performance_metrics": figures.model_copy(update={**every, **rates})})


# The rows of the table


def test_the_same_work_in_the_same_way_is_identical_whatever_the_vendor():
    fairness = judge(result("h100"), result("mi300x"))
    assert fairness.verdict == "identical"
    assert fairness.sentence.startswith("Same work, same configuration: both sides state every setting")
    assert {difference.weight for difference in fairness.differences} == {"context"}
    assert (fairness.unknown, fairness.conditions) == ((), ())


@in_each(
    ("config", "named"),
    [
        ({"precision": "fp8"}, "precision BF16 against FP8"),
        ({"tensor_model_parallel_size": 4}, "tensor parallel 1 against 4"),
        ({"micro_batch_size": 2}, "micro batch size 1 against 2"),
        ({"num_gpus": 16}, "GPUs 8 against 16"),
        ({"recompute": "full"}, "recompute none against full"),
        ({"learning_rate": 1e-3}, "learning rate 0.0003 against 0.001"),
        ({"seed": 9}, "seed 1234 against 9"),
    ],
)
def test_another_configuration_is_the_same_work_and_is_named(config, named):
    fairness = judge(result("h100"), changed(result("h100"), **config))
    assert fairness.verdict == "same_work"
    assert fairness.sentence.startswith(
        "Same work: model shape, trainable parameters, sequence length and global batch"
    )
    assert named in fairness.sentence


@in_each("field", ["micro_batch_size", "learning_rate", "seed", "recompute", "compute_dtype"])
def test_a_setting_that_one_side_alone_states_is_not_identical(field):
    fairness = judge(result("h100"), changed(result("mi300x"), **{field: None}))
    assert fairness.verdict == "same_work"
    assert "Stated by one side only: " in fairness.sentence


def test_printed_arguments_that_differ_are_one_difference_of_the_configuration():
    def printed(**arguments):
        one = result("h100")
        return one.changed(provenance=one.provenance.changed(arguments={**arguments, "qk_layernorm": "True"}))

    fairness = judge(printed(softmax_type="vanilla"), printed(softmax_type="learnable"))
    assert fairness.verdict == "same_work"
    (difference,) = (one for one in fairness.differences if one.field == "arguments")
    assert difference.values == ("softmax_type vanilla", "softmax_type learnable")
    named = judge(printed(global_batch_size="8"), printed(global_batch_size="16"))
    assert not [one for one in named.differences if one.field == "arguments"]  # a field of its own


def test_a_setting_that_neither_side_states_is_not_identical():
    assert judge(*(changed(result(side), recompute=None) for side in ("h100", "mi300x"))).verdict == "same_work"


def test_packing_of_a_data_set_has_to_be_stated_and_mock_tokens_have_none():
    sides = [result(machine, data="c4") for machine in ("h100", "mi300x")]
    assert judge(*sides).verdict == "same_work"
    assert judge(*(changed(side, packing=True) for side in sides)).verdict == "identical"
    assert judge(*(changed(side, data="synthetic") for side in sides)).verdict == "identical"


def test_settings_that_follow_from_others_count_as_stated():
    stated = changed(result("h100"), data_parallel_size=8, gradient_accumulation_steps=16)
    assert judge(stated, result("mi300x")).verdict == "identical"
    assert judge(changed(stated, gradient_accumulation_steps=4), result("mi300x")).verdict == "same_work"


def test_devices_that_do_not_divide_into_replicas_imply_no_data_parallel_size():
    uneven = changed(result("h100"), tensor_model_parallel_size=3, num_gpus=8, data_parallel_size=None)
    assert values_of_fields((uneven,))["data_parallel_size"] == (None,)


def test_another_global_batch_is_the_same_work_per_token_with_its_caveat():
    fairness = judge(result("h100", global_batch_size=16), result("mi300x", global_batch_size=32))
    assert fairness.verdict == "same_work_per_token"
    assert fairness.metric == "tokens_per_second_per_gpu"
    assert "global batch 16 against 32; the sides may need different numbers of tokens to reach the same loss" in (
        fairness.sentence
    )
    assert judge(result("h100", global_batch_size=16), result("mi300x"), strict=True).verdict == "not_comparable"


def trained_to(target, *, minutes, samples, benchmark="llama31_8b", runs=1, **config):
    """Return a result of runs that reached a quality target, with their time and samples."""
    one = changed(result("h100", runs=runs), **config)
    reported = Reported(benchmark=benchmark, quality_target=target)
    figures = one.performance_metrics.model_copy(update={"reported": reported})
    facts = [
        {"time_to_train_seconds": minutes * 60 * (1 + 0.001 * n), "samples_to_train": samples} for n in range(runs)
    ]
    done = tuple(run.model_copy(update=fact) for run, fact in zip(one.runs, facts, strict=True))
    return one.model_copy(update={"performance_metrics": figures, "runs": done})


def test_two_runs_to_one_quality_target_are_the_same_task_with_time_to_train_first():
    sides = trained_to(3.3, minutes=90, samples=160_000), trained_to(3.3, minutes=96, samples=172_032)
    fairness = judge(*(changed(side, global_batch_size=batch) for side, batch in zip(sides, (16, 32), strict=True)))
    assert (fairness.verdict, fairness.metric) == ("same_task", TIME_TO_TRAIN)
    assert fairness.sentence.startswith("Same task: both trained llama31_8b to the quality target 3.3")
    sides = sides[0], sides[1].model_copy(update={"platform": "amd"})
    (pair,) = compare([Loaded(path=Path(f"{n}.json"), result=one) for n, one in enumerate(sides)]).pairs
    assert pair.ratio.task.time == pytest.approx(96 / 90)
    assert pair.ratio.task.samples == pytest.approx(172_032 / 160_000)
    assert pair.ratio.task.time == pytest.approx(pair.ratio.task.samples / pair.ratio.task.rate)
    assert pair.ratio.estimate.value == pytest.approx(90 / 96)


@pytest.mark.parametrize(
    ("times", "verdict"), [((5400.0, 5400.0), "no_difference_shown"), ((5400.0, 5760.0), "slower")]
)
def test_equal_times_to_train_of_all_runs_are_known_to_their_last_digit_only(times, verdict):
    sides = []
    for place, seconds in enumerate(times):
        one = trained_to(3.3, minutes=90, samples=160_000, runs=3)
        runs = tuple(run.model_copy(update={"time_to_train_seconds": seconds}) for run in one.runs)
        platform = ("nvd", "amd")[place]
        sides.append(
            Loaded(path=Path(f"{place}.json"), result=one.model_copy(update={"runs": runs, "platform": platform}))
        )
    ratio = compare(sides).pairs[0].ratio
    assert (ratio.metric, ratio.verdict) == (TIME_TO_TRAIN, verdict)
    of_half_a_second = sum(0.5 / seconds for seconds in times)
    assert math.log(ratio.estimate.high / ratio.estimate.low) == pytest.approx(2 * of_half_a_second, rel=0.01)


def missing(result, *runs):
    """Return the result, of which some runs did not reach the target."""
    unreached = {"time_to_train_seconds": None, "samples_to_train": None}
    facts = [run.model_copy(update=unreached) if run.index in runs else run for run in result.runs]
    return result.model_copy(update={"runs": tuple(facts)})


def task_pair(*sides):
    return compare([Loaded(path=Path(f"{n}.json"), result=one, side=str(n)) for n, one in enumerate(sides)])


def test_one_run_of_several_that_misses_the_target_is_left_out_with_a_note():
    sides = trained_to(3.3, minutes=90, samples=1, runs=3), trained_to(3.3, minutes=99, samples=1, runs=4)
    comparison = task_pair(sides[0], missing(sides[1], 1))
    (pair,) = comparison.pairs
    assert pair.fairness.verdict == "same_task"
    assert "1 of 4 runs of the candidate did not reach it and is not in the time to train" in pair.fairness.sentence
    times = [99 * (1 + 0.001 * run) for run in (0, 2, 3)]
    base = [90 * (1 + 0.001 * run) for run in range(3)]
    assert math.log(pair.ratio.estimate.value) == pytest.approx(np.mean(np.log(base)) - np.mean(np.log(times)))
    assert pair.ratio.estimate.low < pair.ratio.estimate.value < pair.ratio.estimate.high
    assert pair.ratio.estimate.rests_on == "3 runs against 3 runs"


@in_each(("runs", "missed"), [(4, (0, 2)), (2, (1,)), (1, (0,))])
def test_a_side_that_missed_the_target_more_often_has_no_time_to_train(runs, missed):
    sides = trained_to(3.3, minutes=90, samples=1, runs=3), trained_to(3.3, minutes=99, samples=1, runs=runs)
    comparison = task_pair(sides[0], missing(sides[1], *missed))
    (pair,) = comparison.pairs
    assert pair.fairness.metric == "tokens_per_second_per_gpu"
    assert f"1: {len(missed)} of {runs} runs did not reach the quality target" in "".join(comparison.warnings)
    assert math.isfinite(pair.ratio.estimate.value)


def test_the_seeds_of_a_task_are_in_the_table_but_not_in_the_sentence():
    sides = trained_to(3.3, minutes=90, samples=1, seed=1), trained_to(3.3, minutes=99, samples=1, seed=2)
    fairness = judge(
        *(one.model_copy(update={"runs": (one.runs[0].model_copy(update={"seed": None}),)}) for one in sides)
    )
    assert "seed" in [difference.field for difference in fairness.differences]
    assert "seed" not in fairness.sentence


def test_another_quality_target_is_not_the_same_task():
    sides = trained_to(3.3, minutes=90, samples=1), trained_to(3.2, minutes=90, samples=1)
    assert judge(*sides).verdict != "same_task"


@in_each(
    ("other", "reason", "remedy"),
    [
        (result("mi300x", model="qwen"), "different model shapes", "Benchmark the same model on both sides."),
        (result("mi300x", sequence_length=2048), "sequence length 8192 against 2048", "--sequence-length N"),
        (with_model(result("mi300x"), trainable_parameters=44_564_480), "trainable parameters all against 44,564,480",
         "Comparable if the same parameters train on both sides."),
        (changed(result("mi300x"), peft="lora"), "adapter none against lora", "same parameters train"),
    ],
)  # fmt: skip
def test_another_problem_has_no_ratio_and_one_remedy(other, reason, remedy):
    fairness = judge(changed(result("h100"), packing=False), changed(other, packing=False))
    assert (fairness.verdict, fairness.metric) == ("not_comparable", None)
    assert reason in fairness.sentence
    assert remedy in fairness.remedy
    assert fairness.sentence.endswith(fairness.remedy)
    assert not {"faster", "slower"} & set(fairness.sentence.split())


def test_models_of_one_name_differ_by_their_shapes():
    tiny = with_model(result("h100"), preset=None, shape=presets.find_preset("llama", "tiny").shape)
    fairness = judge(tiny, with_model(result("mi300x"), preset=None, shape=None))
    assert "different model shapes" in fairness.sentence
    assert "different models" not in fairness.sentence


def test_packed_sequences_against_padded_ones_are_another_problem():
    fairness = judge(changed(result("h100"), packing=True), changed(result("mi300x"), packing=False))
    assert fairness.verdict == "not_comparable"
    assert judge(changed(result("h100"), packing=True), result("mi300x")).conditions == ("packing",)


def test_every_level_has_its_own_sentence_and_colour():
    assert len({level.colour for level in LEVELS.values()}) == len({level.sentence for level in LEVELS.values()}) == 5
    assert [level.name for level in LEVELS.values() if level.same_work] == ["identical", "same_work"]


# What is not stated


def nameless(side, name="llama"):
    return with_model(result(side), shape=None, preset=None, parameters=None, name=name)


@in_each("name", ["llama", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama31_8b", "llama3.1_8B-pretrain"])
def test_a_name_of_a_known_model_stands_for_its_shape_under_a_condition(name):
    fairness = judge(result("h100"), nameless("mi300x", name))
    assert fairness.verdict == "same_work"
    assert fairness.conditions == ("model shape",)
    assert fairness.sentence.startswith(
        "Same work as far as it is stated; at least one side does not state the model shape"
    )


@in_each("name", ["my-model", "falcon-40b", None])
def test_a_name_that_means_no_known_model_gives_no_ratio(name):
    for pair in ((result("h100"), nameless("mi300x", name)), (nameless("h100", name), nameless("mi300x", name))):
        fairness = judge(*pair)
        assert fairness.verdict == "not_comparable"
        assert "--shape" in fairness.remedy


def test_names_of_two_known_models_are_two_models():
    assert judge(nameless("h100", "llama"), nameless("mi300x", "qwen")).verdict == "not_comparable"


def test_a_longer_name_of_the_same_model_does_not_lower_the_level():
    assert judge(result("h100"), with_model(result("mi300x"), name="Llama-3.1-8B")).verdict == "identical"


def log(side, **facts):
    """Return a result that does not say which parameters train."""
    one = changed(result(side), peft=None)
    return one.model_copy(update={"provenance": one.provenance.model_copy(update={"engine": "logs"}), **facts})


def test_a_log_that_states_the_shape_of_its_model_trains_all_of_it_where_nothing_hints_at_lora():
    assert judge(log("h100"), log("mi300x")).conditions == ()
    stated = log("mi300x")
    stated = stated.changed(provenance=stated.provenance.changed(assumed={"model.shape": "--shape"}))
    fairness = judge(log("h100"), stated)
    assert (fairness.conditions, fairness.verdict) == (("trainable parameters",), "same_work")


@in_each("name", ["llama2_70b_lora", "llama-qlora", "llama-frozen-embeddings"])
def test_a_name_that_hints_at_lora_or_freezing_gives_no_ratio_with_full_training(name):
    hinting = log("mi300x")
    fairness = judge(log("h100"), with_model(hinting, name=name))
    assert fairness.verdict == "not_comparable"
    assert "LoRA or frozen layers" in fairness.sentence


def test_several_conditions_are_one_sentence():
    fairness = judge(log("h100"), with_model(log("mi300x"), shape=None, preset=None))
    assert fairness.conditions == ("model shape", "trainable parameters")
    assert "at least one side does not state the model shape and the trainable parameters." in fairness.sentence


def test_an_unknown_sequence_length_gives_no_ratio_and_names_the_flag():
    fairness = judge(result("h100"), changed(result("mi300x"), sequence_length=None))
    assert fairness.verdict == "not_comparable"
    assert "--sequence-length" in fairness.remedy


def test_a_log_without_a_shape_is_not_taken_for_the_tiny_model():
    tiny = result("cpu", preset="tiny")
    full_size = with_model(result("mi300x", sequence_length=128, global_batch_size=8), shape=None, preset=None)
    assert judge(tiny, full_size).verdict == "not_comparable"
    full = result("h100", sequence_length=128, global_batch_size=8)
    assert "preset tiny against full" in judge(tiny, full).sentence


# Wrong once


def test_totals_are_compared_only_between_equal_stated_numbers_of_gpus():
    known = result("h100")
    unknown = changed(rated(result("mi300x"), tokens_per_second=8.2e5, samples_per_second=100.0), num_gpus=None)
    fairness = judge(known, unknown)
    assert (fairness.verdict, fairness.metric) == ("not_comparable", None)
    assert "--num-gpus" in fairness.remedy
    totals = [rated(result(side), tokens_per_second=8e5) for side in ("h100", "mi300x")]
    assert judge(*totals).metric == "tokens_per_second"
    assert judge(totals[0], changed(totals[1], num_gpus=16)).metric is None


@in_each(
    ("rate", "needed"),
    [
        ("tokens_per_second", ["num_gpus"]),
        ("samples_per_second", ["num_gpus"]),
        ("steps_per_second", ["num_gpus", "global_batch_size"]),
    ],
)
def test_rates_are_compared_only_if_the_settings_that_normalise_them_are_stated_and_equal(rate, needed):
    sides = [rated(result(side), **{rate: 5.0}) for side in ("h100", "mi300x")]
    assert judge(*sides).metric == rate
    for field in needed:
        silent = [changed(side, **{field: None}) for side in sides]
        assert judge(sides[0], silent[1]).verdict == "not_comparable"
        assert judge(*silent).verdict == "not_comparable"
        other = changed(sides[1], **{field: 2 * getattr(sides[1].training_config, field)})
        assert judge(sides[0], other).metric is None


def test_two_shapeless_nameless_results_give_no_ratio():
    sides = [with_model(means_only(side), name=None) for side in ("h100", "mi300x")]
    assert judge(*sides).verdict == "not_comparable"
    assert judge(means_only(), means_only("mi300x")).verdict == "not_comparable"


def test_a_figure_above_the_peak_of_the_card_is_an_error_and_gives_no_verdict():
    too_fast = result("mi300x", seconds=0.9, runs=3)
    fairness = judge(result("h100", runs=3), too_fast)
    assert fairness.verdict == "not_comparable"
    assert len(fairness.errors) == 1
    assert "which is impossible" in fairness.errors[0]
    pair_of = [Loaded(path=Path(f"{n}.json"), result=one) for n, one in enumerate((result("h100", runs=3), too_fast))]
    comparison = compare(pair_of)
    assert comparison.errors == fairness.errors
    assert comparison.pairs[0].ratio.verdict == "not_comparable"


def test_flops_that_a_result_states_in_place_of_a_shape_are_compared_with_the_peak_too():
    shaped = result("mi300x", seconds=0.9, runs=3)
    stated = with_model(shaped, shape=None, training_flops_per_token=flops.charged_per_token(shaped))
    assert impossible(stated) == impossible(shaped) != ()


def test_a_reported_rate_above_the_peak_is_an_error_too():
    side = result("mi300x")
    reported = Reported(tflops_per_gpu=2000.0)
    figures = side.performance_metrics.model_copy(update={"reported": reported})
    assert judge(result("h100"), side.model_copy(update={"performance_metrics": figures})).errors


def test_an_unknown_precision_is_compared_with_the_highest_peak_of_the_card():
    assert not judge(result("h100"), changed(result("mi300x", seconds=8.0), precision=None)).errors
    assert judge(result("h100"), changed(result("mi300x", seconds=0.3), precision=None)).errors


def test_frozen_weights_cost_four_flops_with_adapters_and_are_unknown_otherwise():
    full = calculate_metrics(result("h100"))["flops_per_token"].value
    lora = calculate_metrics(changed(result("h100"), peft="lora"))
    assert lora["flops_per_token"].value == pytest.approx(full * 0.708, rel=0.001)
    frozen = calculate_metrics(with_model(changed(result("h100"), peft=None), trainable_parameters=10**9))
    assert frozen["mfu"].value is None
    assert "only some parameters train" in frozen["mfu"].because
    assert calculate_metrics(with_model(log("h100"), name="llama-lora"))["mfu"].value is None


def test_a_window_that_no_sequence_reaches_is_not_a_difference():
    full = result("h100", model="mistral", sequence_length=2048)
    shape = full.model.shape
    assert shape.sliding_window == 4096
    unlimited = full.model.model_copy(update={"shape": shape.model_copy(update={"sliding_window": None})})
    assert judge(full, full.model_copy(update={"model": unlimited})).verdict == "identical"
    longer = changed(full, sequence_length=8192)
    assert judge(longer, longer.model_copy(update={"model": unlimited})).verdict == "not_comparable"


@pytest.mark.parametrize(
    ("ours", "theirs"), [({"optimizer": "adam"}, {"optimizer": "AdamW"}), ({"data": "mock"}, {"data": "synthetic"})]
)
def test_two_names_of_one_thing_are_equal(ours, theirs):
    base = result("h100")
    assert judge(changed(base, **ours), changed(base, **theirs)).verdict == "identical"


def test_software_versions_do_not_lower_the_verdict_level():
    base = result("h100")
    assert judge(base, changed(base, framework_version="25.11", versions={"torch": "2.9"})).verdict == "identical"
    pair = judge(changed(base, versions={"torch": "2.8"}), changed(base, versions={"torch": "2.9"}))
    assert [(d.field, d.weight) for d in pair.differences] == [("versions", "context")]


def test_a_difference_in_any_number_of_the_shape_prevents_a_comparison():
    windowed = result("h100").model.shape.model_copy(update={"sliding_window": 100})
    base = with_model(result("h100"), shape=windowed)
    parts = {
        "experts": Experts(count=8, active=2, ffn_hidden_size=64, layers=4),
        "latent_attention": LatentAttention(
            key_value_rank=32, plain_head_dim=16, rotated_head_dim=8, value_head_dim=16
        ),
    }
    for name, value in ModelShape.model_fields.items():
        if name == "summed_products":
            continue  # what recomputation costs, of which a log says nothing
        old = getattr(base.model.shape, name)
        new = (not old) if value.annotation is bool else parts.get(name) or (old or 1000) + 1
        shape = base.model.shape.model_copy(update={name: new})
        assert judge(base, with_model(base, shape=shape)).verdict == "not_comparable", name


def test_the_signature_holds_every_identifying_field():
    named = sum(field.identifies for field in FIELDS)
    assert len(signature(result("h100"))) == named + 2  # platform and device
    assert len({field.key for field in FIELDS}) == len(FIELDS)


def test_a_result_without_model_facts_is_judged_without_an_error():
    bare = means_only().model_copy(update={"model": Model()})
    assert judge(bare, bare).verdict == "not_comparable"
