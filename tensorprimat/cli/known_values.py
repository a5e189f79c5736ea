"""Values that the shell completes for an option: lists that the tool has anyway, looked up only when a shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


def models() -> Iterable[str]:
    """Return the models that the tool trains."""
    from tensorprimat.core.spec import MODELS

    return MODELS


def models_and_all() -> Iterable[str]:
    """Return the values of --model of a benchmark that are not files."""
    return (*models(), "all")


def engines() -> Iterable[str]:
    """Return the values of --engine."""
    from tensorprimat.engines.registry import ENGINES

    return ("auto", *ENGINES)


def executors() -> Iterable[str]:
    """Return the values of --executor."""
    from tensorprimat.engines.cluster.executors import EXECUTORS

    return EXECUTORS


def preflight_executors() -> Iterable[str]:
    """Return the values of --executor for a preflight."""
    from tensorprimat.session.preflight import TAKEN

    return TAKEN


def profilers() -> Iterable[str]:
    """Return the values of --profile."""
    from tensorprimat.engines.profiling import PROGRAMS

    return PROGRAMS


def gpu_names() -> Iterable[str]:
    """Return the GPUs of the catalogue."""
    from tensorprimat.core.catalogue import gpus

    return [gpu.name for gpu in gpus()]


def gpus_and_cpu() -> Iterable[str]:
    """Return the devices of a node that --executor starts ranks on."""
    return [*gpu_names(), "cpu"]


def presets() -> Iterable[str]:
    """Return the sizes that a model is trained in."""
    from tensorprimat.core import settings

    return settings.option("preset").choices


def precisions() -> Iterable[str]:
    """Return the precisions that a log can state."""
    from tensorprimat.core.settings import PRECISIONS

    return PRECISIONS


def methodology_names() -> Iterable[str]:
    """Return the methodologies of the catalogue."""
    from tensorprimat.core import settings

    return settings.option("methodology").choices


def primus_precisions() -> Iterable[str]:
    """Return the precisions that Primus has configurations of."""
    return ("bf16", "fp8")


def formats() -> Iterable[str]:
    """Return the formats of logs."""
    from tensorprimat.logs import FORMATS

    return [format.name for format in FORMATS]


def sides() -> Iterable[str]:
    """Return the properties that can separate the sides of a comparison."""
    from tensorprimat.analysis.sides import BY

    return BY


def metrics_over_time() -> Iterable[str]:
    """Return the metrics of a history."""
    from tensorprimat.analysis.history import METRICS

    return METRICS


def model_sizes() -> Iterable[str]:
    """Return the shapes that cells are measured of."""
    from tensorprimat.micro.grid import size_names

    return size_names()


def cell_precisions() -> Iterable[str]:
    """Return the precisions that cells are measured in."""
    from tensorprimat.core.micro_result import CELL_PRECISIONS

    return CELL_PRECISIONS


def passes() -> Iterable[str]:
    """Return the passes of a cell."""
    from tensorprimat.core.micro_result import PASSES

    return PASSES


def passes_and_all() -> Iterable[str]:
    """Return the values of --pass where it takes several."""
    return (*passes(), "all")


def attentions() -> Iterable[str]:
    """Return the attention kernels of a cell."""
    from tensorprimat.core.micro_result import ATTENTIONS

    return ATTENTIONS


def device_names() -> Iterable[str]:
    """Return the devices that cells are measured on."""
    return ("auto", "cpu", "cuda")


def of_mlperf(fact: str) -> Values:
    """Return the source of one fact of all MLPerf entries of the package: its benchmarks, GPUs, rounds, submitters."""

    def values() -> Iterable[str]:
        from tensorprimat.core.mlperf_library import load

        return sorted({value for entry in load(None).entries if (value := getattr(entry, fact))})

    return values
