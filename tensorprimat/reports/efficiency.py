"""The sections on derived metrics: efficiency, memory, cost, token budget and return, and the inputs of each figure.

An unknown figure is "–", and its reason is a remark below the table, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tensorprimat.analysis.economics import unlike_prices, weigh
from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.core import quantities
from tensorprimat.core.figures import DERIVED_FIGURES, Figure, Input
from tensorprimat.core.units import GIGA, TERA
from tensorprimat.models.flops import CONVENTIONS
from tensorprimat.reports.formatting import VERDICT_TITLES
from tensorprimat.reports.tables import Table, TableCell, TableRow, figure_cell, headed, table_of, text_cell

SHORT = (
    "model_tflops_per_gpu", "mfu", "mfu_at_clock", "power_watts_per_gpu", "tokens_per_watt_hour",
    "price_usd_per_gpu_hour", "cost_usd_per_trillion_tokens",
)  # fmt: skip
"""Metrics that every comparison shows."""
OF_PRICES = ("price_usd_per_gpu_hour", "cost_usd_per_trillion_tokens")
"""Those that rest on a price."""
QUIET = (
    "reported_tflops_per_gpu_restated", "hfu", "mfu_at_clock",
    *(name for name in DERIVED_FIGURES if name.startswith("sampled_")),
)  # fmt: skip
"""Metrics left out where no side has them: few runs have their inputs."""
SYMBOLS = {
    "P_mm": "weights of all matrix products", "N": "parameters", "L": "layers", "H": "heads", "Q": "size of a head",
    "T": "sequence length",
}  # fmt: skip
"""Symbols of the formulas of FLOPs → their meaning."""


def short(comparison: Comparison) -> Table:
    """Return the table of each side's use of its own device, power and money, which needs no comparable work.

    Prices from different sources, and costs at them, are left out: side by side, they would be compared.
    """
    unlike = unlike_prices(side.metrics for side in comparison.sides)
    names = [name for name in SHORT if not (unlike and name in OF_PRICES)]
    return _of_metrics("Efficiency", names, comparison.sides, quiet=SHORT)


def of_section(title: str, comparison: Comparison) -> Table:
    """Return the table of the metrics whose definition names this section."""
    names = [name for name, definition in DERIVED_FIGURES.items() if definition.section == title]
    return _of_metrics(title, names, comparison.sides, quiet=QUIET)


def _of_metrics(title: str, names: Sequence[str], sides: Sequence[Side], *, quiet: Collection[str]) -> Table:
    """Return a table with metrics as rows and sides as columns. quiet: metrics left out where no side has them."""
    rows = []
    for name in names:
        metrics = [side.metrics[name] for side in sides]
        if name in quiet and all(metric.value is None for metric in metrics):
            continue
        label = metrics[0].definition.title
        unlike = name in OF_MEMORY and of_unlike_kinds([side.metrics for side in sides])
        for kind in dict.fromkeys(map(memory_kind, metrics)) if unlike else (None,):
            alike = [metric if kind is None or memory_kind(metric) == kind else None for metric in metrics]
            if kind is not None or not unlike:
                cells = [text_cell(None) if metric is None else explained_cell(metric) for metric in alike]
                rows.append((text_cell(f"{label}, {kind}" if kind else label), *cells))
    columns = headed(("", *(side.label for side in sides)), words=("",))
    remarks = tuple(_remarks(sides, names, quiet)) if rows else ()
    key = title.partition(",")[0].lower()
    return Table(key=key, title=title, columns=columns, rows=tuple(rows), remarks=remarks, sortable=False)


OF_MEMORY = ("memory_utilization", "memory_headroom_gb")
"""Metrics whose meaning depends on the kind of memory: each kind has a row."""


def memory_kind(metric: Figure) -> str | None:
    """Return the kind of memory of a metric of OF_MEMORY; None if it is not known."""
    return metric.inputs[0].source if metric.value is not None else None


def of_unlike_kinds(metrics: Sequence[Mapping[str, Figure]]) -> bool:
    """Return True if the sides' memory figures are of different kinds, which cannot be compared."""
    return len({memory_kind(of_side["memory_utilization"]) for of_side in metrics} - {None}) > 1


def explained_cell(metric: Figure) -> TableCell:
    """Return a cell of a metric with its formula and its inputs."""
    rests_on = "; ".join(f"{i.name} = {_input(i)}" + (f" ({i.source})" if i.source else "") for i in metric.inputs)
    return figure_cell(metric.value, metric.definition.form, source=rests_on, terms=metric.lines)


def _input(item: Input) -> str:
    if item.value is None:
        return quantities.UNMEASURED
    return item.value if isinstance(item.value, str) else f"{quantities.precise(item.value)} {item.unit}".rstrip()


def _remarks(sides: Sequence[Side], names: Sequence[str], quiet: Collection[str]) -> Iterator[str]:
    """Yield the remarks on the figures, and the reasons why some are missing: each sentence once, led by its sides."""
    labels_of: dict[str, list[str]] = {}
    for side in sides:
        for sentence in _of_side(side, names, quiet):
            labels_of.setdefault(sentence, []).append(side.label)
    for sentence, labels in labels_of.items():
        yield sentence if len(sides) == 1 else f"{quantities.listed(labels)}: {sentence}"


def _of_side(side: Side, names: Sequence[str], quiet: Collection[str]) -> Iterator[str]:
    missing: dict[str, list[str]] = {}
    for name in names:
        metric = side.metrics[name]
        title = metric.definition.title
        if metric.value is not None:
            if metric.remark and name in WITH_REMARK:
                yield f"{title}: {metric.remark}"
        elif name not in quiet or (metric.inputs and metric.inputs[0].value is not None):
            for reason in metric.reasons:
                missing.setdefault(reason, []).append(title)
    for reason, titles in missing.items():
        yield f"no {', '.join(titles)}: {reason}"


WITH_REMARK = {
    "mfu",
    "mfu_at_clock",
    "reported_tflops_per_gpu_restated",
    "memory_utilization",
    "largest_micro_batch_size",
    "power_watts_per_gpu",
    "price_usd_per_gpu_hour",
}
"""Metrics whose remark is listed below the table, because the figure means little without it."""


def budget(comparison: Comparison) -> Table:
    """Return the table of cost, time and energy of training on the user's token budget."""
    rows: list[TableRow] = [
        {
            "": side.label,
            "GPUs": figure_cell(side.result.training_config.num_gpus, quantities.count),
            "GPU-hours": explained_cell(side.metrics["budget_gpu_hours"]),
            "time": explained_cell(side.metrics["budget_seconds"]),
            "energy": explained_cell(side.metrics["budget_energy_kwh"]),
            "cost": explained_cell(side.metrics["budget_cost_usd"]),
        }
        for side in comparison.sides
    ]
    tokens = comparison.choices.budget_tokens
    amount = f"{quantities.significant(tokens / TERA)} T" if tokens >= GIGA else quantities.rate(tokens)
    return table_of("budget", f"Training on {amount} tokens", rows, words=("",))


def economics(comparison: Comparison) -> Table:
    """Return the table of each side's gain against its baseline, with verdict level and finding."""
    every = [(weigh(pair), pair) for pair in comparison.pairs]
    rows: list[TableRow] = [
        {
            "side": one.candidate,
            "against": one.baseline,
            "saving": explained_cell(one.saving),
            "break-even price": explained_cell(one.break_even_price),
            "basis": _basis(pair),
        }
        for one, pair in every
    ]
    missing = {reason for one, _ in every for reason in (*one.saving.reasons, *one.break_even_price.reasons)}
    words = ("side", "against", "basis")
    return table_of("returns", "Return on investment", rows, words=words, remarks=tuple(sorted(missing)))


def _basis(pair: Pair) -> str:
    """Return the verdict level of a pair and its finding about speed, such as "same work; faster"."""
    finding = None if pair.ratio is None else VERDICT_TITLES[pair.ratio.verdict]
    return "; ".join(dict.fromkeys(filter(None, (pair.fairness.level.title, finding))))


def figures(side: Side) -> Table:
    """Return a table of one side's figures, a line for each; those that are unknown come last, with the reason."""
    rows: list[TableRow] = [
        {
            "figure": metric.definition.title,
            "value": figure_cell(metric.value, metric.definition.form),
            "note": metric.because or metric.remark,
        }
        for metric in sorted(side.metrics.values(), key=lambda metric: metric.value is None)
    ]
    return table_of("figures", f"{side.label}: figures", rows, words=("figure", "note"))


def explanation(side: Side) -> tuple[Table, Table]:
    """Return a table of one side's figures with their formulas, and a table of all inputs of these figures."""
    rests_on: dict[str, Input] = {}
    for metric in side.metrics.values():
        rests_on |= {item.name: item for item in metric.inputs}
    derived = {
        metric.definition.title for metric in side.metrics.values() if metric.name != "tokens_per_second_per_gpu"
    }
    figures = [
        {
            "figure": metric.definition.title,
            "value": figure_cell(metric.value, metric.definition.form),
            "formula": metric.formula,
            "remark": f"unknown: {metric.because}" if metric.because else metric.remark,
        }
        for metric in side.metrics.values()
    ]
    inputs = [
        {
            "input": item.name,
            "value": _input(item),
            "source": item.source if item.value is not None else item.because,
        }
        for item in rests_on.values()
        if item.name not in derived
    ]
    words = ("figure", "formula", "remark", "input", "source")
    return (
        table_of("figures", f"{side.label}: figures", figures, words=words),
        table_of("inputs", f"{side.label}: inputs of the metrics", inputs, words=words),
    )


def convention_sentence(comparison: Comparison) -> str:
    """Return the sentence that names the FLOPs convention, without which an MFU has no meaning."""
    used = CONVENTIONS[comparison.choices.convention.lower()]
    symbols = ", ".join(f"{symbol} {means}" for symbol, means in SYMBOLS.items() if symbol in used.symbols)
    return f"FLOPs per token by the convention {used.name}: {used.formula}, with {symbols}. Used by {used.used_by}."
