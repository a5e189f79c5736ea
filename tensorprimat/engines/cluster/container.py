"""The container of `--executor docker`: errors of the daemon, and detection of a container that has disappeared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import RunError
from tensorprimat.system.failures import BY_SYSTEM

ENDING = (
    "was removed before it had ended: by hand (docker kill), by a daemon that restarted, or "
    f"{BY_SYSTEM} (dmesg then says so)"
)


@contextlib.contextmanager
def docker_errors(image: str | None) -> Iterator[None]:
    """Turn an error of the Docker daemon into a RunError."""
    import docker.errors

    try:
        yield
    except docker.errors.DockerException as error:
        explanation = str(getattr(error, "explanation", None) or error).strip().splitlines()[0]
        raise RunError(
            f"--executor docker: {explanation}; `docker info` shows whether the daemon runs and accepts you, "
            f"`docker run --rm {image} torchrun --help` whether the image is available and complete"
        ) from error


def is_gone(job: Any) -> bool:
    """Return True if the container of NeMo-Run's job no longer exists and its exit status was not written.

    NeMo-Run 0.11 then waits for ever: Docker removes its containers when they end, and NeMo-Run reads the status file.
    """
    import docker

    app = job.handle.rpartition("/")[2]
    alive = docker.from_env().containers.list(filters={"label": f"nemo-run/id={app}"})
    return not alive and not any(Path(job.executor.job_dir).glob("status_*.out"))
