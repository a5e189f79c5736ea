"""MLflow's metric files and database, and the tables of madengine and MAD."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.core.errors import InputError, NotALogError
from tensorprimat.logs import mlflow
from tensorprimat.storage import store

START = 1_750_000_000_000


def run_of(tmp_path: Path, metrics: dict[str, list[float]], **params: str) -> Path:
    """Write a run's folder; every value of a metric is two seconds after the one before."""
    run = tmp_path / "mlruns" / "0" / "abc"
    for name, values in metrics.items():
        path = run / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{START + 2000 * n} {value} {n}\n" for n, value in enumerate(values, start=1)))
    for name, text in params.items():
        (run / "params").mkdir(exist_ok=True)
        (run / "params" / name).write_text(text)
    return run


def database_of(path: Path, *runs: dict[str, list[float]], **params: str) -> Path:
    """Write MLflow's database with the columns of the tables that MLflow 3.17.2 fills, one run for each argument."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE runs (run_uuid, name, status, start_time, end_time, lifecycle_stage)")
        database.execute("CREATE TABLE metrics (key, value FLOAT, timestamp, run_uuid, step, is_nan)")
        database.execute("CREATE TABLE latest_metrics (key, value FLOAT, timestamp, step, is_nan, run_uuid)")
        database.execute("CREATE TABLE params (key, value, run_uuid)")
        for number, metrics in enumerate(runs):
            run = f"{number:032x}"
            database.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, ?, 'active')", (run, "llama", START, START))
            database.executemany("INSERT INTO params VALUES (?, ?, ?)", [(*pair, run) for pair in params.items()])
            for name, values in metrics.items():
                rows = [(name, value, START + 2000 * n, run, n) for n, value in enumerate(values, start=1)]
                database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, 0)", rows)
                database.execute("INSERT INTO latest_metrics VALUES (?, ?, ?, ?, 0, ?)", (name, 0.0, START, 1, run))
    return path


RATES = {"train/loss": [3 - n / 100 for n in range(20)], "throughput/tokens_per_sec": [32768.5] * 20}


@in_each("named", [".", "metrics", "metrics/train/loss", "metrics/throughput/tokens_per_sec"])
def test_naming_the_run_or_any_of_its_metrics_reads_the_run(tmp_path: Path, named: str) -> None:
    run = run_of(
        tmp_path, RATES, per_device_train_batch_size="4", world_size="8", model_name_or_path="meta/Llama-3.1-8B"
    )
    result = logs.read(run / named)
    assert (result.provenance.format, result.source, len(result.steps)) == ("mlflow", "MLflow", 20)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(32768.5 / 8)
    assert (result.training_config.micro_batch_size, result.model.name) == (4, "llama")


@in_each("named", ["", "metrics", "metrics/train/loss", "..", "../.."])
def test_extract_turns_the_folder_of_a_run_into_one_result(
    tmp_path: Path, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, RATES, world_size="8", model_name_or_path="meta/Llama-3.1-8B")
    for place in (run, run.parent):
        (place / "meta.yaml").write_text("run_id: abc\nstatus: 3\n")
    (run / "tags").mkdir()
    (run / "tags" / "mlflow.source.name").write_text("train.py")
    assert main(["extract", str(run / named), "--output", str(tmp_path / "out")]) == 0
    (written,) = (tmp_path / "out").glob("*.json")
    assert capsys.readouterr().out.strip() == str(written)
    result = store.load(written)
    assert (result.provenance.format, len(result.steps), result.model.name) == ("mlflow", 20, "llama")
    assert result.performance_metrics.tokens_per_second == pytest.approx(32768.5)


def test_a_run_with_losses_alone_is_timed_from_timestamps(tmp_path: Path) -> None:
    result = logs.read(run_of(tmp_path, {"loss": RATES["train/loss"]}))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert result.provenance.timing == "timestamps"


def test_a_metric_file_that_lies_alone_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "step_time_ms"
    path.write_text("".join(f"{START + n} 250.5 {n}\n" for n in range(1, 20)))
    assert logs.read(path).performance_metrics.avg_step_time_seconds == pytest.approx(0.2505)


def test_a_run_of_more_values_than_can_be_sorted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step_time_ms"
    path.write_text("".join(f"{START + n} 250.5 {n}\n" for n in range(1, 20)))
    monkeypatch.setattr(mlflow, "MOST_VALUES", 19)
    assert len(logs.read(path).steps) == 19
    monkeypatch.setattr(mlflow, "MOST_VALUES", 18)
    with pytest.raises(InputError, match="more than 18 values"):
        logs.read(path)


def test_a_run_with_thousands_of_other_metrics_is_read(tmp_path: Path) -> None:
    others = {f"grad/{number:04d}": [0.5] for number in range(2500)} | {
        f"a{number:04d}": [0.5] for number in range(2500)
    }
    result = logs.read(run_of(tmp_path, {**others, **RATES}, world_size="8"))
    assert result.performance_metrics.tokens_per_second == pytest.approx(32768.5)
    assert len(result.steps.column("loss")) == 20
    flat = run_of(tmp_path / "flat", {**{f"a{number:04d}": [0.5] for number in range(2500)}, "loss": [3.0, 2.5, 2.0]})
    assert logs.read(flat).performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


@pytest.mark.parametrize("metrics", [{"a": [1.0], "b": [1.0], "c": [1.0], **RATES}, {name: [1.0] for name in "abcdef"}])
def test_a_run_of_more_files_than_are_listed_is_refused_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metrics: dict[str, list[float]]
) -> None:
    run = run_of(tmp_path, metrics)
    monkeypatch.setattr(mlflow, "MOST_FILES", len(metrics) - 1)
    with pytest.raises(InputError, match=r"metrics: holds more than \d metric files; copy the folder without"):
        logs.read(run)


def test_a_metric_of_an_unknown_name_is_refused_with_it(tmp_path: Path) -> None:
    path = tmp_path / "temperature"
    path.write_text("".join(f"{START + n} 50.5 {n}\n" for n in range(1, 20)))
    with pytest.raises(NotALogError, match=r"no metric of the run has a name that is known \(temperature\)"):
        logs.read(path)


def test_a_cut_last_line_has_no_wrong_number(tmp_path: Path) -> None:
    run = run_of(tmp_path, RATES)
    path = run / "metrics" / "throughput" / "tokens_per_sec"
    path.write_text(path.read_text()[:-6])
    assert set(logs.read(run).steps.column("reported_tokens_per_second")[:19].tolist()) == {32768.5}


def test_the_default_length_of_generated_text_is_not_a_sequence_length(tmp_path: Path) -> None:
    run = run_of(tmp_path, RATES, max_length="20", tensor_model_parallel_size="2", global_batch_size="64")
    config = logs.read(run).training_config
    assert (config.sequence_length, config.tensor_model_parallel_size, config.global_batch_size) == (None, 2, 64)


def test_a_metric_about_a_data_set_is_read(tmp_path: Path) -> None:
    run = run_of(tmp_path, RATES)
    path = run / "metrics" / "throughput" / "tokens_per_sec"
    path.write_text("".join(f"{line} c4 0123abcd\n" for line in path.read_text().splitlines()))
    assert logs.read(run).performance_metrics.tokens_per_second == pytest.approx(32768.5)


def test_an_evaluation_between_two_losses_is_not_measured(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"loss": [3 - n / 100 for n in range(40)], "eval_loss": [2.5]})
    late = [START + 2000 * n + (30_000 if n > 20 else 0) for n in range(1, 41)]
    (run / "metrics" / "loss").write_text(
        "".join(f"{time} {3 - n / 100} {n}\n" for n, time in enumerate(late, start=1))
    )
    (run / "metrics" / "eval_loss").write_text(f"{late[19] + 30_000} 2.5 20\n")
    result = logs.read(run)
    assert [step.index for step in result.steps if step.interrupted_by] == [21]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


HEADER = (
    "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,machine_name,gpu_architecture,"
    "performance,metric,relative_change,status"
)


def perf(*rows: str) -> str:
    return "\n".join([HEADER, *rows]) + "\n"


def run(model: str, performance: str, metric: str, status: str = "SUCCESS", gpus: str = "8,1,8") -> str:
    return f'{model},{gpus},bf16,p,"a, b",t,d,node-1,gfx942,{performance},{metric},,{status}'


@in_each(
    ("metric", "tokens_per_gpu"),
    [("tokens/s/gpu", 100.0), ("tokens_per_second_per_gpu", 100.0), ("tokens/s", 12.5), ("tokens_per_sec", 12.5)],
)
def test_madengines_figure_is_a_reported_mean(read_text: Any, metric: str, tokens_per_gpu: float) -> None:
    result = read_text(perf(run("primus_llama-3.1-8b", "100.0", metric)))
    performance = result.performance_metrics
    assert (result.provenance.format, performance.basis, result.platform) == ("madengine", "reported_means", "amd")
    assert performance.tokens_per_second_per_gpu == pytest.approx(tokens_per_gpu)
    assert (result.model.name, result.training_config.num_gpus, result.training_config.precision) == (
        "llama",
        8,
        "bf16",
    )
    assert "figure_of_run_only" in [one.code for one in result.remarks]


def test_madengines_last_run_with_a_figure_is_read_and_others_are_named(read_text: Any) -> None:
    rows = [run("b", "5", "tokens/s"), run("a", "7", "tokens/s"), run("a", "", "tokens/s", "FAILURE")]
    result = read_text(perf(*rows))
    assert result.performance_metrics.tokens_per_second == 7
    assert ("one_run_of_table", 3, ", also of b") in [
        (one.code, one.values.get("runs"), one.values.get("rest")) for one in result.remarks
    ]


@in_each("metric", ["accuracy", "", "tokens"])
def test_madengines_metric_that_is_not_a_rate_is_refused_with_its_name(read_text: Any, metric: str) -> None:
    with pytest.raises(NotALogError, match=metric or "unnamed"):
        read_text(perf(run("a", "5", metric)))


def test_madengines_sum_of_rates_per_gpu_over_nodes_is_not_a_rate_per_gpu(read_text: Any) -> None:
    with pytest.raises(NotALogError, match="adds up what 2 nodes printed, even rates per GPU"):
        read_text(perf(run("a", "200.0", "tokens_per_second_per_gpu", gpus="16,2,8")))
    result = read_text(perf(run("a", "200.0", "tokens_per_second", gpus="16,2,8")))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(12.5)
    assert ("sum_of_nodes", 2) in [(one.code, one.values.get("nodes")) for one in result.remarks]


def test_madengines_gpus_of_one_node_are_not_those_of_the_run(read_text: Any) -> None:
    result = read_text(perf(run("a", "200.0", "tokens_per_second", gpus="8,2,8")))
    assert result.training_config.num_gpus is None
    assert ("gpus_contradict", 16) in [(one.code, one.values.get("product")) for one in result.remarks]


def test_a_header_that_madengine_wrote_again_is_not_a_run(read_text: Any) -> None:
    result = read_text(perf(run("a", "5", "tokens/s"), HEADER, run("a", "7", "tokens/s")))
    assert ("one_run_of_table", 2, "") in [
        (one.code, one.values.get("runs"), one.values.get("rest")) for one in result.remarks
    ]


def test_a_table_without_madengines_columns_is_refused_by_its_reader(read_text: Any) -> None:
    with pytest.raises(NotALogError, match="no run in the table has a figure"):
        read_text("model,metric\na,b\n", format="madengine")


def test_a_database_with_one_run_is_read_like_the_files_of_that_run(tmp_path: Path) -> None:
    params = {"per_device_train_batch_size": "4", "world_size": "8", "model_name_or_path": "meta/Llama-3.1-8B"}
    of_files = logs.read(run_of(tmp_path, RATES, **params))
    of_database = logs.read(database_of(tmp_path / "mlflow.db", RATES, **params))
    assert of_database.performance_metrics == of_files.performance_metrics
    assert (of_database.training_config, of_database.model) == (of_files.training_config, of_files.model)
    assert (of_database.provenance.format, of_database.source) == ("mlflow", "MLflow")


def test_a_database_of_several_runs_or_of_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"of 2 runs \(1: llama 0{32}, 2: llama 0{31}1\); .* --segment N"):
        logs.read(database_of(tmp_path / "two.db", RATES, RATES))
    with pytest.raises(InputError, match="without a run that logged a metric"):
        logs.read(database_of(tmp_path / "none.db"))


def test_a_run_of_several_in_a_database_is_chosen_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = {**RATES, "throughput/tokens_per_sec": [20000.5] * 20}
    path = database_of(tmp_path / "two.db", RATES, slower, world_size="8")
    second = logs.read(path, segment=2)
    assert second.performance_metrics.tokens_per_second == pytest.approx(20000.5)
    assert (second.provenance.segment, second.training_config.num_gpus) == (2, 8)
    assert {one.code: one.values for one in second.remarks}["run_of_file"] == {
        "runs": 2,
        "number": 2,
        "name": "0" * 31 + "1",
    }
    with pytest.raises(InputError, match="none has number 3; --segment takes 1 to 2"):
        logs.read(path, segment=3)
    assert main(["extract", str(path), "--segment", "all", "--output", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    rates = [store.load(written).performance_metrics.tokens_per_second for written in (tmp_path / "out").glob("*.json")]
    assert sorted(rates) == [pytest.approx(20000.5), pytest.approx(32768.5)]


def test_a_database_of_another_program_or_a_damaged_one_is_no_log(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as database, database:
        database.execute("CREATE TABLE places (name)")
    with pytest.raises(InputError, match="binary file without step times"):
        logs.read(tmp_path / "other.db")
    whole = database_of(tmp_path / "whole.db", RATES).read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        logs.read(tmp_path / "cut.db")


MAD_HEADER = "model,performance,metric,mode,precision,batch_size,seq_len,device,num_gpus"


def mad(model: str, *figures: tuple[str, float], precision: str = "BF16", gpus: int = 8) -> list[str]:
    return [f"{model},{value},{metric},pretrain,{precision},4,8192,MI300X,{gpus}" for metric, value in figures]


def test_the_figures_of_the_last_run_in_a_table_of_mad_are_read(read_text: Any) -> None:
    figures = ("tok_per_s_per_gpu", 12130.4), ("TFLOPS_per_gpu", 590.5), ("GPU_memory_usage", 81.25)
    rows = [*mad("Llama-3.1-70B", *figures), *mad("Llama-3.1-8B", *figures, precision="FP8")]
    result = read_text("\n".join([MAD_HEADER, *rows]) + "\n")
    performance, config = result.performance_metrics, result.training_config
    assert (result.provenance.format, result.model.name, result.platform) == ("madengine", "llama", "amd")
    assert (performance.tokens_per_second_per_gpu, performance.reported.tflops_per_gpu) == (12130.4, 590.5)
    assert (config.num_gpus, config.sequence_length, config.precision) == (8, 8192, "fp8")
    assert ("one_run_of_table", 2, ", also of Llama-3.1-70B") in [
        (one.code, one.values.get("runs"), one.values.get("rest")) for one in result.remarks
    ]


def test_a_table_of_mad_with_three_columns_is_read(read_text: Any) -> None:
    rows = ["model,performance,metric", "Qwen2.5-7B,725.1,tok_per_s_per_gpu", "Qwen2.5-7B,322.5,TFLOPS_per_gpu"]
    performance = read_text("\n".join(rows) + "\n").performance_metrics
    assert (performance.tokens_per_second_per_gpu, performance.reported.tflops_per_gpu) == (725.1, 322.5)


def test_a_later_run_of_the_same_model_is_not_mixed_with_an_earlier_one(read_text: Any) -> None:
    rows = [*mad("a", ("tok_per_s_per_gpu", 100.0), ("TFLOPS_per_gpu", 9.0)), *mad("a", ("tok_per_s_per_gpu", 120.0))]
    performance = read_text("\n".join([MAD_HEADER, *rows]) + "\n").performance_metrics
    assert (performance.tokens_per_second_per_gpu, performance.reported.tflops_per_gpu) == (120.0, None)
    assert performance.basis == "reported_means"
