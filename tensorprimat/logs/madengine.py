"""Reader of madengine's perf.csv and of the tables that the scripts of AMD's MAD write (multiple_results.csv): a run of
a model is one row for each of its figures, with the name of the metric.

The last run is read; others are named in a warning, never mixed with it. The figures are the run's own: reported,
without steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorprimat.core.notices import Notice
from tensorprimat.core.settings import PRECISIONS
from tensorprimat.logs import fields
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_names import MADENGINE
from tensorprimat.logs.metrics import csv_cells
from tensorprimat.logs.model_names import model_name
from tensorprimat.logs.text import Log, UnreadText

FAILED = "FAILURE"
_MOST_NAMED = 3  # other models in a warning
_OF_ONE_RUN = (
    *("model", "n_gpus", "nnodes", "gpus_per_node", "training_precision", "machine_name", "gpu_architecture"),
    *("mode", "precision", "batch_size", "seq_len", "device", "num_gpus"),
)
"""Columns in which the rows of one run agree."""

_SETTINGS = (("n_gpus", "num_gpus"), ("num_gpus", "num_gpus"), ("nnodes", "num_nodes"), ("seq_len", "sequence_length"))
_METRICS: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (re.compile(r"tok(?:en)?s?/s(?:ec(?:ond)?)?/(?:gpu|device)"), "tokens_per_second_per_gpu", 1.0),
    (re.compile(r"tok(?:en)?s?/s(?:ec(?:ond)?)?"), "tokens_per_second", 1.0),
    (re.compile(r"(?:samples?|sequences?|examples?)/s(?:ec(?:ond)?)?"), "samples_per_second", 1.0),
    (
        re.compile(r"(?:ms|milliseconds)/(?:step|iteration|iter)|(?:step|iteration)/?time/?\(?ms\)?"),
        "step_time_seconds",
        1e-3,
    ),
    (re.compile(r"(?:s|sec|seconds)/(?:step|iteration|iter)"), "step_time_seconds", 1.0),
    (re.compile(r"tflops?(?:/s)?/(?:gpu|device)"), "tflops_per_gpu", 1.0),
)
"""Name of a metric, in lower case with `/` for per → field of Reported and factor."""


def detect(log: Log) -> int:
    lines = log.head()
    header = _cells(next((text for _, text in lines if text.strip()), ""))
    if not set(MADENGINE) <= set(header):
        return 0
    return sum(len(_cells(text)) == len(header) for _, text in lines)


def read(log: Log) -> Reading:
    reading = Reading(source="madengine")
    count, begins, seen, models = 0, True, set[str](), set[str]()
    last: tuple[str | None, ...] = ()
    run: list[dict[str, str]] = []
    torn = UnreadText()
    for row in _rows(log, torn):
        if len(models) <= _MOST_NAMED + 1:  # those to name, the one that is read, and one to show that there are more
            models.add(row["model"])
        identity = tuple(row.get(name) for name in _OF_ONE_RUN)
        if identity != last or row["metric"] in seen:
            last, begins = identity, True
            count, seen = count + 1, set()
        seen.add(row["metric"])
        if row["performance"] and row.get("status", "") != FAILED:
            run, begins = [row] if begins else [*run, row], False
    reading.unread += torn.warnings()
    if not run:
        reading.warnings.append(Notice("table_without_figure", "steps"))
        return reading
    model, metrics = run[0]["model"], ", ".join(row["metric"] for row in run)
    others = sorted(models - {model})
    if count > 1:
        more = " …" if len(others) > _MOST_NAMED else ""
        rest = f", also of {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        reading.warnings.append(Notice("one_run_of_table", "runs", runs=count, rest=rest, model=model, metrics=metrics))
    refused = [reason for row in run if (reason := _take_figure(row, reading))]
    if reading.reported.keys() - {"tflops_per_gpu"}:
        reading.warnings.append(Notice("figure_of_run_only", "steps"))
    else:
        known = Notice("metric_is_no_rate", "steps", metrics=metrics or "unnamed")
        reading.warnings.append(next(iter(refused), known))
    _configure(run[0], reading)
    return reading


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in csv_cells(text)]


def _rows(log: Log, torn: UnreadText) -> Iterator[dict[str, str]]:
    """Yield the runs by the names of the columns. torn: receives lines of another width."""
    lines = ((line, text, cells) for line, text in log.lines() if (cells := _cells(text)))
    _, _, header = next(lines, (0, "", []))
    if set(MADENGINE) <= set(header):
        for line, text, cells in lines:
            if len(cells) != len(header):
                torn.add(line, text)
            elif cells != header:
                yield dict(zip(header, cells, strict=True))


def _take_figure(row: dict[str, str], reading: Reading) -> Notice | None:
    """Add a figure of the run to the reading. Return a reason if it is a rate that cannot be read."""
    spelled = (
        re.sub(r"[_\s]{1,8}per[_\s]{1,8}|[_\s]{0,8}/[_\s]{0,8}", "/", row["metric"].lower())
        .strip("/ ")
        .replace("_", "/")
    )
    nodes = fields.whole(row.get("nnodes")) or 1
    target, factor = next(((target, factor) for known, target, factor in _METRICS if known.fullmatch(spelled)), ("", 0))
    if target and "," in row["performance"]:  # a decimal comma, or a separator of thousands
        place = f"the first is {row['performance']!r}"
        return Notice("cells_left_out", "steps", cells=1, column="performance", are="is", place=place)
    if nodes > 1 and target.endswith("_per_gpu"):
        return Notice("rate_of_nodes", "steps", nodes=nodes)
    if nodes > 1 and target and target != "step_time_seconds":
        reading.warnings.append(Notice("sum_of_nodes", target, nodes=nodes))
    if target and (value := fields.positive(row["performance"], factor)):
        reading.reported[target] = value
    return None


def _configure(row: dict[str, str], reading: Reading) -> None:
    config = reading.training_config
    for name, target in _SETTINGS:
        if value := fields.whole(row.get(name)):
            config[target] = value
    of_all = (fields.whole(row.get("gpus_per_node")) or 0) * config.get("num_nodes", 1)
    if of_all > config.get("num_gpus", of_all):  # some launchers write the GPUs of one node
        reading.warnings.append(Notice("gpus_contradict", "num_gpus", stated=config.pop("num_gpus"), product=of_all))
    for precision in (row.get("training_precision", "").lower(), row.get("precision", "").lower()):
        if precision in PRECISIONS:
            config["precision"] = precision
    reading.model["name"] = model_name(row["model"])
    reading.host = row.get("machine_name") or None
    if device := row.get("gpu_architecture") or row.get("device"):
        reading.gpu_info["device_name"] = device
