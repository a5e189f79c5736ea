"""Results and cells against the limits that a preflight measured."""

import pytest
from each import in_each
from preflights import made

from tensorprimat.analysis import roofline
from tensorprimat.analysis.metrics import MetricChoices, calculate_metrics
from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.models import flops, presets
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots import micro as cell_plots
from tensorprimat.session.roofline import roofline_of
from tensorprimat.storage import micro_result, preflight
from tensorprimat.storage.micro_result import MicroResult


def trained(**changed):
    return Result(
        platform="nvd",
        gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", total_memory_gb=85.0),
        model=Model(name="llama", preset="full", shape=presets.find_preset("llama").shape),
        training_config=TrainingConfig(
            sequence_length=8192, micro_batch_size=1, gradient_accumulation_steps=4, precision="bf16", num_gpus=1
        ),
        performance_metrics=PerformanceMetrics(tokens_per_second_per_gpu=8000.0, avg_step_time_seconds=1.0),
        provenance=Provenance(host="node1"),
        **changed,
    )


def test_a_result_is_compared_with_the_preflight_of_its_own_machine():
    found = calculate_metrics(trained(), MetricChoices(preflights=[made()]))
    assert found["achievable_fraction"].value == pytest.approx(found["model_tflops_per_gpu"].value / 700)
    source = [one.source for one in found["achievable_fraction"].inputs if "matrix rate" in one.name]
    assert source == ["preflight of node1, 2026-01-02T03:04:05+00:00"]


def test_a_training_faster_than_the_best_matrix_product_has_a_remark():
    slow = made(matmul=tuple(row.model_copy(update={"best_flops_per_second": 3e14}) for row in made().matmul))
    usual, above = (
        calculate_metrics(trained(), MetricChoices(preflights=[one]))["achievable_fraction"] for one in (made(), slow)
    )
    assert (usual.remark, above.value) == (None, pytest.approx(usual.value * 7 / 3))
    assert above.remark == (
        "above 100 %: no training is faster than the best matrix product; check the work of the training, and the "
        "product (preflight of node1, 2026-01-02T03:04:05+00:00)"
    )


def test_another_machines_preflight_is_not_used_for_a_result():
    found = calculate_metrics(trained(), MetricChoices(preflights=[made(host="node2")]))
    assert all("preflight" not in (one.source or "") for one in found["achievable_fraction"].inputs)


def test_the_roof_is_the_lower_of_bandwidth_and_matrix_rate():
    (roof,) = roofline.ceilings(made())
    assert roof.at(1.0) == 2.8e12
    assert roof.at(1e6) == 7e14
    assert roof.at(roof.ridge) == pytest.approx(7e14)


def test_a_training_result_has_a_point_under_the_roof():
    point = roofline.of_result(trained())
    assert point.flops_per_second == pytest.approx(8000 * 51_470_401_536)
    once = roofline.of_result(
        trained().model_copy(
            update={"training_config": trained().training_config.model_copy(update={"gradient_accumulation_steps": 1})}
        )
    )
    assert point.intensity > once.intensity > roofline.ceilings(made())[0].ridge


def test_a_training_whose_norm_is_several_kernels_moves_more_bytes():
    def intensity(**configuration):
        config = trained().training_config.model_copy(update=configuration)
        return roofline.of_result(trained().model_copy(update={"training_config": config})).intensity

    unfused, fused = "linear cross-entropy, AdamW", "RMS norm, linear cross-entropy, AdamW"
    assert intensity(fused_kernels=unfused) < intensity(fused_kernels=fused) == intensity()
    compiled = [intensity(fused_kernels=kernels, compile=True) for kernels in (unfused, fused)]
    assert compiled[0] == compiled[1] > intensity()


def test_a_cell_moves_the_bytes_of_the_norm_that_it_recorded():
    cell = MicroResult(
        model_size="s", d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab=100, context_length=64, batch_size=1,
        pass_name="train", precision="bf16", num_warmups=0, num_trials=1, trial_times_ms=(1.0,), platform="nvd",
        device="cuda",
    )  # fmt: skip
    cells = [micro_result.with_figures(cell.changed(fused_norm=fused)) for fused in (None, True, False)]
    earlier, fused, unfused = (point.intensity for point in roofline.of_cells(cells))
    assert unfused < fused == earlier


def test_a_shape_of_no_published_model_counts_by_its_own_dimensions():
    shape = trained().model.shape.model_copy(update={"vocab_size": 32_000})
    other = trained().model_copy(update={"model": Model(name="own", shape=shape)})
    assert roofline.of_result(other).flops_per_second == pytest.approx(8000 * flops.per_token(shape, 8192))


def test_a_result_of_unknown_shape_is_not_on_the_roofline():
    assert roofline.of_result(trained().model_copy(update={"model": Model(name="llama")})) is None


@in_each(("recompute", "has_point"), [(None, True), ("none", True), ("full", False), ("selective", False)])
def test_a_training_that_recomputes_activations_is_not_on_the_roofline(recompute, has_point):
    config = trained().training_config.changed(recompute=recompute)
    assert (roofline.of_result(trained().changed(training_config=config)) is not None) == has_point


def test_the_accumulation_of_a_training_follows_from_its_sizes_where_it_is_not_stated():
    """Batch 128 of micro batches of 1 on 8 GPUs: 16 micro batches share the optimizer's traffic."""

    def point(**configuration):
        config = trained().training_config.changed(num_gpus=8, global_batch_size=128, **configuration)
        return roofline.of_result(trained().changed(training_config=config))

    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    stated, derived = point(gradient_accumulation_steps=16), point(gradient_accumulation_steps=None, **sizes)
    assert derived.intensity == stated.intensity > 1.2 * point(gradient_accumulation_steps=1).intensity
    assert point(gradient_accumulation_steps=None) is None
    assert point(gradient_accumulation_steps=None, micro_batch_size=None) is None


def test_a_training_with_frozen_weights_is_not_on_the_roofline():
    frozen = trained().model.changed(parameters=10, trainable_parameters=1)
    assert roofline.of_result(trained().changed(model=frozen)) is None
    adapted = trained().training_config.changed(peft="lora")
    assert roofline.of_result(trained().changed(training_config=adapted)) is None


def test_a_training_of_another_machine_is_not_compared_with_the_ceilings_of_this_one(tmp_path):
    preflight.save(made(), tmp_path)
    (tmp_path / "cells").mkdir()
    elsewhere = trained().changed(gpu_info=GpuInfo(device_name="AMD Instinct MI300X"), platform="amd")
    for name, result in (("here", trained()), ("there", elsewhere)):
        (tmp_path / f"{name}.json").write_text(result.model_dump_json())
    roof = roofline_of(tmp_path / "cells", [tmp_path / "there.json", tmp_path / "here.json"])
    assert (roof.machine, len(roof.points)) == ("NVIDIA H100 80GB HBM3", 1)
    (sentence,) = roof.left_out
    assert sentence.startswith(f"{tmp_path / 'there.json'}: not on the roofline, whose ceilings are those of NVIDIA")


def test_a_roofline_without_a_preflight_names_the_remedy(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = MicroResult(
        model_size="s", d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab=100, context_length=8, batch_size=1,
        pass_name="train", precision="fp32", num_warmups=0, num_trials=1, trial_times_ms=(1.0,), platform="cpu",
    )  # fmt: skip
    micro_result.save(micro_result.with_figures(cell), tmp_path / "cells" / cell.file_name)
    assert main(["aggregate", "cells", "--roofline", "roof.png"]) == 2
    assert "run tprimat preflight there first" in capsys.readouterr().err


def test_a_training_that_is_not_on_the_roofline_is_named(tmp_path):
    preflight.save(made(), tmp_path)
    (tmp_path / "cells").mkdir()
    files = [tmp_path / "plain.json", tmp_path / "recomputed.json"]
    again = trained().changed(training_config=trained().training_config.changed(recompute="full"))
    for file, result in zip(files, (trained(), again), strict=True):
        file.write_text(result.model_dump_json())
    roof = roofline_of(tmp_path / "cells", files)
    assert len(roof.points) == 1
    (sentence,) = roof.left_out
    assert sentence.startswith(f"{files[1]}: not on the roofline")


def test_a_roofline_without_a_point_says_why_a_training_result_has_none(tmp_path):
    (tmp_path / "cells").mkdir()
    again = trained().changed(training_config=trained().training_config.changed(recompute="full"))
    (tmp_path / "again.json").write_text(again.model_dump_json())
    with pytest.raises(UsageError, match=r"no measured cell .*; .*again\.json: not on the roofline"):
        roofline_of(tmp_path / "cells", [tmp_path / "again.json"])


def test_a_broken_training_result_is_named_where_others_make_the_roofline(tmp_path):
    preflight.save(made(), tmp_path)
    (tmp_path / "cells").mkdir()
    files = [tmp_path / "one.json", tmp_path / "two.json", tmp_path / "half.json"]
    for file in files[:2]:
        file.write_text(trained().model_dump_json())
    files[2].write_text('{"platform": "cuda", "perform')
    roof = roofline_of(tmp_path / "cells", files)
    assert len(roof.points) == 2
    (sentence,) = roof.left_out
    assert sentence.startswith(f"left out: {files[2]}")


def test_the_axes_of_a_rooflines_picture_have_numbers_in_teraflops_and_the_legend_no_exponent():
    seen = []

    def draw(figure):
        roofs = roofline.ceilings(made())
        cell_plots.roofline(figure, roofs, [roofline.of_result(trained())], machine="an H100")
        figure.canvas.draw()
        (axes,) = figure.axes
        for axis, place in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = axis.get_view_interval()
            seen.append(
                [tick.get_text() for tick in axis.get_ticklabels() if low <= tick.get_position()[place] <= high]
            )
        seen.append([one.get_text() for one in axes.get_legend().get_texts()])

    assert canvas.picture(draw).startswith(b"\x89PNG")
    intensities, rates, labels = seen
    assert {"100", "1,000"} <= set(intensities)
    assert {"500"} <= set(rates)
    assert "bf16: 700 TFLOP/s, 2,800 GB/s" in labels
