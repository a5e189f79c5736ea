"""Trainings of a log that only the rows distinguish, by their work, speed or numbers."""

# ruff: noqa: F811  # `read` is a fixture of test_segments

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from each import in_each
from job_logs import JOBS
from table_logs import ALL_JOBS
from test_segments import LONG, OTHER, Reader, assert_figures_of, read  # noqa: F401  # fixtures

from tensorprimat import logs
from tensorprimat.core.steps import Steps
from tensorprimat.logs import changes


def test_another_amount_of_work_is_found_although_the_printed_rates_are_equal(read: Reader) -> None:
    longer = replace(LONG, length=4096, seconds=4.0, last=12)
    rows = [line for line in JOBS["megatron"](LONG) if "elapsed time" in line][14:]
    assert "400.4" in JOBS["megatron"](longer)[-1]
    assert "400.4" in rows[0]
    result = read(JOBS["megatron"](longer), rows)
    assert result.training_config.sequence_length is None
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.004)


def test_several_jobs_at_other_speeds_are_named_in_the_plural(read: Reader) -> None:
    resumed = [LONG.resume(seconds=3.0, last=60), LONG.resume(seconds=5.0, last=70)]
    result = read(JOBS["megatron"](LONG), JOBS["megatron"](resumed[0]), JOBS["megatron"](replace(resumed[1], first=61)))
    (told,) = (one.values["others"] for one in result.remarks if one.code == "segment_chosen")
    assert "numbers 2, 3 are not, because their step times differ; tprimat extract --segment reads one of" in told


@in_each("cut", [1, 2, 3])
def test_a_lasting_change_of_the_step_time_is_reported_if_no_line_explains_it(cut: int, read: Reader) -> None:
    rows = JOBS["litgpt"](replace(LONG, banner=False, seconds=1.0, first=13, last=60))
    (told,) = (w for w in read(JOBS["litgpt"](replace(LONG, last=12)), rows[cut:]).remarks if w.code == "pace_changes")
    assert "takes 0.5 times as long" in told
    assert "tail -n +2" in told


def test_rates_of_rows_that_are_divided_by_another_number_of_gpus_are_of_another_training(read: Reader) -> None:
    rows = ALL_JOBS["nemo_rl"](replace(LONG, gpus=4, first=41, last=60))
    assert_figures_of(read(ALL_JOBS["nemo_rl"](LONG), rows), LONG)


def test_a_number_that_is_printed_again_with_another_time_is_a_restart(read: Reader) -> None:
    rows = [line for line in JOBS["nemo"](replace(LONG, seconds=4.0, last=60)) if "iteration" in line]
    result = read(JOBS["nemo"](replace(LONG, last=12)), rows[11:])
    assert result.training_config.num_gpus is None
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(4.0, rel=0.004)


def test_a_night_between_two_rows_is_not_a_step_time(read: Reader) -> None:
    rows = ALL_JOBS["timestamps"](LONG.resume(last=60))
    result = read(ALL_JOBS["timestamps"](LONG), rows)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.004)
    assert [segment.began_by for segment in result.provenance.segments][1].startswith("a pause between rows")


def test_a_stall_or_a_slow_start_is_not_another_speed(read: Reader) -> None:
    rows = JOBS["litgpt"](LONG)
    slow = [line.replace("iter time: 2000.00", "iter time: 9000.00") if "iter 21 " in line else line for line in rows]
    assert "pace_changes" not in [one.code for one in read(slow).remarks]


def test_rows_whose_batch_becomes_smaller_are_another_training(read: Reader) -> None:
    rows = [line for line in JOBS["nemo"](replace(OTHER, last=60)) if "iteration" in line]
    more = [line for line in JOBS["nemo"](replace(LONG, first=61, last=90)) if "iteration" in line]
    assert_figures_of(read(rows, more), OTHER)


def test_rows_of_another_amount_of_work_are_another_training(read: Reader) -> None:
    rows = JOBS["nanochat"](LONG)
    more = [line for line in JOBS["nanochat"](replace(OTHER, first=41, last=60, startup=0.5)) if "dt: " in line]
    result = read(rows, more)
    assert_figures_of(result, LONG)
    assert result.provenance.segments[1].began_by == "reported_tokens_per_second × seconds changes, so the work changes"


def test_rows_at_another_speed_without_settings_do_not_take_those_of_the_job_before(read: Reader) -> None:
    silent = [line for line in JOBS["litgpt"](replace(OTHER, last=90)) if "iter time" in line]
    result = read(JOBS["litgpt"](LONG), silent)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(OTHER.seconds, rel=0.004)
    assert result.training_config.global_batch_size is None
    assert result.performance_metrics.tokens_per_second is None
    assert "settings_not_inherited" in [one.code for one in result.remarks]


def test_rows_that_name_another_world_size_are_another_training(read: Reader) -> None:
    fewer = LONG.resume(gpus=4, seconds=4.0, last=60)
    rows = [line for line in JOBS["primus"](fewer) if "elapsed time" in line]
    result = read(JOBS["primus"](LONG), rows)
    assert result.training_config.num_gpus == 8
    assert_figures_of(result, LONG)


@in_each("changes", [{"length": 4096}, {"gpus": 4}])
@in_each("name", ["megatron", "primus"])
def test_rows_that_go_on_with_other_work_per_device_are_another_training(
    name: str, changes: dict[str, int], read: Reader
) -> None:
    marks = "elapsed time"
    later = LONG.resume(seconds=4.0, last=60, resumed=False, **changes)
    rows = [line for line in JOBS[name](later) if marks in line]
    assert_figures_of(read(JOBS[name](LONG), rows), LONG)


def test_rows_that_go_on_with_another_share_of_the_peak_are_another_training(read: Reader) -> None:
    later = LONG.resume(seconds=4.0, last=60, resumed=False, gpus=4)
    rows = [line for line in JOBS["nanochat"](later) if "dt: " in line]
    assert_figures_of(read(JOBS["nanochat"](LONG), rows), LONG)


@in_each("name", ["megatron", "nanochat", "nanotron", "maxtext"])
def test_a_resume_of_equal_steps_whose_rates_show_other_work_is_another_training(name: str, read: Reader) -> None:
    later = LONG.resume(length=LONG.length // 2, last=60, banner=False)
    result = read(ALL_JOBS[name](LONG), ALL_JOBS[name](later))
    assert_figures_of(result, LONG)
    assert any("not measured: number 2" in warning and " instead of " in warning for warning in result.warnings)


def test_rows_that_hold_more_tokens_than_the_settings_allow_are_reported(read: Reader) -> None:
    banner = [line for line in JOBS["maxtext"](LONG) if "completed step" not in line]
    rows = [line for line in JOBS["maxtext"](replace(LONG, length=4096, seconds=4.0)) if "completed step" in line]
    result = read(banner, rows)
    assert "work_of_rows" in [one.code for one in result.remarks]


@pytest.mark.parametrize(("name", "changes"), [("metrics table", {"length": 1024}), ("composer", {"batch": 16})])
def test_a_total_of_tokens_that_goes_back_begins_a_training_with_work_of_its_own(
    name: str, changes: dict[str, int], read: Reader
) -> None:
    first = replace(LONG, last=30)
    second = replace(LONG, first=31, last=45, banner=False, **changes)
    result = read(ALL_JOBS[name](first), ALL_JOBS[name](second))
    assert result.performance_metrics.tokens_per_step == first.batch * first.length
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(first.seconds, rel=0.004)
    assert any("tokens_per_step" in warning for warning in result.warnings)


@in_each(
    ("batches", "told"),
    [
        ((8, 4), ("batch_changes", {"verb": "falls", "first": 8, "last": 4})),
        ((4, 8), ("batch_changes", {"verb": "grows", "first": 4, "last": 8})),
        ((8, 4, 8), ("batch_varies", {"least": 4, "most": 8})),
    ],
)
def test_a_batch_that_changes_in_a_document_is_reported_with_its_direction(
    tmp_path: Path, batches: tuple[int, ...], told: tuple[str, dict[str, object]]
) -> None:
    every = [batch for batch in batches for _ in range(20)]
    rows = [{"_step": n, "step_time_s": 1.0, "global_batch_size": batch} for n, batch in enumerate(every, start=1)]
    (tmp_path / "history.json").write_text(json.dumps(rows))
    assert told in [(one.code, one.values) for one in logs.read(tmp_path / "history.json").remarks]


def test_tokens_of_samples_that_differ_in_length_are_not_added_up(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [f"{n},{1000 + 37 * n % 211},{2 + n % 3 / 1000:.4f},2.5" for n in range(1, 60)]
    path.write_text("\n".join(["step,total_tokens,step_time_s,loss", *rows]) + "\n")
    result = logs.read(path)
    assert not result.steps.has("tokens")
    assert len(result.provenance.segments) <= 1


def test_trainings_without_rows_or_with_rates_alone_are_of_no_other_work() -> None:
    alone = Steps({"index": np.arange(4), "reported_mfu": np.full(4, 0.4), "seconds": np.full(4, 2.0)})
    for steps in (Steps({}), alone, alone.replace(reported_mfu=np.nan)):
        assert changes.other_work(steps, Steps({})) == changes.other_work(Steps({}), steps) == {}
        assert changes.other_work(steps, alone.replace(seconds=1.0)) == {}


def test_a_number_that_begins_anew_in_every_epoch_of_a_table_begins_no_training(read_text):
    rows = [f"{n},{30 + 2 * n}.5,{n // 10},{n % 10},{3 - n / 100}" for n in range(1, 31)]
    result = read_text("\n".join(["_step,_runtime,train/epoch,iter,train/loss", *rows]) + "\n")
    assert "segment_chosen" not in [one.code for one in result.remarks]
    assert result.steps.column("index").tolist() == list(range(1, 31))
