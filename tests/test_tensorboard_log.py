"""TensorBoard events, written by TensorBoard's own writers: tags of each framework, the writer's clock, restarts."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from drawn import examples
from hypothesis import given as property_given
from hypothesis import strategies as st

from tensorprimat import logs
from tensorprimat.core.errors import InputError, NotALogError, TensorPrimatError
from tensorprimat.core.units import GIB

pytest.importorskip("tensorboard")
from each import in_each
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

START = 1_700_000_000.0


class Events:
    """An event file with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.writer = folder, EventFileWriter(str(folder))

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self.writer.add_event(Event(step=step, wall_time=START + time, summary=summary))

    def text(self, tag: str, value: str) -> None:
        tensor = TensorProto(dtype=7, string_val=[value.encode()])
        summary = Summary(value=[Summary.Value(tag=f"{tag}/text_summary", tensor=tensor)])
        self.writer.add_event(Event(step=0, wall_time=START, summary=summary))

    def close(self) -> Path:
        self.writer.close()
        return self.folder


MEGATRON = {"iteration-time": 0.5, "lm loss": 9.5, "learning-rate": 1e-4, "grad-norm": 1.5, "throughput": 410.0,
            "batch-size": 64.0, "mem-reserved-bytes": 5e10}  # fmt: skip
NEMO = {"train_step_timing in s": 0.5, "reduced_train_loss": 9.5, "lr": 1e-4, "TFLOPS_per_GPU": 410.0}
TORCHTITAN = {"time_metrics/end_to_end(s)": 0.5, "loss_metrics/global_avg_loss": 9.5, "throughput(tps)": 8000.0,
              "tflops": 410.0, "mfu(%)": 42.0, "memory/max_reserved(GiB)": 40.0}  # fmt: skip
MAXTEXT = {"perf/step_time_seconds": 0.5, "learning/loss": 9.5, "perf/per_device_tflops_per_sec": 410.0}


def test_an_event_file_that_begins_with_long_texts_is_not_a_text(tmp_path):
    events = Events(tmp_path)
    events.text("configuration", "model: llama\n" * 2000)
    for step in range(1, 30):
        events.log(step, 2.0 * step, {"train/loss": 2.5 - step / 100})
    result = logs.read(next(events.close().iterdir()))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


@in_each("values", [MEGATRON, TORCHTITAN, NEMO, MAXTEXT])
def test_a_step_time_stands_for_the_steps_since_the_row_before(tmp_path, values):
    events = Events(tmp_path)
    for row in range(1, 5):
        events.log(10 * row, 5.0 * row, values)
    result = logs.read(events.close())
    steps = result.steps
    untimed = [1] if values is MAXTEXT else []  # JAX waits for no step there
    assert [n for n, seconds in enumerate(steps.column("seconds")) if seconds != 0.5] == untimed
    assert steps.column("covers")[1:].tolist() == [10] * 3
    assert [step.loss for step in steps] == [9.5] * 4
    assert result.performance_metrics.reported.tflops_per_gpu == pytest.approx(410.0)
    assert result.provenance.format == "tensorboard"


def test_maxtexts_steps_after_an_evaluation_are_no_step_times(tmp_path):
    events = Events(tmp_path)
    for row in range(30):
        seconds = {9: 2.5, 10: 0.01}.get(row, 1.0)
        events.log(row, row, {**MAXTEXT, "perf/step_time_seconds": seconds})
        if row == 8:
            events.log(row, row + 0.5, {"eval/avg_loss": 9.0})
    result = logs.read(events.close())
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)
    assert [(step.index, step.seconds, step.covers) for step in result.steps if step.interrupted_by] == [
        (9, None, 0),
        (10, pytest.approx(2.51 / 2), 2),
    ]


def test_scalars_logged_with_a_time_get_their_field_and_unit(tmp_path):
    events = Events(tmp_path)
    for row in range(1, 4):
        events.log(row, 0.5 * row, TORCHTITAN)
    step = logs.read(events.close()).steps[1]
    assert step.reported_mfu == pytest.approx(0.42)
    assert step.reported_tokens_per_second_per_gpu == pytest.approx(8000)
    assert step.memory_reserved_peak_bytes == 40 * GIB


def nemo_events(folder, texts=()):
    events = Events(folder)
    for row in range(1, 5):
        events.log(row, 0.5 * row, NEMO)
    for tag, printed in texts:
        events.text(tag, printed)
    return events.close()


def test_a_device_in_a_text_gives_the_platform_with_a_note(tmp_path):
    result = logs.read(nemo_events(tmp_path, [("environment", "8 x NVIDIA H100 80GB HBM3, driver 550")]))
    assert (result.platform, result.gpu_info.device_name) == ("nvd", "NVIDIA H100 80GB HBM3")
    assert result.provenance.assumed["platform"] == "argument environment of the event files"


def test_hparams_next_to_the_events_give_model_batch_and_platform(tmp_path):
    (tmp_path / "hparams.yaml").write_text(
        "model:\n  tokenizer_name_or_path: Qwen/Qwen2.5-7B\ndata: {seq_length: 8192, micro_batch_size: 1}\n"
        "global_batch_size: 128\ngpu: H100\ndevice: cuda\n"
    )
    result = logs.read(nemo_events(tmp_path))
    config = result.training_config
    assert (result.model.name, result.platform) == ("qwen", "nvd")
    assert (config.sequence_length, config.micro_batch_size, config.global_batch_size) == (8192, 1, 128)
    assert result.provenance.assumed["platform"] == "argument gpu of the event files"


def test_of_two_sections_of_hparams_that_state_a_setting_the_first_counts(tmp_path):
    (tmp_path / "hparams.yaml").write_text("data: {seq_length: 2048}\nval: {seq_length: 512}\n")
    assert logs.read(nemo_events(tmp_path)).training_config.sequence_length == 2048


@in_each(
    "text",
    [
        "{unclosed: [",
        "&a [*a]",
        "[" * 50_000,
        "a: &a {b: &b {c: *a}}",
        "m0: &m0 {gpu: H100, device: cuda}\n"
        + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 18))
        + "<<: *m17\n",
        "just words",
    ],
)
def test_a_broken_hparams_file_is_ignored(tmp_path, text):
    (tmp_path / "hparams.yaml").write_text(text)
    assert logs.read(nemo_events(tmp_path)).platform is None


def test_hparams_of_the_plugin_are_read(tmp_path):
    summary = pytest.importorskip("torch.utils.tensorboard.summary")
    events = Events(tmp_path)
    for part in summary.hparams({"model_name": "llama31_8b", "seq_length": 4096, "device": "cuda"}, {}):
        events.writer.add_event(Event(step=0, wall_time=START, summary=part))
    for row in range(1, 5):
        events.log(row, 0.5 * row, NEMO)
    result = logs.read(events.close())
    assert (result.model.name, result.training_config.sequence_length, result.platform) == ("llama", 4096, None)


def test_megatrons_arguments_fill_the_configuration(tmp_path):
    events = Events(tmp_path)
    for name, value in {"seq_length": 4096, "global_batch_size": 64, "world_size": 8, "seed": 0}.items():
        events.text(name, str(value))
    for row in range(1, 4):
        events.log(row, 0.5 * row, MEGATRON)
    result = logs.read(events.close())
    assert (result.training_config.sequence_length, result.training_config.num_gpus) == (4096, 8)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(64 * 4096 / 0.5 / 8)


def test_the_batch_of_megatron_deepspeed_is_that_of_its_rows_while_it_ramps_up(tmp_path):
    events = Events(tmp_path)
    for name, value in {"seq_length": 4096, "global_batch_size": 1536, "world_size": 8}.items():
        events.text(name, str(value))
    for row in range(1, 20):
        counted = {"steps-vs-samples/y=samples,x=steps": 12.0 * row, "lm-loss-training/lm loss": 9.5 - row / 100}
        events.log(row, 0.5 * row, counted)
        events.log(12 * row, 0.5 * row, {"lm-loss-training/lm loss vs samples": 9.5 - row / 100})
    result = logs.read(events.close())
    assert result.training_config.global_batch_size == 12
    assert "batch_of_rows" in [notice.code for notice in result.remarks]
    assert result.performance_metrics.tokens_per_second == pytest.approx(12 * 4096 / 0.5)


def hugging_face(folder: Path) -> Events:
    events = Events(folder)
    for row in range(1, 6):
        events.log(10 * row, 20.0 * row, {"train/loss": 9.0 - row, "train/learning_rate": 1e-4})
        if row == 3:
            events.log(10 * row, 20.0 * row + 5, {"eval/loss": 6.1})
    events.log(50, 101.0, {"train/train_runtime": 101.0, "train/train_samples_per_second": 4.0})
    return events


def test_without_a_step_time_the_writers_clock_is_used_and_that_is_reported(tmp_path):
    result = logs.read(hugging_face(tmp_path).close())
    assert result.steps.column("seconds")[1:].tolist() == [2.0] * 4
    assert result.steps.column("covers")[1:].tolist() == [10] * 4
    assert any("clock of the event writer" in warning for warning in result.warnings)
    assert result.provenance.timing == "timestamps"
    assert result.timestamp == "2023-11-14T22:13:40"


def test_a_row_in_which_an_evaluation_was_logged_is_not_measured(tmp_path):
    result = logs.read(hugging_face(tmp_path).close())
    assert [step.interrupted_by for step in result.steps] == ["", "", "", "validation", ""]
    assert result.performance_metrics.excluded_steps == 10


def test_totals_that_the_trainer_logs_once_are_reported(tmp_path):
    reported = logs.read(hugging_face(tmp_path).close()).performance_metrics.reported
    assert reported.runtime_seconds == pytest.approx(101.0)


def test_a_single_file_is_recognised_by_content_whatever_it_is_called(tmp_path):
    folder = hugging_face(tmp_path / "runs").close()
    plain = tmp_path / "notes"
    next(folder.iterdir()).rename(plain)
    assert len(logs.read(plain).steps) == 5


def test_files_of_one_folder_are_one_run_and_a_restart_is_a_segment(tmp_path):
    first = Events(tmp_path)
    for row in range(1, 6):
        first.log(row, 0.5 * row, MEGATRON)
    first.close()
    second = Events(tmp_path)
    for row in range(4, 10):
        second.log(row, 60 + 0.5 * row, {**MEGATRON, "iteration-time": 0.25})
    result = logs.read(second.close())
    assert result.steps.column("segment").tolist() == [0] * 5 + [1] * 6
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.25)


def test_a_step_that_was_trained_twice_keeps_the_values_of_each_time(tmp_path):
    for start, batch, seconds in ((0, 64.0, 0.5), (100, 128.0, 1.0)):
        events = Events(tmp_path / str(start))
        for row in range(1, 30 - start // 10):
            events.log(row, start + row * seconds, {**MEGATRON, "batch-size": batch, "iteration-time": seconds})
        next(events.close().iterdir()).rename(tmp_path / f"events.out.tfevents.17000{start:05}.host.1.0")
        (tmp_path / str(start)).rmdir()
    result = logs.read(tmp_path)
    assert result.steps.column("samples").tolist() == [64.0] * 29 + [128.0] * 19
    assert result.performance_metrics.samples_per_second == pytest.approx(128)


def test_event_files_of_two_processes_in_one_folder_are_joined_by_step(tmp_path):
    for name, value in (("a", {"iteration-time": 0.5}), ("b", {"lm loss": 9.5})):
        events = Events(tmp_path / name)
        for row in range(1, 9):
            events.log(row, 0.5 * row, value)
        next(events.close().iterdir()).rename(tmp_path / f"events.out.tfevents.1700000000.{name}")
        (tmp_path / name).rmdir()
    steps = logs.read(tmp_path).steps
    assert (steps.column("loss").tolist(), steps.column("segment").tolist()) == ([9.5] * 8, [0] * 8)


VERL = {"perf/time_per_step": 2.0, "perf/throughput": 5000.0, "perf/total_num_tokens": 80000.0}
LEVANTER = {"throughput/duration": 2.0, "throughput/tokens_per_second": 40000.0, "train/loss": 2.5}


@pytest.mark.parametrize("values", [VERL, LEVANTER])
def test_tags_have_the_meaning_of_the_same_names_in_other_tables(tmp_path, values):
    events = Events(tmp_path)
    for row in range(1, 20):
        events.log(row, 2.0 * row, values)
    performance = logs.read(events.close()).performance_metrics
    assert (performance.avg_step_time_seconds, performance.tokens_per_second) == (2, 40000)


def test_a_folder_of_events_without_any_time_is_refused(tmp_path):
    events = Events(tmp_path)
    for row in range(1, 9):
        events.log(row, 2.0 * row, {"temperature": 50.0})
    with pytest.raises(NotALogError, match="neither step times nor rates, and no two rows with a loss and a date"):
        logs.read(events.close())


def test_the_tenth_file_of_one_second_comes_after_the_ninth(tmp_path):
    for number, seconds in ((9, 0.5), (10, 0.25)):
        events = Events(tmp_path / "writing")
        for row in range(1, 4):
            events.log(row, 60 * number + row, {**MEGATRON, "iteration-time": seconds})
        (written,) = events.close().iterdir()
        written.rename(tmp_path / f"events.out.tfevents.1700000000.host.1.{number}")
    (tmp_path / "writing").rmdir()
    assert [step.seconds for step in logs.read(tmp_path).steps] == [0.5] * 3 + [0.25] * 3


def test_a_folder_of_several_runs_names_them(tmp_path):
    for name in ("a", "b"):
        hugging_face(tmp_path / name).close()
    with pytest.raises(InputError, match="2 runs; name one of a, b"):
        logs.read(tmp_path)


def test_the_writer_of_torch_is_read(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 5):
            writer.add_scalar("iteration-time", 0.5, step)
            writer.add_scalar("lm loss", float("nan"), step)
    result = logs.read(tmp_path)
    assert result.raw_step_times == [0.5] * 4
    assert "loss_nan" in [one.code for one in result.remarks]


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    """Bytes of a whole event file."""
    folder = hugging_face(tmp_path_factory.mktemp("events")).close()
    return next(folder.iterdir()).read_bytes()


def test_a_file_that_is_still_being_written_is_read_up_to_its_truncated_record(tmp_path, content):
    path = tmp_path / "events"
    path.write_bytes(content[: int(len(content) * 0.7)])
    assert 2 <= len(logs.read(path).steps) < 5


@examples(20)
@property_given(position=st.integers(0, 600), junk=st.binary(max_size=40))
def test_damaged_files_raise_nothing_but_the_tools_own_errors(tmp_path_factory, content, position, junk):
    path = tmp_path_factory.mktemp("damaged") / "events"
    path.write_bytes(content[:position] + junk + content[position + len(junk) :])
    with suppress(TensorPrimatError):
        seconds = logs.read(path).steps.column("seconds")
        assert (seconds[np.isfinite(seconds)] > 0).all()
