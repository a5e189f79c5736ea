"""The process that submits one run of an engine, or a preflight, follows the job, and brings its result back.

    python -m tensorprimat.engines.cluster.submission --cluster JSON --folder DIR [--dry-run]
        python -m ENGINE --spec spec.json --result result.json

Its command line ends with the engine's command (`submit_command`), and it behaves like the engine: the engine's
console lines on stdout, all other output of the job and NeMo-Run on stderr, a result file, exit code 0, or 1 with one
line. Ctrl-C and SIGTERM cancel the job, because without this process nothing would collect the result. All files of the
job are in DIR. engines/cluster/slurm reads the state of a Slurm job, for which NeMo-Run would need an accounting
database.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import tensorprimat
from tensorprimat.core.errors import RunError, TensorPrimatError
from tensorprimat.core.quantities import stated_seconds
from tensorprimat.engines import launch
from tensorprimat.engines.cluster import nemo_run, slurm
from tensorprimat.engines.cluster.executors import EXECUTORS, Cluster, JobSpec
from tensorprimat.engines.cluster.job_log import Console, PrintedLine, Tail
from tensorprimat.system import processes, regular

_MODULE = "tensorprimat.engines.cluster.submission"
ON_NODE = """\
# Program that torchrun starts in every rank: runs the module in its first argument, from the package next to this file.
import runpy
import sys

del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
SPEC: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)
"""Reader of a spec file. Each kind of work requires fields that no other has, so that a file is of one kind only."""
TICK_SECONDS = 0.3  # interval between readings of the log
FIRST_ASK_SECONDS, ASK_SECONDS = 1.0, 10.0
"""Interval between questions to Slurm's controller, at first and at most: it grows with the age of the job."""
UNANSWERED_SECONDS = 600.0  # time limit for the controller, which may restart meanwhile
ARRIVAL_SECONDS = 10.0  # a shared file system shows a file of another machine late
CANCEL_SECONDS = 10.0  # for ranks to write their measurements; the launcher kills this process 20 s after Ctrl-C
NO_COLLECTOR = "without its launcher its result would be lost"


@dataclass(kw_only=True)
class Submission:
    """A run to submit, its files and the state of its job."""

    cluster: Cluster
    spec: JobSpec
    module: str
    named: Path
    """Folder of all files of this job, as the user typed it."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the user stops the run."""
    lost: threading.Event = field(default_factory=threading.Event)
    """Set if the job's container has disappeared, so that its exit code stays unknown."""

    @property
    def folder(self) -> Path:
        """Return the absolute path of `named`, which stays valid if the working directory changes."""
        return regular.resolved(self.named)

    @property
    def shipped(self) -> Path:
        """Return the folder with the ranks' spec and code, in which they write their result."""
        return self.folder / "job"

    @property
    def result(self) -> Path:
        return self.shipped / "result.json"

    @property
    def title(self) -> str:
        return EXECUTORS[self.cluster.executor].title

    def ship(self) -> None:
        """Copy the spec and this package into the folder `shipped`."""
        code = self.shipped / "code"
        package = Path(tensorprimat.__file__).parent
        shutil.copytree(package, code / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        (code / "on_node.py").write_text(ON_NODE)
        there = nemo_run.path_for_ranks(self.cluster, self.shipped)
        spec = self.spec.changed(output_dir=there)
        (self.shipped / "spec.json").write_text(spec.model_dump_json(indent=2) + "\n")

    @contextlib.contextmanager
    def experiment(self) -> Iterator[Any]:
        """Yield NeMo-Run's experiment with this run as its only task."""
        os.environ["NEMORUN_HOME"] = str(self.folder / "logs")  # read when NeMo-Run is imported
        import nemo_run as run

        there = nemo_run.path_for_ranks(self.cluster, self.shipped)
        task = run.Script(
            path=f"{there}/code/on_node.py",
            args=[self.module, "--spec", f"{there}/spec.json", "--result", f"{there}/result.json"],
            entrypoint="python",
        )
        executor = nemo_run.build_executor(self.cluster, self.spec, self.shipped)
        with run.Experiment(
            f"tensorprimat_{self.spec.model}",
            executor=executor,
            clean_mode=True,
            enable_goodbye_message=False,
            skip_status_at_exit=True,
        ) as experiment:
            follows = self.cluster.executor != "slurm"  # NeMo-Run cannot follow its log without an accounting database
            experiment.add(task, executor=executor, name=self.spec.model, tail_logs=follows)
            job = experiment.jobs[0]
            job.executor.packager = run.Packager()  # the code is in `shipped`; SkyPilot's would archive a git checkout
            yield experiment


def _run(submission: Submission, console: Console) -> None:
    """Submit a run, follow it to its end, and bring the result to `submission.result`. Raises RunError."""
    submission.ship()
    try:
        if submission.cluster.executor == "slurm":
            ended = _run_on_slurm(submission, console)
        else:
            ended = _run_by_nemo_run(submission, console)
    finally:
        shutil.rmtree(submission.shipped / "code", ignore_errors=True)
    if ended is not None:
        raise RunError(f"{ended}; its logs are in {submission.named}")
    _await(submission.result, ARRIVAL_SECONDS)
    if not os.path.exists(submission.result):
        raise RunError(
            f"the {submission.title} completed, but its result did not come back to {submission.result}: "
            "if the nodes do not share the file system of --output, choose an --output that they share"
        )


def _run_on_slurm(submission: Submission, console: Console) -> str | None:
    """Run a job on Slurm; return a sentence about its end if it did not complete, else None."""
    with submission.experiment() as experiment:
        experiment.run(detach=True)
        handle, folder = experiment.jobs[0].handle, Path(experiment.jobs[0].executor.job_dir)
    job = handle.rpartition("/")[2]
    console.note(f"Slurm job {job} is submitted, its files are in {submission.named}; Ctrl-C cancels it")
    try:
        state = _follow_slurm(job, Tail(folder, "*.out"), submission.stop, console)
    except BrokenPipeError as error:  # the launcher was killed
        raise RunError(_cancelled(job, submission)) from error
    if submission.stop.is_set():
        raise RunError(_cancelled(job, submission))
    if state is None:
        is_written = os.path.exists(submission.result)
        return None if is_written else f"Slurm job {job} is gone, and Slurm no longer knows how it ended"
    if state.word == "COMPLETED":
        return None
    if state.word == slurm.UNANSWERED:
        silence = stated_seconds(UNANSWERED_SECONDS)
        return f"Slurm has not answered for {silence}; its job {job} may still run (scancel {job})"
    cause = console.cause() if state.word == "FAILED" else None
    return f"Slurm job {job} {state.ending}" + (f": {cause}" if cause else "")


def _follow_slurm(job: str, tail: Tail, stop: threading.Event, console: Console) -> slurm.JobState | None:
    """Show the job's log until the job ends or Slurm no longer answers; return the last state.

    None if the user stops the run, or if Slurm no longer knows the job.
    """
    began = answered = time.monotonic()
    ask_at, shown = began, ""
    while not stop.is_set():
        tail.show(console)
        now = time.monotonic()
        if now >= ask_at:
            state = slurm.job_state(job)
            if state is None or state.ended:
                tail.show(console, last=True)
                return state
            if state.word != slurm.UNANSWERED:
                answered = now
            elif now - answered > UNANSWERED_SECONDS:
                return state
            standing = _standing(state)
            if standing and standing != shown:
                console.note(f"Slurm job {job} {standing}")
                shown = standing
            ask_at = now + min(ASK_SECONDS, FIRST_ASK_SECONDS + (now - began) / 10)
        stop.wait(TICK_SECONDS)
    return None


def _standing(state: slurm.JobState) -> str | None:
    """Return a phrase about a waiting or running job's state, whose subject is the job; None for any other state."""
    if state.word == "RUNNING":
        return f"runs on {state.nodes}"
    if state.word == "PENDING":
        return f"waits ({state.reason})" if state.reason else "waits"
    return None


def _cancelled(job: str, submission: Submission) -> str:
    """Cancel a Slurm job, wait for its ranks to write their measurements, and return the message of the error."""
    if complaint := slurm.cancel(job):
        return f"interrupted; Slurm job {job} could not be cancelled ({complaint}): scancel {job} ends it"
    until = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < until and not os.path.exists(submission.result):
        state = slurm.job_state(job)
        if state is None or state.ended:
            break
        time.sleep(TICK_SECONDS)
    return _was_cancelled(f"Slurm job {job}", submission)


def _was_cancelled(job: str, submission: Submission) -> str:
    return f"interrupted; {job} was cancelled: {NO_COLLECTOR}; its logs are in {submission.named}"


def _run_by_nemo_run(submission: Submission, console: Console) -> str | None:
    """Run a job that NeMo-Run itself follows; return a sentence about its end if it did not complete, else None."""
    done = threading.Event()
    in_docker = submission.cluster.executor == "docker"
    with submission.experiment() as experiment:
        with nemo_run.docker_errors(submission.cluster.container_image) if in_docker else contextlib.nullcontext():
            experiment.run(detach=False)
        job = experiment.jobs[0]
        console.note(f"The {submission.title} is submitted, its files are in {submission.named}; Ctrl-C cancels it")
        watch = threading.Thread(target=_watch, args=(experiment, submission, done), daemon=True)
        watch.start()
        # Leaving the block waits for the job.
    done.set()
    watch.join()
    if submission.stop.is_set():
        raise RunError(_was_cancelled(f"the {submission.title}", submission))
    if submission.lost.is_set():
        return f"the {submission.title} {nemo_run.GONE}"
    if job.state.name != "SUCCEEDED":
        cause = console.cause() or _written_cause(Path(job.executor.job_dir))
        return f"the {submission.title} ended as {job.state.name}" + (f": {cause}" if cause else "")
    _fetch(submission, job)
    return None


def _written_cause(folder: Path) -> str | None:
    """Return why the ranks ended, from their log files, because NeMo-Run shows no log of a job that ends at once."""
    unseen = Console(out=io.StringIO(), err=io.StringIO())
    Tail(folder, "*.out").show(unseen, last=True)
    return unseen.cause()


def _watch(experiment: Any, submission: Submission, done: threading.Event) -> None:
    """Cancel the job when the user stops the run or its container has disappeared, so that NeMo-Run's wait ends."""
    job = experiment.jobs[0]
    ask_at = time.monotonic() + ASK_SECONDS
    while not done.wait(TICK_SECONDS):
        if submission.cluster.executor == "docker" and time.monotonic() >= ask_at:
            ask_at += ASK_SECONDS
            if nemo_run.is_gone(job):
                submission.lost.set()
                experiment.cancel(job.id)
                return
        if submission.stop.is_set():
            experiment.cancel(job.id)
            if not done.wait(CANCEL_SECONDS):  # NeMo-Run waits for ever for a TrainJob that it has deleted
                print(f"{launch.CLUSTER}{_was_cancelled(f'the {submission.title}', submission)}", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)
            return


def _fetch(submission: Submission, job: Any) -> None:
    """Copy the result back from machines without a shared file system."""
    app = job.handle.rpartition("/")[2]
    if submission.cluster.executor == "kubernetes":
        job.executor.pull_results(app.rpartition("___")[2], dest_dir=str(submission.shipped))
    elif submission.cluster.executor == "skypilot":
        head = job.executor.parse_app(app)[0]  # SkyPilot adds these names to ssh's configuration
        nodes = [head, *(f"{head}-worker{number}" for number in range(1, submission.spec.num_nodes))]
        place = nemo_run.path_for_ranks(submission.cluster, submission.shipped)
        for node in nodes:  # rank 0 is on the node that reached torchrun first
            if not os.path.exists(submission.result):
                subprocess.run(["rsync", "--archive", f"{node}:{place}/result.json", submission.result], check=False)


def _await(path: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(TICK_SECONDS)


def _script(submission: Submission) -> str:
    """Return the script that would be submitted, in the executor's own format."""
    with submission.experiment() as experiment:
        experiment.dryrun(log=False, delete_exp_dir=False)
        job = experiment.jobs[0]
        write = _SCRIPTS.get(submission.cluster.executor)
        return write(job) if write else str(job._dryrun_info)  # NeMo-Run only logs it, wrapped to a console's width


def _cloud_task(job: Any) -> str:
    """Return SkyPilot's task as YAML; NeMo-Run 0.11 would call a function that SkyPilot no longer has."""
    import yaml

    return yaml.safe_dump(job._dryrun_info.request.task.to_yaml_config(), sort_keys=False)


def _train_job(job: Any) -> str:
    """Return the TrainJob as YAML, and the script that its pods start."""
    import yaml

    command = ["/bin/bash", f"{job.executor.code_dir}/launch.sh"]
    body = yaml.safe_dump(job.executor.get_job_body(job.id, command), sort_keys=False)
    return f"{body}---\n{Path(job.executor.job_dir, 'launch.sh').read_text()}"


_SCRIPTS = {"skypilot": _cloud_task, "kubernetes": _train_job}


def submit_command(cluster: Cluster, folder: Path) -> list[str]:
    """Return the command that submits an engine's command after it; [] without an executor. folder: of the job."""
    if not cluster.executor:
        return []
    return [sys.executable, "-m", _MODULE, "--cluster", cluster.model_dump_json(), "--folder", str(folder)]


def executor_script(spec: JobSpec, cluster: Cluster, *, module: str, folder: Path) -> str:
    """Return the script to submit, in the executor's own format. Raises RunError if NeMo-Run cannot write it."""
    with processes.scratch_folder() as scratch:
        stand_in = regular.resolved(scratch)
        spec_file = stand_in / "spec.json"
        spec_file.write_text(spec.model_dump_json())
        engine = [sys.executable, "-m", module, "--spec", str(spec_file), "--result", str(stand_in / "result.json")]
        command = [*submit_command(cluster, stand_in), "--dry-run", *engine]
        answer = processes.run_guarded(command, capture_output=True, text=True, env=launch.process_environment())
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunError(f"--executor {cluster.executor}: {last}")
    return str(answer.stdout).replace(str(stand_in), str(regular.resolved(folder))).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cluster", required=True, help="JSON text of the Cluster")
    parser.add_argument("--folder", type=Path, required=True, help="folder for all files of the job")
    parser.add_argument("--dry-run", action="store_true", help="print the script instead of submitting it")
    parser.add_argument("python", help="the engine's Python interpreter")
    parser.add_argument("-m", dest="module", required=True, help="the engine's module")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file with the spec to run")
    parser.add_argument("--result", type=Path, required=True, help="file for the result")
    options = parser.parse_args(argv)
    submission = Submission(
        cluster=Cluster.model_validate_json(options.cluster),
        spec=SPEC.validate_json(options.spec.read_bytes()),
        module=options.module,
        named=options.folder,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: submission.stop.set())
    console = Console(out=sys.stdout, err=sys.stderr)
    try:
        with contextlib.redirect_stdout(PrintedLine(console)):
            if options.dry_run:
                console.note(_script(submission))
                return 0
            try:
                _run(submission, console)
            finally:
                if os.path.exists(submission.result):
                    shutil.copyfile(submission.result, options.result)
    except TensorPrimatError as error:
        print(f"{launch.CLUSTER}{error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
