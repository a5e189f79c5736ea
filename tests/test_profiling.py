"""`--profile`: a profiler around one run, whose result is marked, kept in history alone, and never compared."""

import gzip
import json
import os
import re
import signal
import time
from collections import Counter
from contextlib import nullcontext

import fake_primus
import pytest

from tensorprimat.cli import main
from tensorprimat.core.errors import RunError
from tensorprimat.engines import profiling
from tensorprimat.engines.registry import ENGINES
from tensorprimat.storage import store

TINY = ("--engine", "torch", "--model", "llama", "--steps", "4", "--warmup-steps", "1", "--sequence-length", "32")


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def run(*flags):
        code = main(["run", *TINY, *flags], program="benchmark.py")
        return code, *capfd.readouterr()

    return run


def kept(folder):
    return next((folder / "output" / "history").glob("*_profiled.json"))


@pytest.mark.usefixtures("warm")
def test_the_torch_profiler_writes_a_trace_and_a_table_of_some_steps(run, tmp_path):
    code, printed, complaint = run("--profile", "torch")
    assert code == 0, complaint
    trace = next((tmp_path / "output" / "history").glob("*_torch.trace.json.gz"))
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert "aten::" in next((tmp_path / "output" / "history").glob("*_torch.txt")).read_text()
    assert f"Profile: {trace}" in printed
    assert json.loads(kept(tmp_path).read_text())["provenance"]["profiled"] is True
    assert not list((tmp_path / "output").glob("*.json")), "a profiled run is never the latest result"


@pytest.mark.usefixtures("warm")
def test_nsight_profiles_the_run_and_its_result_is_never_compared(run, tmp_path, monkeypatch, capfd):
    fake_primus.program(
        tmp_path / "bin",
        "nsys",
        """
        shift
        while [[ $1 == --* ]]; do
          [[ $1 == --output=* ]] && echo report > "${1#--output=}.nsys-rep"
          shift
        done
        exec "$@"
        """,
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    code, printed, complaint = run("--profile", "nsys")
    assert code == 0, complaint
    assert "_nsys.nsys-rep" in printed
    compared = main(["compare", str(kept(tmp_path)), "--output-dir", str(tmp_path / "report")])
    assert "profil" in "".join(capfd.readouterr())
    assert compared == 2


ROCPROFV3 = """
# The options of the real one that are used here, with their arguments.
while [[ $1 != -- ]]; do
  case $1 in
    --kernel-trace | --stats) shift ;;
    --output-directory) folder=$2; shift 2 ;;
    --output-file) file=$2; shift 2 ;;
    --output-format) shift; while [[ $1 != --* ]]; do formats+=("$1"); shift; done ;;
    *) echo "rocprofv3: unrecognized arguments: $1" >&2; exit 2 ;;
  esac
done
shift
for format in "${formats[@]}"; do echo traced > "$folder/${file//%pid%/$$}_kernel_stats.$format"; done
exec "$@"
"""


@pytest.mark.usefixtures("warm")
def test_rocprofv3_writes_a_file_per_process_next_to_the_marked_result(run, tmp_path, monkeypatch):
    fake_primus.program(tmp_path / "bin", "rocprofv3", ROCPROFV3)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    code, printed, complaint = run("--profile", "rocprof")
    assert code == 0, complaint
    traces = [path.name for path in (tmp_path / "output" / "history").glob("*_kernel_stats.*")]
    assert {re.sub(r".*_rocprof_\d+", "", name) for name in traces} == {"_kernel_stats.csv", "_kernel_stats.pftrace"}
    assert all(name in printed for name in traces)
    assert json.loads(kept(tmp_path).read_text())["provenance"]["profiled"] is True


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--profile", "gprof"), "--profile gprof: no such profiler; choose torch, nsys, rocprof"),
        (("--profile", "nsys"), "--profile nsys: nsys is not installed; install NVIDIA Nsight Systems"),
        (("--profile", "rocprof"), "--profile rocprof: rocprofv3 is not installed"),
        (("--profile", "torch", "--runs", "3"), "profiles one run; leave --runs and --append out"),
    ],
)
def test_a_run_that_cannot_be_profiled_is_refused_in_one_line(run, monkeypatch, flags, complaint):
    monkeypatch.setattr(profiling.shutil, "which", lambda _: None)
    code, _, printed = run(*flags)
    assert code == 2
    assert complaint in printed
    assert len(printed.strip().splitlines()) == 1


def test_only_an_engine_that_trains_can_be_profiled():
    with pytest.raises(profiling.UsageError, match="reading logs has nothing to profile"):
        profiling.check_profiler("nsys", ENGINES["logs"])
    with pytest.raises(profiling.UsageError, match="only with --engine torch or nemo"):
        profiling.check_profiler("torch", ENGINES["bridge"])
    profiling.check_profiler("torch", ENGINES["nemo"])


SLOW_SECONDS = 1.0


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains with a profiler, of which stop and export each take some seconds longer.

    Batch number N runs the operation aten::OPERATIONS[N]. raising: a batch and the error in it.
    """
    torch_profile = pytest.importorskip("tensorprimat.engines.torch.profile")
    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines.torch import engine as torch_engine
    from tensorprimat.engines.torch import module as torch_module

    def slower(real, seconds):
        def slowly(*arguments):
            time.sleep(seconds)
            return real(*arguments)

        return slowly

    def train(steps=6, raising=None, seconds=SLOW_SECONDS, micro_batches=1):
        for name in ("stop", "export_chrome_trace"):
            monkeypatch.setattr(torch_profile.profile, name, slower(getattr(torch_profile.profile, name), seconds))

        class Marks(torch_module.TrainingModule):
            def training_step(self, batch, batch_idx):
                if raising is not None and batch_idx == raising[0]:
                    raise raising[1]
                getattr(torch_profile.torch.ones(4), OPERATIONS[batch_idx])()
                return super().training_step(batch, batch_idx)

        monkeypatch.setattr(torch_module, "TrainingModule", Marks)
        spec = RunSpec(
            model="llama", preset="tiny", engine="torch", steps=steps, warmup_steps=2, micro_batch_size=1,
            global_batch_size=micro_batches, sequence_length=32, precision="fp32", num_gpus=1,
            options={profiling.STEM: str(tmp_path / "new" / "p")},
        )  # fmt: skip
        torch_engine.train(spec, tmp_path / "result.json")

    handler = signal.getsignal(signal.SIGINT)
    yield train
    signal.signal(signal.SIGINT, handler)  # Lightning ignores it after Ctrl-C


OPERATIONS = ("tanh", "sinh", "asinh", "erf", "atan", "acosh", "digamma", "erfinv", "lgamma")


def profiled(folder):
    """Return the operations of OPERATIONS in the trace, in order."""
    assert "Self CPU" in (folder / "new" / "p.txt").read_text()
    names = {event.get("name") for event in traced(folder)}
    return [name for name in OPERATIONS if f"aten::{name}" in names]


def traced(folder):
    return json.loads(gzip.decompress((folder / "new" / "p.trace.json.gz").read_bytes()))["traceEvents"]


@pytest.mark.filterwarnings("ignore")  # Lightning's and transformers' own
def test_the_step_that_contains_the_writing_of_the_profile_is_not_measured(train, tmp_path, capfd):
    train()
    assert profiled(tmp_path) == ["asinh", "erf", "atan"]
    result = store.load(tmp_path / "result.json")
    assert [step.interrupted_by for step in result.steps] == ["", "", "", "", "", "profile", "", ""]
    assert result.steps[5].seconds >= 2 * SLOW_SECONDS
    assert max(step.seconds for step in result.steps if step.index > 1 and step.index != 6) < 2 * SLOW_SECONDS
    figures = result.performance_metrics
    assert (figures.measured_steps + figures.warmup_steps_dropped, figures.excluded_steps) == (7, 1)
    assert figures.avg_step_time_seconds < SLOW_SECONDS
    assert {"steps": 1, "work": "the writing of a profile"} in [one.values for one in result.remarks]
    assert not [warning for warning in result.warnings if warning.startswith("timer")]
    assert re.search(r"8 steps in .* s, profile \d+\.\d+ s", capfd.readouterr().out)


@pytest.mark.filterwarnings("ignore")
def test_a_profile_marks_its_steps_and_their_parts(train, tmp_path):
    train(seconds=0, micro_batches=2)
    marks = [event for event in traced(tmp_path) if event.get("cat") == "user_annotation"]
    inside = {
        f"ProfilerStep#{step}": {"micro-batch": 2, "forward": 2, "backward": 2, "optimizer": 1} for step in range(3)
    }
    for name, parts in inside.items():
        (step,) = (mark for mark in marks if mark["name"] == name)
        found = (mark["name"] for mark in marks if step["ts"] <= mark["ts"] < step["ts"] + step["dur"])
        assert {part: count for part, count in Counter(found).items() if part in parts} == parts


def test_without_a_profile_nothing_is_marked():
    torch_module = pytest.importorskip("tensorprimat.engines.torch.module")
    from test_torch_engine import spec_of

    assert isinstance(torch_module.TrainingModule(spec_of())._range("forward"), nullcontext)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("steps", "operations"), [(3, ["asinh", "erf", "atan"]), (2, ["asinh", "erf"])])
def test_a_profile_of_the_last_steps_is_written_after_them(train, tmp_path, steps, operations):
    train(steps=steps)
    assert profiled(tmp_path) == operations
    result = store.load(tmp_path / "result.json")
    assert not any(step.interrupted_by for step in result.steps)
    assert max(result.steps.column("seconds")[1:]) < 2 * SLOW_SECONDS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("batch", "error", "operations"),
    [(6, RuntimeError("too bad"), ["asinh", "erf", "atan"]), (3, KeyboardInterrupt(), ["asinh"])],
)
def test_a_profile_is_written_if_the_training_fails_or_is_interrupted(train, tmp_path, batch, error, operations):
    with pytest.raises(RunError, match="training failed: RuntimeError: too bad" if batch == 6 else "interrupted"):
        train(raising=(batch, error), seconds=0)
    assert profiled(tmp_path) == operations
    assert not store.load(tmp_path / "result.json").complete


@pytest.mark.filterwarnings("ignore")
def test_a_profile_that_cannot_be_written_does_not_hide_the_error_of_the_training(train, tmp_path, capfd):
    (tmp_path / "new").write_text("not a folder")
    with pytest.raises(RunError, match="training failed: RuntimeError: too bad"):
        train(raising=(3, RuntimeError("too bad")), seconds=0)
    assert "The profile cannot be written: " in capfd.readouterr().err
