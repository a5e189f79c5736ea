"""Efficiency and cost of results: the tables of `tprimat enhance`, on the terminal and as enhanced_report.md.

Tables are built here and rendered as everywhere (`console.table`, `markdown.table`). An unknown figure is "–", and its
reason is below the table, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tensorprimat.analysis.economics import Economics, Enhanced, Return
from tensorprimat.analysis.metric import DEFINITIONS, Input, Metric
from tensorprimat.core import quantities
from tensorprimat.core.flops import CONVENTIONS
from tensorprimat.core.safe_text import markdown as safe
from tensorprimat.core.units import TERA
from tensorprimat.core.version import __version__
from tensorprimat.reports import console, formatting, markdown
from tensorprimat.reports.metric_forms import FORMS
from tensorprimat.reports.tables import Table, TableCell, figure, headed, table_of, text

SECTIONS = {
    section: tuple(name for name, one in DEFINITIONS.items() if one.section == section)
    for section in dict.fromkeys(one.section for one in DEFINITIONS.values() if one.section)
}
"""Section of a report → its metrics."""
QUIET = {"reported_tflops_per_gpu_restated", "hfu"}
"""Metrics left out where no side has them: few runs have their inputs."""


def side_heading(sides: Sequence[Enhanced]) -> str:
    """Return the titles of the sides' models; the title of a tiny model says tiny."""
    return " / ".join(dict.fromkeys(formatting.model_title(side.side.result.model) for side in sides))


def metrics_table(title: str, names: Sequence[str], sides: Sequence[Enhanced]) -> Table:
    """Return a table with metrics as rows and sides as columns."""
    rows = []
    for name in names:
        metrics = [side.metrics[name] for side in sides]
        if name in QUIET and all(metric.value is None for metric in metrics):
            continue
        label = metrics[0].definition.title
        unlike = name in OF_MEMORY and of_unlike_kinds([side.metrics for side in sides])
        for kind in dict.fromkeys(map(memory_kind, metrics)) if unlike else (None,):
            alike = [metric if kind is None or memory_kind(metric) == kind else None for metric in metrics]
            if kind is not None or not unlike:
                cells = [text(None) if metric is None else _explained_cell(metric) for metric in alike]
                rows.append((text(f"{label}, {kind}" if kind else label), *cells))
    columns = headed(("", *(side.side.label for side in sides)), words=("",))
    return Table(key=title.lower(), title=title, columns=columns, rows=tuple(rows), sortable=False)


OF_MEMORY = ("memory_utilization", "memory_headroom_gb")
"""Metrics whose meaning depends on the kind of memory: each kind has a row."""


def memory_kind(metric: Metric) -> str | None:
    """Return the kind of memory of a metric of OF_MEMORY; None if it is not known."""
    return metric.inputs[0].source if metric.value is not None else None


def of_unlike_kinds(metrics: Sequence[Mapping[str, Metric]]) -> bool:
    """Return True if the sides' memory figures are of different kinds, which cannot be compared."""
    return len({memory_kind(of_side["memory_utilization"]) for of_side in metrics} - {None}) > 1


def _explained_cell(metric: Metric) -> TableCell:
    return figure(metric.value, FORMS[metric.name], source=_explained(metric))


def _explained(metric: Metric) -> str:
    rests_on = "; ".join(f"{i.name} {_input(i)}" + (f" ({i.source})" if i.source else "") for i in metric.inputs)
    return f"{metric.definition.formula}: {rests_on}"


def _input(item: Input) -> str:
    if item.value is None:
        return quantities.UNMEASURED
    return (
        item.value if isinstance(item.value, str) else f"{quantities.significant(item.value, 6)} {item.unit}".rstrip()
    )


def remarks(sides: Sequence[Enhanced], names: Sequence[str]) -> Iterator[str]:
    """Yield the remarks on the figures, and the reasons why some are missing: each sentence once, led by its sides."""
    labels_of: dict[str, list[str]] = {}
    for side in sides:
        for sentence in _remarks(side, names):
            labels_of.setdefault(sentence, []).append(side.side.label)
    for sentence, labels in labels_of.items():
        yield sentence if len(sides) == 1 else f"{' and '.join(labels)}: {sentence}"


def _remarks(side: Enhanced, names: Sequence[str]) -> Iterator[str]:
    missing: dict[str, list[str]] = {}
    for name in names:
        metric = side.metrics[name]
        title = metric.definition.title
        if metric.value is not None:
            if metric.remark and name in SAID:
                yield f"{title}: {metric.remark}"
        elif name not in QUIET or (metric.inputs and metric.inputs[0].value is not None):
            for reason in metric.reasons:
                missing.setdefault(reason, []).append(title)
    for reason, titles in missing.items():
        yield f"no {', '.join(titles)}: {reason}"


SAID = {
    "mfu",
    "reported_tflops_per_gpu_restated",
    "memory_utilization",
    "largest_micro_batch_size",
    "power_watts_per_gpu",
    "price_usd_per_gpu_hour",
}
"""Metrics whose remark is part of the figure."""


def budget_table(sides: Sequence[Enhanced], budget_tokens: float) -> Table:
    """Return the table of cost, time and energy of training on the user's token budget."""
    columns: dict[str, Callable[[Enhanced], TableCell]] = {
        "": lambda side: text(side.side.label),
        "GPUs": lambda side: figure(side.side.result.training_config.num_gpus, quantities.count),
        "GPU-hours": lambda side: _explained_cell(side.metrics["budget_gpu_hours"]),
        "time": lambda side: _explained_cell(side.metrics["budget_seconds"]),
        "energy": lambda side: _explained_cell(side.metrics["budget_energy_kwh"]),
        "cost": lambda side: _explained_cell(side.metrics["budget_cost_usd"]),
    }
    title = f"Training on {quantities.significant(budget_tokens / TERA)} T tokens"
    return table_of("budget", title, sides, columns, words=("",))


def returns_table(returns: Sequence[Return]) -> Table:
    """Return the table of each side's gain against the first one, with the fairness of the comparison."""
    columns: dict[str, Callable[[Return], TableCell]] = {
        "side": lambda one: text(one.candidate),
        "against": lambda one: text(one.baseline),
        "saving": lambda one: _explained_cell(one.saving),
        "break-even price": lambda one: _explained_cell(one.break_even_price),
        "basis": lambda one: text(one.grounds),
    }
    words = ("side", "against", "basis")
    return table_of("returns", "Return on investment", returns, columns, words=words)


def explanation(side: Enhanced) -> tuple[Table, Table]:
    """Return a table of one side's figures with their formulas, and a table of all inputs of these figures."""
    rests_on: dict[str, Input] = {}
    for metric in side.metrics.values():
        rests_on |= {item.name: item for item in metric.inputs}
    derived = {
        metric.definition.title for metric in side.metrics.values() if metric.name != "tokens_per_second_per_gpu"
    }
    figures: dict[str, Callable[[Metric], TableCell]] = {
        "figure": lambda metric: text(metric.definition.title),
        "value": lambda metric: figure(metric.value, FORMS[metric.name]),
        "formula": lambda metric: text(metric.definition.formula),
        "remark": lambda metric: text(f"unknown: {metric.because}" if metric.because else metric.remark),
    }
    inputs: dict[str, Callable[[Input], TableCell]] = {
        "input": lambda item: text(item.name),
        "value": lambda item: text(_input(item)),
        "source": lambda item: text(item.source if item.value is not None else item.because),
    }
    words = ("figure", "formula", "remark", "input", "source")
    not_derived = [item for item in rests_on.values() if item.name not in derived]
    label = side.side.label
    return (
        table_of("figures", f"{label}: figures", side.metrics.values(), figures, words=words),
        table_of("inputs", f"{label}: inputs of the metrics", not_derived, inputs, words=words),
    )


def tables(content: Economics, model: str) -> Iterator[tuple[Table, tuple[str, ...]]]:
    """Yield the tables of one model with the sentences that belong below each."""
    sides = content.models[model]
    for title, names in SECTIONS.items():
        yield metrics_table(title, names, sides), tuple(remarks(sides, names))
    yield budget_table(sides, content.assumptions.budget_tokens), ()
    returns = content.returns[model]
    if returns:
        missing = {reason for one in returns for reason in (*one.saving.reasons, *one.break_even_price.reasons)}
        yield returns_table(returns), tuple(sorted(missing - {one.grounds for one in returns}))


def convention_sentence(content: Economics) -> str:
    """Return the sentence that names the FLOPs convention, without which an MFU has no meaning."""
    used = CONVENTIONS[content.assumptions.convention.lower()]
    return f"FLOPs convention {used.name}: {used.formula}; used by {used.used_by}"


def render_markdown(content: Economics, *, picture: str | None = None) -> str:
    """Return the text of enhanced_report.md.

    picture: file name of the plot, in the same folder.
    """
    parts = [
        "# Efficiency, cost and time to train",
        f"{safe(quantities.moment(content.generated_at))} · TensorPrimat {__version__}",
        f"{safe(convention_sentence(content))}.",
    ]
    if picture is not None:
        parts.append(f"![MFU, energy, memory, cost and time to train, as bars]({picture})")
    if content.errors:
        parts.append(markdown.bullets([f"Error: {error}" for error in content.errors]))
    for model, sides in content.models.items():
        parts.append(f"## {safe(side_heading(sides))}")
        for table, sentences in tables(content, model):
            parts += [f"### {safe(table.title)}", markdown.table(table)]
            if sentences:
                parts.append(markdown.bullets(sentences))
    if content.warnings:
        parts += ["## Warnings", markdown.bullets(content.warnings)]
    parts.append("## Where the figures come from")
    for sides in content.models.values():
        for side in sides:
            parts.append(f"### {safe(side_heading([side]))}: {safe(side.side.label)}")
            parts += [markdown.table(table) for table in explanation(side)]
            parts.append(markdown.bullets([f"read from {file}" for file in side.side.files]))
    return "\n\n".join(parts) + "\n"


def show(content: Economics, write: Callable[[Any], None], *, width: int, explain: bool) -> None:
    """Write everything for a terminal of so many columns, part by part. write: prints one rich renderable."""
    from rich.padding import Padding
    from rich.text import Text

    show_errors(content, write)
    for model, sides in content.models.items():
        write(console.safe(side_heading(sides), "bold"))
        for table, sentences in tables(content, model):
            write(Padding(console.safe(table.title, "bold"), (1, 0, 0, 2)))
            write(Padding(console.fitting(table, width=width - console.INDENT), (0, 0, 0, console.INDENT)))
            for sentence in sentences:
                write(Padding(console.safe(f"• {sentence}", "dim"), (0, 0, 0, 2)))
        if explain:
            for side in sides:
                write(Text())
                show_explanation(side, write)
        write(Text())
    write(console.safe(convention_sentence(content)))
    for warning in content.warnings:
        write(console.safe(f"• {warning}", "yellow"))


def show_errors(content: Economics, write: Callable[[Any], None]) -> None:
    """Write each impossible figure as an error, for a terminal."""
    for error in content.errors:
        write(console.safe(f"Error: {error}", "bold red"))


def show_explanation(side: Enhanced, write: Callable[[Any], None]) -> None:
    """Write every figure of one side with its formula and inputs, for a terminal."""
    from rich.padding import Padding

    write(console.safe(side_heading([side]), "bold"))
    for content in explanation(side):
        write(Padding(console.safe(content.title, "bold"), (1, 0, 0, 2)))
        write(Padding(console.table(content), (0, 0, 0, 2)))
