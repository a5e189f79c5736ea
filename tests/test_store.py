"""Nothing that was measured is ever lost, and a file that is no result is refused in one line."""

import errno
import json
import os
import tempfile

import pytest
from each import in_each

import benchmark_utils
import compare_results
from tensorprimat.core.errors import InputError, RunError
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.engines import live_result
from tensorprimat.session.runs import Place
from tensorprimat.storage import result_names, store
from tensorprimat.system import atomic, regular


def result(*, seconds=0.5, rows=4, platform="cpu", preset="tiny", complete=True, engine="torch"):
    steps = [Step(index=i, seconds=seconds, loss=float("nan") if i == 2 else 1.0 / (i + 1)) for i in range(rows)]
    return summarise(
        Result(
            platform=platform,
            gpu_info=GpuInfo(device_name="some device"),
            model=Model(name="llama", preset=preset),
            training_config=TrainingConfig(warmup_steps=1, global_batch_size=8, sequence_length=128, num_gpus=1),
            performance_metrics=PerformanceMetrics(),
            provenance=Provenance(engine=engine),
            complete=complete,
            steps=Steps.of(steps),
        )
    )


def test_a_result_comes_back_from_disk_as_it_was(tmp_path):
    path = store.save(result(), tmp_path, stamp="s1")
    assert path == tmp_path / "benchmark_cpu_llama.json"
    back = store.load(path)
    assert back.steps == result().steps
    assert back.performance_metrics.tokens_per_second == result().performance_metrics.tokens_per_second


def test_a_result_that_pydantic_writes_has_its_steps():
    assert Result.model_validate_json(result().model_dump_json()).steps == result().steps


def test_a_nan_loss_is_the_string_nan_and_the_file_is_strict_json(tmp_path):
    text = store.save(result(), tmp_path, stamp="s1").read_text()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert document["step_metrics"]["loss"][2] == "nan"
    assert document["raw_step_times"] == [0.5] * 4
    assert document["schema_version"] == 3


def test_an_earlier_result_stays_in_history(tmp_path):
    store.save(result(seconds=0.5), tmp_path, stamp="s1")
    store.save(result(seconds=0.75), tmp_path, stamp="s2")
    kept = {store.load(path).performance_metrics.avg_step_time_seconds for path in (tmp_path / "history").iterdir()}
    assert kept == {0.5, 0.75}


def test_a_file_put_there_by_hand_is_kept_before_it_is_replaced(tmp_path):
    foreign = tmp_path / "benchmark_cpu_llama.json"
    foreign.write_text(store.to_json(result(seconds=3.0)))
    store.save(result(), tmp_path, stamp="s1")
    kept = [store.load(path).performance_metrics.avg_step_time_seconds for path in (tmp_path / "history").iterdir()]
    assert 3.0 in kept


def test_an_incomplete_result_never_replaces_the_latest(tmp_path):
    store.save(result(seconds=0.5), tmp_path, stamp="s1")
    path = store.save(result(seconds=0.1, complete=False), tmp_path, stamp="s2")
    assert path.parent.name == "history"
    assert store.load(tmp_path / "benchmark_cpu_llama.json").performance_metrics.avg_step_time_seconds == 0.5


def test_another_engine_and_another_preset_than_the_default_are_in_the_name():
    assert result_names.file_stem(result(platform="nvd", preset="full")) == "benchmark_cuda_llama"
    assert result_names.file_stem(result(platform="nvd", preset="tiny")) == "benchmark_cuda_llama_tiny"
    name = result_names.file_stem(result(platform="amd", preset="full"), default_engine="primus")
    assert name == "benchmark_rocm_llama_torch"
    assert result_names.file_stem(result(platform=None, preset=None)) == "benchmark_unknown_llama"


def test_a_very_long_series_moves_to_a_sidecar_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "INLINE_STEPS", 3)
    path = store.save(result(rows=5), tmp_path, stamp="s1")
    named = json.loads(path.read_text())["series_file"]
    assert store.load(path).steps == result(rows=5).steps
    (tmp_path / named).unlink()
    with pytest.raises(InputError, match=r"its step series .* is missing"):
        store.load(path)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "kept.json"
    atomic.write_atomically(path, "old")
    with pytest.raises(TypeError):
        atomic.write_atomically(path, None)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@in_each(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "not text"),
        (b'{"a": 1,\n "b": }', r"broken.json:2: invalid JSON"),
        (b"2026-05-19 iteration 1/ 10 | elapsed", "not a result, which is a JSON file; for a training log use extract"),
        (b'{"speedup": 2}', "not a benchmark result"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1, 2]", "not a benchmark result"),
    ],
)
def test_a_file_that_is_not_a_result_is_refused_in_one_line(tmp_path, content, says):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as refusal:
        store.load(path)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_and_a_folder_are_distinguished(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        store.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="a folder, not a file"):
        store.load(tmp_path)


@in_each(
    "change",
    [
        {"raw_step_times": [0.5, -1, 0.5, 0.5]},
        {"raw_step_times": [0.5, 1e300, 0.5, 0.5]},
        {"raw_step_times": [0.5, 0.5]},
        {"raw_step_times": "quick"},
        {"platform": "tpu"},
        {"raw_step_times": [], "step_metrics": {}, "performance_metrics": {}},
    ],
)
def test_a_damaged_result_is_refused_with_its_place(tmp_path, change):
    document = json.loads(store.to_json(result()))
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({**document, **change}))
    with pytest.raises(InputError, match=r"damaged\.json"):
        store.load(path)


def test_a_folder_gives_its_results_and_names_its_broken_files(tmp_path):
    store.save(result(), tmp_path, stamp="s1")
    (tmp_path / "comparison.json").write_text('{"verdict": "faster"}')
    (tmp_path / "half.json").write_text('{"platform": ')
    loaded, problems = store.load_all([tmp_path])
    assert [item.path.name for item in loaded] == ["benchmark_cpu_llama.json"]
    assert len(problems) == 1
    assert "half.json" in problems[0]


def test_a_python_program_gets_an_error_for_a_broken_file_that_it_names_and_a_warning_for_one_in_a_folder(tmp_path):
    for name in ("a.json", "b.json"):
        store.write(result(), tmp_path / name)
    broken = tmp_path / "half.json"
    broken.write_text('{"platform": "cuda", "perform')
    named = [tmp_path / "a.json", tmp_path / "b.json", broken]
    with pytest.raises(InputError, match=r"half\.json"):
        benchmark_utils.load_results(named)
    with pytest.raises(InputError, match=r"half\.json"):
        compare_results.load_benchmark_results(*named)
    with pytest.warns(UserWarning, match=r"left out: .*half\.json") as caught:
        assert len(benchmark_utils.load_results([tmp_path])) == 2
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"left out: .*half\.json"):
        assert len(compare_results.load_benchmark_results(tmp_path)) == 2


def test_a_folder_without_results_names_the_command_to_run(tmp_path):
    with pytest.raises(InputError, match=r"run \./benchmark\.py"):
        store.load_all([tmp_path])


def test_a_named_pipe_is_written_to_and_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic.write_atomically(pipe, "hello")
    assert (os.read(reader, 10), pipe.is_fifo()) == (b"hello", True)
    os.close(reader)


def test_a_full_disk_is_named_by_the_file_that_found_no_room(tmp_path):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left on device") as stopped:
        atomic.write_atomically(tmp_path / "result.json", full)
    assert stopped.value.filename == str(tmp_path / "result.json")
    assert not list(tmp_path.iterdir())


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path, monkeypatch):
    path = tmp_path / "growing.json"
    path.write_text("0123456789")
    real = os.fstat

    def before_the_last_writes(handle):
        found = real(handle)
        return os.stat_result((*found[:6], 4, *found[7:]))

    monkeypatch.setattr(regular.os, "fstat", before_the_last_writes)
    assert regular.content(path, most_bytes=100) == b"0123456789"
    with pytest.raises(InputError, match="MiB"):
        regular.content(path, most_bytes=8)


def test_a_measurement_whose_folder_is_full_is_kept_elsewhere_and_the_error_names_the_place(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "output/history/x.json")

    monkeypatch.setattr(store, "save", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = Place(folder=tmp_path / "output", stamp="20260105", default_engine=None)
    with pytest.raises(RunError, match=r"output/history/x\.json: No space left on device.*; the result is in ") as told:
        place.save(result())
    (kept,) = tmp_path.iterdir()
    assert str(kept) in str(told.value)
    assert store.load(kept) == result()
    with pytest.raises(RunError, match="the result is in "):
        live_result.save_training(result(), output_dir=str(tmp_path / "output"), result_file=None, stamp="20260105")


def test_a_measurement_that_can_be_kept_nowhere_raises_the_first_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a-file" / "x"))
    (tmp_path / "a-file").touch()
    with pytest.raises(OSError, match="No space left"), store.rescuing(result(), "20260105"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
