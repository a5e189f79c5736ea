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


def named(module: str, name: str, *others: str, first: Sequence[str] = (), of: str | None = None) -> Values:
    """Return a function that imports a module of the package and returns the values of its table called `name`.

    A function of this name is called for the table. of: attribute of a row that is its value; None: the row itself.
    first, others: further values, before and after those of the table.
    """

    def values() -> Iterable[str]:
        table = getattr(import_module(f"tensorprimat.{module}"), name)
        rows = table() if callable(table) else table
        return (*first, *(rows if of is None else (getattr(row, of) for row in rows)), *others)

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
gpu_names = named("facts.catalogue", "gpus", of="name")
gpus_and_cpu = named("facts.catalogue", "gpus", "cpu", of="name")
formats = named("logs", "FORMATS", of="name")
model_sizes = named("measure.grid", "size_names")
published_names = named("reproduce.published", "baselines", of="name")


def of_setting(name: str) -> Values:
    """Return the source of the values that a setting can have."""

    def values() -> Iterable[str]:
        from tensorprimat.core import settings

        return settings.option(name).choices

    return values


def of_mlperf(fact: str) -> Values:
    """Return the source of one fact of all MLPerf entries of the package: its benchmarks, GPUs, rounds, submitters."""

    def values() -> Iterable[str]:
        from tensorprimat.mlperf.library import load

        return sorted({value for entry in load(None).entries if (value := getattr(entry, fact))})

    return values
