"""A framework's launcher followed to its end: output kept and shown, and one line with the cause of a failure."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorprimat.core.errors import OutOfMemoryError, RunError
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import launcher_output
from tensorprimat.system import failures

ROOT = Path(__file__).parents[1]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def follow(tmp_path):
    def follow(*command, **environment):
        spec = RunSpec(
            model="qwen", preset="full", engine="primus", steps=5, warmup_steps=1, micro_batch_size=4,
            global_batch_size=32, sequence_length=2048, precision="bf16", num_gpus=8, platform="amd",
        )  # fmt: skip
        with (tmp_path / "its.log").open("wb", buffering=0) as log:
            return launcher_output.follow_launcher(
                command, log, name="Primus", spec=spec, environment={**os.environ, **environment}, folder=tmp_path
            )

    return follow


def script(text):
    return sys.executable, "-c", text


def test_iterations_are_shown_in_the_tools_form_and_other_lines_unchanged(follow, tmp_path, capsys):
    line = "iteration 3/ 9 | elapsed time per iteration (ms): 500.0/501.0 | lm loss: 9.5E+00 |"
    assert follow(*script(f"print('\\033[32mhello\\033[0m'); print({line!r})")) is None
    assert capsys.readouterr().out == (
        "hello\n[ROCM] Step   3 | Time: 0.500s | Loss: 9.5000 | (warm-up, not measured)\n"
    )
    assert (tmp_path / "its.log").read_text() == f"\x1b[32mhello\x1b[0m\n{line}\n"


def test_temporary_files_of_a_launcher_lie_in_a_folder_that_goes_with_it(follow, tmp_path):
    code = "import os, pathlib; pathlib.Path('where').write_text(os.environ['TMPDIR'])"
    assert follow(*script(code)) is None
    folder = Path((tmp_path / "where").read_text())
    assert folder.name.startswith("tensorprimat-")
    assert not folder.exists()


def test_running_out_of_memory_names_the_configuration_and_remedies(follow, tmp_path):
    failure = follow(*script("import sys; sys.exit('torch.OutOfMemoryError: HIP out of memory')"))
    assert isinstance(failure, OutOfMemoryError)
    assert str(failure) == (
        "out of memory: qwen (full), micro batch 4, global batch 32, sequence 2048, bf16, 8 devices; try "
        "--micro-batch-size 2, --sequence-length 1024 (other work), --recompute, --tensor-parallel-size 2; "
        f"its log: {tmp_path / 'its.log'}"
    )


@pytest.mark.usefixtures("warm")
def test_the_error_of_a_rank_is_reported_instead_of_torchruns_message(follow, tmp_path, capsys):
    (tmp_path / "rank.py").write_text("import os\nif os.environ['RANK'] == '1': raise ValueError('bad shape')\n")
    failure = follow(sys.executable, *TORCHRUN, "rank.py")
    assert isinstance(failure, RunError)
    assert str(failure) == f"Primus exited with 1: ValueError: bad shape; its log: {tmp_path / 'its.log'}"
    assert "the last lines of" in capsys.readouterr().err


RANKS = """
import os, signal, torch, torch.distributed as dist
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun must not end rank 0 before it reports its lost connection
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    {fault}
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise ValueError('bad shape')", "Primus exited with 1: [rank1]: ValueError: bad shape"),
        ("os.kill(os.getpid(), 9)", f"Primus: a rank {failures.KILLED}"),
        ("raise torch.OutOfMemoryError('HIP out of memory')", "out of memory: qwen (full)"),
    ],
)
def test_the_error_of_the_rank_that_failed_first_is_reported_and_not_the_connection_that_others_lost(
    follow, tmp_path, fault, told
):
    (tmp_path / "rank.py").write_text(RANKS.format(fault=fault))
    assert str(follow(sys.executable, *TORCHRUN, "rank.py")).startswith(told)
    assert "Connection" in (tmp_path / "its.log").read_text()


PEER = "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            ["[rank1]: KeyError: 'a'", "[rank1]: ValueError: bad", PEER, "[rank2]: OSError: late"],
            "[rank1]: ValueError: bad",
        ),
        ([PEER, "[rank1]: ValueError: bad"], "[rank1]: ValueError: bad"),
        ([PEER, "Sending closing signal"], PEER),
    ],
)
def test_of_the_errors_of_many_ranks_the_first_that_no_other_rank_caused_is_named(lines, error):
    assert launcher_output.complaint(lines) == error


@pytest.mark.usefixtures("warm")
def test_a_killed_rank_is_reported_as_killed(follow, tmp_path):
    (tmp_path / "rank.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert f"a rank {failures.KILLED}; its log" in str(follow(sys.executable, *TORCHRUN, "rank.py"))


@pytest.mark.parametrize("script", ["echo working; kill -9 $$", "echo working; exit 137"])
def test_a_killed_launcher_is_reported_as_killed(follow, script):
    assert f"Primus {failures.KILLED}; its last line: working" in str(follow("bash", "-c", script))


GARBLED = """
import sys
row = " iteration {}/ 40 | elapsed time per iteration (ms): {} | lm loss: {} | mem usage/free/total/usage_ratio: {}GiB"
for number in ("1", "9" * 6000, "7.7", "", "\\u0667"):
    for value in ("2701.3.4", "nan", "-1", "inf", "9" * 400, "9" * 6000, "\\uff11", "", "...", "\\0", "1e400"):
        print(row.format(number, value, value, value))
for text in ("iteration 1/ 2 | ", "elapsed time per iteration (ms): 1", "x", "\\0", " ", "\\r", "\\x1b[1;", "Error: "):
    print(text * (3_000_000 // len(text)))
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xff\\xfe not UTF-8\\n and the last line")
"""


@pytest.mark.parametrize("seen", ["by nobody", "by the launcher"])
def test_no_output_line_stops_a_training_and_its_log_has_every_line(follow, tmp_path, monkeypatch, seen):
    if seen == "by nobody":  # the reader of our output has gone

        def gone(*_, **__):
            raise BrokenPipeError

        monkeypatch.setattr(launcher_output, "print", gone, raising=False)
    began = time.monotonic()
    assert follow(sys.executable, "-X", "utf8", "-c", GARBLED) is None
    assert time.monotonic() - began < 20
    log = (tmp_path / "its.log").read_bytes()
    assert log.endswith(b"and the last line")
    assert len(log) > 8 * 2_900_000


def test_a_full_disk_ends_the_training_and_is_named():
    with open("/dev/full", "wb", buffering=0) as log:
        child = script("import time\nprint('hello', flush=True)\ntime.sleep(60)")
        spec = RunSpec.model_construct(platform="nvd", warmup_steps=0)
        failure = launcher_output.follow_launcher(
            child, log, name="Megatron-Bridge", spec=spec, environment=dict(os.environ)
        )
    assert "/dev/full: No space left on device; Megatron-Bridge was ended; make room" in str(failure)


INTERRUPTIBLE = """
import os
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import launcher_output as following
child = ["bash", "-c", "trap 'sleep 0.3; echo tidied up; exit 1' INT; echo ready; while :; do sleep 0.1; done"]
spec = RunSpec.model_construct(platform="amd", warmup_steps=0)
with open("its.log", "wb", buffering=0) as log:
    print(following.follow_launcher(child, log, name="Primus", spec=spec, environment=dict(os.environ)))
"""


def test_after_ctrl_c_the_launcher_is_waited_for(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert started.stdout.readline() == "ready\n"
    os.killpg(started.pid, signal.SIGINT)
    printed, _ = started.communicate(timeout=20)
    assert printed == "interrupted; its log: its.log\n"
