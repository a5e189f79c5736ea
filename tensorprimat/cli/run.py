"""`tprimat run`, `./benchmark.py`: run every model on this machine, or read its logs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorprimat.cli import known_values as known
from tensorprimat.cli import shared_options
from tensorprimat.cli.options import TO_FILE, fraction, named_file, refuse_several
from tensorprimat.cli.shared_options import (
    CLUSTER_OPTIONS,
    IN_AB,
    cluster_of,
    setting_values,
    switch,
    takes,
    takes_number,
    with_options,
    with_settings,
)
from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER

if TYPE_CHECKING:
    from tensorprimat.session.plan import Request

_MODEL = "Model: llama, qwen, mistral, all, or a Hugging Face config.json (torch engine)."
_ENGINE = "Engine: auto; torch, nemo, bridge or primus (train here); logs (of earlier training)."
OUTPUT = f"Folder for results{TO_FILE}"
_EXECUTOR = "NeMo-Run executor that starts the ranks: local, slurm, skypilot, kubernetes or docker."
AB = "Run two configurations in turn and compare them: give --ab twice, each time with the flags of one."
REPRODUCE = "Train what a published result states, and show which settings differ; typed options keep their values."
TARGET_CI = "Add runs until the half-width of the interval (with --ab: of the ratio) is at most this, such as 1%."
_OF_LOG = shared_options.PRESET_HELP
PRESET = f"{settings.option('preset').help} For a log: {_OF_LOG[0].lower()}{_OF_LOG[1:]}"
_GPU = (
    f"For a log. {shared_options.GPU_HELP} With --executor: GPU of each node, or cpu. With --dry-run: GPU to plan for."
)
_NUM_GPUS = "GPUs of each node, or processes on a CPU. For a log: GPUs of the whole training."
PROFILE = "Profile one run: torch, nsys or rocprof; the result goes to history only."
OPTION_GROUPS = {
    "What to train": (
        "model", "preset", "methodology", "steps", "warmup_steps", "runs", "sequence_length", "global_batch_size",
        "precision", "fp8_recipe", "master_weights", "seed",
    ),
    "How to train it": (
        "engine", "micro_batch_size", "activation_checkpointing", "recompute", "attention", "compile", "strategy",
        "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size",
    ),
    "Runs, comparison and time": ("reproduce", "ab", "target_ci", "max_runs", "budget_minutes", "cooldown", "profile"),
    "Results": ("output", "append", "dry_run", "json"),
    "Facts that a log does not state": ("gpu", "model_name", "shape"),
    "Several machines": (
        "executor", "nodes", "account", "partition", "time", "container_image", "container_mounts", "infra",
        "namespace", "volume_claim",
    ),
}  # fmt: skip
"""Title in --help → the options under it."""
IN_AB_TOO = IN_AB.union(("engine", "recompute"))
"""Options that may differ between the configurations of --ab."""


@with_options(CLUSTER_OPTIONS, after="gpu")
@with_settings(after="runs", differing={"preset": {"help": PRESET}, "num_gpus": {"help": _NUM_GPUS}})
def command(
    context: typer.Context,
    model: Annotated[str, takes("NAME|FILE", _MODEL, offers=known.models_and_all)] = "all",
    runs: Annotated[int, takes("N", "Repetitions, each in a fresh process.")] = 1,
    engine: Annotated[str, takes("ENGINE", _ENGINE, offers=known.engines)] = "auto",
    output: Annotated[Path, takes("DIR|FILE", OUTPUT)] = DEFAULT_FOLDER,
    cooldown: Annotated[
        float | None, takes_number("S", "Seconds between runs.", show_default="30 on a GPU, 0 on a CPU")
    ] = None,
    shape: Annotated[str | None, takes("SHAPE", f"For a log. {shared_options.SHAPE_HELP}")] = None,
    model_name: Annotated[
        str | None,
        takes("MODEL", f"For a log. {shared_options.MODEL_NAME}", show_default="--model", offers=known.models),
    ] = None,
    recompute: Annotated[bool, switch("--recompute", "The same as --activation-checkpointing full.")] = False,
    executor: Annotated[str | None, takes("HOW", _EXECUTOR, offers=known.executors)] = None,
    gpu: Annotated[str | None, takes("NAME", _GPU, show_default="as this machine", offers=known.gpus_and_cpu)] = None,
    infra: Annotated[str | None, takes("WHERE", "SkyPilot's cloud or cluster.")] = None,
    namespace: Annotated[str | None, takes("NAME", "Kubernetes namespace.")] = None,
    volume_claim: Annotated[str | None, takes("NAME", "Kubernetes volume claim that all pods can write to.")] = None,
    profile: Annotated[str | None, takes("WITH", PROFILE, offers=known.profilers)] = None,
    ab: Annotated[list[str] | None, takes("FLAGS", AB, "--ab", "--interleave")] = None,
    target_ci: Annotated[str | None, takes("PERCENT", TARGET_CI)] = None,
    max_runs: Annotated[int, takes("N", "Upper limit on the runs of --target-ci.")] = 30,
    budget_minutes: Annotated[
        float | None,
        takes_number(
            "MIN",
            "Time limit for all runs: reduces batch, steps and warm-up unless a flag sets them, and starts no run that "
            "would end after it. With --target-ci: time limit of each model, after which no run starts.",
        ),
    ] = None,
    reproduce: Annotated[str | None, takes("NAME", REPRODUCE, offers=known.published_names)] = None,
    append: Annotated[bool, switch("--append", "Add the runs to the latest result.")] = False,
    dry_run: Annotated[
        bool, switch("--dry-run", "Print and check what would run; run nothing. With --executor: print the job.")
    ] = False,
    json: Annotated[bool, switch("--json", "Results as a JSON array on stdout, everything else on stderr.")] = False,
    **chosen: Any,
) -> int:
    """Benchmark this machine: train Llama, Qwen and Mistral on it, or read the logs of earlier training.

    On a GPU the command trains the real models (Lightning, random weights, synthetic tokens). Without a GPU, or on
    ROCm, it first searches for logs (LLAMA_LOG, QWEN_LOG, MISTRAL_LOG; training_MODEL.log, *MODEL*.log here, in
    output/, $PRIMUS_PATH and /workspace/{Primus,tprimat}). If it finds none, it trains tiny models of the same
    architectures on the CPU, labelled as tiny in every output; on ROCm it trains only with --engine torch or primus.

    The latest result of each model is DIR/benchmark_{cuda,rocm,cpu}_MODEL.json, written after every run; all results
    are kept in DIR/history. Compare them with compare_results.py.

    \b
    Examples:
      ./benchmark.py --model all --runs 3
      ./benchmark.py --model Qwen3-30B-A3B/config.json --preset tiny --dry-run
      ./benchmark.py --model llama --gpu H100-SXM --num-gpus 8 --dry-run
      ./benchmark.py --model llama --engine torch --steps 50 --precision bf16 --output results
      ./benchmark.py --model llama --ab "--precision fp32" --ab "--precision bf16" --target-ci 1%
      ./benchmark.py --reproduce torchtitan/llama/8xH100_96GB_HBM2e/fp8 --engine torch --dry-run
      ./benchmark.py --model llama --nodes 2 --num-gpus 8 --executor slurm --partition gpu --dry-run

    \b
    Exit codes:
      0  results were written; from logs: for every model that has a log (models without a log are named)
      1  a run failed or was interrupted; finished measurements are kept
      2  a flag is wrong, or there is nothing to run or read
    """
    options = {**locals(), **chosen, "typed": typed(context), "words": _words_of_ranks(context)}
    from tensorprimat.cli.benchmark import alternate, run_benchmark

    if reproduce is not None:
        options = _of_published(reproduce, options)
    if ab:
        return alternate([_request({**options, **_flags_of(text, context)}) for text in ab])
    return run_benchmark(_request(options))


def _of_published(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of a published result where the user typed none.

    Without a GPU, and without a cluster to send it to, its training is only planned.
    """
    from tensorprimat.machine.platform import detect_platform
    from tensorprimat.reproduce.published import options_of

    ours = options["typed"]
    if not {"dry_run", "executor", "gpu"} & ours and detect_platform().platform == "cpu":
        print(f"--reproduce {name}: no GPU here, so this is a dry run", file=sys.stderr)
        options, ours = {**options, "dry_run": True}, ours | {"dry_run"}
    found = options_of(name, {one: options[one] for one in ours})
    return {
        **options,
        **{one: value for one, value in found.items() if one not in ours},
        "typed": ours.union(found),
    }


def typed(context: typer.Context) -> frozenset[str]:
    """Return the parameters that the command line or the environment sets."""
    default = ("DEFAULT", "DEFAULT_MAP")
    return frozenset(
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "DEFAULT") not in default
    )


_OF_LAUNCH = {
    "executor", "nodes", "num_gpus", "gpu", "runs", "append", "cooldown", "target_ci", "max_runs", "budget_minutes",
    "dry_run", "json", "output", "infra", "namespace", "volume_claim",
}  # fmt: skip
"""Options of the command that starts ranks; its script states where they write, their launcher nodes and GPUs."""


def _words_of_ranks(context: typer.Context) -> tuple[str, ...]:
    """Return the typed options as ranks take them that another launcher starts."""
    of_launch = {*_OF_LAUNCH, *(one.name for one in CLUSTER_OPTIONS)}
    set_here, words = typed(context), list[str]()
    for option in context.command.params:
        if option.name in set_here and option.name not in of_launch:
            value = context.params[str(option.name)]
            for one in value if isinstance(value, list | tuple) else (value,):
                flag = option.opts[0] if one is not False else option.secondary_opts[0]
                words += [flag] if isinstance(one, bool) else [flag, str(one)]
    return tuple(words)


def _flags_of(text: str, context: typer.Context) -> dict[str, Any]:
    """Return the options that one --ab sets, by parameter name. Raises UsageError for one that both must share."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--ab {text}: {error}") from error
    parsed = context.command.make_context(context.info_name, words, parent=context.parent)
    chosen = {
        name: value
        for name, value in parsed.params.items()
        if getattr(parsed.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    shared = [name for name in chosen if name not in IN_AB_TOO]
    if shared:
        raise UsageError(f"--ab: --{shared[0].replace('_', '-')} holds for both configurations; give it outside --ab")
    return chosen


def _request(options: Mapping[str, Any]) -> Request:
    """Return the request that these values of the command's parameters make."""
    from tensorprimat.session.budget import Budget
    from tensorprimat.session.plan import request_of

    file, chosen = named_file("--output", options["output"]), setting_values(options)
    if options["recompute"]:
        stated, chosen["recompute"] = chosen["recompute"], "full"
        if stated not in (None, "full"):
            flag = settings.flag("recompute")
            raise UsageError(
                f"--recompute: means {flag} full, which contradicts {flag} {stated}; leave one of the two out"
            )
    budget = Budget(
        runs=options["runs"],
        target=None if options["target_ci"] is None else fraction("--target-ci", options["target_ci"]),
        max_runs=options["max_runs"],
        minutes=options["budget_minutes"],
    )
    request = request_of(options, chosen, cluster=cluster_of(options), budget=budget, file=file)
    if file is not None:
        refuse_several(file, len(request.models))
    return request
