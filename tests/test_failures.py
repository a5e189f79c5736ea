"""One vocabulary of failures: logs and launchers name the same cause for the same text."""

from __future__ import annotations

import pytest

from tensorprimat.core import failures

PROOFS = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "out of memory",
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB": "out of memory",
    "RuntimeError: HIP error: hipErrorOutOfMemory": "out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": "out of memory",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating": "out of memory",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.":
        "out of memory",
    "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried": "out of memory",
    "OSError: [Errno 28] No space left on device: '/checkpoints/iter_100'": "disk full",
    "OSError: [Errno 122] Disk quota exceeded": "disk full",
    "slurmstepd: error: *** JOB 12 ON node3 CANCELLED AT 2026-01-05T14:30:22 DUE TO TIME LIMIT ***": "cancelled",
    "KeyboardInterrupt": "interrupted",
    "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)": "collective timeout",
    "ncclRemoteError: NCCL error: remote process exited or there was a network error": "lost rank",
    "Signal 9 (SIGKILL) received by PID 2701": "killed by a signal",
    "Traceback (most recent call last):": "crashed",
}  # fmt: skip


@pytest.mark.parametrize("text", PROOFS)
def test_logs_and_launchers_name_the_same_cause(text):
    assert failures.cause_in(text) == failures.cause_of_failure(text) == PROOFS[text]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("unable to mmap: Cannot allocate memory", "out of memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out of memory"),
        ("RuntimeError: could not create a primitive", "out of memory"),
        ("RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:3371", "lost rank"),
    ],
)
def test_a_text_that_healthy_logs_hold_too_counts_only_for_a_process_that_failed(text, cause):
    assert (failures.cause_in(text), failures.cause_of_failure(text)) == (None, cause)


@pytest.mark.parametrize(
    "text",
    [
        "hint: lower the batch to avoid running out of memory",
        "wandb: Network error (Connection reset by peer), entering retry loop.",
        "Exception ignored in: <function f>\nTraceback (most recent call last):\n  ValueError",
    ],
)
def test_a_healthy_log_has_no_cause(text):
    assert failures.cause_in(text) is None


def test_a_crash_out_of_memory_is_out_of_memory():
    text = "Traceback (most recent call last):\n  …\ntorch.OutOfMemoryError: CUDA out of memory."
    assert failures.cause_in(text) == "out of memory"
