"""Command lines of the earlier toolkits: old names of commands and options, parsed but not shown by --help.

docs/how-to/earlier-scripts.md lists the same for users. Underscores in long options are read as hyphens everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

EARLIER_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("benchmark",),
    "pretrain": ("pretrain_llama", "pretrain_qwen", "pretrain_mistral"),
    "convert": ("convert_checkpoint", "convert_llama", "convert_qwen", "convert_mistral"),
    "extract": ("extract_primus_metrics", "extract_metrics"),
    "compare": ("compare_results",),
    "enhance": ("compare_with_enhanced_metrics",),
    "metrics": ("enhanced_metrics",),
    "analyze": ("analyze_existing_logs",),
    "passes": ("benchmark_separate", "benchmarking_script"),
    "warmup": ("warmup_comparison",),
    "sweep": ("benchmark_direct", "run_benchmarks", "benchmark_large_models", "sweep_local"),
    "aggregate": ("aggregate_results",),
    "primus": ("check_primus_config",),
    "processes": ("fix_gpu_memory",),
}
"""Command → names of the scripts that it replaces; `tprimat NAME` runs it too."""

_STUDY = {
    "num-steps": "steps-per-trial",
    "num-warmups": "warmup-steps",
    "num-trials": "trials",
    "vocab": "vocab-size",
    "data-path": "data",
    "model-sizes": "model-size",
    "context-lengths": "context-length",
    "batch-sizes": "batch-size",
    "pass-type": "pass",
    "results-dir": "output",
}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "passes": _STUDY,
    "warmup": {**_STUDY, "warmup-steps": "counts", "num-warmups": "counts"},
    "sweep": _STUDY,
    "run": {"results-dir": "output"},
    "extract": {"results-dir": "output"},
}
"""Command → old option → option."""

EVERYWHERE = {"output": "output-dir", "output-dir": "output", "gpus": "num-gpus", "num-gpus": "gpus"}
"""Two names of one option: each command has one of them and takes both."""

SWITCHES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    command: {"forward-only": ("--pass", "forward")} for command in ("passes", "warmup", "sweep")
}
"""Command → old flag without a value → its meaning."""

POSITIONAL: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("compare", "enhance", "metrics", "aggregate", "analyze", "history"), ("results-dir",)
)
"""Command → old options whose value is an argument now."""

LISTS: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("passes", "warmup", "sweep"),
    ("model-size", "context-length", "batch-size", "precision", "attention", "pass", "counts"),
)
"""Command without arguments → options that take several values: "small medium large" is "small,medium,large"."""


def defaults_of(name: str) -> dict[str, str]:
    """Return the options that the name of an earlier script implies.

    >>> defaults_of("pretrain_qwen.py"), defaults_of("convert_llama"), defaults_of("passes")
    ({'model': 'qwen'}, {'model': 'llama'}, {})
    """
    script, _, model = name.removesuffix(".py").replace("-", "_").partition("_")
    return {"model": model} if script in ("pretrain", "convert") and model in ("llama", "qwen", "mistral") else {}


def command_of(name: str) -> str | None:
    """Return the command that a name means, an earlier script's too (with or without .py or .sh); None for no command.

    >>> command_of("passes"), command_of("benchmark_separate.py"), command_of("warmup-comparison"), command_of("fly")
    ('passes', 'passes', 'warmup', None)
    """
    if name in EARLIER_COMMANDS:
        return name
    stem = name.removesuffix(".py").removesuffix(".sh").replace("-", "_")
    return next((command for command, earlier in EARLIER_COMMANDS.items() if stem in earlier), None)


_OF_TIMED_PASSES = {"model-size", "model-sizes", "d-model"}


def meant_by(command: str, arguments: Sequence[str]) -> str:
    """Return the command that arguments are for: two of the earlier scripts are called benchmark.py.

    >>> meant_by("run", ["--model_size", "small"]), meant_by("run", ["--model", "llama"])
    ('passes', 'run')
    """
    typed = {word[2:].partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}
    return "passes" if command == "run" and typed & _OF_TIMED_PASSES else command


def option_of(command: str, name: str) -> str:
    """Return today's spelling of a long option without its hyphens.

    >>> option_of("passes", "num_trials"), option_of("compare", "output"), option_of("run", "warmup_steps")
    ('trials', 'output', 'warmup-steps')
    """
    name = name.replace("_", "-")
    return OPTIONS.get(command, {}).get(name, name)


def spelling_of(command: str, parameters: Collection[str]) -> Callable[[str], str]:
    """Return the function that gives today's spelling of a typed option: it replaces underscores and old names, and
    accepts --output for --output-dir.

    parameters: those that the command takes.
    """
    taken = {parameter.replace("_", "-") for parameter in parameters}

    def normalise(typed: str) -> str:
        option = option_of(command, typed)
        other = EVERYWHERE.get(option)
        return other if other in taken and option not in taken else option

    return normalise


def arguments_of(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with old flags in today's form, and values in a row joined by commas where a list is meant.

    >>> arguments_of("passes", ["--model_sizes", "small", "medium", "--forward_only"])
    ['--model_sizes', 'small,medium', '--pass', 'forward']
    >>> arguments_of("compare", ["--results-dir", "mine"])
    ['mine']
    """
    today: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*today, word, *rest]
        if not word.startswith("--"):
            today.append(word)
            continue
        spelled, equals, value = word[2:].partition("=")
        name = spelled.replace("_", "-")
        if (meant := SWITCHES.get(command, {}).get(name)) and not equals:
            today += meant
        elif name in POSITIONAL.get(command, ()):
            today += [value] if equals else []
        elif option_of(command, name) in LISTS.get(command, ()):
            values = [value] if equals else []
            while rest and not rest[0].startswith("-"):
                values.append(rest.pop(0))
            today += [f"--{spelled}", ",".join(values)] if values else [word]
        else:
            today.append(word)
    return today
