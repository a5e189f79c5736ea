"""MLPerf result files: the rows that are steps, their counts, and facts stated once for the run."""

import json
from pathlib import Path

import pytest
from each import in_each
from mlperf_journal import START, Journal

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.logs.format import UserFacts


def step_times(journal: Journal, seconds: float = 0.5, rows: int = 6, interval: int = 4, batch: int = 16) -> None:
    """Write NVIDIA's rows: one per interval, an evaluation after every third, and the mean of the block."""
    journal.say("run_start")
    journal.say("block_start")
    for row in range(1, rows + 1):
        steps = row * interval
        journal.track(
            {"train_step_time": seconds, "reduced_train_loss": 9.0 - 0.1 * row},
            seconds * interval,
            step=steps - 1.0,
            samples_count=float(steps * batch),
        )
        if row % 3 == 0:
            journal.track({"train_step_time": seconds}, 0.01, samples_count=3 * interval * batch)
            journal.say("eval_start")
            journal.track({"validation_step_time": 0.1}, 0.1, step=0)
            journal.track({"validation_time": 7.0}, 6.9, step=steps)
            journal.say("eval_stop")
            journal.say("block_start")
    journal.say("run_stop", None, 0.1, status="success")


def test_step_rows_carry_how_many_steps_they_average(tmp_path):
    journal = Journal(global_batch_size=16, max_sequence_length=128, submission_platform="2xNVIDIA GB200")
    journal.track({"warmup_time": 77.0}, 1.0, step=0)
    journal.track({"init_finished": 0.1}, 1.0, step=0)
    step_times(journal)
    result = journal.read(tmp_path / "run.txt", UserFacts(num_gpus=8))
    rows = [step for step in result.steps if step.covers]
    assert [(step.index, step.covers) for step in rows] == [(4 * row, 4) for row in range(1, 7)]
    assert result.performance_metrics.total_steps == 24
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16 * 128 / 0.5 / 8)
    assert (result.platform, result.gpu_info.device_name, result.training_config.num_nodes) == (
        "nvd",
        "NVIDIA GB200",
        2,
    )


def test_a_mean_over_a_block_is_shown_but_neither_measured_nor_counted_again(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    result = journal.read(tmp_path / "run.txt")
    restated = [step for step in result.steps if step.covers == 0]
    assert [step.seconds for step in restated] == [0.5, 0.5]
    assert result.performance_metrics.total_steps == 24
    assert result.performance_metrics.total_time_seconds == pytest.approx(12.0)
    assert result.performance_metrics.measured_steps == 24


def test_evaluation_between_two_rows_leaves_the_next_row_measured(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    assert not any(step.interrupted_by for step in journal.read(tmp_path / "run.txt").steps)


def test_a_row_whose_time_holds_an_evaluation_is_marked(tmp_path):
    journal = Journal(global_batch_size=16)
    journal.say("run_start")
    for row in range(1, 5):
        journal.track({"train_step_time": 0.5}, 0.5, step=row, samples_count=16 * row)
    journal.say("eval_start")
    journal.say("eval_stop", None, 7.0)
    journal.track({"train_step_time": 7.5}, 0.5, step=5, samples_count=80)
    steps = journal.read(tmp_path / "run.txt").steps
    assert [step.interrupted_by for step in steps] == ["", "", "", "", "validation"]


@in_each(("unit", "name"), [(1, "steps"), (32, "samples"), (32 * 64, "tokens")])
def test_the_unit_of_step_is_found_by_the_clock(tmp_path, unit, name):
    journal = Journal(global_batch_size=32, max_sequence_length=64)
    journal.say("run_start")
    for row in range(1, 6):
        journal.track({"train_step_timing in s": 0.2}, 2.0, step=row * 10 * unit)
    assert [step.covers for step in journal.read(tmp_path / "run.txt").steps] == [10] * 5, name


def test_rates_in_samples_per_second_stay_rates_without_step_times(tmp_path):
    journal = Journal(global_batch_size=8, submission_platform="1xMI300X")
    journal.say("run_start")
    journal.say("block_start", samples_count=0)
    for samples in (1536, 1920, 2304):
        journal.track({"throughput": 2.0}, (384 if samples > 1536 else 1536) / 2.0, step=samples)
        journal.say("eval_start")
        journal.say("eval_stop", None, 30.0)
        journal.say("block_start", samples_count=samples)
    result = journal.read(tmp_path / "run.txt", UserFacts(sequence_length=8192))
    assert [(step.index, step.covers, step.seconds) for step in result.steps] == [
        (192, 192, None),
        (240, 48, None),
        (288, 48, None),
    ]
    assert result.raw_step_times == []
    assert result.performance_metrics.samples_per_second == pytest.approx(2.0)
    assert result.performance_metrics.tokens_per_second == pytest.approx(2.0 * 8192)
    assert (result.performance_metrics.basis, result.platform) == ("reported_rates", "amd")


def test_tokens_per_second_stay_unknown_without_a_sequence_length(tmp_path):
    journal = Journal(global_batch_size=8)
    for samples in (80, 160, 240):
        journal.track({"throughput": 2.0}, 40.0, step=samples)
    result = journal.read(tmp_path / "run.txt")
    assert result.performance_metrics.tokens_per_second is None
    assert any("--sequence-length" in warning for warning in result.warnings)


@pytest.mark.parametrize(("rate", "name"), [(30.0, "samples_per_second"), (30.0 * 64, "tokens_per_second")])
def test_a_throughput_logged_with_step_times_is_kept_as_reported_in_its_own_unit(tmp_path, rate, name):
    journal = Journal(global_batch_size=16, max_sequence_length=64)
    step_times(journal)
    journal.track({"throughput": rate}, 0.1, step=24 * 16)
    performance = journal.read(tmp_path / "run.txt").performance_metrics
    assert performance.samples_per_second == pytest.approx(32.0)
    assert getattr(performance.reported, name) == pytest.approx(rate)
    assert performance.total_steps == 24


def ranks_and_settings(ranks: int, **settings: object) -> Journal:
    journal = Journal()
    for _ in range(ranks):
        journal.say("init_start")
        for key, value in settings.items():
            journal.say(key, value)
    step_times(journal)
    return journal


def test_init_keys_of_many_ranks_count_once_and_the_ranks_are_the_number_of_gpus(tmp_path):
    result = ranks_and_settings(8, global_batch_size=16).read(tmp_path / "run.txt")
    assert (result.training_config.global_batch_size, result.training_config.num_gpus) == (16, 8)
    assert result.provenance.assumed["num_gpus"] == "8 ranks that wrote init_start, one for each GPU"


@in_each(
    "settings",
    [
        {"config_filename": "config_MI355X_2x8x1.sh"},
        {"submission_platform": "3xNVIDIA H100"},
        {"tensor_parallelism": 4, "pipeline_parallelism": 4},
    ],
)
def test_ranks_that_other_evidence_contradicts_do_not_give_the_number_of_gpus(tmp_path, settings):
    result = ranks_and_settings(8, global_batch_size=16, **settings).read(tmp_path / "run.txt")
    assert result.training_config.num_gpus is None
    assert ("ranks_contradict", 8) in [(one.code, one.values.get("ranks")) for one in result.remarks]


def test_ranks_among_which_the_batch_does_not_divide_do_not_give_the_number_of_gpus(tmp_path):
    result = ranks_and_settings(7, global_batch_size=16).read(tmp_path / "run.txt")
    assert result.training_config.num_gpus is None
    assert any("a batch of 16 does not divide among them" in warning for warning in result.warnings)


def test_the_flag_overrides_the_number_of_ranks(tmp_path):
    result = ranks_and_settings(8, global_batch_size=16).read(tmp_path / "run.txt", UserFacts(num_gpus=4))
    assert result.training_config.num_gpus == 4
    assert result.provenance.assumed["num_gpus"] == "--num-gpus"


def test_a_placeholder_is_not_a_device(tmp_path):
    journal = Journal(global_batch_size=16, submission_platform="16xSUBMISSION_PLATFORM_PLACEHOLDER")
    step_times(journal)
    result = journal.read(tmp_path / "run.txt")
    assert (result.gpu_info.device_name, result.platform, result.training_config.num_nodes) == (None, None, 16)


def test_time_to_train_and_status_come_from_the_run_marks(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    reported = journal.read(tmp_path / "run.txt").performance_metrics.reported
    assert reported.time_to_train_seconds == pytest.approx(journal.now - START, abs=0.01)
    assert reported.status == "success"


def test_a_run_without_its_stop_is_incomplete(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    journal.lines.pop()
    result = journal.read(tmp_path / "run.txt")
    assert (result.complete, result.runs[0].ended_by) == (False, "the log ends before run_stop")


def test_two_trials_in_one_file_are_two_runs(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    step_times(journal, seconds=0.25)
    result = journal.read(tmp_path / "run.txt")
    assert [run.avg_step_time_seconds for run in result.runs] == [pytest.approx(0.5), pytest.approx(0.25)]
    assert result.performance_metrics.reported.time_to_train_seconds is None


def test_a_row_printed_twice_is_one_row(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    journal.lines = [line for line in journal.lines for _ in range(2)]
    assert journal.read(tmp_path / "run.txt").performance_metrics.total_steps == 24


def test_a_finished_run_without_step_timing_is_refused(tmp_path):
    journal = Journal(global_batch_size=16)
    journal.say("run_start")
    journal.say("run_stop", None, 6000.0, status="success")
    with pytest.raises(NotALogError, match="no step times"):
        journal.read(tmp_path / "run.txt")


@pytest.mark.parametrize("logged", [35.706, 35.706 * 2**30])
def test_peak_memory_logged_with_a_blocks_throughput_is_the_allocators(tmp_path, logged):
    journal = Journal(global_batch_size=16)
    journal.say("run_start")
    journal.say("block_start")
    for row in range(1, 7):
        journal.track({"throughput": 32.0, "train_step_time": 0.5, "max_memory_usage": logged}, 2.0, step=row * 64)
    memory = journal.read(tmp_path / "run.txt").memory_metrics
    assert memory.peak_memory_allocated_gb == pytest.approx(35.706 * 2**30 / 1e9)


def blocks(journal: Journal, *, samples: int = 1536, later: int = 384, number: int = 4, rate: float = 8.0) -> None:
    """Write the marks of AMD's Primus in v6.0: nothing but the samples so far."""
    journal.say("run_start")
    done = 0
    for block in range(number):
        size = later if block else samples
        journal.say("block_start", samples_count=done)
        done += size
        journal.say("block_stop", None, size / rate, samples_count=done)
        journal.say("eval_start", samples_count=done)
        journal.say("eval_accuracy", 0.93, 9.0, samples_count=done)
        journal.say("eval_stop", samples_count=done)
    journal.say("run_stop", None, 0.0, samples_count=done, status="success")


def test_blocks_are_rows_where_nothing_else_was_logged(tmp_path):
    journal = Journal(
        global_batch_size=8, max_sequence_length=8192, submission_platform="MI355X", tensor_parallelism=1,
        micro_batch_size=1, gradient_accumulation_steps=1, lowest_numerical_precision_linear="mxfp4",
        config_filename="config_MI355X_1x8x1.sh",
    )  # fmt: skip
    blocks(journal)
    result = journal.read(tmp_path / "run.txt")
    assert [(step.index, step.covers, step.seconds) for step in result.steps] == [
        (192, 192, 1.0),
        (240, 48, 1.0),
        (288, 48, 1.0),
        (336, 48, 1.0),
    ]
    config, performance = result.training_config, result.performance_metrics
    assert (config.num_gpus, config.precision, config.fp8_recipe, config.micro_batch_size) == (8, "fp4", "mxfp4", 1)
    assert performance.measured_steps == 336
    assert performance.tokens_per_second_per_gpu == pytest.approx(8.0 * 8192 / 8)
    assert result.provenance.assumed["num_gpus"] == "config_filename config_MI355X_1x8x1.sh"


def test_blocks_that_count_tokens_as_epochs_are_rows_too(tmp_path):
    journal = Journal(global_batch_size=16, max_sequence_length=128)
    journal.say("run_start")
    for block in range(4):
        journal.say("block_start", first_epoch_num=block * 20480, epoch_count=20480)
        journal.say("block_stop", None, 5.0, first_epoch_num=block * 20480)
    result = journal.read(tmp_path / "run.txt")
    assert [(step.covers, step.seconds) for step in result.steps] == [(10, 0.5)] * 4


def habana_bert(per_block: int = 335, evaluated: int = 150_080) -> Journal:
    """Return a run whose 20 blocks count steps as epochs; evaluations of the first 17 reach the target afterwards."""
    journal = Journal(submission_benchmark="bert", global_batch_size=448, max_sequence_length=512)
    journal.say("run_start")
    start = journal.now
    for block in range(20):
        journal.say("block_start", block + 1, first_epoch_num=block * per_block, epoch_count=per_block)
        journal.say("block_stop", block + 1, 51.5 + block % 2, first_epoch_num=(block + 1) * per_block)
    for block in range(1, 18):
        journal.now = start + 52 * block
        journal.say("eval_accuracy", 0.72, epoch_num=block * evaluated, epoch_count=block)
    journal.say("run_stop", 0.72, epoch_num=17 * evaluated, epoch_count=17, status="success")
    return journal


def test_blocks_that_count_steps_as_epochs_are_told_from_tokens_by_the_samples_of_the_evaluations(tmp_path):
    result = habana_bert().read(tmp_path / "run.txt")
    assert result.performance_metrics.measured_steps == 17 * 335
    assert result.performance_metrics.samples_per_second == pytest.approx(448 * 335 / 52, rel=0.002)
    assert not any(warning.startswith("audit") for warning in result.warnings)


@pytest.mark.parametrize(("per_block", "evaluated"), [(335, 150_000), (1, 150_080)])
def test_blocks_that_count_less_than_the_tokens_of_a_step_in_an_unknown_unit_are_not_read(
    tmp_path, per_block, evaluated
):
    with pytest.raises(NotALogError):
        habana_bert(per_block, evaluated).read(tmp_path / "run.txt")


def test_every_row_counts_after_run_start_because_warm_up_is_over_there(tmp_path):
    journal = Journal(global_batch_size=8)
    journal.say("run_start")
    for position, (steps, seconds) in enumerate([(192, 1.2), (48, 1.3), (48, 1.3), (48, 1.31), (48, 1.5)]):
        journal.say("block_start", samples_count=steps * 8, step=position)
        journal.track({"train_step_time": seconds}, steps * seconds, samples_count=steps * 8)
    result = journal.read(tmp_path / "run.txt")
    performance = result.performance_metrics
    assert (performance.measured_steps, performance.warmup_steps_dropped) == (384, 0)
    assert performance.samples_per_second == pytest.approx(384 * 8 / (192 * 1.2 + 48 * (1.3 + 1.3 + 1.31 + 1.5)))
    dropped = journal.read(tmp_path / "run.txt", UserFacts(warmup_steps=192)).performance_metrics
    assert (dropped.measured_steps, dropped.warmup_steps_dropped) == (192, 192)


def submitted(folder: Path, journal: Journal, **description: object) -> Path:
    path = folder / "NVIDIA" / "results" / "theia" / "llama31_8b" / "result_0.txt"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(journal.lines) + "\n")
    (folder / "NVIDIA" / "systems").mkdir()
    (folder / "NVIDIA" / "systems" / "theia.json").write_text(json.dumps(description))
    return path


@pytest.mark.parametrize("number", [str, int])
def test_the_system_description_next_to_a_log_names_and_counts_its_gpus(tmp_path, number):
    journal = Journal(global_batch_size=16, submission_platform="2xNVIDIA GB200")
    step_times(journal)
    description = {
        "number_of_nodes": number(2),
        "accelerators_per_node": number(4),
        "accelerator_model_name": "NVIDIA Blackwell Ultra GPU (GB300)",
    }
    result = logs.read(submitted(tmp_path, journal, **description))
    assert (result.training_config.num_gpus, result.training_config.num_nodes) == (8, 2)
    assert (result.gpu_info.device_name, result.platform) == ("NVIDIA Blackwell Ultra GPU (GB300)", "nvd")
    assert any("NVIDIA GB200" in w and "systems/theia.json says" in w for w in result.warnings)
    assert result.provenance.assumed["num_gpus"] == "systems/theia.json: 2 nodes × 4 accelerators"


@in_each("description", [{}, {"number_of_nodes": "N/A", "accelerators_per_node": ""}, {"a": [1]}])
def test_an_empty_description_changes_nothing(tmp_path, description):
    journal = Journal(global_batch_size=16, submission_platform="2xNVIDIA GB200")
    step_times(journal)
    result = logs.read(submitted(tmp_path, journal, **description))
    assert (result.gpu_info.device_name, result.training_config.num_gpus) == ("NVIDIA GB200", None)


@in_each(
    ("file", "benchmark", "target", "peft", "samples", "minutes"),
    [
        ("v5.1_amd_mi355x_llama31_8b.txt", "llama31_8b", 3.3, "none", 172_032, 95.97),
        ("v5.1_nvidia_gb200x8_llama31_8b.txt", "llama31_8b", 3.3, "none", 184_320, 68.88),
        ("v5.0_amd_mi300x_llama2_70b_lora.txt", "llama2_70b_lora", 0.925, "lora", 3072, 28.26),
    ],
)
def test_a_run_to_the_quality_target_has_its_time_and_samples(shared, file, benchmark, target, peft, samples, minutes):
    result = logs.read(shared / "logs" / "mlperf" / file)
    printed, (run,) = result.performance_metrics.reported, result.runs
    assert (printed.benchmark, printed.quality_target, result.training_config.peft) == (benchmark, target, peft)
    assert run.samples_to_train == samples
    assert run.time_to_train_seconds / 60 == pytest.approx(minutes, abs=0.01)


def test_rows_that_state_where_their_block_began_measure_the_steps_up_to_the_next(tmp_path):
    journal = Journal(global_batch_size=8)
    journal.say("run_start")
    sizes = (1536, 384, 384, 384)
    for block, size in enumerate(sizes):
        began = sum(sizes[:block])
        journal.say("block_start", samples_count=began)
        journal.track({"throughput": 8.0, "train_step_time": 1.0}, size / 8.0, step=began)
        journal.say("block_stop", samples_count=began)
        journal.say("eval_start", samples_count=began + size)
        journal.say("eval_stop", None, 9.0, samples_count=began + size)
    journal.say("run_stop", None, 0.0, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert [step.covers for step in result.steps] == [192, 48, 48, 48]
    assert result.audit.ratio == pytest.approx(1.0)


@pytest.mark.parametrize("is_first_long", [False, True])
def test_throughputs_of_bert_count_samples_as_epochs_and_the_evaluation_before_them(tmp_path, is_first_long):
    journal = Journal(submission_benchmark="bert", global_batch_size=700)
    journal.say("run_start")
    journal.say("block_start", first_epoch_num=1, epoch_count=1)
    done, pause = 0, 0.0
    for number in range(1, 21):
        done += 140_000 + number
        seconds = 140_000 / 8000
        journal.track({"throughput": (140_000 + number) / (seconds + pause)}, seconds, epoch_num=done)
        pause = 6.0 if is_first_long and number == 1 else 1.0
        journal.say("eval_start", done, epoch_num=done)
        journal.say("eval_stop", done, pause, epoch_num=done)
    journal.say("block_stop", first_epoch_num=1)
    journal.say("run_stop", status="success")
    mean = {"throughput": done / (journal.now - START), "epoch_num": done}
    journal.track(mean, 0.0, step=[2, 4000])
    result = journal.read(tmp_path / "result_0.txt")
    figures = result.performance_metrics
    assert (figures.total_steps, figures.measured_steps) == (4000, 4000)
    assert figures.samples_per_second == pytest.approx(8000, rel=1e-3)
    assert figures.total_time_seconds == pytest.approx(20 * 17.5, rel=1e-3)
    assert result.audit.ratio == pytest.approx(1, rel=1e-2)
    warned = " ".join(result.warnings)
    assert all(sign not in warned for sign in ("audit:", "segments:", "restarts", "contradict")), warned


def test_a_throughput_whose_progress_counts_epochs_covers_the_steps_of_its_time(tmp_path):
    journal = Journal(global_batch_size=100)
    journal.say("run_start")
    for number in range(1, 6):
        journal.say("block_start", first_epoch_num=number)
        journal.track({"throughput": 1000.0}, 20.0, epoch_num=number)
        journal.say("block_stop", first_epoch_num=number)
    journal.say("run_stop", status="success")
    assert journal.read(tmp_path / "result_0.txt").performance_metrics.total_steps == 5 * 200


def test_a_row_after_run_stop_is_no_training_of_its_own(tmp_path):
    journal = Journal(submission_benchmark="retinanet", global_batch_size=256)
    journal.say("run_start")
    for epoch in range(4):
        journal.say("epoch_start", epoch, epoch_num=epoch)
        journal.track({"throughput": 3800.0}, 308.0, step=epoch + 1)
        journal.say("eval_start", epoch, epoch_num=epoch)
        journal.say("eval_stop", epoch, 30.0, epoch_num=epoch)
    journal.say("run_stop", None, 4.0, status="success")
    journal.track({"throughput": 3950.0}, 0.001, step=5)
    result = journal.read(tmp_path / "result_0.txt")
    figures = result.performance_metrics
    assert figures.samples_per_second == pytest.approx(3800)
    assert figures.total_steps == pytest.approx(4 * 308 * 3800 / 256, abs=4)
    assert (result.complete, result.runs[0].segments) == (True, 1)
    assert result.runs[0].time_to_train_seconds == pytest.approx(4 * 338 + 4)


@in_each(
    ("platform", "device"),
    [
        ("1xESC-N8-E11", None),
        ("4xHPE Cray XD670", None),
        ("8xAS-A126GS-TNBR", None),
        ("2xXE9680x8H100-SXM-80GB", "H100-SXM-80GB"),
        ("SR780aV3-8xB200_SXM_180GB", "B200-SXM-180GB"),
        ("128xBM.GPU.H100.8", "H100"),
        ("nebius_h200_n128", "H200"),
        ("16xNVIDIA GB200", "NVIDIA GB200"),
        ("tpu-v5p", "tpu-v5p"),
        ("1xMI325X", "MI325X"),
    ],
)
def test_a_system_that_names_its_gpu_gives_the_device_and_any_other_does_not(tmp_path, platform, device):
    journal = Journal(global_batch_size=16, submission_platform=platform)
    step_times(journal)
    result = journal.read(tmp_path / "result_0.txt")
    warned = [warning for warning in result.warnings if "the name of a system and not of a GPU" in warning]
    assert (result.gpu_info.device_name, bool(warned)) == (device, device is None)
    assert (result.platform is None) == (device in (None, "tpu-v5p"))


def test_the_launcher_names_the_device_where_the_platform_names_a_system(tmp_path):
    journal = Journal(global_batch_size=16, submission_platform="1cc_n2")
    described = {
        "number_of_nodes": "2",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H100 80GB HBM3",
    }
    journal.lines.append(":::SYSJSON " + json.dumps(described))
    step_times(journal)
    assert journal.read(tmp_path / "result_0.txt").gpu_info.device_name == "NVIDIA H100 80GB HBM3"
