"""The Hugging Face Trainer's record in any container: its summary is no step, and its rows keep their clock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each import in_each
from test_metrics_table import as_csv
from test_wandb_run import run_file

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.core.result import Result
from tensorprimat.logs.format import UserFacts
from tensorprimat.session import explain

START, SECONDS, BATCH, GPUS, TOKENS = 1_767_600_000.125, 10.0, 32, 8, 65536  # batch and tokens of a step
Rows = list[dict[str, Any]]


def history(resumed_from: int | None = None, *, stopped_at: int = 0, pause: float = 100, steps: int = 200) -> Rows:
    """Return the log_history of a training with moments: a row every 5 steps of 10 s, after a start-up of 200 s.

    resumed_from: step of the checkpoint with which a second process began `pause` seconds after the first had stopped.
    """
    rows, began, first = [], 200.0, resumed_from or 0
    for process, (begin, end) in enumerate([(0, stopped_at), (first, steps)] if resumed_from else [(0, steps)]):
        began += process * (stopped_at * SECONDS + pause)
        for step in range(begin + 5, end + 1, 5):
            moment = START + began + (step - begin) * SECONDS
            row = {"step": step, "loss": 4 - step / 100, "epoch": step / steps, "timestamp": moment}
            rows.append(row | {"num_input_tokens_seen": TOKENS * step})
    runtime = (steps - first) * SECONDS + (0 if resumed_from else 200)
    rates = {"train_samples_per_second": round(BATCH * steps / runtime, 3)}
    rates |= {"train_runtime": runtime, "train_steps_per_second": round(steps / runtime, 4)}
    rates |= {"train_tokens_per_second": round(TOKENS / GPUS * steps / runtime, 3)}  # of one process
    rates |= {"num_input_tokens_seen": TOKENS * steps, "train_loss": 3.0}
    return [*rows, {"step": steps, "timestamp": rows[-1]["timestamp"] + 0.25, **rates}]


def wandb(rows: Rows) -> Rows:
    """Return the rows by the names that the Trainer's callback hands to W&B."""
    names = {"step": "train/global_step", "timestamp": "_timestamp"}
    return [{"_step": n} | {names.get(k, f"train/{k}"): v for k, v in row.items()} for n, row in enumerate(rows)]


def scalars(rows: Rows) -> list[tuple[int, float, str, float]]:
    """Return (step, seconds since 1970, name, value) of each number."""
    others = ("step", "timestamp", "epoch")
    return [(row["step"], row["timestamp"], f"train/{k}", row[k]) for row in rows for k in row if k not in others]


def mlflow(folder: Path, rows: Rows) -> Path:
    for step, moment, name, value in scalars(rows):
        path = folder / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{1000 * moment:.0f} {value} {step}\n")
    return folder


def tensorboard(folder: Path, rows: Rows) -> Path:
    pytest.importorskip("tensorboard")
    import test_tensorboard_log

    events = test_tensorboard_log.Events(folder)
    for step, moment, name, value in scalars(rows):
        events.log(step, moment - test_tensorboard_log.START, {name: value})
    return events.close()


def written(name: str, text: Callable[[Rows], str | bytes]) -> Callable[[Path, Rows], Path]:
    def write(folder: Path, rows: Rows) -> Path:
        content = text(rows)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return write


CONTAINERS = {
    "JSON array": written("history.json", lambda rows: json.dumps(rows, indent=1)),
    "JSON array on one line": written("history.json", json.dumps),
    "JSON lines": written("history.jsonl", lambda rows: "".join(json.dumps(row) + "\n" for row in rows)),
    "state": written("trainer_state.json", lambda rows: json.dumps({"log_history": rows}, indent=2)),
    "CSV": written("history.csv", as_csv),
    "CSV of W&B": written("export.csv", lambda rows: as_csv(wandb(rows))),
    "JSON lines of W&B": written("history.jsonl", lambda rows: "".join(json.dumps(r) + "\n" for r in wandb(rows))),
    "run file of W&B": written("run-a.wandb", lambda rows: run_file(wandb(rows))),
    "MLflow": mlflow,
    "TensorBoard": tensorboard,
}
each_container = in_each("container", CONTAINERS)


def read(tmp_path: Path, container: str, rows: Rows) -> Result:
    return logs.read(CONTAINERS[container](tmp_path, rows))


@each_container
def test_the_rows_are_timed_by_their_clock_and_the_summary_is_no_step(tmp_path: Path, container: str) -> None:
    result = read(tmp_path, container, history())
    figures = result.performance_metrics
    assert figures.avg_step_time_seconds == pytest.approx(SECONDS, rel=1e-3)
    assert figures.samples_per_second == pytest.approx(BATCH / SECONDS, rel=2e-3)
    assert figures.tokens_per_second == pytest.approx(TOKENS / SECONDS, rel=1e-3)
    assert figures.reported.runtime_seconds == pytest.approx(2200)
    assert len(result.steps) == 40
    assert any("timed from" in warning for warning in result.warnings)
    assert {"other_divisor", "reported_differs", "flops_differ", "mfu_differs"}.isdisjoint(
        one.code for one in result.remarks
    )


@each_container
@in_each(("resumed_from", "stopped_at", "pause"), [(160, 165, 100), (190, 195, 100), (160, 160, 5000)])
def test_a_resumed_training_counts_no_step_before_its_checkpoint(
    tmp_path: Path, container: str, resumed_from: int, stopped_at: int, pause: float
) -> None:
    rows = history(resumed_from, stopped_at=stopped_at, pause=pause)
    figures = read(tmp_path, container, rows).performance_metrics
    assert figures.avg_step_time_seconds == pytest.approx(SECONDS, rel=1e-3)
    assert figures.samples_per_second == pytest.approx(BATCH / SECONDS, rel=2e-3)
    assert figures.tokens_per_second == pytest.approx(TOKENS / SECONDS, rel=1e-3)
    assert figures.reported.samples_per_second is None


@each_container
@in_each("resumed_from", [None, 160])
def test_without_any_clock_the_summary_gives_the_mean_of_a_run_that_was_not_resumed(
    tmp_path: Path, container: str, resumed_from: int | None
) -> None:
    if container in ("MLflow", "TensorBoard", "run file of W&B", "JSON lines of W&B"):
        pytest.skip("always has a clock")
    rows = [
        {name: value for name, value in row.items() if name != "timestamp"}
        for row in history(resumed_from, stopped_at=165)
    ]
    if resumed_from:
        with pytest.raises(NotALogError, match=r"a repeated step shows a resume at about step 160|clock is too coarse"):
            read(tmp_path, container, rows)
        return
    figures = read(tmp_path, container, rows).performance_metrics
    assert figures.tokens_per_second == pytest.approx(TOKENS * 200 / 2200, rel=1e-3)
    assert figures.tokens_per_second_per_gpu == pytest.approx(TOKENS * 200 / 2200 / GPUS, rel=1e-3)
    assert figures.avg_step_time_seconds in (None, pytest.approx(11.0))
    assert figures.samples_per_second == pytest.approx(BATCH * 200 / 2200, rel=1e-3)


@each_container
@in_each("clocked", [True, False])
def test_axolotls_rate_per_gpu_that_counts_all_gpus_is_none_of_one_gpu(
    tmp_path: Path, container: str, clocked: bool
) -> None:
    if not clocked and container in ("MLflow", "TensorBoard"):
        pytest.skip("always has a clock")
    of_rows = {"tokens/train_per_sec_per_gpu": TOKENS / SECONDS, "learning_rate": 1e-5}
    rows = [row | of_rows | {"tokens/trainable": TOKENS * row["step"]} if "loss" in row else row for row in history()]
    for row in rows:
        row.pop("num_input_tokens_seen", None)
        row.pop("timestamp" if not clocked else "", None)
    path = CONTAINERS[container](tmp_path, rows)
    figures = logs.read(path, facts=UserFacts(num_gpus=GPUS)).performance_metrics
    assert figures.tokens_per_second_per_gpu == pytest.approx(TOKENS / SECONDS / GPUS, rel=1e-3)
    figures = logs.read(path).performance_metrics
    assert figures.tokens_per_second == pytest.approx(TOKENS / SECONDS, rel=1e-3 if clocked else 0.1)
    assert figures.tokens_per_second_per_gpu in (None, pytest.approx(TOKENS / SECONDS / GPUS, rel=0.1))


@in_each(
    "name",
    ["console.log", "history.json", "history.jsonl", "history_epoch_seconds.json", "trainer_state.json",
     "wandb_export.csv", "wandb_not_resumed_with_summary.csv"],
)  # fmt: skip
def test_saved_histories_give_the_rate_of_their_clock_or_none(shared: Path, name: str) -> None:
    try:
        figures = logs.read(shared / "cases" / "M-hf-history-list" / name).performance_metrics
    except NotALogError:
        assert name in ("console.log", "trainer_state.json")
        return
    assert figures.avg_step_time_seconds == pytest.approx(10.0)
    assert figures.samples_per_second == pytest.approx(3.2)


def test_the_first_row_of_a_numbered_record_counts_the_steps_since_the_start(tmp_path: Path) -> None:
    rows = [
        {"step": n, "timestamp": 1.76e9 + 10.5 * n, "loss": 3 - n / 500, "epoch": n / 500} for n in range(10, 501, 10)
    ]
    log = tmp_path / "history.json"
    for first, total in ((0, 500), (1, 500), (3, 461)):
        own = [{**rows[0], "step": 1}, *rows] if first == 1 else rows[first:]
        log.write_text(json.dumps(own))
        assert logs.read(log, format="huggingface").performance_metrics.total_steps == total


def test_a_record_without_a_clock_has_means_over_the_whole_run_and_says_so_or_why_not(tmp_path: Path) -> None:
    undated = [{k: v for k, v in row.items() if k != "timestamp"} for row in history()]
    log = tmp_path / "history.json"
    log.write_text(json.dumps(undated, indent=1))
    result = logs.read(log)
    assert result.performance_metrics.samples_per_second == pytest.approx(BATCH * 200 / 2200, rel=1e-3)
    assert [one.code for one in result.remarks if one.field == "steps"] == ["means_only"]
    undated[-1]["train_loss"] = 0.5  # of the steps since a resume
    log.write_text(json.dumps(undated, indent=1))
    with pytest.raises(NotALogError, match="the mean loss shows a resume"):
        logs.read(log)


def test_the_steps_and_the_time_of_a_summary_give_a_step_time(shared: Path) -> None:
    for name in ("train.log", "train_results.json"):
        result = logs.read(shared / "cases" / "J-hf-tokens-per-process" / name)
        figures = result.performance_metrics
        assert (figures.avg_step_time_seconds, figures.basis) == (2.0, "reported_means")
        assert ("step time", "2.000 s, mean over the whole run") in explain.overview(result)
