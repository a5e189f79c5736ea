"""Tables of metrics: Weights & Biases exports, CSV and JSON lines of any trainer, by the names of their columns."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import InputError, NotALogError
from tensorprimat.core.units import GIB
from tensorprimat.core.user_facts import UserFacts
from tensorprimat.logs import metrics
from tensorprimat.logs.text import Log


def as_csv(rows: Sequence[dict[str, Any]], *, index: bool = False) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*([""] if index else []), *names])
    for number, row in enumerate(rows):
        writer.writerow([*([number] if index else []), *(row.get(name, "") for name in names)])
    return buffer.getvalue()


def as_lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_document(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=1)


SHAPES = {"csv": as_csv, "json lines": as_lines, "json": as_document}
each_shape = pytest.mark.parametrize("shape", SHAPES)


def history(count: int = 20, step: float = 2.0, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "_step": n,
            "_runtime": 30 + n * step + 0.0123,
            "_timestamp": 1.75e9 + n * step + 0.0123,
            "train/loss": 3 - n / 100,
            **{name: value(n) if callable(value) else value for name, value in more.items()},
        }
        for n in range(1, count + 1)
    ]


@each_shape
@pytest.mark.parametrize(
    ("more", "warned"),
    [({}, True), ({"tokens_per_second_per_gpu": 4096.5}, False), ({"step_time_s": 2, "tokens_per_step": 65544}, False)],
)
def test_a_rate_whose_name_does_not_state_its_gpus_is_warned_about(
    read_text: Any, shape: str, more: dict[str, float], warned: bool
) -> None:
    rows = [{"step": n, "loss": 2.5, "train/tokens_per_sec": 32772.0 + n, **more} for n in range(1, 30)]
    result = read_text(SHAPES[shape](rows))
    assert ("rate_of_all_assumed" in [one.code for one in result.remarks]) == warned


@in_each("unit", [1e3, 1e6, 1e9])
def test_a_clock_in_milliseconds_or_finer_since_1970_times_the_steps_in_seconds(read_text: Any, unit: float) -> None:
    rows = [{"step": n, "loss": 3 - n / 100, "timestamp": int((1.75e9 + n / 2) * unit)} for n in range(1, 30)]
    result = read_text(as_lines(rows), format="metrics")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5)
    assert result.steps.column("ended_at")[0] == pytest.approx(1.75e9 + 0.5)


def test_the_last_row_of_a_csv_is_left_out_where_its_whole_number_was_cut(read_text: Any) -> None:
    text = as_csv([{"step": n, "loss": 2.5, "tokens_per_sec": 15100 + n} for n in range(1, 30)])
    result = read_text(text[:-4])
    assert result.performance_metrics.tokens_per_second == pytest.approx(15115, rel=0.001)
    assert "last_row_truncated" in [one.code for one in result.remarks]


@each_shape
def test_a_history_with_rates_is_read_by_the_names_of_its_columns(read_text: Any, shape: str) -> None:
    rows = history(**{"throughput/device/tokens_per_sec": 4096.5, "throughput/tokens_per_sec": 32772.0})
    result = read_text(SHAPES[shape](rows), num_gpus=8)
    assert (result.provenance.format, result.source) == ("metrics", "Weights & Biases")
    assert result.performance_metrics.tokens_per_second == pytest.approx(32772)
    assert result.performance_metrics.basis == "reported_rates"
    assert result.provenance.timing == "reported"
    assert len(result.steps) == 20


@each_shape
def test_a_history_with_nothing_but_its_clock_is_timed_from_timestamps(read_text: Any, shape: str) -> None:
    result = read_text(SHAPES[shape](history()))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert result.provenance.timing == "timestamps"
    assert "timed_by_clock" in [one.code for one in result.remarks]


def test_a_clock_of_whole_seconds_merges_rows_until_it_is_fine_enough(read_text: Any) -> None:
    rows = [{**row, "_runtime": int(row["_runtime"]), "_timestamp": int(row["_timestamp"])} for row in history(400)]
    result = read_text(as_csv(rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.01)
    timed = np.isfinite(result.steps.column("seconds"))
    assert result.steps.column("covers")[timed].min() >= 50


def test_a_clock_too_coarse_for_any_step_is_refused(read_text: Any) -> None:
    rows = [{**row, "_runtime": int(row["_runtime"]), "_timestamp": int(row["_timestamp"])} for row in history(20)]
    with pytest.raises(NotALogError, match="too coarse"):
        read_text(as_csv(rows))


@in_each("name", ["train/global_step", "iter", "optimizer_step", "train_step"])
def test_the_trainers_own_step_number_is_used_not_the_number_of_log_calls(read_text: Any, name: str) -> None:
    result = read_text(as_csv(history(**{name: lambda n: 10 * n})))
    assert result.steps.column("index").tolist()[:3] == [10, 20, 30]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.2)


def test_an_evaluation_between_two_rows_is_not_measured(read_text: Any) -> None:
    rows: list[dict[str, Any]] = history(**{"eval/loss": None})  # as an export fills the rows that lack it
    for row in rows[10:]:
        row["_runtime"] += 50
        row["_timestamp"] += 50
    rows.insert(10, {"_step": 10, "eval/loss": 2.5, "_runtime": 99.5, "_timestamp": 1.75e9 + 70})
    result = read_text(as_lines(rows))
    assert [step.index for step in result.steps if step.interrupted_by == "validation"] == [11]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


def test_tokens_seen_so_far_give_the_tokens_of_a_step(read_text: Any) -> None:
    rows = history(**{"train/num_input_tokens_seen": lambda n: n * 65536})
    performance = read_text(as_csv(rows)).performance_metrics
    assert performance.tokens_per_second == pytest.approx(32768)


def test_an_index_column_that_pandas_wrote_is_not_a_metric(read_text: Any) -> None:
    assert len(read_text(as_csv(history(), index=True)).steps) == 20


def test_a_plot_exported_from_the_web_page_is_read_without_the_runs_name(read_text: Any) -> None:
    names = ["Step", "run-7 - train/step_time_ms", "run-7 - train/step_time_ms__MIN", "run-7 - train/step_time_ms__MAX"]
    rows = [dict(zip(names, (n, 500 + n / 100, 500, 501), strict=True)) for n in range(1, 20)]
    assert read_text(as_csv(rows)).performance_metrics.avg_step_time_seconds == pytest.approx(0.5, rel=1e-3)


def test_a_plot_of_two_runs_is_refused_with_their_names(read_text: Any) -> None:
    rows = [{"Step": n, "a - train/step_time_ms": 5, "b - train/step_time_ms": 9} for n in range(9)]
    with pytest.raises(InputError, match=r"holds 2 runs \(a, b\); export one run at a time"):
        read_text(as_csv(rows))


def test_a_step_time_without_a_unit_is_taken_as_seconds_and_reported(read_text: Any) -> None:
    rows = [{"epoch": 0, "step": n, "step_time": 0.25, "train_loss": 2.5} for n in range(1, 15)]
    result = read_text(as_csv(rows))
    assert (result.provenance.format, result.performance_metrics.avg_step_time_seconds) == ("metrics", 0.25)
    assert "seconds_assumed" in [one.code for one in result.remarks]


def test_a_step_time_without_a_unit_is_in_milliseconds_if_it_agrees_with_the_clock_of_the_rows(read_text: Any) -> None:
    for shape in (as_csv, as_lines):
        result = read_text(shape(history(step_time=lambda n: 1900.0 + n % 3)))
        assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.901, rel=1e-3)
        assert "milliseconds_by_clock" in [one.code for one in result.remarks]
    for name in ("step_time", "perf/step_time", "iter_time", "time_per_iteration", "dt"):
        seconds = read_text(as_csv(history(**{name: 1.9})))
        assert seconds.performance_metrics.avg_step_time_seconds == pytest.approx(1.9)
        assert {"milliseconds_by_clock", "seconds_assumed"}.isdisjoint(one.code for one in seconds.remarks)


def own_table(**more: float) -> list[dict[str, Any]]:
    return [{"step": n, "loss": 3 - n / 100, "step_time_s": 0.5 + n % 3 / 1000, **more} for n in range(1, 31)]


def test_a_table_that_fits_another_format_as_well_is_read_by_the_one_that_times_it(read_text: Any) -> None:
    result = read_text(as_lines(own_table()), global_batch_size=8)
    assert result.provenance.format == "metrics"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.501, rel=1e-3)


def test_a_throughput_is_teraflops_only_next_to_megatrons_step_time(read_text: Any) -> None:
    assert read_text(as_csv(own_table(throughput=41_000.0))).performance_metrics.reported.tflops_per_gpu is None
    megatrons = [{"iteration-time": row.pop("step_time_s"), **row} for row in own_table(throughput=410.0)]
    assert read_text(as_csv(megatrons)).performance_metrics.reported.tflops_per_gpu == pytest.approx(410)


def test_a_memory_of_a_few_bytes_is_left_out(read_text: Any) -> None:
    assert read_text(as_csv(own_table(memory_allocated=41.5))).memory_metrics is None
    assert read_text(as_csv(own_table(memory_allocated=41.5e9))).memory_metrics.peak_memory_allocated_gb == 41.5


def test_the_peaks_of_nemo_and_torchtune_have_the_kind_and_the_unit_of_their_names(read_text: Any) -> None:
    """NeMo 2.0 to 2.3 log torch.cuda.max_memory_reserved() under this name (strategies/megatron_strategy.py)."""
    rows = own_table(peak_memory_usage=64e9, memory_allocated=40e9)
    memory = read_text(as_csv(rows)).memory_metrics
    assert (memory.peak_memory_reserved_gb, memory.peak_memory_allocated_gb) == (64, 40)
    torchtune = read_text(as_csv(own_table(peak_memory_alloc=20.5))).memory_metrics
    assert torchtune.peak_memory_allocated_gb == pytest.approx(20.5 * 2**30 / 1e9, abs=1e-3)


def test_lightnings_table_with_rates_only_is_read(read_text: Any) -> None:
    rows = [
        {"epoch": 0, "step": n, "train/device/samples_per_sec": 9.5, "train/samples_per_sec": 76.0}
        for n in range(1, 15)
    ]
    assert read_text(as_csv(rows)).performance_metrics.samples_per_second == pytest.approx(76)


def automodel(n: int) -> dict[str, Any]:
    return {
        "step": n, "epoch": 0, "timestamp": f"2026-01-05T08:00:{n:02}.123456", "loss": 2.3, "grad_norm": 1.2,
        "lr": 1e-5, "mem": 40.25, "tps": 131072.0, "tps_per_gpu": 16384.0, "num_tokens_per_step": 262144,
        "num_label_tokens": 260000,
    }  # fmt: skip


def test_automodels_jsonl_times_its_steps_by_tokens_over_rate(read_text: Any) -> None:
    result = read_text(as_lines([automodel(n) for n in range(1, 20)]), num_gpus=8)
    performance = result.performance_metrics
    assert (result.provenance.format, performance.basis) == ("metrics", "step_times")
    assert (performance.avg_step_time_seconds, performance.tokens_per_step) == (2.0, 262144)
    assert performance.tokens_per_second_per_gpu == pytest.approx(16384)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(40.25 * GIB / 1e9)
    assert not any(warning.startswith("format:") for warning in result.warnings)
    assert result.source == "NeMo Automodel"
    unstated = read_text(as_lines([automodel(n) for n in range(1, 20)]))
    assert "rate_of_replicas" in [one.code for one in unstated.remarks]


def test_a_summary_with_means_of_the_run_reports_them(read_text: Any) -> None:
    summary = {"_step": 99, "_runtime": 500.5, "train/train_runtime": 480.0, "train/train_samples_per_second": 12.5}
    result = read_text(json.dumps({**summary, "_wandb": {"runtime": 500}}), sequence_length=512)
    assert result.performance_metrics.tokens_per_second == pytest.approx(12.5 * 512)
    assert (result.performance_metrics.basis, len(result.steps)) == ("reported_means", 0)
    assert "samples_of_others" in [one.code for one in result.remarks]


def test_a_summarys_last_rates_have_a_warning_that_they_are_of_one_moment(read_text: Any) -> None:
    result = read_text(json.dumps({"_step": 99, "_runtime": 500.5, "throughput/tokens_per_sec": 999.5}, indent=2))
    assert result.performance_metrics.tokens_per_second == 999.5
    assert "last_row_only" in [one.code for one in result.remarks]


def test_a_summary_without_any_rate_is_refused(read_text: Any) -> None:
    with pytest.raises(NotALogError, match="neither a step time nor a rate"):
        read_text(json.dumps({"_step": 99, "_runtime": 500.5, "train/loss": 2.5}))


@each_shape
def test_a_table_of_something_else_is_not_a_training(read_text: Any, shape: str) -> None:
    with pytest.raises(NotALogError):
        read_text(SHAPES[shape]([{"step": n, "price": 5, "name": "a"} for n in range(9)]))


@in_each("cut", [1, 2, 7, 30, 90])
def test_a_last_row_that_was_cut_has_no_wrong_number(read_text: Any, cut: int) -> None:
    rows = history(**{"step_time_ms": 1234.5, "throughput/tokens_per_sec": 4321.5})
    for shape in (as_csv, as_lines):
        steps = read_text(shape(rows)[:-cut]).steps
        assert set(steps.column("reported_tokens_per_second").tolist()) == {4321.5}
        assert set(steps.column("seconds").tolist()) == {1.2345}


def test_a_step_number_that_goes_back_is_a_restart(read_text: Any) -> None:
    rows = [*history(9, step_time_ms=1234.5), *history(20, step_time_ms=1000.0)]
    result = read_text(as_lines(rows))
    assert (result.runs[0].segments, result.performance_metrics.avg_step_time_seconds) == (2, 1.0)


@each_shape
@pytest.mark.parametrize("evaluations", [(), (10, 20, 30, 40), (40,)])
def test_a_process_that_resumed_a_run_has_its_own_warm_up(
    read_text: Any, shape: str, evaluations: Sequence[int]
) -> None:
    rows: list[dict[str, Any]] = []
    clock = 1.75e9
    for n in range(1, 81):
        seconds = 30.0 if n in (1, 41) else 2.0 + n % 3 / 100
        clock += seconds + (3600 if n == 41 else 5 if n - 1 in evaluations else 0)
        rows.append({"_step": n, "_timestamp": clock, "train/loss": 3 - n / 100, "step_time_s": seconds})
        if n in evaluations:
            rows[-1]["eval/loss"] = 2.5
    result = read_text(SHAPES[shape](rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.01, rel=0.002)
    assert result.runs[0].segments == 2


@each_shape
def test_long_evaluations_and_single_slow_steps_begin_no_segment(read_text: Any, shape: str) -> None:
    rows: list[dict[str, Any]] = []
    clock = 1.75e9
    for n in range(1, 81):
        seconds = 5.0 if n % 20 == 1 else 2.0
        clock += seconds + (300 if n > 1 and n % 20 == 1 else 0)
        rows.append({"_step": n, "_timestamp": clock, "train/loss": 3 - n / 100, "step_time_s": seconds})
        if n % 20 == 0:
            rows[-1]["eval/loss"] = 2.5
    assert set(read_text(SHAPES[shape](rows)).steps.column("segment").tolist()) == {0}


PLAIN_TABLE = [
    ["_step", "train/global_step", "train/loss", "loss", "eval/loss", "step_time_s", "_timestamp", "total_tokens", "x"],
    *(
        f"{call},{step},{'' if step % 3 else 'nan'},{'NaN' if step % 5 else 2.5},{1.5 if step == 7 else ''},"
        f"{'' if step == 4 else 2 + call / 100},{1.7e9 + call * 2.5},{call * 4096},text".split(",")
        for call, step in enumerate([1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5, 6, 7, 8])
    ),
]


@in_each("spoiled", [{}, {"_timestamp": "2026-01-05 08:00:00"}, {"loss": "torn"}])
def test_a_csv_with_quotes_gives_the_same_as_one_without(tmp_path, spoiled):
    head, *rows = [list(row) for row in PLAIN_TABLE]
    for name, cell in spoiled.items():
        rows[9][head.index(name)] = cell
    plain, quoted = tmp_path / "plain.csv", tmp_path / "quoted.csv"
    plain.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n")
    quoted.write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in [head, *rows]) + "\n")
    one, other = (metrics.read(Log(path)) for path in (plain, quoted))
    assert len(one.steps) == 14
    assert (one.steps, one.begins, one.warnings) == (other.steps, other.begins, other.warnings)


def test_rates_that_do_not_follow_the_times_start_no_other_training(read_text):
    rows = [f"{step},{2 + step % 97 / 100},{1e5 + step % 7},3.5" for step in range(1, 1000)]
    result = read_text("\n".join(["step,step_time,tokens_per_sec,loss", *rows]) + "\n")
    assert len(result.steps) == 999
    assert result.provenance.segments == ()


@each_shape
def test_step_times_that_the_dates_of_the_rows_contradict_are_warned_about(read_text: Any, shape: str) -> None:
    dates = [f"2026-01-05T08:{minute:02}:{second:02}.250" for minute in range(4) for second in range(0, 60, 3)]
    rows = [
        {"_step": step, "train/loss": 3.5 - step / 100, "step_time_s": 1.0 + step % 3 / 1000, "timestamp": date}
        for step, date in enumerate(dates, start=1)
    ]
    (warning,) = (text for text in read_text(SHAPES[shape](rows)).warnings if text.startswith("audit"))
    assert "79 steps take 79 s at the measured pace, but 237 s by the clock of the logged rows" in warning


def test_a_column_name_is_interpreted_by_its_framework(read_text: Any) -> None:
    nanotron = {"time_per_iteration_ms": 2000.0, "tokens_per_sec": 524288.0, "global_batch_size": 1048576}
    performance = read_text(as_csv(history(**nanotron))).performance_metrics
    assert (performance.tokens_per_step, performance.samples_per_second) == (1048576, None)
    images = {"perf/time_per_step": 2.0, "perf/throughput": 4.0, "perf/total_num_images": 64}
    performance = read_text(as_csv(history(**images)), num_gpus=8).performance_metrics
    assert (performance.samples_per_second, performance.tokens_per_second_per_gpu) == (32, None)


def test_nemo_rls_history_is_read_by_the_names_of_its_sections(read_text: Any) -> None:
    rates = {"performance/tokens_per_sec": 40000.0, "performance/tokens_per_sec_per_gpu": 2500.0}
    performance = read_text(as_csv(history(**{"timing/train/total_step_time": 2.0, **rates}))).performance_metrics
    assert (performance.avg_step_time_seconds, performance.tokens_per_second_per_gpu) == (2, 2500)


@in_each("other", ["timing_s/testing", "timing/train/checkpointing", "throughput/in-loop eval time (s)"])
def test_a_step_whose_time_includes_a_validation_or_checkpoint_is_not_measured(read_text: Any, other: str) -> None:
    rows = [{"step": n, "step_time_s": 50.0 if n == 9 else 2.0, **({other: 48.0} if n == 9 else {})} for n in range(20)]
    result = read_text(as_csv(rows))
    assert [step.index for step in result.steps if step.interrupted_by] == [9]
    assert result.performance_metrics.avg_step_time_seconds == 2


def test_a_table_of_several_runs_is_refused(read_text: Any) -> None:
    rows = [{"run_id": run, **row} for run in ("a", "b") for row in history(step_time_s=2.0)]
    for shape in (as_csv, as_lines):
        with pytest.raises(InputError, match=r"holds 2 runs \(a, b\)"):
            read_text(shape(rows))
    partly = [{"Name": "a" if n % 2 else None, **row} for n, row in enumerate(history(step_time_s=2.0))]
    for shape in (as_csv, as_lines):
        assert len(read_text(shape(partly)).steps) == 20


def test_a_second_table_with_columns_in_another_order_is_a_second_segment(read_text: Any) -> None:
    rows = history(30, step_time_s=2.0, batch=5)
    other = [{name: row[name] for name in reversed(row)} for row in history(20, step_time_s=4.0, batch=5)]
    result = read_text(as_csv(rows) + as_csv(other))
    assert (len(result.steps), result.performance_metrics.avg_step_time_seconds) == (50, 2.0)
    assert [segment.began_by for segment in result.provenance.segments][1] == "another header in line 32"
    assert result.steps[-1].seconds == 4.0


@pytest.mark.parametrize("shape", ["csv", "json lines"])
def test_linguas_rates_cover_the_steps_since_the_row_before(read_text: Any, shape: str) -> None:
    rows = [
        {
            "global_step": n, "acc_step": 0, "speed/wps": 10512.25, "speed/FLOPS": 4.1e14, "speed/curr_iter_time": 0.95,
            "speed/data_load_time": 0.04, "optim/grad_norm": 1.25, "optim/lr": 3e-4, "optim/total_tokens": n * 65536,
            "memory/max_reserved_gib": 60.5, "loss/out": 9 - n / 1000,
            "created_at": f"2026-01-05T08:{n // 60:02}:{n % 60:02}.123456+00:00",
        }
        for n in range(10, 310, 10)
    ]  # fmt: skip
    result = read_text(SHAPES[shape](rows))
    assert (result.source, result.steps.column("covers").tolist()[1:]) == ("Lingua", [10] * 29)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(10512.25)
    assert (result.steps[3].tokens, result.steps[3].loss) == (65536, 8.96)
    assert result.steps[3].memory_reserved_peak_bytes == 60.5 * GIB


@each_shape
def test_windowed_rates_of_composer_count_once_per_window(read_text: Any, shape: str) -> None:
    ended = [0.0]
    for n in range(61):
        ended.append(ended[-1] + (30.0 if n == 0 else 2.0 + 0.2 * (-1) ** (n // 5)))
    rows: list[dict[str, Any]] = []
    for n in range(61):
        row: dict[str, Any] = {"_step": n, "time/batch": n, "time/token": 65536 * n, "loss/train/total": 9 - n / 100}
        if n > 5:  # logged under the number of the next step
            batches = 5 / (ended[n] - ended[n - 5])
            row |= {"throughput/batches_per_sec": batches, "throughput/tokens_per_sec": 65536 * batches}
        rows.append(row)
    result = read_text(SHAPES[shape](rows))
    timed = result.steps.column("index")[np.isfinite(result.steps.column("seconds"))]
    assert np.diff(timed).min() >= 5
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.05)
    assert ("windows", "5 to 6") in [(one.code, one.values.get("size")) for one in result.remarks]


def test_windowed_rates_of_lightnings_monitor_count_once_per_window(read_text: Any) -> None:
    rows = [{"epoch": 0, "step": n, "train/loss": 9 - n / 100} for n in range(60)]
    for row in rows[11:]:
        row |= {"train/device/batches_per_sec": 0.5, "train/device/samples_per_sec": 4.0}
    steps = read_text(as_csv(rows)).steps
    timed = steps.column("index")[np.isfinite(steps.column("reported_samples_per_second_per_gpu"))]
    assert (np.diff(timed) == 11).all()


def torchtitan(
    interval: int, validations: Sequence[int] = (), *, last: int = 40, own_time: float = 2.0
) -> list[dict[str, Any]]:
    """Return the rows that torchtitan logs: the time since the last row or validation over the interval."""
    rows, clock, window, tokens = [], 100.0, 0.0, 0
    for step in range(1, last + 1):
        clock, window, tokens = clock + own_time, window + own_time, tokens + 8192
        row = {"_step": step, "_timestamp": 1.75e9 + clock}
        if step == 1 or step % interval == 0:
            row |= {"time_metrics/end_to_end(s)": window / interval, "throughput(tps)": tokens / window}
            window, tokens = 0.0, 0
        if step in validations:
            clock += 30
            row["validation_metrics/loss"] = 4.0
            window, tokens = 0.0, 0
        if len(row) > 2:
            rows.append(row)
    return rows


@each_shape
@pytest.mark.parametrize("validations", [(), (6, 12, 18, 24, 30, 36), tuple(range(5, 45, 5)), (3, 8, 13, 18, 23, 28)])
def test_torchtitans_step_time_is_that_of_the_steps_since_a_validation(
    read_text: Any, shape: str, validations: tuple[int, ...]
) -> None:
    result = read_text(SHAPES[shape](torchtitan(5, validations)))
    assert result.steps.column("seconds") == pytest.approx([2.0] * 9)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    since = [
        max([step for step in (0, 1, *range(5, 45, 5), *validations) if step < row]) for row in (1, *range(5, 45, 5))
    ]
    assert result.steps.column("covers").tolist() == [
        row - before for row, before in zip((1, *range(5, 45, 5)), since, strict=True)
    ]
    assert result.performance_metrics.total_steps == sum(result.steps.column("covers"))


def test_torchtitans_rows_show_a_validation_that_was_not_exported(read_text: Any) -> None:
    rows = [row for row in torchtitan(5, (7, 14, 21)) if "throughput(tps)" in row]
    for row in rows:
        row.pop("validation_metrics/loss", None)
        row.pop("_timestamp")
    result = read_text(as_csv(rows))
    assert result.steps.column("seconds") == pytest.approx([2.0] * 9)
    assert result.steps.column("covers").tolist() == [1, 4, 3, 1, 5, 4, 5, 5, 5]


def test_the_first_row_of_a_resumed_torchtitan_run_covers_the_steps_of_its_process(read_text: Any) -> None:
    before = torchtitan(5, (7, 14, 21), last=23)
    after = [row | {"_step": row["_step"] + 23, "_timestamp": row["_timestamp"] + 100} for row in torchtitan(1, last=1)]
    after[0]["time_metrics/end_to_end(s)"] = 2.0 / 5  # step 24 is the first of its process
    rest = [row | {"_timestamp": row["_timestamp"] + 100} for row in torchtitan(5, (28,)) if row["_step"] > 25]
    result = read_text(as_lines([*before, *after, *rest]))
    assert result.steps.column("index").tolist() == [1, 5, 10, 15, 20, 24, 30, 35, 40]
    assert result.steps.column("seconds") == pytest.approx([2.0] * 9)
    assert result.steps.column("covers").tolist() == [1, 4, 3, 1, 5, 1, 2, 5, 5]


def test_torchtitans_rates_alone_count_where_they_contradict_the_step_times(read_text: Any) -> None:
    rows = torchtitan(5)
    for number, row in enumerate(rows):
        row["throughput(tps)"] *= 1 + 0.07 * number
    result = read_text(as_csv(rows))
    assert result.performance_metrics.avg_step_time_seconds is None
    assert any(warning.startswith("step_time: time_metrics/end_to_end(s)") for warning in result.warnings)


@pytest.mark.parametrize("listed", [False, True])
def test_golden_values_of_megatrons_tests_are_rows(read_text: Any, listed: bool) -> None:
    steps = range(0, 105, 5)

    def metric(values: Sequence[Any]) -> dict[str, Any]:
        by_step = list(values) if listed else dict(zip(map(str, steps), values, strict=True))
        return {"start_step": 0, "end_step": 100, "step_interval": 5, "values": by_step}

    document = {
        "lm loss": metric([10.9 - step / 50 for step in steps]),
        "mem-max-allocated-bytes": metric([3637371904.0] * 21),
        "iteration-time": metric(["nan", 7.6, *[0.0875 + 0.001 * (n % 2) for n in range(19)]]),
        "iteration_timing_avg": 0.09,
    }
    result = read_text(json.dumps(document, indent=4))
    assert result.source == "Megatron-LM"
    assert result.steps.column("index").tolist() == list(steps)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.088, rel=0.005)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(3.637371904)
    assert (result.steps[20].loss, result.steps[20].covers) == (8.9, 5)


@each_shape
@in_each("name", ["global_step", "step", "iteration", "iter", "update_step"])
def test_a_table_of_any_trainers_rows_is_read(read_text: Any, shape: str, name: str) -> None:
    rows = [{name: n, "step_time_s": 1.5 + n % 2 / 100, "loss": 9 - n / 50} for n in range(1, 30)]
    result = read_text(SHAPES[shape](rows))
    assert (result.provenance.format, len(result.steps)) == ("metrics", 29)


def test_a_first_step_with_more_tokens_than_numbers_hold_is_not_measured(read_text: Any) -> None:
    first = {**automodel(1), "num_tokens_per_step": 10**30}
    result = read_text(as_lines([first, *map(automodel, range(2, 8))]), num_gpus=8)
    assert result.performance_metrics.tokens_per_second_per_gpu == 16384.0


def rounded_to_seconds(count: int = 40) -> list[int]:
    """Return the whole seconds that a clock shows for steps of 1.6 s, with some of 0.4 s in between."""
    ends = np.cumsum([0.0, 8.0, *([1.6, 1.6, 0.4] * count)])
    return np.diff(np.floor(ends)).astype(int).tolist()


def test_steps_of_no_whole_second_count_with_the_steps_after_them(read_text: Any) -> None:
    times = rounded_to_seconds()
    assert 0 in times[1:]
    rows = [{"step": n, "step_time_ms": 1000 * s, "loss": 3 - n / 100} for n, s in enumerate(times, 1)]
    result = read_text("".join(json.dumps(row) + "\n" for row in rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.2, rel=0.01)
    assert result.performance_metrics.measured_steps >= len(times) - 3
    assert [one.code for one in result.remarks].count("whole_seconds") == 1
    joined = {one.code: one.values for one in result.remarks}["whole_seconds"]["joined"]
    assert f"{times[1:].count(0)} steps of 0 s count with the steps after them" in joined


def test_a_time_of_zero_between_finer_times_is_none(read_text: Any) -> None:
    rows = [{"step": n, "step_time_s": 0 if n == 9 else 0.5 + n / 1e4, "loss": 3 - n / 100} for n in range(1, 31)]
    result = read_text("".join(json.dumps(row) + "\n" for row in rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5015, rel=0.001)
    assert result.performance_metrics.measured_steps == 28
    assert "whole_seconds" not in [one.code for one in result.remarks]


@in_each(
    ("name", "seconds"),
    [
        ("step_seconds", 0.5), ("iter_time_ms", 0.5), ("dt_ms", 0.5), ("perf/step_ms", 0.5), ("ms_per_step", 0.5),
        ("sec_per_step", 0.5), ("stepTimeMs", 0.5), ("s/it", 0.5), ("eval/step_ms", None), ("data_step_ms", None),
        ("step_ms_std", None), ("step_max_ms", None), ("steps_per_second", None), ("optimizer_step_ms", None),
    ],
)  # fmt: skip
def test_a_name_of_words_for_step_and_time_with_a_unit_is_the_step_time(
    read_text: Any, name: str, seconds: float | None
) -> None:
    value = 500 if "ms" in name.lower() else 0.5
    rows = [{"step": n, name: value + n % 2 * value / 500, "perf/tok_s": 8e4, "loss": 9 - n / 50} for n in range(1, 30)]
    figures = read_text("".join(json.dumps(row) + "\n" for row in rows)).performance_metrics
    assert figures.tokens_per_second == pytest.approx(8e4)
    assert figures.avg_step_time_seconds == (seconds and pytest.approx(seconds, rel=0.01))


def test_a_listed_name_counts_before_one_that_only_its_words_explain(read_text: Any) -> None:
    rows = [{"step": n, "iter_ms": 900.0, "step_time_s": 0.5 + n % 2 / 100, "loss": 9 - n / 50} for n in range(1, 30)]
    figures = read_text("".join(json.dumps(row) + "\n" for row in rows)).performance_metrics
    assert figures.avg_step_time_seconds == pytest.approx(0.505, rel=0.01)


@in_each("name", ["samples_per_s", "perf/seqs/s", "examples_per_sec"])
def test_a_rate_of_samples_is_known_by_its_words(read_text: Any, name: str) -> None:
    figures = read_text(as_lines([{"step": n, name: 64.0 + n % 3, "loss": 2.5} for n in range(30)])).performance_metrics
    assert figures.samples_per_second == pytest.approx(65, rel=0.01)


@in_each("name", ["elapsed_s", "time_elapsed", "wall_time_sec"])
def test_seconds_since_the_start_are_a_clock_that_times_steps_and_decides_what_a_rate_counts(name, tmp_path):
    for rate in ({"tokens_per_sec_per_gpu": 40960.0}, {}):
        rows = [{"step": i, "loss": 5 - i / 100, "tokens_seen": i * 65536, name: 1.6 * i} | rate for i in range(1, 60)]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        result = logs.read(tmp_path / "rows.jsonl", facts=UserFacts(num_gpus=8))
        assert result.provenance.format == "metrics"
        assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(5120, rel=0.01)
