"""One vocabulary of failures: logs and launchers name the same cause for the same text."""

import re

from each import in_each

from tensorprimat.system import failures

CAUSES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "out of memory",
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB": "out of memory",
    "RuntimeError: CUDA error: out of memory": "out of memory",
    "RuntimeError: HIP error: hipErrorOutOfMemory": "out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": "out of memory",
    "RuntimeError: HIP error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`": "out of memory",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating": "out of memory",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.":
        "out of memory",
    "[ 71.5] Out of memory: Killed process 2701 (python3) total-vm:31457280kB": "out of memory",
    "srun: error: node3: task 0: Out Of Memory": "out of memory",
    "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried": "out of memory",
    "OSError: [Errno 28] No space left on device: '/checkpoints/iter_100'": "disk full",
    "OSError: [Errno 122] Disk quota exceeded": "disk full",
    "slurmstepd: error: *** JOB 12 ON node3 CANCELLED AT 2026-01-05T14:30:22 DUE TO TIME LIMIT ***": "cancelled",
    "slurmstepd: error: *** STEP 12.0 ON node3 CANCELLED DUE TO PREEMPTION ***": "cancelled",
    "KeyboardInterrupt": "interrupted",
    "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)": "collective timeout",
    "ncclRemoteError: NCCL error: remote process exited or there was a network error": "lost rank",
    "Signal 9 (SIGKILL) received by PID 2701": "killed by a signal",
    "torch/distributed/elastic/agent/server/api.py] Received Signals.SIGTERM death signal, shutting down":
        "killed by a signal",
    "launcher received SIGTERM": "killed by a signal",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15": "killed by a signal",
    "srun: error: node3: task 0: Segmentation fault": "killed by a signal",
    "bash: line 1: 2701 Aborted (core dumped) python3 train.py": "killed by a signal",
    "srun: error: node3: task 0: Killed": "killed by a signal",
    "Traceback (most recent call last):": "crashed",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:": "crashed",
    "  exitcode  : 1 (pid: 2701)": "crashed",
    "Aborted": "crashed",
    "srun: error: node3: task 0: Exited with exit code 1": None,
    "slurmstepd: error: Unable to create TMPDIR [/scratch]: No such file or directory": None,
    "INFO torch.distributed.elastic: [default] worker group FAILED": None,
    "hint: step 100 of 200": None,
}  # fmt: skip
"""Line → cause that both functions name."""

HEALTHY_TOO = "logs of trainings that go on hold this text too, so it counts only for a process that failed"
DIFFERENT = {
    "hint: lower the batch to avoid running out of memory": ("out of memory", HEALTHY_TOO),
    "unable to mmap: Cannot allocate memory": ("out of memory", HEALTHY_TOO),
    "numpy: Unable to allocate 2.00 GiB for an array": ("out of memory", HEALTHY_TOO),
    "terminate called after throwing an instance of 'std::bad_alloc'": ("out of memory", HEALTHY_TOO),
    "RuntimeError: could not create a primitive": ("out of memory", HEALTHY_TOO),
    "MemoryError": ("out of memory", HEALTHY_TOO),
    "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:3371": ("lost rank", HEALTHY_TOO),
    "wandb: Network error (Connection reset by peer), entering retry loop.": ("lost rank", HEALTHY_TOO),
    "a remote process exited": ("lost rank", HEALTHY_TOO),
}
"""Line → cause that the launchers name and readers do not, by design, and the reason."""


@in_each("text", [*CAUSES, *DIFFERENT])
def test_logs_and_launchers_name_the_same_cause_except_by_design(text):
    of_log, of_process = failures.cause_in(text), failures.cause_of_failure(text)
    if text in DIFFERENT:
        assert (of_log, of_process) == (None, DIFFERENT[text][0])
    else:
        assert of_log == of_process == CAUSES[text]


def alternatives(pattern):
    """Return the alternatives of a regular expression, each as one; a group around all of them is opened."""
    if whole := re.fullmatch(r"\(\?(?P<flags>[im]):(?P<inner>.*)\)", pattern, re.DOTALL):
        parts = alternatives(whole["inner"])
        if all(part.count("(") == part.count(")") for part in parts):
            return [f"(?{whole['flags']}:{part})" for part in parts]
    parts, depth = [""], 0
    for token in re.findall(r"\\.|.", pattern, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def test_alternatives_of_a_pattern_are_those_outside_of_its_groups():
    assert alternatives(r"a(?:b|c)|d\(|e") == ["a(?:b|c)", r"d\(", "e"]
    assert alternatives("(?i:a|b(c|d))") == ["(?i:a)", "(?i:b(c|d))"]


@in_each("cause", failures.CAUSES)
def test_every_text_of_the_vocabulary_is_in_the_lists(cause):
    same = [text for text, name in CAUSES.items() if name == cause.name]
    different = [text for text, (name, _) in DIFFERENT.items() if name == cause.name]
    for texts, pattern in ((same, cause.proof), (different, cause.proof_once_failed)):
        for alternative in alternatives(pattern):
            assert alternative == "(?!)" or any(re.search(alternative, text) for text in texts), alternative


@in_each("text", failures.DEATHS)
def test_every_text_that_divides_logs_is_in_the_lists(text):
    assert any(text in line for line in CAUSES)


TRACEBACK_OF = "Traceback (most recent call last):\n  File …\n{}\n"
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"


@in_each("ignored", ["in:", "on threading shutdown", "while calling deallocator"])
@in_each("chain", ["", CHAINED + TRACEBACK_OF.format("OSError")])
def test_a_traceback_of_an_interpreter_that_shuts_down_is_no_cause(ignored, chain):
    text = f"Exception ignored {ignored} <function f>:\n{TRACEBACK_OF.format('ValueError')}{chain}"
    crash = f"{text}{TRACEBACK_OF.format('KeyError')}{chain}"
    for rank in ("", "[rank0]:"):
        assert failures.cause_in(text.replace("\n", f"\n{rank}")) is None
        assert failures.cause_in(crash.replace("\n", f"\n{rank}")) == "crashed"


def test_a_crash_out_of_memory_is_out_of_memory():
    text = "Traceback (most recent call last):\n  …\ntorch.OutOfMemoryError: CUDA out of memory."
    assert failures.cause_in(text) == "out of memory"


def test_a_step_that_slurm_killed_for_lack_of_memory_is_known_from_the_line_of_srun():
    assert failures.shows_kernel_kill("srun: error: node3: tasks 0-7: Out Of Memory")
    assert not failures.shows_kernel_kill("srun: error: node3: task 0: Killed")
