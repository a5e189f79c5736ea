"""A file that holds several trainings: every figure comes from one of them, with the facts of that one alone."""

import gzip
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import scratch
from drawn import examples
from each import in_each
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from job_logs import JOBS, Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.core import terms
from tensorprimat.core.errors import InputError
from tensorprimat.core.result import Result
from tensorprimat.core.summary import measured_of
from tensorprimat.logs import files, segments
from tensorprimat.session.explain import explain
from tensorprimat.storage import store

LONG = Job()
OTHER = Job(batch=128, length=4096, seconds=0.5, last=20)
"""A shorter job of other work at another speed: read with its facts, LONG would be eight times as fast."""

each_format = in_each("name", JOBS)
Reader = Callable[..., Result]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Lines of jobs, one after the other in one file, as `tee -a` leaves them."""

    def read(*parts: Sequence[str], segment: int | None = None) -> Result:
        path = tmp_path / "run.log"
        path.write_text("\n".join(line for part in parts for line in part) + "\n")
        return logs.read(path, segment=segment)

    return read


def assert_figures_of(result: Result, job: Job, rel: float = 0.004) -> None:
    """Check that every figure that the log can tell is that of one job."""
    performance, config = result.performance_metrics, result.training_config
    told = [
        (performance.avg_step_time_seconds, job.seconds),
        (performance.steps_per_second, 1 / job.seconds),
        (performance.tokens_per_second_per_gpu, job.tokens_per_gpu),
        (performance.tokens_per_second, job.tokens_per_gpu * job.gpus),
        (performance.samples_per_second, job.batch / job.seconds),
        (config.global_batch_size, job.batch),
        (config.sequence_length, job.length),
        (config.num_gpus, job.gpus),
    ]
    assert any(value is not None for value, _ in told)
    for value, truth in told:
        assert value is None or value == pytest.approx(truth, rel=rel), (value, truth)


@each_format
@in_each("other_first", [True, False])
def test_the_longest_of_two_jobs_is_measured_with_its_own_facts(name: str, other_first: bool, read: Reader) -> None:
    jobs = [OTHER, LONG] if other_first else [LONG, OTHER]
    result = read(*map(JOBS[name], jobs))
    assert_figures_of(result, LONG)
    assert len(result.provenance.segments) == 2
    assert result.performance_metrics.max_step_time_seconds in (None, pytest.approx(LONG.seconds, rel=0.004))


@each_format
def test_of_three_jobs_every_one_can_be_read_alone(name: str, read: Reader) -> None:
    jobs = [OTHER, LONG, Job(seconds=1.0, batch=32, last=25)]
    for number, job in enumerate(jobs, start=1):
        result = read(*map(JOBS[name], jobs), segment=number)
        assert_figures_of(result, job)
        assert len(result.steps) == job.last
        assert result.provenance.segment == number


@each_format
def test_a_resume_is_one_benchmark_whose_restart_is_not_a_step(name: str, read: Reader) -> None:
    result = read(*map(JOBS[name], (LONG, LONG.resume())))
    assert_figures_of(result, LONG)
    assert result.performance_metrics.total_steps == 80
    assert (result.performance_metrics.measured_steps or 0) >= 76


@in_each("name", [name for name in JOBS if name not in ("modded-nanogpt", "lightning", "mlperf")])
def test_an_elastic_restart_with_fewer_gpus_is_another_benchmark(name: str, read: Reader) -> None:
    smaller = LONG.resume(gpus=4, seconds=4.0, last=90)
    result = read(JOBS[name](LONG), ["Traceback (most recent call last):", "RuntimeError"], JOBS[name](smaller))
    assert_figures_of(result, smaller)
    assert [segment.same_benchmark for segment in result.provenance.segments] == [False, True]


@in_each("name", [name for name in JOBS if name not in ("modded-nanogpt", "lightning")])
def test_segments_that_are_not_measured_are_named_with_their_facts_and_the_flag(name: str, read: Reader) -> None:
    (told,) = (w for w in read(*map(JOBS[name], (OTHER, LONG))).warnings if w.startswith("segments: the log holds 2"))
    assert "instead of" in told
    assert "--segment 1 reads" in told


@in_each("name", ["megatron", "primus", "torchtitan", "nanochat", "olmo", "litgpt"])
def test_a_resume_that_states_no_settings_has_those_of_the_training_before(name: str, read: Reader) -> None:
    silent = LONG.resume(banner=False, last=120)
    result = read(*map(JOBS[name], (LONG, silent)))
    assert_figures_of(result, LONG)
    assert result.training_config.sequence_length == LONG.length
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(LONG.tokens_per_gpu, rel=0.004)
    assert "settings_inherited" in [one.code for one in result.remarks]


@in_each("name", ["megatron", "torchtitan", "maxtext", "nemo", "nanochat"])
def test_a_job_that_died_before_its_first_step_sets_nothing_of_the_next(name: str, read: Reader) -> None:
    dead = [*JOBS[name](replace(OTHER, last=0)), "Traceback (most recent call last):", "torch.OutOfMemoryError"]
    assert_figures_of(read(dead, JOBS[name](LONG)), LONG)
    assert_figures_of(read(JOBS[name](LONG), dead), LONG)


@each_format
def test_a_clean_log_of_one_job_has_no_segments(name: str, read: Reader) -> None:
    result = read(JOBS[name](LONG))
    assert_figures_of(result, LONG)
    assert result.provenance.segments == ()
    assert not any("segment" in warning for warning in result.warnings)


def test_an_unknown_segment_number_is_refused_with_the_known_ones(read: Reader) -> None:
    with pytest.raises(InputError, match=r"holds 2 trainings, but none has number 3; --segment takes 1 to 2, or all"):
        read(*map(JOBS["megatron"], (LONG, OTHER)), segment=3)


def test_equal_jobs_at_another_speed_are_not_averaged(read: Reader) -> None:
    slower = LONG.resume(seconds=3.0, last=60)
    result = read(*map(JOBS["megatron"], (LONG, slower)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.004)
    assert any("because its step times differ" in warning for warning in result.warnings)


@pytest.mark.parametrize("measured", [1, 2])
def test_memory_loss_end_and_date_are_those_of_the_measured_training(measured: int, read: Reader) -> None:
    """Two trainings of equal settings: the other one used more memory, reached another loss and crashed."""
    ours, other = Job(last=60), Job(loss=5.0, hour=10)
    theirs = [line.replace("38.50GiB", "61.00GiB") for line in JOBS["torchtitan"](other)]
    theirs += ["Traceback (most recent call last):", "RuntimeError: NCCL error"]
    parts = [theirs, JOBS["torchtitan"](ours)]
    result = read(*(parts if measured == 2 else reversed(parts)))
    assert result.runs[0].segment == measured - 1
    assert result.memory_metrics is not None
    assert result.memory_metrics.peak_memory_reserved_gb == pytest.approx(38.5 * 2**30 / 1e9, rel=1e-4)
    assert result.runs[0].final_loss == pytest.approx(ours.loss - 0.6)
    assert (result.is_usable, result.runs[0].ended_by) == (True, None)
    assert result.timestamp == "2026-01-05T08:00:00"
    assert [one.code for one in result.remarks if one.code in ("training_chosen", "segment_chosen")] == [
        "training_chosen"
    ]


def test_a_peak_of_a_training_that_is_not_measured_is_no_peak_of_the_result(read: Reader, shared: Path) -> None:
    without = [line.replace("memory: 38.50GiB(48.67%)  ", "") for line in JOBS["torchtitan"](Job(last=60))]
    assert read(JOBS["torchtitan"](LONG), without).memory_metrics is None
    case = shared / "cases/T-memory-of-other-training"
    for name, kind, peak in (("titan.log", "reserved", 32.212), ("megatron.log", "allocated", 31.457)):
        memory = logs.read(case / name).memory_metrics
        assert getattr(memory, f"peak_memory_{kind}_gb") == pytest.approx(peak, abs=0.001)


def test_a_resume_with_other_software_is_another_benchmark(read: Reader) -> None:
    (opens, *old), (_, *new) = map(JOBS["megatron"], (LONG, LONG.resume(last=90)))
    result = read([opens, "PyTorch version: 2.7.0", *old], [opens, "PyTorch version: 2.8.0", *new])
    assert result.gpu_info.pytorch_version == "2.8.0"
    assert [segment.same_benchmark for segment in result.provenance.segments] == [False, True]


def test_packed_logs_have_the_same_segments(tmp_path: Path) -> None:
    text = "\n".join([*JOBS["torchtitan"](OTHER), *JOBS["torchtitan"](LONG)]) + "\n"
    (tmp_path / "run.log.gz").write_bytes(gzip.compress(text.encode()))
    assert_figures_of(logs.read(tmp_path / "run.log.gz"), LONG)
    (tmp_path / "windows.log").write_text(text, encoding="utf-16")
    assert_figures_of(logs.read(tmp_path / "windows.log"), LONG)


def test_every_training_of_a_log_becomes_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    path.write_text("\n".join([*JOBS["torchtitan"](OTHER), *JOBS["torchtitan"](LONG)]) + "\n")
    assert main(["extract", str(path), "--segments", "all", "--output", str(tmp_path / "out")]) == 0
    files = sorted((tmp_path / "out").glob("*.json"))
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    for file, job in zip(files, (OTHER, LONG), strict=True):
        assert_figures_of(store.load(file), job)


def test_a_training_without_a_measured_step_is_named_by_the_results_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("\n".join([*JOBS["torchtitan"](LONG), *JOBS["torchtitan"](replace(OTHER, last=1))]) + "\n")
    assert main(["extract", str(path), "--segments", "all", "--output", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").glob("*.json")
    assert ("trainings_without_rows", {"numbers": "2"}) in [(one.code, one.values) for one in store.load(file).remarks]


CHANGES = (
    {"gpus": 4, "seconds": 4.0},
    {"gpus": 4},
    {"gpus": 16, "seconds": 1.0},
    {"length": 4096, "seconds": 4.0},
    {"batch": 128, "seconds": 4.0},
    {"batch": 32, "seconds": 1.0},
    {"batch": 128, "length": 4096, "seconds": 0.5},
    {"length": 1024},
    {"seconds": 1.0, "length": 1024},
)
"""Facts that another training may have changed; the third and fourth leave tokens/s/GPU as it is."""
TOLD = (
    "segments: ", "segments (restarts", "global_batch_size: grows", "tokens_per_step: changes at step",
    "a row may be lost before it", "audit: ", ": computed ", "no line says why", "different jobs",
)  # fmt: skip
"""In warnings that rows and settings may be of different trainings."""


@st.composite
def spliced(draw: st.DrawFn, name: str) -> tuple[list[str], tuple[Job, Job]]:
    """Return two logs of one format joined at any lines, the second with or without its settings."""
    lengths = st.sampled_from([12, 20, 40])
    first = replace(Job(), last=draw(lengths))
    second = replace(first, hour=10, last=draw(lengths), banner=draw(st.booleans()), **draw(st.sampled_from(CHANGES)))
    if draw(st.booleans()):
        first, second = replace(second, hour=8, banner=True), replace(first, hour=10, banner=second.banner)
    first, second = (replace(job, startup=1.35 * job.seconds) for job in (first, second))
    if draw(st.booleans()):
        second = replace(second, first=first.last + 1, last=first.last + second.last, resumed=draw(st.booleans()))
    one, other = ALL_JOBS[name](first), ALL_JOBS[name](second)
    same = {field: getattr(first, field) for field in ("gpus", "batch", "length", "seconds", "startup")}
    alike = ALL_JOBS[name](replace(second, **same))
    end, begin = draw(st.integers(0, first.last // 2)), draw(st.integers(0, len(other) // 2))
    begin *= draw(st.booleans())
    assume(other[begin:] != alike[begin:])  # else nothing in the log tells that other work was done
    return [*one[: len(one) - end * draw(st.booleans())], *other[begin:]], (first, second)


def assert_nothing_is_mixed_silently(lines: Sequence[str], jobs: Sequence[Job]) -> None:
    """Check that the figures are those of one job, or that a warning or a refusal names the doubt."""
    with scratch.written("\n".join(lines) + "\n") as path:
        try:
            result = logs.read(path)
        except InputError:
            return
    for job in jobs:
        with suppress(AssertionError):
            assert_figures_of(result, job, rel=0.012)
            return
    assert any(text in warning for warning in result.warnings for text in TOLD), result.warnings


@in_each("name", ALL_JOBS)
@settings(examples(3), derandomize=True)
@given(data=st.data())
def test_no_two_spliced_logs_of_one_format_are_mixed_silently(name: str, data: st.DataObject) -> None:
    assert_nothing_is_mixed_silently(*data.draw(spliced(name)))


@settings(examples(15), derandomize=True)
@given(names=st.tuples(*[st.sampled_from(sorted(ALL_JOBS))] * 2), other_first=st.booleans(), cut=st.integers(0, 15))
def test_no_figure_of_two_spliced_formats_mixes_the_facts_of_both(
    names: tuple[str, str], other_first: bool, cut: int
) -> None:
    jobs = [OTHER, LONG] if other_first else [LONG, OTHER]
    first, second = (ALL_JOBS[name](job) for name, job in zip(names, jobs, strict=True))
    assert_nothing_is_mixed_silently([*first[: len(first) - cut], *second], jobs)


def test_settings_of_another_format_after_the_last_row_are_not_those_of_the_training(read: Reader) -> None:
    result = read(ALL_JOBS["deepspeed"](LONG), ALL_JOBS["nanotron"](OTHER))
    assert result.training_config.sequence_length is None  # nanotron's is 4096
    assert_figures_of(read(ALL_JOBS["deepspeed"](LONG)), LONG)


def test_settings_that_are_stated_again_with_other_values_begin_a_training(read: Reader) -> None:
    banner = [" 'train': TrainArgs(global_batch_size=32,", "    micro_batch_size=4,", "    max_seq_length=2048)}"]
    rows = [line for line in JOBS["litgpt"](replace(LONG, batch=32, seconds=1.0, last=60)) if "iter time" in line]
    result = read(JOBS["litgpt"](replace(LONG, last=12)), banner, rows[12:])
    assert result.training_config.global_batch_size == 32
    assert result.training_config.num_gpus is None
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0, rel=0.004)


def test_of_two_attempts_to_start_the_later_one_states_the_settings(read: Reader) -> None:
    attempt = [line for line in JOBS["megatron"](OTHER) if "elapsed time" not in line]
    assert_figures_of(read(attempt, JOBS["megatron"](LONG)), LONG)


def test_a_job_that_was_killed_while_it_started_sets_nothing_of_the_next(read: Reader) -> None:
    killed = JOBS["torchtitan"](replace(OTHER, gpus=64, last=0))[:2]
    assert_figures_of(read(killed, JOBS["torchtitan"](LONG)), LONG)


@in_each(
    ("name", "field", "stated_in"),
    [
        ("torchtitan", "num_gpus", "dp_shard=8"),
        ("megatron", "sequence_length", "seq_length"),
        ("megatron", "global_batch_size", "global batch size:    64"),
        ("huggingface", "micro_batch_size", "Instantaneous batch size per device = 8"),
        ("litgpt", "num_gpus", "'devices': 8"),
        ("nanochat", "num_gpus", "Distributed world size: 8"),
        ("olmo", "num_gpus", "TrainConfig("),
        ("maxtext", "global_batch_size", "global_batch_size_to_train_on: 64"),
        ("deepspeed", "num_gpus", "dist_world_size=8"),
        ("mlperf", "global_batch_size", '"global_batch_size"'),
    ],
)
def test_a_setting_is_explained_by_the_line_of_its_own_training_that_states_it(
    name: str, field: str, stated_in: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.log"
    lines = [*JOBS[name](OTHER), *JOBS[name](LONG)]
    path.write_text("\n".join(lines) + "\n")
    assert main(["extract", str(path), "--explain", field]) == 0
    cited = [int(line.split(f"{path}:")[1].split(":")[0]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert any(stated_in in lines[number - 1] for number in cited)
    assert min(cited) > len(JOBS[name](OTHER))


@in_each("name", ["nanochat", "litgpt", "olmo", "nemo", "maxtext", "torchtitan", "megatron", "huggingface", "composer"])
def test_the_next_rank_that_prints_takes_over_from_one_that_died(name: str, read: Reader) -> None:
    first = [f"[default0]: {line}" for line in ALL_JOBS[name](replace(LONG, last=20))]
    second = [
        f"[default3]: {line}" for line in ALL_JOBS[name](LONG.resume(first=16, last=100, seconds=1.0005 * LONG.seconds))
    ]
    result = read(first, ["W0105 torch/distributed/elastic/agent/server/api.py Restarting worker group"], second)
    assert result.steps[-1].index == 100
    assert_figures_of(result, LONG)


@pytest.mark.parametrize("name", ["nanochat", "litgpt"])
def test_late_rows_of_other_ranks_are_not_a_training_of_their_own(name: str, read: Reader) -> None:
    ranks = [[f"[default{rank}]: {line}" for line in JOBS[name](LONG)] for rank in (0, 1)]
    result = read(ranks[0], [line for line in ranks[1] if "iter time" in line or " dt: " in line])
    assert len(result.steps) == 40
    assert result.provenance.segments == ()


def test_a_checkpoint_that_is_loaded_between_rows_begins_a_training(read: Reader) -> None:
    loaded = "  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 40"
    rows = [line for line in JOBS["megatron"](LONG.resume()) if "elapsed time" in line]
    result = read(JOBS["megatron"](LONG), [loaded], rows)
    assert_figures_of(result, LONG)
    assert result.performance_metrics.max_step_time_seconds == pytest.approx(2.0, rel=0.004)
    assert len(result.provenance.segments) == 2


@each_format
def test_figures_are_explained_by_the_terms_that_they_were_computed_from(name: str, read: Reader) -> None:
    result = read(*map(JOBS[name], (LONG, LONG.resume())))
    figures = result.performance_metrics
    _, _, measured = measured_of(result)
    for field, term in terms.rates(result.training_config, measured).items():
        assert getattr(figures, field) == term.value
        assert explain(result, field).splitlines()[1:3] == [f"  = {term.formula}", f"  = {term.put_in}"]
    mean = terms.step_seconds(result.training_config, measured, result.provenance.timer)
    assert figures.avg_step_time_seconds == (mean.value if mean else None)


def test_a_step_time_that_no_line_prints_is_explained_by_the_rate_it_was_made_of(read: Reader) -> None:
    printed = explain(read(JOBS["torchtitan"](LONG)), "avg_step_time_seconds")
    assert "tokens of a step / GPUs / reported_tokens_per_second_per_gpu; no line prints an exact time" in printed
    assert "131,072 tokens / 8 GPUs / 8,191.99 (" in printed


def test_the_loss_is_explained_by_the_line_that_prints_it(read: Reader) -> None:
    assert "8.6, step 40, line 45" in explain(read(JOBS["torchtitan"](LONG)), "loss")


def test_a_segment_that_is_not_a_number_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", str(tmp_path), "--segment", "last"]) == 2
    assert "--segment last: must be the number of a training" in capsys.readouterr().err


def test_every_restart_of_a_csv_is_read_with_its_names_of_columns(read_text):
    rows = [f"{restart * 20 + step},{2 + step % 7 / 100},3.5" for restart in range(4) for step in range(1, 41)]
    result = read_text("\n".join(["step,step_time,loss", *rows]) + "\n")
    assert len(result.steps) == 160
    assert [segment.steps for segment in result.provenance.segments] == [40, 40, 40, 40]


def test_a_log_that_begins_thousands_of_trainings_is_refused_in_one_line(tmp_path):
    row = (
        " [2026-01-16 07:10:00] iteration {0:8d}/       4 | consumed samples: {0:9d} | "
        "elapsed time per iteration (ms): {1:.1f} | learning rate: 1.0E-05 | global batch size:   128 | lm loss: "
        "1.0E+00 | loss scale: 1.0 | number of nan iterations:   0 |\n"
    )
    log = tmp_path / "train.log"
    trainings = range(segments.MOST_SEGMENTS + 1)
    log.write_text(
        "".join(row.format(step, 1000 + (7 * step + number) % 13) for number in trainings for step in range(1, 5))
    )
    with pytest.raises(InputError, match=r"begins 5,001 trainings, and at most 5,000 of one file are read"):
        logs.read(log)


ITERATION = (
    " [2026-01-16 07:10:00] iteration {0:8d}/    9999 | consumed samples: {0:9d} | elapsed time per iteration (ms): "
    "{1:.1f} | learning rate: 1.0E-05 | global batch size:   128 | lm loss: 1.0E+00 | loss scale: 1.0 | "
    "number of nan iterations:   0 |\n"
)


@pytest.mark.parametrize("ahead", [0, 4000])
def test_rows_of_two_jobs_that_alternate_are_refused(tmp_path, ahead):
    log = tmp_path / "train.log"
    pairs = ((ITERATION.format(n, 1500 + n % 7), ITERATION.format(n + ahead, 2500 + n % 5)) for n in range(1, 200))
    log.write_text("".join(row for pair in pairs for row in pair))
    with pytest.raises(InputError, match=r"trainings, none of which has more than 2 rows, too few to measure one"):
        logs.read(log)


def test_a_training_after_many_crashes_is_measured(tmp_path):
    log = tmp_path / "train.log"
    crashes = "".join(ITERATION.format(step, 1000 + 10 * number + step) for number in range(60) for step in (1, 2))
    log.write_text(crashes + "".join(ITERATION.format(n, 500) for n in range(1, 40)))
    assert logs.read(log).performance_metrics.avg_step_time_seconds == pytest.approx(0.5)


def test_the_kind_of_a_file_is_found_once_for_all_its_trainings(tmp_path, monkeypatch):
    """Each training is read by itself; where each of them looked at the head of the file, 8,000 rows took a minute."""
    looks = []
    monkeypatch.setattr(files.packing, "is_notebook", lambda head: looks.append(len(head)))
    seen = []
    for trainings in (10, 40):
        log = tmp_path / f"{trainings}.log"
        log.write_text("".join(ITERATION.format(n, 500 + job) for job in range(trainings) for n in range(1, 6)))
        looks.clear()
        assert len(logs.read(log).provenance.segments) == trainings
        seen.append(len(looks))
    assert seen[0] == seen[1]


def test_a_training_that_ends_before_its_planned_steps_is_not_complete_but_counts(read: Reader) -> None:
    short = read(JOBS["torchtitan"](Job(last=60)))
    planned = short.training_config.max_steps
    assert planned is not None
    whole = read(JOBS["torchtitan"](Job(last=planned)))
    assert [one.complete for one in (whole, short)] == [True, False]
    assert short.is_usable
    assert ("ends_early", {"last": 60, "planned": planned}) in [(one.code, one.values) for one in short.remarks]


def test_arguments_without_a_banner_belong_to_the_training_after_them(shared: Path, tmp_path: Path) -> None:
    log = tmp_path / "sweep.log"
    folder = shared / "cases" / "S-merged-runs"
    log.write_text("".join((folder / name).read_text() for name in ("full.log", "sink.log")))
    result = logs.read(log)
    assert result.provenance.arguments["softmax_type"] == "learnable"
    assert result.training_config.sequence_length == 4096
    told = [one for one in result.warnings if one.startswith("segments: ")]
    assert ["with softmax_type vanilla instead of learnable" in one for one in told] == [True]


def test_a_validation_between_two_intervals_at_the_end_begins_no_training(read: Reader) -> None:
    def row(step: int, loss: str) -> str:
        return f"step:{step}/20000 {loss}:2.1 train_time:{41.6 * step:.0f}ms step_avg:41.60ms"

    trained = {step: row(step, "train_loss") for step in range(200, 1401, 50)}
    rows = [text for step, one in trained.items() for text in (one, *([] if step % 200 else [row(step, "val_loss")]))]
    ends = [row(1421, "val_loss"), f"stopping_early: wallclock_cap train_time:{41.6 * 1421:.0f}ms step:1421/20000"]
    result = read(["train_batch_tokens:524288 train_seq_len:1024 iterations:20000"], rows, ends)
    assert (result.steps[-1].index, result.provenance.segments) == (1400, ())


def test_deepspeeds_list_of_extensions_states_no_settings(read: Reader) -> None:
    names = ("ninja", "async_io", "fused_adam", "cpu_adam", "fused_lamb", "random_ltd", "sparse_attn", "transformer")

    def job(state: str, seconds: float) -> list[str]:
        first, *others = JOBS["megatron"](replace(LONG, seconds=seconds))
        return [first, *(f"{name} {'.' * (22 - len(name))} {state} ....... [OKAY]" for name in names), *others]

    result = read(job("[NO]", LONG.seconds), job("[YES]", 1.0005 * LONG.seconds))
    assert any("with the same settings" in warning for warning in result.warnings)
