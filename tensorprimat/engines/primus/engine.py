"""The Primus engine: AMD's own training of llama and qwen, timed by the lines that Primus prints.

    python -m tensorprimat.engines.primus.engine --spec spec.json --result result.json

Starts Primus in its checkout (`primus-cli direct -- train pretrain --config …`, before v0.4 examples/run_pretrain.sh)
with a new configuration file, which is written next to the log and never into the checkout; keeps the whole output as a
log, shows each iteration, then reads the log like any other log. Exit codes: 0 done, 1 the training failed or was
interrupted (the log stays, and its measurements are written), 2 a spec that cannot work here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tensorprimat import logs
from tensorprimat.core.errors import RunError
from tensorprimat.core.result import Result
from tensorprimat.core.settings import MODEL_PARALLEL, OF_A_LOG
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.engines.launcher_output import complaint, displayed_line, follow_launcher, keep
from tensorprimat.engines.primus import checkout as primus_checkout
from tensorprimat.engines.primus import config as primus_config
from tensorprimat.engines.primus.spec import (
    CONFIG_OPTION,
    GPU_OPTION,
    GPU_SOURCE_OPTION,
    ROOT_OPTION,
    changed_settings,
    check,
    confirmed_shape,
)
from tensorprimat.logs.format import UserFacts
from tensorprimat.machine import environment
from tensorprimat.models import presets
from tensorprimat.storage import result_names, store
from tensorprimat.system import atomic, processes, regular

__all__ = ["check", "main", "show_command", "train"]

ROCM = Path("/opt/rocm")
NOT_INSTALLING = '#!/bin/sh\necho "dry run, not done: pip $*"\n'
"""Replacement of pip in a dry run, because the hooks of a dry run would install Primus's requirements. PIP_DRY_RUN does
not help: pip obeys it also when it builds a package, and then fails because the build requirements are missing."""
ALSO_KNOWN = (*MODEL_PARALLEL, "data_parallel_size", "gradient_accumulation_steps", "max_steps", "num_nodes")


@dataclass(frozen=True, kw_only=True)
class Files:
    """The paths of one training's log and configuration."""

    log: Path
    config: Path
    latest: Path | None
    """training_{model}.log, the name for which the search for logs looks first. None for a methodology that is not the
    default: a log does not state its methodology, so the search must not find this log."""


def _files_of(spec: RunSpec) -> Files:
    """Return the paths of a new training's files in the results folder."""
    folder, stamp = Path(spec.output_dir), store.new_stamp()
    if spec.methodology in (None, result_names.DEFAULT_METHODOLOGY):
        stem, latest = f"primus_training_{spec.model}_{stamp}", folder / f"training_{spec.model}.log"
    else:
        stem, latest = f"primus_{spec.methodology}_{spec.model}_{stamp}", None
    return Files(log=folder / f"{stem}.log", config=folder / f"{stem}.yaml", latest=latest)


def train(spec: RunSpec, result_file: Path) -> None:
    """Train one run. Raises RunError or OutOfMemoryError where it fails; the steps measured before it are written."""
    files = _files_of(spec)
    _write_config(spec, files.config)
    print(f"Primus starts in {spec.options[ROOT_OPTION]}; configuration {files.config}, log {files.log}", flush=True)
    failure = _run(spec, files)
    keep(lambda: _read(spec, files.log), result_file, name="Primus", failure=failure)


def show_command(spec: RunSpec, say: Callable[[str], None]) -> None:
    """Show the command that `train` would start, by Primus' own dry run if it has one. Raises RunError on failure."""
    root = Path(spec.options[ROOT_OPTION])
    with processes.scratch_folder() as scratch:
        config = scratch / Path(spec.options[CONFIG_OPTION]).name
        _write_config(spec, config)
        changes = _described(changed_settings(spec)) or "no change"
        say(f"Primus configuration: {spec.options[CONFIG_OPTION]}, with {changes}")
        dry = primus_checkout.can_dry_run(root)
        command, extra = primus_checkout.start_command(root, config, dry_run=dry)
        say(f"In {root}: {' '.join([*(f'{name}={value}' for name, value in extra.items()), *command])}")
        if not dry:
            return
        started_in = _environment(spec, extra)
        shown = processes.run_guarded(
            command, cwd=root, env={**started_in, "PATH": _without_pip(scratch, started_in["PATH"])},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    lines = [displayed_line(line) for line in shown.stdout.splitlines()]
    for line in lines:
        say(line)
    if shown.returncode:
        why = complaint(lines) or "it printed no reason"
        lacks = "" if os.path.exists(ROCM) else f"; Primus asks for ROCm even then, and this machine has no {ROCM}"
        raise RunError(f"primus-cli --dry-run exited with {shown.returncode}: {why}{lacks}")


def _without_pip(scratch: Path, search_path: str) -> str:
    """Return a search path (PATH) whose first folder has a pip that installs nothing and prints a message."""
    for name in ("pip", "pip3"):
        stand_in = scratch / "bin" / name
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(NOT_INSTALLING)
        stand_in.chmod(0o700)
    return f"{scratch / 'bin'}{os.pathsep}{search_path}"


def _described(changed: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in changed.items())


def _write_config(spec: RunSpec, path: Path) -> None:
    text = primus_config.derived_experiment(Path(spec.options[CONFIG_OPTION]), changed_settings(spec))
    atomic.write_atomically(
        path, f"# {spec.options[CONFIG_OPTION]}, with: {_described(changed_settings(spec))}\n{text}"
    )


def _environment(spec: RunSpec, extra: dict[str, str]) -> dict[str, str]:
    """Return the environment of Primus: that of this process without PYTHONUNBUFFERED, and the variables of the run."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**ours, "GPUS_PER_NODE": str(spec.num_gpus), "PRIMUS_GPU_MODEL": spec.options[GPU_OPTION], **extra}


EXPORTED = re.compile(r"^\[NODE-\d+\([^)]*\)\].*?(?P<name>\b[A-Z][A-Z0-9_]+)(?:=|: )(?P<value>\S*)$")
"""Line in which Primus' launcher states a variable that it sets: "[NODE-0(host)] [INFO]     HSA_ENABLE_SDMA=1" (runner/
helpers/envs/base_env.sh), "[NODE-0(host)] GPU_MAX_HW_QUEUES: 2" before version 0.5 (examples/run_pretrain.sh)."""
_UNSET = ("", "<unset>")


def variables_of(spec: RunSpec, log: Path) -> dict[str, str]:
    """Return the environment variables that change speed: ours, and those that Primus' launcher states in the log."""
    found = _environment(spec, {})
    with log.open("rb") as lines:
        for line in lines:
            stated = EXPORTED.match(displayed_line(line).rstrip())
            if stated and stated["value"] not in _UNSET:
                found[stated["name"]] = stated["value"]
    return environment.speed_variables(found)


def _run(spec: RunSpec, files: Files) -> RunError | None:
    """Start Primus and follow it to its end; return the error if it failed."""
    root = Path(spec.options[ROOT_OPTION])
    with _opened(files) as log, _without_spaces(files.config) as config:
        command, extra = primus_checkout.start_command(root, config)
        return follow_launcher(
            command, log, name="Primus", spec=spec, environment=_environment(spec, extra), folder=root
        )


@contextlib.contextmanager
def _opened(files: Files) -> Iterator[IO[bytes]]:
    """Create the log and its second name `latest`, and yield the log.

    The file is unbuffered, so that it can be watched and is complete if this process is killed.
    """
    files.log.parent.mkdir(parents=True, exist_ok=True)
    with files.log.open("xb", buffering=0) as log:
        if files.latest is not None:
            _link(files.log, files.latest)
        yield log


def _link(log: Path, latest: Path) -> None:
    """Give the log a second name. An older link of that name is replaced; any other file of that name is renamed."""
    if os.path.islink(latest) or (os.path.exists(latest) and latest.stat().st_nlink > 1):
        latest.unlink()
    elif os.path.exists(latest):
        latest.rename(latest.with_name(f"{latest.stem}_before_{store.new_stamp()}.log"))
    try:
        os.link(log, latest)
    except OSError:  # a file system without hard links
        latest.symlink_to(log.name)


@contextlib.contextmanager
def _without_spaces(config: Path) -> Iterator[Path]:
    """Yield the configuration's path, or that of a copy if it has spaces: Primus's older launchers do not quote it."""
    if not re.search(r"\s", str(regular.resolved(config))):
        yield regular.resolved(config)
        return
    with processes.scratch_folder() as scratch:
        yield Path(shutil.copy2(config, scratch))


def _read(spec: RunSpec, log: Path) -> Result:
    """Return the log as the result of this run. Raises InputError where it contains no usable step."""
    facts = UserFacts(model_name=spec.model, gpu=spec.options[GPU_OPTION])
    known = logs.read(log, facts=facts).training_config
    missing = {name: getattr(spec, name) for name in OF_A_LOG if getattr(known, name) is None}
    result = logs.read(log, facts=UserFacts(model_name=spec.model, gpu=spec.options[GPU_OPTION], **missing))
    config, model = result.training_config, result.model
    unstated = {name: getattr(spec, name) for name in ALSO_KNOWN if getattr(config, name) is None}
    if model.shape is None and (shape := confirmed_shape(spec)):
        model = model.changed(preset=spec.preset, shape=shape, parameters=presets.parameters(shape))
    assumed = dict.fromkeys((*missing, *unstated, "model.name"), "the configuration that ran")
    return result.changed(
        platform="amd",
        model=model,
        training_config=config.changed(**unstated, environment=variables_of(spec, log), versions=_versions(spec)),
        methodology=spec.methodology,
        provenance=result.provenance.changed(
            engine="primus", assumed={**assumed, "device_name": spec.options[GPU_SOURCE_OPTION]}
        ),
    )


def _versions(spec: RunSpec) -> dict[str, str]:
    commit = environment.git_commit(Path(spec.options[ROOT_OPTION]))
    software = {**environment.versions(), **environment.gpu_software("amd", ())}
    return {**software, **({"Primus": f"git {commit}"} if commit else {})}


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("tensorprimat.engines.primus.engine", __doc__)
    return run_spec("primus", RunSpec, parser, lambda spec, options: train(spec, options.result), argv)


if __name__ == "__main__":
    sys.exit(main())
