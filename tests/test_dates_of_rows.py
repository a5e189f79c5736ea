"""Timestamps before rows are compared with the times in them, whatever program wrote them."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError, NotALogError

START = datetime(2026, 1, 5, 8, 0, 0, tzinfo=timezone.utc)


def nemo(n, seconds, at):
    return (
        f"[NeMo I {at:%Y-%m-%d %H:%M:%S} nemo_logging:393] Training epoch 0, iteration {n}/99 | lr: 1e-05 | "
        f"global_batch_size: 8 | global_step: {n} | reduced_train_loss: {11 - n / 100:.4f} | "
        f"train_step_timing in s: {seconds:.4f} | consumed_samples: {8 * n + 8}"
    )


def maxtext(n, seconds, at):
    return (
        f"I{at:%m%d %H:%M:%S.%f} 139812 metric_logger.py:181] completed step: {n}, seconds: {seconds:.3f}, "
        f"TFLOP/s/device: 210.123, Tokens/s/device: {8192 / seconds:.3f}, total_weights: 65536, loss: {9 - n / 100:.3f}"
    )


def nanotron(n, seconds, at):
    return (
        f"{at:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 100 | consumed_tokens: {n * 4096} | "
        f"time_per_iteration_ms: {seconds * 1000:.4g} | tokens_per_sec: {4096 / seconds:.4g} | "
        f"tokens_per_sec_per_gpu: {512 / seconds:.4g} | global_batch_size: 8 | lm_loss: {9 - n / 100:.3f} | "
        "lr: 0.0003 | grad_norm: 1.5 | "
    )


def litgpt_in_kubernetes(n, seconds, at):
    return (
        f"{at:%Y-%m-%dT%H:%M:%S.%f}789Z Epoch 1 | iter {n} step {n} | loss train: {9 - n / 100:.3f}, val: n/a | "
        f"iter time: {seconds * 1000:.2f} ms (step) remaining time: 0:12:01"
    )


def nanochat_in_kubernetes(n, seconds, at):
    return (
        f"{at:%Y-%m-%dT%H:%M:%S.%f}Z stdout F step {n:05d}/00100 ({n:.2f}%) | loss: {9 - n / 100:.6f} | lrm: 1.00 | "
        f"dt: {1000 * seconds:.2f}ms | tok/sec: {int(524288 / seconds):,} | mfu: 40.00 | total time: 1.00m"
    )


ROWS = (nemo, maxtext, nanotron, litgpt_in_kubernetes, nanochat_in_kubernetes)
Row = Callable[[int, float, datetime], str]


def read(path, row, seconds, gaps):
    """Read a log whose rows all state `seconds`; gaps: time that really passed before each."""
    at, lines = START, []
    for n, gap in enumerate(gaps, start=1):
        at += timedelta(seconds=gap)
        lines.append(row(n, seconds, at) + "\n")
    path.write_text("".join(lines))
    return logs.read(path)


@in_each("row", ROWS)
def test_stamps_that_agree_with_the_rows_are_the_clock_of_the_audit(tmp_path, row):
    result = read(tmp_path / "run.log", row, 2.0, [2.0] * 40)
    assert result.audit is not None
    assert (result.audit.clock, result.audit.explained_by) == ("the timestamps of the rows", ())
    assert result.audit.ratio == pytest.approx(1, abs=0.03)
    assert not any(warning.startswith("audit") for warning in result.warnings)


@in_each("row", ROWS)
def test_a_pause_between_two_stamps_is_named_with_its_seconds(tmp_path, row):
    result = read(tmp_path / "run.log", row, 2.0, [2.0] * 20 + [32.0] + [2.0] * 19)
    assert result.audit.explained_by in (("pauses between rows 30 s",), ("pauses between rows 31 s",))
    assert not any(warning.startswith("audit") for warning in result.warnings)


@in_each("row", ROWS)
def test_stamps_that_leave_a_tenth_unexplained_are_the_first_warning(tmp_path, row):
    result = read(tmp_path / "run.log", row, 2.0, [2.3] * 80)
    assert result.warnings[0].startswith("audit: 79 steps take 158 s at the measured pace, but 18")
    assert "by the timestamps of the rows" in result.warnings[0]


@in_each("row", ROWS)
def test_stamps_that_contradict_the_rows_refuse_the_log(tmp_path, row):
    with pytest.raises(ContradictionError, match=r"at the measured pace, but .* by the timestamps of the rows"):
        read(tmp_path / "run.log", row, 2.0, [3.0] * 80)


def test_a_stamp_in_the_middle_of_a_redrawn_line_is_that_of_its_row(tmp_path):
    path = tmp_path / "run.log"
    at = [START + timedelta(seconds=2 * n) for n in range(40)]
    path.write_text("".join(f"loading 5%|#\r{nemo(n, 2.0, when)}\n" for n, when in enumerate(at)))
    assert logs.read(path).audit.ratio == pytest.approx(1)


WITHOUT_A_DATE = {
    "nemo": "Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_batch_size: 8 | global_step: {n} | "
    "reduced_train_loss: 9.{n:02} | train_step_timing in s: 2.0 | consumed_samples: 80",
    "litgpt": "Epoch 1 | iter {n} step {n} | loss train: 9.{n:02}, val: n/a | iter time: 2000.00 ms (step) remaining "
    "time: 0:12:01",
    "verl": "(TaskRunner pid=71) step:{n} - actor/pg_loss:1.{n} - perf/time_per_step:2.0 - perf/total_num_tokens:512 "
    "- perf/throughput:256.0",
    "timestamps": "step {n} loss 9.{n:02} lr 1e-05",
}
DATED = {
    "journalctl": "{month} node-3 train.service[12]: {line}",
    "journalctl -o short-precise": "{month}.{micro:06} node-3 python3[12]: {line}",
    "journalctl -o short-iso": "{date}+0000 node-3 python3[12]: {line}",
    "kubectl --timestamps": "{date}.{micro:06}789Z {line}",
    "ts": "{month} {line}",
}


def dated(row, collector, gap=2.0, rows=200):
    """Return rows of 2 s each as a collector of logs stores them, dated `gap` seconds apart."""
    lines = []
    for n in range(1, rows + 1):
        moment = datetime(2026, 1, 5, 8, tzinfo=timezone.utc) + timedelta(seconds=gap * n + 0.01 * (n % 7))
        spelled = {
            "date": f"{moment:%Y-%m-%dT%H:%M:%S}",
            "month": f"{moment:%b} {moment.day:2} {moment:%H:%M:%S}",
            "micro": moment.microsecond,
        }
        lines.append(DATED[collector].format(line=row.format(n=n), **spelled) + "\n")
    return "".join(lines)


@in_each("row", WITHOUT_A_DATE)
@in_each("collector", DATED)
def test_rows_without_dates_are_checked_against_the_dates_of_the_collector(read_text, collector, row):
    result = read_text(dated(WITHOUT_A_DATE[row], collector))
    assert result.provenance.format == row
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.005)
    if result.provenance.timing == "reported":
        assert result.audit is not None
        assert result.audit.clock == "the timestamps of the rows"
        assert result.audit.ratio == pytest.approx(1, abs=0.01)


@in_each("collector", DATED)
def test_the_dates_of_a_collector_refuse_rows_that_leave_out_a_third_of_the_time(read_text, collector):
    with pytest.raises(ContradictionError, match="by the timestamps of the rows"):
        read_text(dated(WITHOUT_A_DATE["litgpt"], collector, gap=3.0))


def test_a_stamp_of_the_logger_comes_before_that_of_the_collector(read_text):
    row = "2026-03-01 09:{minute:02}:{second:02},500 INFO step {n} loss 2.5"
    rows = [row.format(n=n, minute=n // 30, second=2 * n % 60) for n in range(1, 40)]
    result = read_text("".join(f"2026-03-01T10:00:00+0100 host train[5]: {text}\n" for text in rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert result.timestamp == "2026-03-01T09:00:02"


def test_a_table_after_the_stamps_of_kubernetes_is_read(read_text):
    rows = ["step,step_time,train/loss", *(f"{n},2.5,9.{n}" for n in range(1, 20))]
    text = "".join(f"2026-01-05T08:00:{n:02}.{n:09}Z {row}\n" for n, row in enumerate(rows))
    assert read_text(text).performance_metrics.avg_step_time_seconds == pytest.approx(2.5)


@pytest.mark.parametrize("form", ["{:%Y-%m-%dT%H:%M:%S.%f}{} ", "{:%Y-%m-%dT%H:%M:%S}{} node-3 python3[12]: "])
def test_a_clock_that_is_put_forward_in_the_night_is_not_a_pause(read_text, form):
    lines = []
    for n in range(1, 201):
        moment = datetime(2026, 3, 29, 0, 58) + timedelta(seconds=2 * n)
        summer = moment >= datetime(2026, 3, 29, 1)
        local = form.format(moment + timedelta(hours=1 + summer), "+02:00" if summer else "+01:00")
        lines.append(local + WITHOUT_A_DATE["litgpt"].format(n=n) + "\n")
    audit = read_text("".join(lines)).audit
    assert audit is not None
    assert (audit.ratio, audit.explained_by) == (pytest.approx(1, abs=0.01), ())


DAY_FIRST = ("%d/%m/%Y %H:%M:%S", "%d-%m-%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p")


def with_year_last(form, day, row="step {n}/999 loss 9.{n:03} lr 1e-05"):
    """Return rows of any training loop, 7.5 s apart, across midnight."""
    start = datetime(2026, 11, day, 23, 50)
    return "".join(f"{start + timedelta(seconds=7.5 * n):{form}} {row.format(n=n)}\n" for n in range(1, 301))


@in_each("day", [5, 25])
@in_each("form", ["%m/%d/%Y %H:%M:%S", "%d %b %Y %H:%M:%S", "%d/%b/%Y:%H:%M:%S +0000", "%a %b %d %H:%M:%S %Y"])
def test_dates_with_the_year_last_time_rows_where_the_month_is_first_or_named(read_text, form, day):
    result = read_text(with_year_last(form, day))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(7.5, rel=0.01)
    assert (result.steps.column("segment").max(), result.timestamp) == (0, f"2026-11-{day:02}T23:50:07")


@in_each("day", [5, 25])
@in_each("form", DAY_FIRST)
def test_dates_that_may_have_the_day_first_time_no_step_wrongly(read_text, form, day):
    with suppress(NotALogError):
        result = read_text(with_year_last(form, day))
        assert "dates_assumed" in [one.code for one in result.remarks]
        assert result.performance_metrics.avg_step_time_seconds == pytest.approx(7.5, rel=0.01)
    rows = read_text(with_year_last(form, day, "step {n}/999 | loss 9.{n:03} | step time 7500.0 ms"))
    assert {one.code for one in rows.remarks} & {"dates_unread", "dates_assumed"}
    assert rows.performance_metrics.avg_step_time_seconds == pytest.approx(7.5)


def test_a_date_in_the_text_of_a_log_is_no_date_of_rows(read_text):
    rows = "".join(f"step {n}/999 | loss 9.{n:03} | step time 7500.0 ms\n" for n in range(1, 99))
    assert "dates_unread" not in {one.code for one in read_text(f"answer: 19.11.2018 12:50:14.\n{rows}").remarks}


def test_dates_with_the_day_first_are_refused_with_the_remedy(read_text):
    with pytest.raises(NotALogError, match=r"dates such as 25/11/2026 are not read, .* write the year first"):
        read_text(with_year_last("%d/%m/%Y %H:%M:%S", 25))
