"""`--profile`: a profiler around one run, whose result is marked, kept in history alone, and never compared."""

import gzip
import json
import os
import re

import fake_primus
import pytest

from tensorprimat.cli import main
from tensorprimat.engines import profiling
from tensorprimat.engines.registry import ENGINES

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


def test_a_lightning_profiler_writes_the_steps_after_the_warm_up(tmp_path):
    torch_profile = pytest.importorskip("tensorprimat.engines.torch.profile")
    profiler = torch_profile.StepProfiler(stem=str(tmp_path / "p"), first_step=1)
    for batch in range(5):
        for action in ("other", torch_profile.STEP_ACTION):
            profiler.start(action)
            torch_profile.torch.ones(4).exp() if batch else torch_profile.torch.ones(4).tanh()
            profiler.stop(action)
    table = (tmp_path / "p.txt").read_text()
    assert "aten::exp" in table
    assert "aten::tanh" not in table
    assert json.loads(gzip.decompress((tmp_path / "p.trace.json.gz").read_bytes()))["traceEvents"]
