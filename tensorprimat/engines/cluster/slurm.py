"""One Slurm job: its state as the controller reports it (no accounting database is needed), and its cancellation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from tensorprimat.system import processes

UNANSWERED = "UNANSWERED"  # this program's own state: the controller did not answer
ALIVE = (
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT",
    "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", UNANSWERED,
)  # fmt: skip
"""States of a job that may still run (squeue(1), job state codes)."""

_ENDINGS = {
    "TIMEOUT": "was ended at its time limit; give more with --time",
    "CANCELLED": "was cancelled (scancel, or the administrator)",
    "NODE_FAIL": "lost a node that it ran on",
    "PREEMPTED": "was preempted by another job",
    "OUT_OF_MEMORY": "ran out of memory on its node (the host's, as Slurm limits it)",
    "BOOT_FAIL": "had a node that did not boot",
    "DEADLINE": "missed its deadline",
    "FAILED": "failed",
}
"""Slurm's state of a job that did not complete → text of the message.

A state is a word of the controller's answer. The texts to find in a job's output are in system/failures.
"""

_ask = partial(processes.ask, patience_seconds=60.0)  # a busy controller takes many seconds for one command


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of a job as Slurm reported it."""

    word: str
    """Slurm's name of the state (PENDING, RUNNING, COMPLETED, TIMEOUT …), or UNANSWERED."""
    reason: str | None = None
    """Reason of waiting or failure, in Slurm's words."""
    nodes: str | None = None

    @property
    def ended(self) -> bool:
        return self.word not in ALIVE

    @property
    def ending(self) -> str:
        """Return the job's outcome, as a phrase whose subject is the job."""
        return _ENDINGS.get(self.word, f"ended as {self.word}")


def job_state(job: str) -> JobState | None:
    """Return a job's state; None if neither the controller nor the accounting (if any) knows the job any more."""
    answer = _ask("scontrol", "show", "job", "--oneliner", job)
    if answer is None:
        return JobState(word=UNANSWERED)
    if answer.returncode == 0:
        fields = dict(re.findall(r"(?:^|\s)(JobState|Reason|NodeList)=(\S+)", answer.stdout))
        known = {name: value for name, value in fields.items() if value not in ("None", "(null)")}
        return JobState(word=known.get("JobState", UNANSWERED), reason=known.get("Reason"), nodes=known.get("NodeList"))
    if "Invalid job id" not in answer.stderr:
        return JobState(word=UNANSWERED)
    return _accounted(job)


def _accounted(job: str) -> JobState | None:
    """Return a job's state from the accounting database (sacct), if there is one.

    The controller forgets a job MinJobAge after its end, 5 minutes by default.
    """
    answer = _ask("sacct", "--noheader", "--parsable2", "--allocations", "--jobs", job, "--format", "State,NodeList")
    if answer is None or answer.returncode or not answer.stdout.strip():
        return None
    state, _, nodes = answer.stdout.strip().splitlines()[0].partition("|")
    word = next(iter(state.split()), None)  # "CANCELLED by 1000"
    return None if word is None else JobState(word=word, nodes=nodes or None)


def counts_gpus(partition: str | None) -> bool:
    """Return True if Slurm allocates GPUs in the partition, or if that is unknown.

    Where it does not, sbatch refuses a job that requests GPUs.
    """
    answer = _ask("sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else []))
    return answer is None or answer.returncode != 0 or "gpu" in answer.stdout


def cancel(job: str) -> str | None:
    """Cancel a job; return why that failed, in Slurm's words, or None."""
    answer = _ask("scancel", job)
    if answer is None:
        return "Slurm did not answer"
    return None if answer.returncode == 0 else answer.stderr.strip() or f"scancel exited with {answer.returncode}"
