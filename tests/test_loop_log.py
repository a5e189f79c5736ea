"""Rows of a training loop that no framework prints: numbers are found by their names and units."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError, NotALogError
from tensorprimat.core.user_facts import UserFacts


def rows(pattern: str, count: int = 30) -> str:
    """Return rows whose step times and rates vary a little: {n} number, {ms} time, {s} seconds, {r} tokens/s."""
    made = []
    for n in range(1, count + 1):
        ms = 500 + n % 3
        made.append(pattern.format(n=n, ms=ms, s=ms / 1000, r=32768 / ms * 1000, k=32768 / ms, l=9 - n / 100))
    return "\n".join(made) + "\n"


ReadText = Any
TIMES = [
    "ep=00  step={n}  loss={l:.4f}  fwd=45.2ms  opt=107.5ms  iter={ms:.1f}ms  mem=6027MB",
    "step {n} | loss {l:.4f} | step time {ms} ms |",
    "step {n}/30 | loss {l:.4f} | t/step {ms}ms | kernel 38ms",
    "train step {n}/1000 | tokens 2.62e+05 | s/step {s:.3f} | eta 0.50h | loss {l:.4f}",
    "Epoch [1/3] Step [{n}/5000] Loss: {l:.4f} Time/step: {s:.3f}s Acc: 0.5",
    "iter {n}: loss={l:.4f} step_ms={ms} mem_gb=35.2",
    "Iteration {n}, Loss {l:.4f}, Iter Time (s): {s:.3f}, LR 1e-4",
    "step: {n} - loss: {l:.4f} - {s:.3f} s/step",
    '{{"step": {n}}} loss: {l:.4f}, step_time_ms: {ms}, done',
    "step {n} step_time {s:.12f}s loss {l:.4f} grad norm 1.2",
    "step {n} loss {l:.4f} dt {ms}ms mfu 40.1%",
    "train/step: {n} train/loss: {l:.4f} step_time: {s:.3f}s,",
    "step {n} │ train_loss {l:.4f} │ step time {ms} ms │",
    "step {n}/100 | train loss {l:.4f} | lr_scale 1.00e+00 | ({ms}.00 ms | {r:.0f} tok/s)",
    "[{n}/100] loss {l:.4f} ({ms} ms | {r:,.0f} tok/s)",
    "{n}/100: loss {l:.4f} {ms}ms",
    "2026-01-05 08:00:00,123 - train - INFO - ({n}/100) loss={l:.4f} - {ms} ms, eta 30 s",
    "[rank0]: {n}/100 loss {l:.4f} time={s:.3f}s",
    "step {n}: loss {l:.4f} ({ms} ms)",
    "step {n} | loss {l:.4f} | time: {ms}.00ms | total time: {n}.50s",
]
NO_ROWS = [
    "[{n}/100] eval loss {l:.4f} ({ms} ms)",
    "[{n}/100] val_loss {l:.4f} ({ms} ms)",
    "Test: [{n}/100] loss {l:.4f} ({ms} ms)",
    "Epoch [{n}/100] loss {l:.4f} ({ms} ms)",
    "Epoch {n}/100: loss {l:.4f} {s} s",
    "Tokenizing [{n}/100] {ms} ms | {r:.0f} tok/s",
    "Loading checkpoint shards: {n}/100 ({ms} ms)",
    "Map: 1%|█   | {n}/100 [00:01<00:12, 812.31 examples/s]",
    "{n}%|█   | {n}/100 [00:01<00:12, {ms}ms/it, loss={l:.4f}]",
    "model.safetensors: {n}/100 [00:01<00:12, 68.1MB/s]",
    "[{n}/100] loss {l:.4f} ({s:.3f}s / {ms}ms)",
]


@in_each("pattern", TIMES)
def test_a_step_time_is_found_by_its_name_and_unit(read_text: ReadText, pattern: str) -> None:
    result = read_text(rows(pattern))
    assert result.provenance.format == "loop"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.501, abs=0.0005)
    assert result.steps.column("index").tolist() == list(range(1, 31))
    assert result.steps.column("loss")[0] == pytest.approx(8.99)
    assert "no_framework" in [one.code for one in result.remarks]


@in_each("pattern", NO_ROWS)
def test_counters_of_other_work_than_steps_are_no_rows(read_text: ReadText, pattern: str) -> None:
    with pytest.raises(NotALogError, match="no step times found"):
        read_text(rows(pattern))


CLOCKS = ["({s:.1f}s)", "| {s:.1f}s", "| Elapsed: {s:.2f}s | ETA: 9s", "time elapsed {s:.1f} s", "total time: {s:.1f}s"]


@in_each("shown", CLOCKS)
@in_each("per_epoch", [False, True])
def test_a_time_that_runs_on_from_row_to_row_is_the_clock_of_the_steps(
    read_text: ReadText, shown: str, per_epoch: bool
) -> None:
    row = "step {n} loss 2.31 " + shown + "\n"
    clock = [1.61 * (n % 150 or 150 if per_epoch else n) + 9 * (n > 120 and not per_epoch) for n in range(10, 460, 10)]
    lines = [row.format(n=n, s=s) for n, s in zip(range(10, 460, 10), clock, strict=True)]
    result = read_text("".join([*lines[:12], "validating\nval loss 3.1\n", *lines[12:]]))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.61, rel=0.01)
    assert result.performance_metrics.max_step_time_seconds < 2
    assert result.provenance.timing == "timestamps"


@in_each("seconds", [lambda n: 80 - 0.8 * n, lambda n: 5 + 0.1 * n, lambda n: 2.5 + 0.25 * n])
def test_a_time_that_goes_on_but_is_no_clock_of_the_steps_is_left_out(read_text: ReadText, seconds: Any) -> None:
    with pytest.raises(NotALogError, match="grow or shrink from row to row"):
        read_text("".join(f"[{n}/100] loss 2.31 | {seconds(n):.1f}s\n" for n in range(1, 31)))


RATES = {
    "step {n} | lr 1.5e-06 | loss {l:.4f} | tok/s {r:.1f}": 1.0,
    "step={n} loss={l:.4f} lr=1.41e-04 tok/s={r:.1f}": 1.0,
    "step {n}: loss {l:.4f}, {r:,.0f} tokens/s, mem 35.2 GB": 1.0,
    "step {n} | loss {l:.4f} | throughput: {k:.4f}k tok/s": 1.0,
    "step {n} | loss {l:.4f} | tok/s 123 | global_tok/s {r:.1f}": 1.0,
    "step {n} | loss {l:.4f} | tokens/sec/gpu: {r:.1f}": 8.0,
    "step {n} | loss {l:.4f} | tgs {r:.1f} | mfu 0.4": 8.0,
    "step {n} | loss {l:.4f} | throughput (tokens/s): {r:.1f}": 1.0,
    "{{'step': {n}, 'loss': {l:.4f}, 'tok/s': {r:.1f}}}": 1.0,
    "step {n}/30 loss {l:.4f} lr 1e-4 time {s:.3f}s tok/s {r:.1f}": 1.0,
    "step {n} loss {l:.4f} tok/s {r:.1f} mfu 40.1%": 1.0,
    "step {n} │ ce_loss {l:.4f} │ {r:.1f} tok/s │ {ms} ms": 1.0,
}


@in_each("pattern", RATES)
def test_a_rate_of_tokens_is_found_by_its_name(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(rows(pattern))
    result = logs.read(path, facts=UserFacts(num_gpus=8))
    assert result.provenance.format == "loop"
    assert result.performance_metrics.tokens_per_second == pytest.approx(RATES[pattern] * 65405, rel=0.001)
    names_its_scope = "global" in pattern or "gpu" in pattern or "tgs" in pattern
    assert names_its_scope != ("rate_of_all_assumed" in [one.code for one in result.remarks])


@in_each(
    ("pattern", "samples"),
    [
        ("step {n} | loss {l:.4f} | samples/s {k:.2f}", 1.0),
        ("step {n} | loss {l:.4f} | {k:.2f} sequences/sec |", 1.0),
        ("step {n} | loss {l:.4f} | seq/s/gpu: {k:.2f}", 8.0),
    ],
)
def test_a_rate_of_samples_is_found_by_its_name(read_text: ReadText, pattern: str, samples: float) -> None:
    result = read_text(rows(pattern), num_gpus=8, sequence_length=100)
    performance = result.performance_metrics
    assert performance.samples_per_second == pytest.approx(samples * 65.405, rel=0.001)
    assert performance.tokens_per_second == pytest.approx(samples * 6540.5, rel=0.001)
    doubts = [one for one in result.warnings if "do not say whether their rate counts all GPUs" in one]
    assert [one.partition(":")[0] for one in doubts] == ["samples_per_second"] * ("gpu" not in pattern)


@in_each(
    ("pattern", "seconds"),
    [
        ("step: {n}, loss: {l:.4f}, steps/s: 1.996", 1 / 1.996),
        ("step {n} | loss {l:.4f} | 1.996 iter/s |", 1 / 1.996),
        ("step {n} | loss {l:.4f} | 2.0 steps/s | tok/s {r:.1f} |", 1 / 2.0),  # known to 2.5 %
        ("step {n}: loss {l:.4f}  10%|#     | 3/30 [00:01<00:13, 1.996steps/s, tok/s={r:.1f}]", None),  # a running mean
    ],
)
def test_a_rate_of_steps_gives_their_time_unless_it_is_a_running_mean(
    read_text: ReadText, pattern: str, seconds: float | None
) -> None:
    assert read_text(rows(pattern)).performance_metrics.avg_step_time_seconds == (
        None if seconds is None else pytest.approx(seconds)
    )


@in_each(
    "pattern",
    [
        "step {n} | loss {l:.4f} | time {s:.3f} | elapsed {ms}",  # of what, and in which unit?
        "step {n} | loss {l:.4f} | step time {s:.3f} | lr 1e-4",  # in which unit?
        "step {n} loss {l:.4f} {r:.1f} tok/s {ms} mem",  # which of the numbers?
        "step {n} | tok/s {r:.1f} | generated",  # no loss: not training
        "step {n} | val loss {l:.4f} | tok/s {r:.1f}",
        "eval step {n} | loss {l:.4f} | tok/s {r:.1f}",
        "epoch 1 | loss {l:.4f} | tok/s {r:.1f}",
        "step {n} | loss {l:.4f} | tok/s 65",  # cut?
        "step {n} | loss {l:.4f} | tok/s 1.2.3 |",
        "step {n} | loss {l:.3f} tok/s [mean] {r:.1f}",  # the number of the loss is no rate
        "step {n} | loss {l:.4f} | samples 5 tok/step 8",
    ],
)
def test_a_number_that_is_not_certainly_a_step_time_or_rate_is_not_read(read_text: ReadText, pattern: str) -> None:
    with pytest.raises(NotALogError):
        read_text(rows(pattern))


def test_a_number_with_a_unit_is_not_the_number_of_a_step(read_text: ReadText) -> None:
    """The time of the optimizer's step is named before it, as the number of a step is."""
    result = read_text(
        rows("iter {n} | loss {l:.4f} | fwd 120ms | bwd 230ms | optimizer step 12ms | step time {ms} ms |")
    )
    assert result.steps.column("index").tolist() == list(range(1, 31))


@in_each(
    "pattern",
    [
        "step {n} | loss {l:.4f} | optimizer step time: 12 ms | step time: {ms} ms |",
        "step {n} | loss {l:.4f} | data step time: 9 ms | step time: {ms} ms |",
        "step {n} | loss {l:.4f} | avg step time: 900 ms | step time: {ms} ms |",
        "step {n} | loss {l:.4f} | avg 900 ms/step | {ms} ms/step |",
    ],
)
def test_the_time_of_a_part_and_a_mean_are_not_the_step_time(read_text: ReadText, pattern: str) -> None:
    result = read_text(rows(pattern))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.501, abs=0.0005)


@in_each("other", ["avg tok/s: 11000", "peak tok/s: 99000", "decode tok/s: 99000"])
def test_another_rate_before_the_rate_of_training_is_passed_over(read_text: ReadText, other: str) -> None:
    result = read_text(rows(f"step {{n}} | loss {{l:.4f}} | {other} | tok/s: {{r:.1f}}"))
    assert result.performance_metrics.tokens_per_second == pytest.approx(65405, rel=0.001)


@in_each("name", ["GPU tok/s", "per-gpu tok/s", "per_device_tokens_per_sec"])
def test_a_rate_named_after_one_gpu_is_not_that_of_all(read_text: ReadText, name: str) -> None:
    result = read_text(rows(f"step {{n}} | loss {{l:.4f}} | {name}: {{r:.1f}}"), num_gpus=8)
    assert result.performance_metrics.tokens_per_second == pytest.approx(8 * 65405, rel=0.001)


def test_steps_with_a_validation_before_their_row_are_not_measured(read_text: ReadText) -> None:
    lines = rows(TIMES[0]).splitlines()
    lines[20] = lines[20].replace("step time 500 ms", "step time 9000 ms")
    result = read_text("\n".join([*lines[:20], "validation: perplexity 12.1", *lines[20:], ""]))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.501, abs=0.0005)
    assert ("steps_excluded", {"steps": 1, "work": "a validation or checkpoint"}) in [
        (one.code, one.values) for one in result.remarks
    ]


def dated(seconds: float) -> str:
    """Return rows of 0.5 s steps that are so many seconds apart by their dates."""
    start = datetime(2026, 1, 5, 8, tzinfo=timezone.utc)
    lines = enumerate(rows(TIMES[0]).splitlines())
    return "".join(f"{start + timedelta(seconds=seconds * n):%Y-%m-%d %H:%M:%S.%f} {line}\n" for n, line in lines)


def test_dates_on_the_rows_check_their_times(read_text: ReadText) -> None:
    agreeing = read_text(dated(0.501))
    assert agreeing.provenance.format == "loop"
    assert {"audit", "formats_doubted"}.isdisjoint(one.code for one in agreeing.remarks)
    by_dates = read_text(dated(1.0))  # the printed time leaves half of the step out
    assert by_dates.provenance.format == "timestamps"
    assert by_dates.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)
    with pytest.raises(ContradictionError, match="by the timestamps of the rows"):
        read_text(dated(1.0), format="loop")


def every_tenth(name: str, seconds: float | None) -> str:
    """Return rows of every tenth step, which state 5 s; if dated, so many seconds apart."""
    lines = rows(f"step {{n}}0 | loss {{l:.4f}} | {name}: {{ms}}0 ms |").splitlines()
    start = datetime(2026, 1, 5, 8, tzinfo=timezone.utc)
    stamps = (f"{start + timedelta(seconds=(seconds or 0) * n):%Y-%m-%d %H:%M:%S.%f} " for n in range(len(lines)))
    return "".join(f"{stamp if seconds else ''}{line}\n" for stamp, line in zip(stamps, lines, strict=True))


@pytest.mark.parametrize("name", ["dt", "step time"])
def test_the_dates_show_that_a_time_is_that_of_all_steps_since_the_row_before(read_text: ReadText, name: str) -> None:
    result = read_text(every_tenth(name, 5.01))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.501, abs=0.0005)
    assert ("time_of_interval", 10) in [(one.code, one.values.get("interval")) for one in result.remarks]
    assert not any(warning.startswith("audit: ") for warning in result.warnings)


def test_the_dates_show_that_a_time_is_that_of_one_step_of_many(read_text: ReadText) -> None:
    result = read_text(every_tenth("dt", 50.1))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(5.01, abs=0.005)
    assert not any(warning.startswith(("audit: ", "step_time: ")) for warning in result.warnings)


@pytest.mark.parametrize(("name", "warned"), [("dt", True), ("step time", False)])
def test_a_time_without_a_date_that_may_be_of_ten_steps_is_warned_about(
    read_text: ReadText, name: str, warned: bool
) -> None:
    result = read_text(every_tenth(name, None))
    assert (("one_step_assumed", 10) in [(one.code, one.values.get("interval")) for one in result.remarks]) == warned


def test_rows_of_the_first_rank_that_speaks_count(read_text: ReadText) -> None:
    lines = [f"{rank}: {line}" for line in rows(TIMES[0]).splitlines() for rank in (1, 0)]
    assert len(read_text("\n".join(lines) + "\n").steps) == 30


def test_the_last_line_of_a_log_that_was_cut_is_not_read(read_text: ReadText) -> None:
    for lost in range(6):
        text = rows("step={n} loss={l:.4f} tok/s={r:.1f}").rstrip("\n")
        assert len(read_text(text[: len(text) - lost]).steps) == (29 if lost else 30)


def test_rows_without_a_loss_need_a_time_and_a_rate(read_text: ReadText) -> None:
    result = read_text(rows("hf step {n} seconds {s:.4f} tokens/s {r:.1f}"))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.501, rel=1e-3)
    assert result.performance_metrics.tokens_per_second == pytest.approx(32768 / 0.501, rel=1e-3)
    with pytest.raises(NotALogError):
        read_text(rows("hf step {n} tokens/s {r:.1f}"))


def test_a_time_without_a_name_that_does_not_fit_the_rate_is_not_a_step_time(read_text: ReadText) -> None:
    pattern = "step {n} | loss {l:.4f} | ({wait:.2f} ms | {r:.0f} tok/s)"
    text = "".join(pattern.format(n=n, l=9 - n / 100, wait=20 + 7 * (n % 5), r=65536) + "\n" for n in range(1, 31))
    result = read_text(text)
    assert result.performance_metrics.avg_step_time_seconds is None
    assert result.performance_metrics.tokens_per_second == pytest.approx(65536)
    assert any(one.startswith("step_time: times and rates") for one in result.warnings)


def test_a_number_of_the_loss_is_no_rate(read_text: ReadText) -> None:
    result = read_text(rows("step {n} loss {l:.3f} tokens/s (per gpu) {r:.1f}"))
    assert result.performance_metrics.tokens_per_second is None
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(65_405, rel=1e-3)


@in_each("factor", [1.0, 1 / 60, 1000.0])
def test_rows_with_a_step_time_without_a_unit_are_timed_by_their_dates(read_text: Any, factor: float) -> None:
    row = "2026-01-05 08:{:02}:{:02} step {n} loss 7.{n} step_time {t:.3f}\n"
    rows = [row.format(*divmod(12 * n, 60), n=n, t=factor * (12 + n / 1000)) for n in range(10, 60)]
    result = read_text("".join(rows))
    assert result.provenance.format == "timestamps"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(12, rel=0.01)
    with pytest.raises(NotALogError):
        read_text("".join(row.partition(" step")[1] + row.partition(" step")[2] for row in rows))


@in_each(
    ["world_size: 8\nseq_length: 2048\nglobal_batch_size: 16", "args: num_gpus=8, seq_len=2048, global_batch_size=16"]
)
def test_settings_that_the_lines_before_the_rows_name_in_full_are_read(head: str, tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    rows = (f"step {n} | loss {9 - n / 100:.3f} | step time 2.00{n % 3} s | tok/s 2048" for n in range(1, 30))
    log.write_text("\n".join([head, "warmup_max_steps: 3, batch_size: 2", *rows, "seq_len: 9"]) + "\n")
    result = logs.read(log)
    config, figures = result.training_config, result.performance_metrics
    assert (config.num_gpus, config.sequence_length, config.global_batch_size, config.max_steps) == (8, 2048, 16, None)
    assert figures.tokens_per_second == pytest.approx(16 * 2048 / 2.001, rel=1e-3)
    assert "reported_differs" in [one.code for one in result.remarks]


@in_each(
    ("shown", "peak"),
    [
        ("peak 79.3 GB", 79.3),
        ("mem 78.1GiB", 83.859),
        ("max_mem=41234MiB", 43.237),
        ("peak_mem (GiB): 35.1", 37.688),
        ("Max GPU memory allocated: 35,210 MB", 35.21),
        ("mem_gb=35.2", 35.2),
        ("mem 35.2", None),  # of what unit
        ("mem 45%", None),
        ("mem 35.1/80.0 GB", None),
        ("cpu mem peak 35.1 GB", None),
        ("free memory 20.1 GB", None),
    ],
)
def test_the_memory_of_a_row_is_found_by_its_name_and_unit(read_text: ReadText, shown: str, peak: float | None) -> None:
    memory = read_text(rows("step {n} | loss {l:.4f} | step time {ms} ms | " + shown)).memory_metrics
    assert (memory and memory.peak_memory_allocated_gb) == (peak and pytest.approx(peak, abs=0.001))


@in_each(
    ("numbers", "steps"),
    [
        (range(10, 501, 10), 500),
        (range(9, 500, 10), 500),  # counted from 0
        (range(0, 500, 10), 491),
        ([1, *range(10, 501, 10)], 500),
        (range(1, 501), 500),
        (range(310, 401, 10), 91),  # rows before the first are missing
        ([126, 261, 396], 3),  # picked by hand
    ],
)
@in_each(
    "row", ["step {n} loss 2.5 step time {ms} ms", "step {n} loss 2.5 tok/s {ms}0.5", '{{"step": {n}, "dt_ms": {ms}}}']
)
def test_a_training_has_as_many_steps_as_its_counter_says(
    read_text: ReadText, row: str, numbers: Any, steps: int
) -> None:
    result = read_text("".join(row.format(n=n, ms=500 + n % 3) + "\n" for n in numbers))
    assert result.performance_metrics.total_steps == steps
