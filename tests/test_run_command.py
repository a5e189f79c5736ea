"""Tests of benchmark.py from flags to files: every run stored as it ends, one line for each failure, nothing lost."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import fake_primus
import numpy as np
import pytest
import scripts
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.result import GpuInfo
from tensorprimat.engines import modules, registry
from tensorprimat.machine.platform import Machine
from tensorprimat.session import runs
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU", total_memory_gb=16.0), host="laptop")

pytestmark = pytest.mark.usefixtures("folder", "engine")

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
from tensorprimat.storage import store
from tensorprimat.models import presets
from tensorprimat.core.result import (GpuInfo, Model, PerformanceMetrics, Provenance, Result, Run, TrainingConfig)
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise

spec = RunSpec.model_validate_json(Path(sys.argv[2]).read_text())
counter = Path("starts.txt")
counter.write_text(counter.read_text() + "x" if counter.exists() else "x")
nth = len(counter.read_text())

def write(seconds=0.5, complete=True, rows=spec.max_steps, **config):
    result = Result(
        platform=spec.platform, gpu_info=GpuInfo(device_name="some CPU"), complete=complete,
        model=Model(name=spec.model, preset=spec.preset, shape=presets.find_preset(spec.model, spec.preset).shape),
        training_config=TrainingConfig(max_steps=spec.max_steps, warmup_steps=spec.warmup_steps, num_gpus=1,
            global_batch_size=spec.global_batch_size, micro_batch_size=spec.micro_batch_size,
            sequence_length=spec.sequence_length, precision=spec.precision, **config),
        performance_metrics=PerformanceMetrics(), provenance=Provenance(engine=spec.engine),
        runs=(Run(index=0, complete=complete),),
        steps=Steps.of(Step(index=i + 1, seconds=seconds, loss=3.0 - i / 100) for i in range(rows)))
    Path(sys.argv[4]).write_text(store.to_json(summarise(result)))

print("[CPU] Step   1 | Time: 0.500s | Avg: 0.500s", flush=True)
"""

QUICK = ["--engine", "torch", "--steps", "3", "--warmup-steps", "1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, with no log of this machine in reach."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "argv", ["benchmark.py"])
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: LAPTOP)  # the real one imports torch
    for variable in ("LLAMA_LOG", "QWEN_LOG", "MISTRAL_LOG", "PRIMUS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    return work


@pytest.fixture
def engine(tmp_path, monkeypatch, warm):  # noqa: ARG001  its processes are forks of the warm Python
    """Put a few lines of Python in the place of the torch engine's process."""
    row = registry.ENGINES["torch"]
    monkeypatch.setitem(registry.ENGINES, "torch", registry.Engine(name="torch", title=row.title, packages=()))
    monkeypatch.setitem(modules.MODULES, "torch", modules.EngineModules(name="torch", program="stand_in"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # a test changes the file within a second
    monkeypatch.syspath_prepend(tmp_path)

    def does(body="write()"):
        process = textwrap.indent(STAND_IN + textwrap.dedent(body), "    ")
        check = "def check(spec, machine):\n    pass\n\n"
        (tmp_path / "stand_in.py").write_text(f"{check}if __name__ == '__main__':{process}")

    does()
    return does


def run(*flags):
    return main(["run", *flags], program="benchmark.py")


@pytest.mark.usefixtures("folder")
@in_each(("stated", "code"), [("none", 2), ("selective", 2), ("full", 0)])
def test_two_flags_for_recomputation_that_disagree_are_refused(capsys, stated, code):
    flags = ("--model", "llama", "--engine", "torch", "--dry-run")
    assert run(*flags, "--recompute", "--activation-checkpointing", stated) == code
    printed = capsys.readouterr().err
    refusal = (
        f"--recompute: means --activation-checkpointing full, which contradicts --activation-checkpointing {stated};"
    )
    assert (refusal in printed) == (code == 2)


def test_three_runs_are_three_processes_and_one_result(folder, capsys):
    assert run("--model", "llama", "--runs", "3", *QUICK) == 0
    result = store.load(folder / "output" / "benchmark_cpu_llama.json")
    assert (folder / "starts.txt").read_text() == "xxx"
    assert [run.index for run in result.runs] == [0, 1, 2]
    assert len(result.steps) == 12
    assert result.performance_metrics.measured_steps == 9
    shown = capsys.readouterr().out
    assert shown.count("[CPU] Step   1 | Time: 0.500s | Avg: 0.500s") == 3
    assert "BENCHMARK START - Llama-3.1 tiny on CPU" in shown
    assert "BENCHMARK COMPLETE - llama (tiny) on CPU" in shown
    assert shown.rstrip().endswith("Next: python3 -m tensorprimat compare")


def test_the_next_command_names_the_script_where_it_is(capsys, monkeypatch):
    for called, command in {
        scripts.ROOT / "benchmark.py": f"python3 {scripts.ROOT}/compare_results.py",
        "/opt/venv/bin/tprimat": "tprimat compare",
        "elsewhere/benchmark.py": "python3 -m tensorprimat compare",
    }.items():
        monkeypatch.setattr("sys.argv", [str(called)])
        assert run("--model", "llama", *QUICK) == 0
        assert capsys.readouterr().out.rstrip().endswith(f"Next: {command}")


def test_every_model_gets_its_file_and_a_row_in_the_table(folder, capsys):
    assert run(*QUICK) == 0
    assert sorted(path.name for path in (folder / "output").glob("*.json")) == [
        "benchmark_cpu_llama.json",
        "benchmark_cpu_mistral.json",
        "benchmark_cpu_qwen.json",
    ]
    assert "Tokens/s/GPU" in capsys.readouterr().out


def test_json_is_the_only_thing_on_stdout(capsys):
    assert run("--model", "qwen", "--json", *QUICK) == 0
    captured = capsys.readouterr()
    (document,) = json.loads(captured.out)
    assert document["model"]["name"] == "qwen"
    assert document["schema_version"] == 3
    assert "BENCHMARK START" in captured.err


def test_a_second_benchmark_keeps_the_first_in_history(folder, engine):
    run("--model", "llama", *QUICK)
    engine("write(seconds=0.25)")
    run("--model", "llama", *QUICK)
    assert store.load(folder / "output" / "benchmark_cpu_llama.json").performance_metrics.avg_step_time_seconds == 0.25
    kept = [store.load(path) for path in (folder / "output" / "history").glob("*.json")]
    assert sorted(result.performance_metrics.avg_step_time_seconds for result in kept) == [0.25, 0.5]


def test_a_crash_in_the_second_run_keeps_the_first_and_lets_other_models_run(folder, engine, capsys):
    engine("if nth == 2: raise RuntimeError('the second one breaks')\nwrite()")
    assert run("--model", "all", "--runs", "2", *QUICK) == 1
    output = folder / "output"
    assert len(store.load(output / "benchmark_cpu_llama.json").runs) == 1
    assert len(store.load(output / "benchmark_cpu_qwen.json").runs) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("llama: ")
    assert "run 2 of 2: RuntimeError: the second one breaks" in line
    assert "the runs before it are in output/benchmark_cpu_llama.json" in line
    (stderr,) = (output / "history").glob("*_run2.txt")
    assert "the second one breaks" in stderr.read_text()


def test_the_steps_of_a_failed_run_are_in_history_only(folder, engine):
    engine("write(complete=False, rows=3)\nsys.exit('torch engine: out of data')")
    assert run("--model", "llama", *QUICK) == 1
    assert not list((folder / "output").glob("*.json"))
    (kept,) = (folder / "output" / "history").glob("*.json")
    assert not store.load(kept).complete


def test_the_steps_of_a_failed_profiled_run_are_kept_and_marked_as_profiled(
    folder, engine, tmp_path, monkeypatch, capsys
):
    fake_primus.program(tmp_path / "bin", "nsys", 'while [[ $1 == --* || $1 == profile ]]; do shift; done\nexec "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    engine("write(complete=False, rows=3)\nsys.exit('torch engine: out of data')")
    assert run("--model", "llama", "--profile", "nsys", *QUICK) == 1
    (partial,) = folder.glob("output/history/*.json")
    result = store.load(partial)
    assert (result.complete, result.provenance.profiled, len(result.steps)) == (False, True, 3)
    assert f"; its partial result is in {partial.relative_to(folder)}" in capsys.readouterr().err


def test_a_killed_training_process_is_reported_in_one_line(engine, capsys):
    engine("os.kill(os.getpid(), signal.SIGKILL)")
    assert run("--model", "llama", *QUICK) == 1
    assert "llama: the training process was killed (SIGKILL)" in capsys.readouterr().err


def test_append_adds_runs_to_the_latest_result(folder):
    run("--model", "llama", *QUICK)
    assert run("--model", "llama", "--runs", "2", "--append", *QUICK) == 0
    result = store.load(folder / "output" / "benchmark_cpu_llama.json")
    assert [run.index for run in result.runs] == [0, 1, 2]
    assert len(result.steps) == 12


def test_append_refuses_another_configuration_before_anything_runs(folder, capsys):
    run("--model", "llama", *QUICK)
    before = (folder / "output" / "benchmark_cpu_llama.json").read_bytes()
    assert run("--model", "llama", "--append", "--sequence-length", "64", *QUICK) == 2
    assert "--append: the latest result is another benchmark: sequence length (128 there, 64 here)" in (
        capsys.readouterr().err
    )
    assert (folder / "starts.txt").read_text() == "x"
    assert (folder / "output" / "benchmark_cpu_llama.json").read_bytes() == before


def test_append_refuses_a_run_that_turns_out_to_differ_but_keeps_it(folder, engine, capsys):
    engine("write(versions={'torch': '1'})")
    run("--model", "llama", *QUICK)
    engine("write(versions={'torch': '2'})")
    assert run("--model", "llama", "--append", *QUICK) == 2
    assert "package versions (torch 1 there, torch 2 here)" in capsys.readouterr().err
    assert len(store.load(folder / "output" / "benchmark_cpu_llama.json").runs) == 1
    (kept,) = (folder / "output" / "history").glob("*_not_appended.json")
    assert store.load(kept).training_config.versions == {"torch": "2"}


def test_append_to_nothing_is_refused(capsys):
    assert run("--model", "llama", "--append", *QUICK) == 2
    assert "no such file; run without --append first" in capsys.readouterr().err


def test_a_dry_run_writes_and_starts_nothing(folder, capsys):
    assert run("--dry-run", "--runs", "3", *QUICK) == 0
    shown = capsys.readouterr().out
    assert "WOULD TRAIN - llama on CPU" in shown
    assert "8 sequences of 128 tokens: micro batch 2 × 4 accumulated × 1 process" in shown
    assert not list(folder.iterdir())


@in_each(
    ("flags", "complaint"),
    [
        (["--model", "gpt"], "--model gpt: no such model; models: llama, qwen, mistral, all"),
        (["--runs", "0"], "--runs 0: must be at least 1"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--steps", "many"], "--steps many: must be a whole number"),
        (["--cooldown", "-1"], "--cooldown -1: must be a finite number of seconds, 0 or more"),
        (["--cooldown", "nan"], "--cooldown nan"),
        (["--micro-batch-size", "0"], "--micro-batch-size 0: must be at least 1"),
        (["--global-batch-size", "-8"], "--global-batch-size -8: must be at least 1"),
        (["--precision", "fp7"], "--precision fp7"),
        (["--preset", "full"], "needs at least"),
        (["--engine", "jax"], "--engine jax: no such engine"),
        (["--no-such-flag"], "No such option: --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_reported_in_one_line_with_exit_code_2(folder, capsys, flags, complaint):
    assert run("--engine", "torch", *flags) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not list(folder.iterdir())


PRIMUS_LINE = (
    "[20260105 {clock}][rank-7/8][INFO ] [---trainer.py:2488] :  iteration {i:8d}/      50 | "
    "consumed samples: {samples:12d} | elapsed time per iteration (ms): {ms:.1f}/9000.0 | "
    "hip mem usage/free/total/usage_ratio: 120.00GB/71.98GB/191.98GB/62.51% | "
    "throughput per GPU (TFLOP/s/GPU): 600.0/590.0 | tokens per GPU (tokens/s/GPU): "
    "{rate:.1f}/13000.0 | learning rate: 1.000000E-05 | global batch size:   128 | lm loss: 1.100000E+01 | "
    "loss scale: 1.0 | grad norm: 6.200 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def write_log(path):
    times = [30_000.0] + [9_800.0 + i for i in range(19)]
    ends = np.cumsum(times) / 1000 + 10 * 3600  # the dates of the rows agree with their step times
    path.write_text(
        "".join(
            PRIMUS_LINE.format(
                clock=time.strftime("%H:%M:%S", time.gmtime(end)),
                i=i, samples=128 * i, ms=ms, rate=128 * 8192 / ms * 1000 / 8,
            )
            for i, (ms, end) in enumerate(zip(times, ends, strict=True), start=1)
        )
    )  # fmt: skip


def test_a_log_is_found_and_read_and_the_other_models_are_named(folder, capsys):
    write_log(folder / "training_llama.log")
    assert run("--sequence-length", "8192", "--runs", "3") == 0
    shown = capsys.readouterr().out
    assert "warning: --runs 3: a log is read once" in shown
    assert "Log of llama: training_llama.log (named training_llama.log)" in shown
    assert "No log file found for qwen\n" in shown
    assert "QWEN_LOG=" in shown
    assert "--engine torch" in shown
    result = store.load(folder / "output" / "benchmark_rocm_llama.json")
    assert result.platform == "amd"
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(128 * 8192 / 9.809 / 8, rel=1e-4)
    assert not list((folder / "output").glob("*qwen*"))


def test_a_dry_run_names_the_models_that_it_could_not_check(folder, capsys):
    write_log(folder / "training_llama.log")
    assert run("--dry-run") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Dry run: nothing was trained, read or written; no log for qwen and mistral"
    for model in ("qwen", "mistral"):
        write_log(folder / f"training_{model}.log")
    assert run("--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("; every check passed")


def test_a_requested_model_without_a_log_gives_exit_code_2(folder, capsys):
    write_log(folder / "training_llama.log")
    assert run("--model", "qwen", "--engine", "logs") == 2
    assert "No log file found for qwen" in capsys.readouterr().out
    assert not (folder / "output").exists()


def test_a_broken_log_does_not_keep_the_others_from_being_read(folder, monkeypatch, capsys):
    write_log(folder / "training_llama.log")
    (folder / "broken").write_text("nothing that anybody timed\n")
    monkeypatch.setenv("QWEN_LOG", "broken")
    assert run() == 2
    assert "qwen: broken: " in capsys.readouterr().err
    assert (folder / "output" / "benchmark_rocm_llama.json").exists()


def test_append_does_not_count_a_log_twice(folder, capsys):
    write_log(folder / "training_llama.log")
    assert run("--append") == 2
    assert "--append adds runs that are trained here" in capsys.readouterr().err


def start(folder, tmp_path, *flags, terminal=None):
    """Start the real command, with the stand-in engine, as a process that signals can be sent to."""
    program = (
        "import sys; from tensorprimat.engines import modules, registry; from tensorprimat.cli import benchmark, main\n"
        "from tensorprimat.core.result import GpuInfo; from tensorprimat.machine.platform import Machine\n"
        "gpu_info = GpuInfo(device_name='some CPU', total_memory_gb=16.0)\n"
        "benchmark.detect_platform = lambda: Machine(platform='cpu', gpu_info=gpu_info, host='laptop')\n"
        "registry.ENGINES['torch'] = registry.Engine(name='torch', title='stand-in')\n"
        "modules.MODULES['torch'] = modules.EngineModules(name='torch', program='stand_in')\n"
        f"sys.exit(main({['run', *flags]!r}, program='benchmark.py'))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "TERM": "xterm"},
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("request_to_end", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_whole_runs_and_the_steps_of_the_broken_one(folder, tmp_path, engine, request_to_end):
    engine(
        """
        if nth == 1:
            write()
        else:
            try:
                Path("second").write_text("")
                time.sleep(60)
            except KeyboardInterrupt:
                write(complete=False, rows=2)
                sys.exit(1)
        """
    )
    process = start(folder, tmp_path, "--model", "llama", "--runs", "3", *QUICK)
    wait_for(folder / "second")
    process.send_signal(request_to_end)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in shown
    assert "run 2 of 3: interrupted; the runs before it are in output/benchmark_cpu_llama.json" in shown
    assert "BENCHMARK INCOMPLETE - llama (tiny) on CPU" in shown
    assert len(store.load(folder / "output" / "benchmark_cpu_llama.json").runs) == 1
    (partial,) = (folder / "output" / "history").glob("*_run2.json")
    assert not store.load(partial).complete
    assert (folder / "starts.txt").read_text() == "xx"


@pytest.mark.parametrize("request_to_end", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_benchmark_of_all_models_also_with_ab(folder, tmp_path, engine, request_to_end):
    engine(
        """
        if nth < 2:
            write()
        try:
            Path(str(nth)).write_text("")
            time.sleep(60 if nth == 2 else 0)
        except KeyboardInterrupt:
            write(complete=False, rows=2)
            sys.exit(1)
        """
    )
    process = start(folder, tmp_path, "--model", "all", "--ab", "", "--ab", "", *QUICK)
    wait_for(folder / "2")
    process.send_signal(request_to_end)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 1, shown
    assert not (folder / "3").exists(), "no other model was trained"
    assert (
        "llama: run 1b: interrupted; the runs before it are in output/a/benchmark_cpu_llama.json; its partial" in shown
    )
    (partial,) = (folder / "output" / "b" / "history").glob("*.json")
    assert not store.load(partial).complete


def test_ctrl_c_while_cooling_down_is_reported_in_one_line_and_loses_nothing(folder, tmp_path):
    process = start(folder, tmp_path, "--model", "llama", "--runs", "2", "--cooldown", "60", *QUICK)
    assert any("Cooling down for 60 s" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in shown
    assert len(store.load(folder / "output" / "benchmark_cpu_llama.json").runs) == 1


def test_the_process_of_a_run_starts_before_a_long_pause_and_after_a_short_one(folder, engine, monkeypatch):
    monkeypatch.setattr(runs, "IMPORTS_SECONDS", 0.5)
    monkeypatch.setattr(runs, "ENGINES", {"torch": replace(registry.ENGINES["torch"], own_training=True)})
    engine("write(seconds=0.5 if '--wait' in sys.argv else 1.0)")
    for pause, seconds in (("0.5", [1.0, 0.5]), ("0.4", [1.0, 1.0])):
        assert main(["run", "--model", "llama", "--runs", "2", "--cooldown", pause, *QUICK]) == 0
        steps = store.load(folder / "output" / "benchmark_cpu_llama.json").steps
        assert [steps[0].seconds, steps[-1].seconds] == seconds


def test_a_benchmark_that_is_killed_leaves_the_last_whole_state(folder, tmp_path, engine):
    engine("if nth == 2:\n    Path('second').write_text('')\n    time.sleep(3)\nwrite()")
    process = start(folder, tmp_path, "--model", "llama", "--runs", "2", *QUICK)
    wait_for(folder / "second")
    process.kill()
    process.communicate(timeout=30)
    assert len(store.load(folder / "output" / "benchmark_cpu_llama.json").runs) == 1
    assert not [path for path in (folder / "output").iterdir() if path.suffix not in (".json", "")]


def wait_for(path):
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.05)


@pytest.mark.usefixtures("warm")
def test_the_real_torch_engine_trains_a_tiny_model_from_the_script(folder):
    flags = "--model mistral --steps 3 --warmup-steps 1 --micro-batch-size 1 --global-batch-size 2 --sequence-length 16"
    shown = subprocess.run(
        [sys.executable, ROOT / "benchmark.py", "--engine", "torch", *flags.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "[CPU] Step   4 | Time: " in shown.stdout
    assert "\x1b" not in shown.stdout
    result = store.load(folder / "output" / "benchmark_cpu_mistral.json")
    assert (result.model.preset, result.provenance.engine, len(result.runs)) == ("tiny", "torch", 1)
    assert result.performance_metrics.measured_steps == 3
    assert result.model.parameters == 1_115_264


def test_on_a_terminal_a_bar_counts_the_steps(folder, tmp_path):
    ours, childs = pty.openpty()
    process = start(folder, tmp_path, "--model", "llama", *QUICK, terminal=childs)
    os.close(childs)
    shown = read_all(ours)
    assert process.wait(timeout=30) == 0
    assert "llama run 1/1" in shown
    assert "1/4" in shown
    assert "[CPU] Step   1 | Time: 0.500s" in shown


def read_all(terminal):
    """Return the text that a terminal showed until its process ended."""
    parts = []
    with contextlib.suppress(OSError):  # Linux says EIO when the last process has closed the other end
        while part := os.read(terminal, 65536):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode(errors="replace")


def test_the_shell_wrapper_writes_into_its_own_folder_and_passes_flags_on(tmp_path):
    dry = [ROOT / "run_benchmark.sh", "llama", "2", "--engine", "torch", "--dry-run"]
    # Without .venv the script takes python3.
    path = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    shown = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=path)
    assert shown.returncode == 0, shown.stderr
    assert "2 runs" in shown.stdout
    assert f"{ROOT}/output/" in shown.stdout


def test_the_shell_wrapper_without_a_model_shows_its_manual():
    shown = subprocess.run([ROOT / "run_benchmark.sh"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2
    assert "MODEL [RUNS]" in shown.stdout
