"""Lightning's metrics.csv and progress bars: which columns carry time, and what a bar can say."""

import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scratch
from drawn import examples
from hypothesis import given as property_given
from hypothesis import strategies as st

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError, TensorPrimatError
from tensorprimat.core.result import Result

HEADER = "epoch,lr-AdamW,step,train/batches,train/time,train_loss"


def rows(times: list[float], interval: int = 5) -> list[str]:
    """Return rows as CSVLogger writes them: learning rate, time and loss of one step in lines of their own."""
    lines = [HEADER]
    for number, time in enumerate(times, start=1):
        step = number * interval - 1
        lines += [f",0.001,{step},,,", f"0,,{step},{2 * (step + 1)},{time},", f"0,,{step},,,{10 - number}"]
    return lines


def read(folder: Path, *lines: str, name: str = "metrics.csv") -> Result:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


def test_differences_of_the_training_clock_over_steps_are_step_times(tmp_path):
    steps = read(tmp_path, *rows([9.0, 10.0, 11.0, 13.0])).steps
    assert [(step.index, step.covers, step.seconds) for step in steps] == [
        (4, 1, None),
        (9, 5, 0.2),
        (14, 5, 0.2),
        (19, 5, 0.4),
    ]


def test_loss_and_learning_rate_are_joined_by_step(tmp_path):
    step = read(tmp_path, *rows([9.0, 10.0, 11.0])).steps[1]
    assert (step.loss, step.learning_rate, step.line) == (8.0, 0.001, 6)


def test_nemos_column_holds_the_time_of_one_step(tmp_path):
    lines = ["epoch,step,train_step_timing in s,reduced_train_loss", "0,0,9.5,11.0", "0,1,0.5,10.9", "0,2,0.6,nan"]
    result = read(tmp_path, *lines)
    assert result.raw_step_times == [9.5, 0.5, 0.6]
    assert any(warning.startswith("loss: nan") for warning in result.warnings)


def test_a_metrics_file_without_time_is_refused(tmp_path):
    with pytest.raises(NotALogError, match="no step times found"):
        read(tmp_path, "epoch,step,train_loss", "0,0,9.5", "0,1,9.4")


def test_any_other_csv_is_not_lightnings(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("name,step,price\na,1,2\n")
    assert logs.detect_format(logs.Log(path)) is None


def test_a_metrics_file_keeps_the_rates_batches_and_memory_next_to_its_times(tmp_path):
    head = (
        "epoch,step,train_step_timing in s,global_batch_size,consumed_samples,max_memory_allocated,reduced_train_loss"
    )
    result = read(tmp_path, head, *(f"0,{n},2.0,128,{128 * n},1e11,2.5{n % 10}" for n in range(60)))
    assert (result.provenance.format, result.performance_metrics.samples_per_second) == ("lightning", 64)
    assert result.memory_metrics.peak_memory_allocated_gb == 100
    assert not [warning for warning in result.warnings if warning.startswith(("format", "steps"))]


def test_a_restart_that_repeats_its_losses_is_timed_by_its_own_clock(tmp_path):
    again = [f"0,{n},{20 + (n - 200) * 0.7},{2 + n / 1000}" for n in range(210, 500, 10)]
    lines = ["epoch,step,train/time,train_loss", *(f"0,{n},{20 + n * 0.5},{2 + n / 1000}" for n in range(10, 310, 10))]
    result = read(tmp_path, *lines, *again)
    assert (len(result.steps), result.runs[0].segments) == (59, 2)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5)


def test_a_table_with_quoted_names_is_read(tmp_path):
    lines = ['\ufeff"epoch","step","train/time"', *(f'"0","{n}","{20 + n * 0.5}"' for n in range(10, 310, 10))]
    assert read(tmp_path, *lines).performance_metrics.avg_step_time_seconds == pytest.approx(0.5)


def test_a_truncated_row_and_a_clock_that_stops_give_no_step_time(tmp_path):
    lines = [*rows([9.0, 10.0, 10.0, 11.0]), "0,,24,4"]
    assert read(tmp_path, *lines).steps.column("seconds")[1:].tolist() == pytest.approx([0.2, np.nan, 0.2], nan_ok=True)


def test_the_log_of_a_real_trainer_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import LearningRateMonitor, ThroughputMonitor
    from lightning.pytorch.loggers import CSVLogger

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch, _):
            loss = self.layer(batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers and logging intervals
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, log_every_n_steps=5, accumulate_grad_batches=2, logger=CSVLogger(tmp_path),
            callbacks=[ThroughputMonitor(batch_size_fn=len, window_size=4), LearningRateMonitor()],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=2))
    result = logs.read(next(tmp_path.rglob("metrics.csv")))
    assert result.steps.column("covers").tolist() == [1, 5, 5, 5]  # optimizer steps, not batches
    assert np.isfinite(result.steps.column("seconds")[1:]).all()
    assert np.isfinite(result.steps.column("loss")).all()


def bar(epoch: int, done: int, elapsed: str, rate: str) -> str:
    return f"Epoch {epoch}: {done}%|████▏     | {done}/200 [{elapsed}<01:00, {rate:>5}it/s, v_num=0, train_loss=2.340]"


def test_a_progress_bars_last_drawing_gives_a_reported_mean(tmp_path):
    drawings = "\r".join([bar(0, 50, "00:41", "1.20"), bar(0, 100, "01:22", "1.22"), bar(0, 200, "02:40", "1.25")])
    result = read(tmp_path, "Sanity Checking", drawings, name="train.log")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.8)
    assert (result.performance_metrics.basis, result.raw_step_times) == ("reported_means", [])
    assert ("time_of_batches", 200) in [(one.code, one.values.get("batches")) for one in result.remarks]


def test_the_first_epoch_is_left_out_where_there_are_more(tmp_path):
    result = read(tmp_path, bar(0, 200, "10:00", "0.33"), bar(1, 200, "03:20", "1.00"), name="train.log")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)


def test_batches_before_a_resume_have_no_time_on_the_bar(tmp_path):
    bars = "\r".join([bar(0, 151, "00:05", "30.20"), bar(0, 176, "01:45", "1.68"), bar(0, 200, "03:21", "1.00")])
    assert read(tmp_path, bars, name="train.log").performance_metrics.avg_step_time_seconds == pytest.approx(4.0)


def test_a_slow_bar_is_read_by_its_clock_which_is_finer_than_its_rounded_rate(tmp_path):
    result = read(tmp_path, bar(0, 100, "1:20:00", "0.02"), name="train.log")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(48.0)


def test_a_bar_of_seconds_per_iteration_is_read_like_one_of_iterations_per_second(tmp_path):
    bars = "\r".join(
        f"Epoch 0:   1%|▏   | {n}/77225 [{clock}<878:01:48, 41.36s/it, loss=3.1, reduced_train_loss=3.090]"
        for n, clock in ((1, "00:41"), (798, "9:10:02"))
    )
    mean = read(tmp_path, bars, name="train.log").performance_metrics.avg_step_time_seconds
    assert mean == pytest.approx(33002 / 798)
    short = "Epoch 0:   2%|▏   | 2/100 [00:05<04:07,  2.52s/it, loss=3.1]"
    assert read(tmp_path, short, name="train.log").performance_metrics.avg_step_time_seconds == pytest.approx(2.52)


def test_bars_between_the_rows_of_another_framework_are_not_rows(tmp_path):
    rows = [
        f"Epoch 1/1:  {n}%|▏  | {n}/50 [00:{n:02}<01:00, 2.00s/it]\nstep:{n} - train/loss:1.5 - train/time(s):1.5"
        for n in range(1, 10)
    ]
    result = read(tmp_path, *rows, name="train.log")
    assert result.provenance.format == "verl"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.5)


def test_a_rich_bar_is_read_by_its_clock_because_its_rate_is_of_the_last_moments(tmp_path):
    text = "Epoch 1/1  ━━━━━━━━ 200/200 0:03:20 • 0:00:00 497.97it/s v_num: 0_1 train_loss: 0.075"
    assert read(tmp_path, text, name="train.log").performance_metrics.avg_step_time_seconds == pytest.approx(1.0)


@examples(20)
@property_given(cut=st.integers(0, 400), inserted=st.text(max_size=20), start=st.sampled_from([HEADER, "Epoch 0: "]))
def test_torn_files_raise_nothing_but_the_tools_own_errors(cut, inserted, start):
    text = "\n".join([*rows([9.0, 10.0, 11.0]), bar(0, 200, "03:20", "1.00")]).replace(HEADER, start)
    with scratch.written(text[:cut] + inserted + text[cut:], ending=".csv") as path, suppress(TensorPrimatError):
        logs.read(path)
