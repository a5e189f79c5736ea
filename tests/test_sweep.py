"""Tests of tprimat sweep: a file per cell, no cell measured twice or lost, out-of-memory as a result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import autograd_memory
import pytest
import torch
from each import in_each

from tensorprimat.cli import main, micro_options
from tensorprimat.cli.live import CellProgress
from tensorprimat.core.errors import RunError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.units import GB
from tensorprimat.machine.platform import Machine
from tensorprimat.measure import grid, isolation, matmul, passes, sweep
from tensorprimat.measure.matmul import TORCH_DTYPES
from tensorprimat.measure.sweep import best_rate, estimate_cell
from tensorprimat.measure.workload import Network
from tensorprimat.models import footprint
from tensorprimat.reports import micro_tables as reports
from tensorprimat.storage import micro_result
from tensorprimat.storage.micro_result import CellSpec, MicroEstimate, MicroResult
from tensorprimat.system import failures, processes
from tensorprimat.system.failures import KILLED_FOR_MEMORY

ROOT = Path(__file__).parents[1]
QUICK = ["--shape", "tiny=32/64/2/2", "--vocab-size", "100", "--context-length", "8,16", "--batch-size", "1"]
QUICK += ["--warmup-steps", "1", "--trials", "2", "--device", "cpu"]
FIGURELESS = {"forward_only", "num_parameters"}


@in_each(
    ("seconds", "says"),
    [
        ((70.0, 60.0), "about 2 min in all"),
        ((70.0, None), "about 70 s for 1 of them"),
        ((None, None), "time not known"),
    ],
)
def test_a_plan_adds_up_only_the_times_that_it_knows(seconds, says):
    estimates = [MicroEstimate(memory_gb=1.0, seconds=one) for one in seconds]
    assert reports.estimates_table(specs(), estimates, None).note == f"Estimates; nothing was run. 2 cells, {says}."


def test_a_plan_for_a_device_that_cannot_run_a_product_has_no_times_and_says_why(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 128 MiB")

    monkeypatch.setattr(matmul, "matmul_rate", full)
    assert main(["sweep", *QUICK, "--dry-run", "--output", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "no estimates of fp32 (no product could be timed: out of memory)" in captured.err
    assert "time not known" in captured.out


def specs(**requested):
    values = {"shapes": ("tiny=32/64/2/2",), "vocab_size": 100, "context_length": "8,16", "batch_size": "1"}
    return grid.cells(grid.GridOptions(**{**values, "pass_name": "train", "trials": 2, **requested}))


def stand_in(spec, *, fits=lambda _: True, calls=None):
    """Return a cell without any training."""
    if calls is not None:
        calls.append(spec)
    values = spec.model_dump(exclude=FIGURELESS)
    if not fits(spec):
        return MicroResult(**values, status="oom", reason=f"out of memory: {spec.title}", peak_memory_gb=0.5)
    return micro_result.with_figures(
        MicroResult(**values, trial_times_ms=(10.0, 11.0), device_name="some CPU", platform="cpu")
    )


def swept(folder, expected, **kept):
    fit = kept.pop("fit", False)
    return list(
        sweep.run_sweep(expected, folder, measure=lambda one: stand_in(one, **kept), device_name="some CPU", fit=fit)
    )


def test_a_shape_of_ones_own_can_be_named_among_the_sizes():
    own = ("mine=32/64/2/2", "other=64/64/2/2")
    labels = [spec.model_size for spec in specs(shapes=own, model_size="small,mine", context_length="8")]
    assert labels == ["small", "mine", "other"]


def test_advice_that_differs_in_numbers_only_is_shown_once():
    wide = [MicroResult(**spec.model_dump(exclude=FIGURELESS), warnings=(printed,)) for spec, printed in zip(
        specs(context_length="8,16,24"),
        ("scatter: CV 12.5 % over 4 trials", "scatter: CV 30.1 % over 4 trials", "scatter: CV 11.0 % over 4 trials"),
        strict=True,
    )]  # fmt: skip
    (printed,) = reports.cell_warnings(wide)
    assert (
        printed == "scatter: CV 30.1 % over 4 trials [3 of 3 cells; the worst: tiny, context 16, batch 1, train, fp32]"
    )


def test_the_default_grid_is_all_sizes_by_three_contexts(capsys):
    assert main(["sweep", "--dry-run", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count("| train |") == 15
    assert [f"| {size} |" in out for size in ("small", "medium", "large", "xl", "2.7B")] == [True] * 5
    assert "15 cells, about" in out


def test_a_grid_is_every_combination():
    expected = specs(precision="fp32,bf16", pass_name="forward,train", batch_size="1,2")
    assert len(expected) == 2 * 2 * 2 * 2
    assert len({spec.file_name for spec in expected}) == len(expected)
    assert expected[0].file_name == "bench_tiny_8_b1_forward_fp32.json"


@in_each(
    ("text", "says"),
    [
        ("tiny", "write it as name=d_model/d_ff/layers/heads"),
        ("tiny=32/64/2", "write it as name=d_model/d_ff/layers/heads"),
        ("tiny=32/64/2/3", "3 heads do not divide a width of 32"),
        ("tiny=32/64/0/2", "every number must be at least 1"),
    ],
)
def test_an_impossible_shape_is_refused(text, says, capsys):
    assert main(["sweep", "--shape", text, "--device", "cpu"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("warm")
def test_cells_run_in_fresh_processes_and_a_second_sweep_measures_nothing(tmp_path, capsys):
    command = ["sweep", *QUICK, "--context-length", "8", "--output", str(tmp_path)]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.glob("bench_*.json")}
    assert sorted(before) == ["bench_tiny_8_b1_train_fp32.json"]
    assert json.loads(before["bench_tiny_8_b1_train_fp32.json"])["status"] == "ok"
    capsys.readouterr()
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.err.count("measured before") == 1
    assert captured.out.count("| tiny |") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("bench_*.json")} == before


@pytest.mark.usefixtures("warm")
def test_a_killed_sweep_continues_at_its_next_cell(tmp_path):
    command = [sys.executable, "-m", "tensorprimat", "sweep", *QUICK, "--trials", "3", "--output", str(tmp_path)]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("bench_*.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGTERM)  # as a batch system does
    _, printed = first.communicate(timeout=30)
    assert first.returncode == 1
    assert "interrupted; finished work is kept" in printed
    kept = list(tmp_path.glob("bench_*.json"))
    assert len(kept) == 1
    second = specs(trials=3)
    calls = []
    known = micro_result.load(kept[0])
    expected = [one.model_copy(update={"num_warmups": 1}) for one in second]
    found = list(
        sweep.run_sweep(
            expected, tmp_path, measure=lambda one: stand_in(one, calls=calls), device_name=known.device_name
        )
    )
    assert [outcome.resumed for outcome in found] == [True, False]
    assert len(calls) == 1


def test_a_cell_of_other_settings_is_measured_again_and_the_old_one_kept(tmp_path):
    swept(tmp_path, specs())
    calls = []
    swept(tmp_path, specs(trials=5), calls=calls)
    assert len(calls) == 2
    assert sorted(micro_result.load(path).num_trials for path in (tmp_path / "history").iterdir()) == [2, 2]
    assert {micro_result.load(path).num_trials for path in tmp_path.glob("bench_*.json")} == {5}


def test_a_cell_of_another_device_is_kept_and_a_failed_attempt_is_replaced(tmp_path):
    (spec, *_) = specs()
    swept(tmp_path, [spec])
    list(sweep.run_sweep([spec], tmp_path, measure=stand_in, device_name="another CPU"))
    (kept,) = (tmp_path / "history").iterdir()
    assert micro_result.load(kept).device_name == "some CPU"
    failed = stand_in(spec).changed(status="failed", reason="planted")
    micro_result.save(failed, tmp_path / spec.file_name)
    swept(tmp_path, [spec])
    assert micro_result.load(tmp_path / spec.file_name).status == "ok"
    assert list((tmp_path / "history").iterdir()) == [kept]


def test_a_cell_whose_file_is_broken_is_measured_again(tmp_path):
    (spec, *_) = specs()
    (tmp_path / spec.file_name).write_text('{"kind": "cell", ')
    assert sweep.finished(spec, tmp_path, device_name="some CPU") is None


def test_a_cell_that_runs_out_of_memory_is_kept_and_the_sweep_continues(tmp_path):
    found = swept(tmp_path, specs(context_length="16,8"), fits=lambda spec: spec.context_length < 16)
    assert [outcome.cell.status for outcome in found] == ["oom", "ok"]
    cell = micro_result.load(tmp_path / "bench_tiny_16_b1_train_fp32.json")
    assert (cell.status, cell.peak_memory_gb, cell.mean_time_ms) == ("oom", 0.5, None)
    assert "context 16, batch 1" in cell.reason


def test_fit_shows_a_batch_that_fits_in_its_own_column_and_keeps_the_requested_row(tmp_path):
    (outcome,) = swept(
        tmp_path, specs(context_length="64", batch_size="16"), fits=lambda s: s.batch_size <= 5, fit=True
    )
    assert (outcome.cell.status, outcome.cell.batch_size, outcome.cell.fit_batch_size) == ("oom", 16, 5)
    assert outcome.cell.mean_time_ms is None


def test_fit_looks_for_a_context_where_no_batch_fits(tmp_path):
    (outcome,) = swept(tmp_path, specs(context_length="128", batch_size="4"), fits=lambda s: s.tokens <= 37, fit=True)
    assert (outcome.cell.fit_batch_size, outcome.cell.fit_context_length) == (None, 36)


def test_fit_reports_when_nothing_fits(tmp_path):
    (outcome,) = swept(tmp_path, specs(context_length="8", batch_size="2"), fits=lambda _: False, fit=True)
    assert outcome.cell.fit_batch_size == 0
    assert any("not even one sequence" in warning for warning in outcome.cell.warnings)


def test_fit_can_be_requested_later(tmp_path):
    expected = specs(context_length="8", batch_size="4")
    swept(tmp_path, expected, fits=lambda spec: spec.batch_size < 3)
    (outcome,) = swept(tmp_path, expected, fits=lambda spec: spec.batch_size < 3, fit=True)
    assert (outcome.resumed, outcome.cell.fit_batch_size) == (False, 2)
    (again,) = swept(tmp_path, expected, fits=lambda spec: spec.batch_size < 3, fit=True)
    assert again.resumed


def test_a_cell_that_really_runs_out_of_memory_gives_a_row_marked_oom(tmp_path, capsys):
    if not Path("/proc/self/status").exists():
        pytest.skip("RLIMIT_DATA counts memory on Linux only")
    limit = f"{passes.used_bytes() / GB + 0.1:.2f}"
    limited = ["--context-length", "64", "--batch-size", "8000", "--memory-limit", limit, "--in-process"]
    command = ["sweep", *QUICK[:4], *limited, "--warmup-steps", "0", "--trials", "1", "--device", "cpu"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert main([*command, "--output", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(before)
    assert "| OOM |" in capsys.readouterr().out


def test_a_full_disk_in_the_middle_keeps_the_saved_cells(tmp_path, monkeypatch):
    expected = specs()
    save = micro_result.save

    def full(cell, path):
        if cell.context_length == 16:
            raise OSError(28, "No space left on device")
        return save(cell, path)

    monkeypatch.setattr(micro_result, "save", full)
    with pytest.raises(RunError, match=r"No space left on device; cells before it are kept; repeat the command"):
        swept(tmp_path, expected)
    assert [path.name for path in tmp_path.glob("bench_*")] == [expected[0].file_name]


def test_a_disk_that_is_full_for_the_tables_too_does_not_hide_the_remedy(tmp_path, capsys, monkeypatch):
    save = micro_result.save

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        micro_result, "save", lambda cell, path: full() if cell.context_length == 16 else save(cell, path)
    )
    monkeypatch.setattr(micro_options, "write_tables", full)
    shape = ["--shape", "tiny=32/64/1/2", "--vocab-size", "100", "--context-length", "8,16", "--batch-size", "1"]
    short = ["--trials", "2", "--warmup-steps", "0", "--device", "cpu", "--in-process", "--output", str(tmp_path)]
    assert main(["sweep", *shape, *short]) == 1
    captured = capsys.readouterr()
    assert "cells before it are kept; repeat the command to continue" in captured.err.splitlines()[-1]
    assert "| tiny |" in captured.out


def test_a_sweep_of_a_gpu_that_nobody_knows_leaves_the_gpu_to_its_cells():
    nobody = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA Q1"), host="node1")
    rate, origin = best_rate(nobody, "cuda", "bf16", may_run=False)
    assert (rate, origin) == (None, "the catalogue does not have this device; tprimat preflight measures it")


@pytest.fixture
def cell_whose_process(tmp_path, monkeypatch):
    """Function that returns the cell whose process runs a few lines of Python, which may count a kill for memory."""
    events = tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 0\n")
    (tmp_path / "own").write_text("0::/\n")
    monkeypatch.setattr(processes, "GROUPS", tmp_path)
    monkeypatch.setattr(processes, "GROUP_OF_PROCESS", tmp_path / "own")
    monkeypatch.setattr(isolation, "MODULE", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def does(body):
        counts = f"def count():\n    open({str(events)!r}, 'w').write('oom 1\\noom_kill 1\\n')\n"
        (tmp_path / "stand_in.py").write_text(f"import os, sys\n{counts}{body}")
        return isolation.measure_isolated(specs()[0])

    return does


def test_a_process_that_is_killed_ran_out_of_memory_only_if_the_kernel_says_so(cell_whose_process):
    killed = "os.kill(os.getpid(), 9)"
    cell = cell_whose_process(killed)
    assert (cell.status, cell.reason) == ("failed", f"the process {failures.KILLED}")
    cell = cell_whose_process(f"count(); {killed}")
    assert (cell.status, cell.reason) == ("oom", f"out of memory: {cell.spec.title}; the process {KILLED_FOR_MEMORY}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('Fatal error', file=sys.stderr); os.kill(os.getpid(), 11)", "died of SIGSEGV: Fatal error"),
        ("print('odd', file=sys.stderr); sys.exit(3)", "exited with 3: odd"),
        ("count(); sys.exit(3)", "exited with 3: no output"),  # another process of the group was killed
    ],
)
def test_a_cell_whose_process_crashes_is_marked_failed_with_the_reason(cell_whose_process, body, reason):
    cell = cell_whose_process(body)
    assert (cell.status, cell.reason) == ("failed", f"the process {reason}")


@in_each("attention", ["sdpa", "eager"])
@in_each("precision", ["fp32", "bf16"])
@in_each("preset", [None, "tiny"])
def test_the_memory_estimate_counts_what_autograd_keeps(attention, precision, preset):
    spec = CellSpec(
        model_size="s", d_model=64, d_ff=256, num_layers=3, num_heads=4, vocab=50, context_length=64, batch_size=2,
        architecture="llama" if preset else "course", preset=preset,
        pass_name="forward", precision=precision, num_warmups=0, num_trials=1, attention=attention,
    )  # fmt: skip
    torch.set_default_dtype(TORCH_DTYPES[precision])
    network = Network(spec.as_preset, attention=attention)
    torch.set_default_dtype(torch.float32)
    with autograd_memory.kept_for_backward(network) as kept:
        network.decoder(input_ids=torch.randint(0, 50, (2, 64)), use_cache=False)
    logits = spec.tokens * spec.vocab * 8
    estimated = footprint.activation_bytes(footprint.of_cell(spec, fused_norm=False)) - logits
    assert estimated == pytest.approx(autograd_memory.total_bytes(kept), rel=0.1)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_memory_estimate_of_a_gpu_knows_whether_torch_fuses_the_norm(monkeypatch, compiled):
    cell = specs(device="cuda", precision="bf16", compile=compiled)[0]
    needed = []
    for fused in (True, False):
        monkeypatch.setattr("tensorprimat.measure.sweep.has_fused_norm", lambda _, fused=fused: fused)
        needed.append(estimate_cell(cell, flops_per_second=None).memory_gb * GB)
    more = cell.tokens * cell.num_layers * (4 * 4 - 2 * 2) * cell.d_model  # four numbers of float32 for two of bf16
    assert needed[1] - needed[0] == pytest.approx(0 if compiled else more, abs=1)


def test_optimizer_state_is_in_the_estimate_of_training_only():
    steps = {name: footprint.of_cell(specs(pass_name=name)[0], fused_norm=False) for name in micro_result.PASSES}
    one = {name: footprint.state_bytes(step) for name, step in steps.items()}
    assert one["train"] == 2 * one["forward-backward"] == 4 * one["forward"]


def test_the_time_left_counts_measured_cells_only(capsys):
    cell = stand_in(specs()[0])
    with CellProgress([1.0, 1.0, 4.0], clock=iter([0.0, 10.0, 50.0]).__next__) as progress:
        progress.advance(cell, resumed=True)
        assert "left" not in capsys.readouterr().err
        progress.advance(cell, resumed=False)
        assert "(about 40 s left)" in capsys.readouterr().err
        progress.advance(cell, resumed=False)
    assert "[3/3]" in (last := capsys.readouterr().err)
    assert "left" not in last


def test_a_check_of_the_last_cell_comes_before_the_first_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(passes, "measure_cell", lambda _: pytest.fail("something ran"))
    assert main(["sweep", *QUICK, "--precision", "fp32,fp16", "--in-process", "--output", str(tmp_path)]) == 2
    assert "--precision fp16: not on a CPU" in capsys.readouterr().err
