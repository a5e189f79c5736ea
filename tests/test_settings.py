"""Each setting is declared once: records, options, identity and reports agree with its row."""

import pytest
from each import in_each
from pydantic import ValidationError

from tensorprimat.cli import main
from tensorprimat.core import quantities, settings
from tensorprimat.core.errors import DoesNotFitError, UsageError
from tensorprimat.core.identity import FIELDS
from tensorprimat.core.records import Record
from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.spec import RunSettings, RunSpec
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.facts import methodologies
from tensorprimat.machine.platform import detect_platform
from tensorprimat.reports import facts

SIZES = ("sequence_length", "global_batch_size", "micro_batch_size", "num_gpus")


def test_a_setting_is_a_field_of_each_record_that_has_it():
    seen = set(TrainingConfig.model_fields) - {"versions", "environment"}
    assert seen == {one.name for one in settings.SETTINGS if one.in_results}
    assert not seen & {"preset", "methodology", "steps", "master_weights"}
    with_option = {one.name for one in settings.WITH_OPTION}
    assert with_option == set(RunSettings.model_fields) - {"config"} == with_option & set(RunSpec.model_fields)


def test_only_a_record_of_settings_reads_the_word_of_a_setting_that_a_copy_gets():
    class Other(Record):
        recompute: str = ""

    assert type(Other().changed(recompute="full").recompute) is str
    assert type(TrainingConfig().changed(recompute="full").recompute) is Recompute


def test_a_setting_is_none_where_nothing_chose_or_stated_it_and_has_a_value_in_a_run():
    chosen, seen = RunSettings(), TrainingConfig()
    assert (chosen.steps, chosen.compile, chosen.precision, seen.num_nodes, seen.recompute) == (
        20, None, None, None, None,
    )  # fmt: skip
    required = {name for name, field in RunSpec.model_fields.items() if field.is_required()}
    assert required == {"model", "engine", "preset", "precision", *SIZES}
    with pytest.raises(ValidationError, match="precision"):
        RunSpec.model_validate(
            dict.fromkeys(SIZES, 1) | {"model": "m", "engine": "e", "preset": "p", "precision": None}
        )


def test_a_result_keeps_the_order_of_its_settings():
    assert list(TrainingConfig.model_fields)[:3] == ["max_steps", "warmup_steps", "global_batch_size"]
    assert list(TrainingConfig.model_fields)[-4:] == ["framework", "framework_version", "versions", "environment"]


@in_each(
    ("text", "of_layers", "operations", "kept_share"),
    [
        ("none", 0, None, None), ("full", 1, Recompute.OPERATIONS, None), ("every second layer", 0.5, None, None),
        ("selective", None, None, None), ("35%", None, None, 0.35), ("0%", None, None, None),
        ("101%", None, None, None),
        ("35 % of activations kept: queries, up recomputed", None, ("queries", "up"), None),
        ("99 % of activations kept: no product recomputed", None, (), None),
    ],
)  # fmt: skip
def test_a_word_for_recomputation_has_one_meaning_in_every_record(text, of_layers, operations, kept_share):
    for recompute in (
        TrainingConfig(recompute=text).recompute,
        TrainingConfig().changed(recompute=text).recompute,
        RunSettings(recompute=text).recompute,
    ):
        assert recompute == text
        assert (recompute.of_layers, recompute.operations, recompute.kept_share) == (of_layers, operations, kept_share)


def test_another_spelling_of_a_recomputation_is_read_and_kept():
    config = TrainingConfig.model_validate_json('{"recompute": "True"}')
    assert (config.recompute.word, config.model_dump(mode="json")["recompute"]) == (Recompute.ALL_LAYERS, "True")
    assert Recompute("off").word == Recompute.NONE


@in_each("name", sorted({setting.name for setting in settings.WITH_OPTION} - set(prepare.RESOLVED)))
def test_the_value_of_a_flag_reaches_the_run(name):
    option = settings.option(name)
    value = option.choices[-1] if option.choices else option.default + 1
    chosen = RunSettings(**{"steps": 3, "warmup_steps": 1, "seed": 1, "preset": "tiny", name: value})
    spec = prepare.spec_of("llama", chosen, engine=ENGINES["torch"], machine=detect_platform(cpu=True))
    assert getattr(spec, name) == value


def test_parallel_sizes_name_every_engine_that_has_them():
    having = [engine.name for engine in ENGINES.values() if engine.tensor_parallel]
    for name in settings.MODEL_PARALLEL:
        assert settings.option(name).engine == f"engines {', '.join(having[:-1])} and {having[-1]}"


def test_the_choices_of_methodology_are_those_of_the_catalogue():
    known = {row.methodology for row in methodologies.methodologies()}
    assert set(settings.option("methodology").choices) == known


def test_every_setting_that_a_comparison_weighs_has_a_row_in_the_report():
    shown = {row.label for row in (*facts.CONFIGURATION_ROWS, *facts.HARDWARE)}
    weighed = [setting for setting in settings.SETTINGS if setting.weight in ("work", "configuration")]
    missing = {setting.name for setting in weighed if setting.heading not in shown}
    assert missing == {"num_gpus"}  # "Devices used" there
    assert {setting.name for setting in weighed} <= {field.key for field in FIELDS}


def test_every_option_of_a_setting_is_in_the_help_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["run", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for setting in settings.WITH_OPTION:
        flag = setting.option.flag.partition("/")[0]
        assert sum(line.strip().startswith((f"{flag} ", setting.option.flag)) for line in lines) == 1, flag


def test_the_shell_completes_the_values_of_an_option(capsys, monkeypatch):
    monkeypatch.setenv("_TPRIMAT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "tprimat run --precision b")
    monkeypatch.setenv("COMP_CWORD", "3")
    main([])
    assert capsys.readouterr().out.split() == ["bf16"]


@in_each(
    ("flag", "value", "least"),
    [("--steps", "0", 1), ("--sequence-length", "1", 2), ("--context-parallel-size", "0", 1), ("--nodes", "0", 1)],
)
def test_a_setting_below_its_least_value_is_refused_by_its_flag(flag, value, least, capsys):
    assert main(["run", "--model", "llama", "--engine", "torch", flag, value, "--dry-run"]) == 2
    assert f"{flag} {value}: must be at least {least}" in capsys.readouterr().err


@in_each(
    ("flag", "name"),
    [("--strategy", "strategy"), ("--fp8-recipe", "fp8_recipe"), ("--attention", "attention_backend"),
     ("--precision", "precision"), ("--master-weights", "master_weights"), ("--methodology", "methodology")],
)  # fmt: skip
def test_a_value_that_is_none_of_an_options_choices_is_refused_before_anything_is_planned(flag, name, capsys):
    assert main(["run", "--model", "llama", flag, "other", "--dry-run"]) == 2
    choices = quantities.alternatives(settings.option(name).choices)
    assert capsys.readouterr() == ("", f"tprimat run: {flag} other: must be {choices}\n")


@in_each(
    ("word", "run"),
    [("none", Recompute.NONE), ("full", Recompute.ALL_LAYERS), ("selective", Recompute.SECOND_LAYERS),
     ("35%", Recompute.NONE), ("20 % of activations kept: up recomputed", "20 % of activations kept: up recomputed")],
)  # fmt: skip
def test_a_run_has_the_meaning_of_a_word_for_recomputation_and_what_was_chosen_keeps_the_word(word, run):
    assert RunSettings(recompute=word).recompute == word
    spec = RunSpec(model="m", engine="e", preset="p", precision="bf16", recompute=word, **dict.fromkeys(SIZES, 2))
    assert spec.recompute == run == RunSpec.model_validate_json(spec.model_dump_json()).recompute


def test_an_option_of_the_torch_engine_is_refused_where_another_engine_would_ignore_it():
    chosen = RunSettings(steps=2, warmup_steps=1, seed=1, strategy="fsdp")
    with pytest.raises(UsageError, match="--strategy: only the torch engine has it"):
        prepare.spec_of("llama", chosen, engine=ENGINES["nemo"], machine=detect_platform())


@pytest.mark.parametrize("order", [("--compile", "--no-compile"), ("--no-compile", "--compile")])
def test_a_switch_and_its_opposite_are_refused(tmp_path, capsys, order):
    assert main(["run", "--engine", "torch", *order, "--dry-run", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == ("tprimat run: --compile and --no-compile contradict each other; leave one out\n")


@in_each(
    ("stated", "recipe"),
    [
        ("delayed", "delayed"), ("hybrid, delayed scaling", "delayed"), ("hybrid delayed", "delayed"),
        ("DelayedScaling", "delayed"), ("hybrid, current scaling", "tensorwise"), ("current", "tensorwise"),
        ("Float8CurrentScaling", "tensorwise"), ("MXFP8BlockScaling", "mxfp8"), ("rowwise", "rowwise"),
        ("rowwise_with_gw_hp", "rowwise_with_gw_hp"), ("MXFP8", "MXFP8"), (None, None),
    ],
)  # fmt: skip
def test_one_fp8_recipe_has_one_name_in_every_result(stated, recipe):
    assert TrainingConfig(precision="fp8", fp8_recipe=stated).fp8_recipe == recipe


def test_a_batch_that_the_micro_batch_does_not_divide_is_not_blamed_on_the_replicas():
    spec = RunSpec(
        model="llama", preset="tiny", engine="torch", steps=5, warmup_steps=1, micro_batch_size=3, global_batch_size=8,
        sequence_length=128, precision="bf16", num_gpus=1,
    )  # fmt: skip
    with pytest.raises(DoesNotFitError) as refusal:
        spec.check()
    assert str(refusal.value) == (
        "--global-batch-size 8 is not a multiple of --micro-batch-size 3 × 1 data-parallel replica; try "
        "--global-batch-size 9"
    )
    assert refusal.value.because == (
        "has --global-batch-size 8, which is not a multiple of 3 (micro batch 3 × 1 data-parallel replica)"
    )
