"""Configurations to compare with: from the catalogue into a run, onto its result, and never mixed in a comparison."""

import re
from pathlib import Path

import pytest
from each import in_each
from plausible import result as plausible_result

from tensorprimat.analysis.compare import compare
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings
from tensorprimat.engines import methodology, prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.facts import methodologies
from tensorprimat.machine.platform import Machine
from tensorprimat.reports import notices
from tensorprimat.session import run_summary, runs
from tensorprimat.storage.store import Loaded


def machine(name, platform="nvd", count=8, memory_gb=85.0):
    gpu = GpuInfo(device_name=name, device_count=count, total_memory_gb=memory_gb)
    return Machine(platform=platform, gpu_info=gpu, host="here")


H100 = machine("NVIDIA H100 80GB HBM3")
A100 = machine("NVIDIA A100-SXM4-80GB")
MI300X = machine("AMD Instinct MI300X", "amd", memory_gb=206.0)


def spec(on, model="llama", engine="nemo", **changes):
    settings = RunSettings(**{"steps": 20, "warmup_steps": 5, "seed": 1, **changes})
    made = prepare.spec_of(model, settings, engine=ENGINES[engine], machine=on)
    prepare.check_precision(made, on)
    return made


def configuration(made):
    return (
        made.precision, made.tensor_model_parallel_size, made.context_parallel_size, made.micro_batch_size,
        made.global_batch_size, made.sequence_length,
    )  # fmt: skip


MI355X = machine("AMD Instinct MI355X", "amd", memory_gb=309.0)


def test_nemo_starts_from_the_work_that_both_vendors_agree_on():
    made = spec(H100)
    assert configuration(made) == ("fp8", 1, 2, 1, 128, 8192)
    assert made.methodology == "agreed"
    assert spec(H100, methodology="max").methodology == "max"


@in_each("model", ["llama", "qwen", "mistral"])
@in_each("on", [H100, MI300X, MI355X])
def test_agreed_is_the_same_work_on_every_gpu_and_the_micro_batch_divides_it(on, model):
    made = spec(on, model, methodology="agreed")
    assert (made.global_batch_size, made.sequence_length) == (128, 8192)
    assert made.global_batch_size % (made.micro_batch_size * made.data_parallel_size) == 0
    assert made.precision == ("fp8" if model == "llama" else "bf16")


@in_each(
    ("on", "model", "precision", "micro"),
    [
        (MI300X, "llama", "fp8", 2), (MI355X, "llama", "fp8", 4), (MI355X, "llama", "bf16", 4),
        (MI300X, "qwen", "bf16", 2), (MI355X, "qwen", "fp8", 4),
    ],
)  # fmt: skip
def test_agreed_keeps_the_vendors_micro_batch_as_far_as_it_divides(on, model, precision, micro):
    assert spec(on, model, methodology="agreed", precision=precision).micro_batch_size == micro


def test_a_precision_flag_selects_the_row_of_that_precision():
    made = spec(H100, precision="bf16")
    assert configuration(made) == ("bf16", 1, 2, 1, 128, 8192)
    assert made.methodology == "agreed"


@in_each(
    ("name", "memory_gb", "engine", "precision", "context", "micro"),
    [
        ("NVIDIA H100 80GB HBM3", 85.0, "nemo", "fp8", 2, 1), ("NVIDIA H100 80GB HBM3", 85.0, "bridge", "fp8", 1, 1),
        ("NVIDIA H200", 150.8, "nemo", "bf16", 2, 1), ("NVIDIA H200", 150.8, "bridge", "bf16", 2, 1),
        ("NVIDIA B200", 191.5, "nemo", "fp8", 1, 2), ("NVIDIA B200", 191.5, "nemo", "bf16", 1, 2),
        ("NVIDIA B200", 191.5, "bridge", "bf16", 1, 2), ("NVIDIA GB200", 198.0, "nemo", "fp8", 1, 4),
        ("NVIDIA GB200", 198.0, "bridge", "fp8", 1, 2), ("NVIDIA B300", 288.0, "bridge", "fp8", 1, 4),
        ("NVIDIA GB300", 288.0, "bridge", "bf16", 1, 4),
    ],
)  # fmt: skip
def test_max_is_the_published_configuration_of_that_engine_and_gpu(name, memory_gb, engine, precision, context, micro):
    on = machine(name, memory_gb=memory_gb)
    made = spec(on, engine=engine, methodology="max", precision=precision)
    assert configuration(made) == (precision, 1, context, micro, 128, 8192)
    prepare.check_memory(made, on)
    assert spec(on, engine=engine, methodology="max").precision == "fp8", "FP8 is the headline"


def test_the_torch_engine_uses_the_best_configuration_that_it_can_run_and_names_the_skipped_ones():
    made = spec(H100, engine="torch", methodology="max")
    assert configuration(made) == ("fp8", 1, 1, 1, 128, 8192), "NVIDIA's for H100 in FP8 needs no context parallelism"
    assert len(made.notes) == 1, "no configuration is skipped"
    made = spec(H100, "qwen", engine="torch", methodology="max")
    assert configuration(made) == ("bf16", 1, 1, 1, 128, 8192)
    _, _unpublished, note = made.notes
    assert "because bf16 has context parallel 2, which the torch engine lacks" in note
    assert ("Note", note) in run_summary.start_rows(made, H100, runs=1, cooldown_seconds=0)


@in_each("name", ["agreed", "max"])
@in_each(
    ("on", "own"),
    [(H100, {"vendor": "NVIDIA", "engines": "nemo or bridge"}), (MI300X, {"vendor": "AMD", "engines": "primus"})],
)
def test_a_methodology_on_the_torch_engine_states_that_kernels_and_environment_are_not_the_vendors(on, own, name):
    made = spec(on, engine="torch", methodology=name)
    (note,) = made.notes
    assert (note.code, note.field, note.values) == ("methodology_of_vendor", f"methodology {name}", own)
    assert ("Note", made.notes[0]) in run_summary.start_rows(made, on, runs=1, cooldown_seconds=0)
    assert runs.with_notes(side("h100", name).result, made).warnings[-1] == made.notes[0]
    if on is H100:
        assert spec(on, methodology=name).notes == ()


def test_a_comparison_of_one_methodology_on_two_engines_names_the_engines_and_the_note():
    made = spec(H100, engine="torch", methodology="max")
    ours, theirs = of_values("h100", "max", precision="fp8"), of_values("h100", "max", precision="fp8")
    ours, theirs = (
        Loaded(
            path=Path(f"{engine}.json"), result=runs.with_provenance(runs.with_notes(item.result, run), engine=engine)
        )
        for item, engine, run in ((ours, "torch", made), (theirs, "nemo", spec(H100, methodology="max")))
    )
    (pair,) = (comparison := compare([ours, theirs])).pairs
    assert ("engine", ("torch", "nemo")) in [(one.field, one.values) for one in pair.fairness.differences]
    assert made.notes[0] in str(notices.grouped_notices(comparison))


@pytest.mark.parametrize(("methodology", "precision"), [("max", "bf16"), ("identical", None)])
def test_a_methodology_that_the_torch_engine_cannot_run_at_all_is_refused_by_its_name(methodology, precision):
    with pytest.raises(UsageError, match=rf"\(--methodology {methodology}\): .*leave --methodology out, or --engine"):
        spec(H100, engine="torch", methodology=methodology, precision=precision)


@in_each("engine", ["nemo", "bridge"])
@in_each(
    ("on", "model", "values"),
    [
        (H100, "qwen", "those of Llama 3 8B in BF16 on H100"),
        (machine("NVIDIA H200", memory_gb=150.8), "qwen", "a choice of this project"),
        (H100, "mistral", "a choice of this project"),
        (H100, "llama", None),
    ],
)
def test_values_that_no_vendor_publishes_are_named_at_the_start_and_in_the_result(on, model, values, engine):
    for name in ("agreed", "max"):
        made = spec(on, model, engine, methodology=name)
        unpublished = f"no configuration of this model published by NVIDIA was found; the values are {values}"
        expected = () if values is None else (f"methodology {name}: {unpublished}",)
        assert made.notes == expected
        rows = run_summary.start_rows(made, on, runs=1, cooldown_seconds=0)
        assert tuple(text for title, text in rows if title == "Note") == expected
        measured = plausible_result("h100")
        assert runs.with_notes(measured, made).warnings == (*measured.warnings, *expected)
    assert spec(on, model, engine, micro_batch_size=4, context_parallel_size=1).notes == ()


def test_a_row_of_a_vendor_methodology_without_a_source_of_the_vendor_has_a_note():
    rows = [row for row in methodologies.methodologies() if row.methodology in ("agreed", "max")]
    published = re.compile(r"NVIDIA(-NeMo)?/|AMD-AGI/")
    assert {row.note is None for row in rows if published.match(row.source)} == {True}
    assert {row.note is None for row in rows if not published.match(row.source)} == {False}


GB200_NODE = machine("NVIDIA GB200", count=4, memory_gb=198.0)


def test_a_node_of_four_gpus_uses_the_configuration_that_fits_with_a_note_that_its_values_are_for_eight():
    made = spec(GB200_NODE, methodology="max")
    assert configuration(made) == ("fp8", 1, 1, 2, 128, 8192)
    skipped, of_eight = made.notes
    assert skipped.code == "configuration_skipped"
    assert re.match(r"fp8 at micro batch 4 needs about \d+ GB on each of 4 GPUs", skipped.values["why"])
    assert (of_eight.code, of_eight.values) == ("methodology_of_other_gpus", {"of": 8, "gpus": 4, "batch": 128})
    prepare.check_memory(made, GB200_NODE)
    assert spec(GB200_NODE, methodology="max", num_nodes=2).notes == ()


def test_a_gpu_without_a_methodology_is_refused_with_the_gpus_that_have_one_by_vendor_name():
    with pytest.raises(UsageError, match="no entry for mistral on AMD Instinct MI300X; it knows every NVIDIA GPU"):
        spec(MI300X, "mistral", engine="torch", methodology="max")


def test_where_no_configuration_fits_the_remedy_names_the_flags_that_the_methodology_excludes():
    four = machine("NVIDIA H100 80GB HBM3", count=4)
    with pytest.raises(UsageError, match="--context-parallel-size 2 without --methodology"):
        prepare.check_memory(spec(four, engine="bridge", methodology="max"), four)


def test_a_row_of_one_engine_names_the_source_of_that_engine():
    sources = {"nemo": "NVIDIA/NeMo ", "bridge": "NVIDIA-NeMo/Megatron-Bridge "}
    rows = [row for row in methodologies.methodologies() if row.engine]
    assert {row.engine for row in rows} == set(sources)
    assert all(row.source.startswith(sources[row.engine]) for row in rows)


@in_each("on", [H100, MI300X])
@in_each("model", ["llama", "qwen", "mistral"])
def test_methodology_identical_has_equal_values_on_both_platforms(on, model):
    made = spec(on, model, methodology="identical")
    assert configuration(made) == ("bf16", 4, 1, 1, 128, 2048)
    assert (made.methodology, made.data_parallel_size, made.gradient_accumulation_steps) == ("identical", 2, 64)


def test_the_torch_engine_uses_a_methodology_only_on_request():
    assert spec(H100, engine="torch").methodology is None
    assert spec(H100, "mistral", engine="torch", methodology="max").methodology == "max"


def test_a_contradicting_flag_removes_the_methodology_from_the_run():
    made = spec(H100, global_batch_size=256)
    assert configuration(made) == ("fp8", 1, 2, 1, 256, 8192)
    assert made.methodology is None
    assert spec(H100, global_batch_size=128).methodology == "agreed"


def test_a_flag_that_contradicts_the_requested_methodology_is_refused():
    with pytest.raises(
        UsageError, match="--global-batch-size 64: --methodology identical sets 128 for llama here; leave one"
    ):
        spec(H100, methodology="identical", global_batch_size=64)


@in_each(
    ("on", "changes", "complaint"),
    [
        (H100, {"methodology": "best"}, "--methodology best: must be agreed, max, identical or classic"),
        (
            A100, {"methodology": "classic"},
            r"precision fp8 \(--methodology classic\): A100 .*has no FP8 matrix units; use --precision bf16",
        ),
        (A100, {"precision": "fp8"}, "--precision fp8: A100 .*has no FP8 matrix units; use --precision bf16"),
        (A100, {"methodology": "max"}, "has no entry for llama on NVIDIA A100-SXM4-80GB; it knows H100 SXM"),
        (
            H100, {"methodology": "max", "precision": "fp16"},
            "has no entry for llama in fp16 on NVIDIA H100 80GB HBM3",
        ),
        (machine("NVIDIA H100 80GB HBM3", count=2), {"methodology": "identical"}, "2 devices .* change --num-gpus"),
        (H100, {"methodology": "identical", "preset": "tiny", "engine": "torch"}, "leave it out with --preset tiny"),
        (machine("some CPU", "cpu"), {"methodology": "max", "preset": "full"}, "has no entry for llama on some CPU"),
    ],
)  # fmt: skip
def test_a_methodology_that_cannot_run_here_is_refused_in_one_line(on, changes, complaint):
    with pytest.raises(UsageError, match=complaint) as refused:
        spec(on, **changes)
    assert "\n" not in str(refused.value)


def test_a_gpu_without_a_row_starts_from_the_presets_values():
    assert configuration(spec(A100)) == ("bf16", 1, 1, 1, 128, 8192)
    assert spec(A100).methodology is None


def test_a_log_gets_the_methodology_only_if_it_does_not_contradict_it():
    log = plausible_result("mi300x", micro_batch_size=1, global_batch_size=128, sequence_length=2048)
    assert methodology.label(log, "classic").methodology == "classic"
    config = log.training_config.model_copy(update={"sequence_length": 8192})
    contradicted = methodology.label(log.model_copy(update={"training_config": config}), "classic")
    assert contradicted.methodology is None
    told = contradicted.remarks[-1]
    assert (told.code, told.field) == ("methodology_contradicted", "methodology")
    assert told.values == {"name": "classic", "values": "sequence_length 8192 instead of 2048"}


def test_a_log_of_values_that_no_vendor_publishes_says_so():
    log = plausible_result("h100", micro_batch_size=1, global_batch_size=128, sequence_length=8192)
    config = log.training_config.model_copy(update={"precision": "bf16", "context_parallel_size": 1})
    of_mistral = {"model": log.model.model_copy(update={"name": "mistral"}), "training_config": config}
    labelled = methodology.label(log.model_copy(update=of_mistral), "max")
    assert labelled.methodology == "max"
    assert labelled.warnings[-1].startswith("methodology max: no configuration of this model published by NVIDIA")


def side(machine, methodology):
    result = plausible_result(machine, seed=len(methodology)).model_copy(update={"methodology": methodology})
    return Loaded(path=Path(f"{machine}_{methodology}.json"), result=result)


def test_sides_of_different_methodologies_are_not_compared():
    files = [side("h100", "max"), side("h100", "identical"), side("mi300x", "identical")]
    (pair,) = compare(files).pairs
    assert pair.baseline.result.methodology == "identical"
    assert "methodology identical" in pair.baseline.label


def test_max_of_two_vendors_with_unequal_batches_names_the_methodology_that_compares():
    def with_work(machine, batch, length):
        item = side(machine, "max")
        config = item.result.training_config.model_copy(update={"global_batch_size": batch, "sequence_length": length})
        return Loaded(path=item.path, result=item.result.model_copy(update={"training_config": config}))

    (pair,) = compare([with_work("h100", 128, 8192), with_work("mi300x", 640, 2048)]).pairs
    assert pair.fairness.verdict == "not_comparable"
    assert "./benchmark.py --methodology agreed" in pair.fairness.sentence


def of_values(machine, name, **values):
    item = side(machine, name)
    base = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1}
    base |= {"micro_batch_size": 1, "global_batch_size": 128, "sequence_length": 8192, "precision": "bf16"}
    config = item.result.training_config.model_copy(update={**base, **values})
    return Loaded(path=item.path, result=item.result.model_copy(update={"training_config": config}))


def test_max_and_agreed_with_equal_rows_are_reported_as_equal():
    h100 = of_values("h100", "max", precision="fp8", context_parallel_size=2)
    mi300x = of_values("mi300x", "agreed", precision="fp8", micro_batch_size=2)
    (pair,) = compare([h100, mi300x]).pairs
    assert pair.fairness.verdict == "same_work"
    assert "methodology names differ (max against agreed), but both sides use every value of agreed" in (
        pair.fairness.sentence
    )
    other = of_values("mi300x", "agreed", precision="fp8", micro_batch_size=4)
    (pair,) = compare([h100, other]).pairs
    assert pair.fairness.verdict == "not_comparable", "a value of neither methodology"


def test_equal_values_under_two_names_are_compared():
    (pair,) = compare([of_values("h100", "max"), of_values("mi300x", "classic")]).pairs
    assert pair.fairness.verdict == "identical"
    assert "max against classic), but every value that they set is equal" in pair.fairness.sentence
    (pair,) = compare([of_values("h100", "max"), of_values("mi300x", "classic", context_parallel_size=None)]).pairs
    assert pair.fairness.verdict == "not_comparable", "what is not stated is not equal"


def test_two_methodologies_alone_are_not_comparable():
    (pair,) = compare([of_values("h100", "max"), of_values("mi300x", "classic", micro_batch_size=4)]).pairs
    assert pair.fairness.verdict == "not_comparable"
    assert "methodology max against classic" in pair.fairness.sentence
