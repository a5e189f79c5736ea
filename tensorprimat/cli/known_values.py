"""Values that the shell completes for an option: lists that the tool has anyway, looked up only when a shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

Values = Callable[[], Iterable[str]]
"""Function that returns every value of an option; it imports what it needs, so that other commands do not."""
Completion = Callable[[str], list[str]]
"""Function that returns the values which begin with the text before the cursor."""


def offer(values: Values, *, listed: bool = False) -> Completion:
    """Return a function that completes the beginning of a value, for `autocompletion` of an option.

    A name with spaces is offered with hyphens, which the catalogue reads too: a shell would pass its words one by one.
    listed: the option takes several names with commas between them; the last one is completed.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if listed else ("", "", incomplete)
        names = dict.fromkeys(name.replace(" ", "-") for name in values())
        return [f"{before}{comma}{name}" for name in names if name.startswith(begun)]

    return complete


def named(module: str, name: str, *others: str, first: Sequence[str] = ()) -> Values:
    """Return a function that imports a module of the package and returns the values of its table called `name`.

    first, others: further values, before and after those of the table.
    """

    def values() -> Iterable[str]:
        return (*first, *getattr(import_module(f"tensorprimat.{module}"), name), *others)

    return values


models = named("core.spec", "MODELS")
models_and_all = named("core.spec", "MODELS", "all")
engines = named("engines.registry", "ENGINES", first=("auto",))
executors = named("engines.cluster.executors", "EXECUTORS")
preflight_executors = named("session.preflight", "TAKEN")
profilers = named("engines.profiling", "PROGRAMS")
precisions = named("core.settings", "PRECISIONS")
sides = named("analysis.sides", "BY")
metrics_over_time = named("analysis.history", "METRICS")
cell_precisions = named("storage.micro_result", "CELL_PRECISIONS")
passes = named("storage.micro_result", "PASSES")
passes_and_all = named("storage.micro_result", "PASSES", "all")
attentions = named("storage.micro_result", "ATTENTIONS")


def gpu_names() -> Iterable[str]:
    """Return the GPUs of the catalogue."""
    from tensorprimat.facts.catalogue import gpus

    return [gpu.name for gpu in gpus()]


def gpus_and_cpu() -> Iterable[str]:
    """Return the devices of a node that --executor starts ranks on."""
    return [*gpu_names(), "cpu"]


def formats() -> Iterable[str]:
    """Return the formats of logs."""
    from tensorprimat.logs import FORMATS

    return [format.name for format in FORMATS]


def model_sizes() -> Iterable[str]:
    """Return the shapes that cells are measured of."""
    from tensorprimat.measure.grid import size_names

    return size_names()


def of_setting(name: str) -> Values:
    """Return the source of the values that a setting can have."""

    def values() -> Iterable[str]:
        from tensorprimat.core import settings

        return settings.option(name).choices

    return values


def published_names() -> Iterable[str]:
    from tensorprimat.reproduce.published import baselines

    return [one.name for one in baselines()]


def of_mlperf(fact: str) -> Values:
    """Return the source of one fact of all MLPerf entries of the package: its benchmarks, GPUs, rounds, submitters."""

    def values() -> Iterable[str]:
        from tensorprimat.mlperf.library import load

        return sorted({value for entry in load(None).entries if (value := getattr(entry, fact))})

    return values
