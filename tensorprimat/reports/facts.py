"""Tables of the facts about each side: hardware, configuration, performance, memory, provenance.

One row per fact, one column per side; a fact that no side knows is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from tensorprimat.analysis.explanations import measured_lines
from tensorprimat.analysis.records import Comparison, Side
from tensorprimat.core import quantities, settings
from tensorprimat.core.figures import STEP_FIGURES, Definition
from tensorprimat.core.result import MEMORY_KINDS
from tensorprimat.core.settings import Kind, Setting
from tensorprimat.reports import formatting
from tensorprimat.reports.tables import UNMEASURED_CELL, Table, TableCell, headed


@dataclass(frozen=True, kw_only=True)
class SideRow:
    """One row of a table with one column per side."""

    label: str
    read: Callable[[Side], Any]
    """The value of a side, None where unknown."""
    form: Callable[[Any], str] = str
    source: Callable[[Side], str | None] = lambda side: None  # noqa: ARG005  # most facts need no more than their file
    terms: Callable[[Side], tuple[str, ...]] = lambda side: ()  # noqa: ARG005  # only figures have a formula


def side_by_side(
    key: str,
    title: str,
    facts: Sequence[SideRow],
    comparison: Comparison,
    *,
    numeric: bool = False,
    note: str | None = None,
) -> Table:
    """Return facts as rows, sides as columns; a fact that no side knows is left out. numeric: columns of figures."""
    sides = comparison.sides
    rows: list[tuple[TableCell, ...]] = []
    sources: dict[Callable[[Side], str | None], list[str | None]] = {}  # several facts share one
    for fact in facts:
        values = [fact.read(side) for side in sides]
        if all(value is None for value in values):
            continue
        if fact.source not in sources:
            sources[fact.source] = list(map(fact.source, sides))
        cells = [TableCell(text=fact.label, value=fact.label)]
        for side, value, source in zip(sides, values, sources[fact.source], strict=True):
            if value is None:
                cells.append(UNMEASURED_CELL)
                continue
            text, is_number = fact.form(value), isinstance(value, int | float) and not isinstance(value, bool)
            cell = TableCell(text=text, value=value if is_number else text, source=source, terms=fact.terms(side))
            cells.append(cell)
        rows.append(tuple(cells))
    labels = [side.label for side in sides]
    columns = headed(("", *labels), words=("",) if numeric else ("", *labels))
    return Table(key=key, title=title, columns=columns, rows=tuple(rows), note=note, sortable=False)


def peak_memory(side: Side, kind: str) -> float | None:
    """Return the peak in GB of one kind of MEMORY_KINDS."""
    return getattr(side.result.memory_metrics, f"peak_{kind}_gb", None)


def source_of(side: Side) -> str:
    """Return the files that a side's figures come from: results and their logs."""
    logs = [source.file for source in side.result.provenance.sources]
    return ", ".join(side.files) + (f", read from {', '.join(logs)}" if logs else "")


def basis_of(side: Side) -> str:
    """Return a phrase on the rows that a side's rates come from, with its files; only the files without such rows."""
    figures = side.result.performance_metrics
    if figures.basis == "reported_means" or not len(side.result.steps):
        return source_of(side)
    measured = f"{quantities.count(figures.measured_steps)} measured steps of {quantities.count(figures.total_steps)}"
    left_out = [
        f"{number} {what}"
        for number, what in (
            (figures.warmup_steps_dropped, "warm-up"),
            (figures.excluded_steps, "with a validation or checkpoint inside"),
        )
        if number
    ]
    how = "from the framework's own rates" if figures.basis == "reported_rates" else "computed"
    excluded = f" (left out: {', '.join(left_out)})" if left_out else ""
    return f"{how} over {measured}{excluded}; {source_of(side)}"


def formula_lines(side: Side, section: str, field: str) -> tuple[str, ...]:
    """Return the formula of a figure and the formula with its numbers, a line each; none for an unknown figure."""
    known = side.figures.get(section, {}).get(field)
    return known.lines if known else ()


def source_of_figure(side: Side, section: str, field: str, of: str) -> str:
    """Return the computation and the files of a figure; only the files if it was not computed from steps.

    of: the computation, such as "mean over the measured steps".
    """
    known = side.figures.get(section, {}).get(field)
    return source_of(side) if known and known.is_stated else f"{of}; {source_of(side)}"


def peak_memory_cell(side: Side, kinds: Sequence[tuple[str, str]]) -> TableCell:
    """Return the peak of the first of the kinds that the side has, else that of the host."""
    for kind, title in kinds:
        peak = peak_memory(side, kind)
        if peak is not None:
            field = f"peak_{kind}_gb"
            of = f"highest {title} memory of any logged step, maximum over ranks"
            source = source_of_figure(side, "memory_metrics", field, of)
            terms = formula_lines(side, "memory_metrics", field)
            return TableCell(text=f"{quantities.gigabytes(peak)} {title}", value=peak, source=source, terms=terms)
    host = side.result.host_memory_peak_gb
    if host is not None:
        source = f"highest resident memory of a training process; {source_of(side)}"
        return TableCell(text=f"{quantities.gigabytes(host)} host", value=host, source=source)
    return UNMEASURED_CELL


def memory_in_common(sides: Sequence[Side]) -> list[tuple[str, str]]:
    """Return the kinds of memory that all sides with device memory have, with their titles."""
    known = [side for side in sides if side.result.memory_metrics is not None]
    in_all = (kind for kind in MEMORY_KINDS if known and all(peak_memory(one, kind) is not None for one in known))
    return [(kind, MEMORY_KINDS[kind]) for kind in in_all]


def unlike_memory(sides: Sequence[Side]) -> str | None:
    """Return the peaks of sides that have no kind of memory in common, as a sentence below the table."""
    sides_of: dict[str, list[str]] = {}
    for side in sides:
        peaks = [
            f"{quantities.gigabytes(peak)} {title}"
            for kind, title in MEMORY_KINDS.items()
            if (peak := peak_memory(side, kind)) is not None
        ]
        if peaks:
            sides_of.setdefault(quantities.listed(peaks), []).append(side.label)
    each = "; ".join(f"{quantities.listed(labels)}: {peaks}" for peaks, labels in sides_of.items())
    return f"Peak memory of different kinds cannot be compared. {each}." if each else None


def _gpu_info(label: str, field: str, form: Callable[[Any], str] = str) -> SideRow:
    return SideRow(label=label, read=lambda side: getattr(side.result.gpu_info, field), form=form)


HARDWARE = (
    _gpu_info("Device", "device_name"),
    SideRow(label="Devices used", read=lambda side: side.result.training_config.num_gpus, form=quantities.count),
    SideRow(label="Nodes", read=lambda side: side.result.training_config.num_nodes, form=quantities.count),
    _gpu_info("Devices present", "device_count", quantities.count),
    _gpu_info("Memory of one device", "total_memory_gb", quantities.gigabytes),
    _gpu_info("Cores of one device", "gpu_cores", quantities.count),
    _gpu_info("Power limit", "power_limit_watts", quantities.stated_watts),
    _gpu_info("Power limit, default", "default_power_limit_watts", quantities.stated_watts),
    _gpu_info("Highest clock", "max_clock_hertz", quantities.gigahertz),
    SideRow(label="Platform", read=lambda side: side.result.platform),
    _gpu_info("Software stack", "software_stack"),
    _gpu_info("Stack version", "software_version"),
    _gpu_info("PyTorch", "pytorch_version"),
    SideRow(label="Host", read=lambda side: side.result.provenance.host),
)


_FORMS: dict[Kind, Callable[[Any], str]] = {
    "count": quantities.count,
    "number": quantities.rate,
    "upper": str.upper,
    "word": quantities.shown_value,
    "text": quantities.shown_value,
}
ELSEWHERE = ("num_gpus", "num_nodes", "warmup_steps")
"""Settings that the tables of hardware and performance show."""


def _row_of(setting: Setting) -> SideRow:
    """Return a setting of the configuration; the source of an inferred or user-set value names its origin."""

    def source(side: Side) -> str:
        origin = side.result.provenance.assumed.get(setting.name)
        return f"origin: {origin}; {source_of(side)}" if origin else source_of(side)

    return SideRow(
        label=setting.heading,
        read=lambda side: getattr(side.result.training_config, setting.name),
        form=_FORMS[setting.kind],
        source=source,
    )


CONFIGURATION_ROWS = (
    SideRow(label="Model", read=lambda side: formatting.model_title(side.result.model)),
    SideRow(label="Parameters", read=lambda side: side.result.model.parameters, form=quantities.count),
    *(
        _row_of(setting)
        for setting in settings.SETTINGS
        if setting.weight is not None and setting.name not in ELSEWHERE
    ),
    SideRow(label="Methodology", read=lambda side: side.result.methodology),
)


def _steps(section: str, record: str, of: str | Callable[[Side], str] = "") -> tuple[SideRow, ...]:
    """Return the figures of one of a result's records as rows. of: their source, instead of what each row states."""

    def row(figure: Definition) -> SideRow:
        def source(side: Side) -> str:
            return source_of_figure(side, section, figure.name, of or figure.formula)  # type: ignore[arg-type]

        return SideRow(
            label=figure.title,
            read=lambda side: getattr(attrgetter(record)(side.result), figure.name, None),
            form=figure.form,
            source=of if callable(of) else source,
            terms=lambda side: formula_lines(side, section, figure.name),
        )

    return tuple(map(row, STEP_FIGURES[section].values()))


PERFORMANCE = (
    *_steps("performance_metrics", "performance_metrics", basis_of),
    *_steps("reported", "performance_metrics.reported", "printed by the framework, not computed here"),
)
MEMORY = (
    *_steps("memory_metrics", "memory_metrics"),
    SideRow(
        label="Peak of the host process",
        read=lambda side: side.result.host_memory_peak_gb,
        form=quantities.gigabytes,
        source=source_of,
    ),
)


hardware = partial(side_by_side, "hardware", "Hardware", HARDWARE)
configuration_table = partial(side_by_side, "configuration", "Configuration", CONFIGURATION_ROWS)
memory_table = partial(
    side_by_side, "memory", "Memory", MEMORY, numeric=True,
    note="GB are 10⁹ bytes. Only equal kinds can be compared: memory that an allocator handed out (allocated) or "
    "holds (reserved) differs from the use of the whole device that the driver reports (device used).",
)  # fmt: skip


def performance_table(comparison: Comparison) -> Table:
    """Return every figure of the measured steps, and the figures that the frameworks reported."""
    step_times = [
        fact for fact in PERFORMANCE if fact.label.startswith("Step time") and fact.form is quantities.seconds
    ]
    together = quantities.seconds_together(fact.read(side) for fact in step_times for side in comparison.sides)
    rows = [replace(fact, form=together) if fact in step_times else fact for fact in PERFORMANCE]
    note = _how_combined(comparison.sides)
    return side_by_side("performance", "Performance", rows, comparison, numeric=True, note=note)


def _how_combined(sides: Sequence[Side]) -> str | None:
    """Return a note on how rows became one figure, where it could be misread."""
    most = {side.label: int(side.result.steps.column("covers").max(initial=1)) for side in sides}
    means = [f"up to {quantities.count(steps)} steps in {label}" for label, steps in most.items() if steps > 1]
    if not means:
        return None
    return (
        f"Rows stand for several steps ({', '.join(means)}): median, minimum, maximum, standard deviation and "
        "CV describe rows, not single steps."
    )


POWER = (_gpu_info("Power includes", "power_boundary"), *_steps("power_metrics", "power_metrics"))


def power_table(comparison: Comparison) -> Table:
    """Return power, energy, clocks and temperature over the measured steps; no rows where nothing measured them."""
    measured = any(side.result.power_metrics is not None for side in comparison.sides)
    return side_by_side("power", "Power and clocks", POWER if measured else (), comparison, numeric=True)


def _lines_measured(side: Side) -> str | None:
    """Return the log lines of the measured rows; None for a live run, which has no log."""
    return "; ".join(measured_lines(side.result)) if (side.result.steps.column("line") > 0).any() else None


PROVENANCE = (
    SideRow(label="Result files", read=lambda side: ", ".join(side.files) or None),
    SideRow(label="Measured on", read=lambda side: quantities.moment(side.result.timestamp)),
    SideRow(label="Engine", read=lambda side: side.result.provenance.engine),
    SideRow(label="Log format", read=lambda side: side.result.provenance.format),
    SideRow(label="Step times", read=lambda side: side.result.provenance.timing),
    SideRow(label="Timer", read=lambda side: side.result.provenance.timer),
    SideRow(
        label="Logs",
        read=lambda side: (
            "; ".join(
                source.file + (f" (SHA-256 {source.sha256})" if source.sha256 else "")
                for source in side.result.provenance.sources
            )
            or None
        ),
    ),
    SideRow(label="Lines measured", read=_lines_measured),
    SideRow(label="Command", read=lambda side: side.result.provenance.command),
    SideRow(
        label="Inferred or set by the user",
        read=lambda side: ", ".join(f"{key} ({how})" for key, how in side.result.provenance.assumed.items()) or None,
    ),
    SideRow(label="TensorPrimat version", read=lambda side: side.result.provenance.tool_version),
)
provenance = partial(side_by_side, "provenance", "Provenance", PROVENANCE)
