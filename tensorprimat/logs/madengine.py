"""Reader of madengine's perf.csv: one row for each run of a model, with one figure and the name of its metric; and of
multiple_results.csv, which has several figures of a run.

The last row is the last run, and only that row is read, or the last one of its model with a rate; rows of other models
or metrics are named in a warning, never mixed with it. The figure is the run's own mean: reported, without steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorprimat.core.settings import PRECISIONS
from tensorprimat.logs import fields
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_columns import UnreadText
from tensorprimat.logs.metric_names import MADENGINE
from tensorprimat.logs.metrics import csv_cells
from tensorprimat.logs.model_names import model_name
from tensorprimat.logs.text import Log

FAILED = "FAILURE"
_MOST_NAMED = 3  # other models in a warning

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
    count, row, models = 0, None, set[str]()
    torn = UnreadText()
    for run in _rows(log, torn):
        count += 1
        if len(models) <= _MOST_NAMED + 1:  # those to name, the one that is read, and one to show that there are more
            models.add(run["model"])
        if run["performance"] and run.get("status", "") != FAILED:
            row = run if row is None or run["model"] != row["model"] or _is_rate(run) or not _is_rate(row) else row
    reading.unread += torn.warnings()
    if row is None:
        reading.warnings.append("steps: no run in the table has a figure")
        return reading
    others = sorted(models - {row["model"]})
    if count > 1:
        more = " …" if len(others) > _MOST_NAMED else ""
        rest = f", also of {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        reading.warnings.append(
            f"runs: the table holds {count} runs{rest}; the last one with a figure is read, {row['model']} "
            f"({row['metric']})"
        )
    _figure(row, reading)
    _configure(row, reading)
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


def _metric(row: dict[str, str]) -> str:
    """Return the name of the metric, with / for per."""
    name = re.sub(r"[_\s]{1,8}per[_\s]{1,8}|[_\s]{0,8}/[_\s]{0,8}", "/", row["metric"].lower())
    return name.strip("/ ").replace("_", "/")


def _is_rate(row: dict[str, str]) -> bool:
    return any(pattern.fullmatch(_metric(row)) for pattern, _, _ in _METRICS)


def _figure(row: dict[str, str], reading: Reading) -> None:
    spelled = _metric(row)
    nodes = fields.whole(row.get("nnodes")) or 1
    for pattern, target, factor in _METRICS:
        if pattern.fullmatch(spelled):
            if nodes > 1 and target == "tokens_per_second_per_gpu":
                reading.warnings.append(
                    f"steps: madengine adds up what {nodes} nodes printed, even rates per GPU, so the rate is unknown"
                )
                return
            if nodes > 1 and target != "step_time_seconds":
                reading.warnings.append(
                    f"{target}: madengine adds up what {nodes} nodes printed; if each printed the rate of all GPUs, "
                    f"it is {nodes} times too high"
                )
            if value := fields.positive(row["performance"], factor):
                reading.reported[target] = value
                reading.warnings.append(
                    "steps: the table has no step times, only the mean that the run computed; so no variance is known"
                )
            return
    reading.warnings.append(
        f"steps: the metric of the run is {row['metric'] or 'unnamed'}, which is not a training rate"
    )


def _configure(row: dict[str, str], reading: Reading) -> None:
    config = reading.training_config
    for name, target in (("n_gpus", "num_gpus"), ("nnodes", "num_nodes")):
        if value := fields.whole(row.get(name)):
            config[target] = value
    of_all = (fields.whole(row.get("gpus_per_node")) or 0) * config.get("num_nodes", 1)
    if of_all > config.get("num_gpus", of_all):  # some launchers write the GPUs of one node
        reading.warnings.append(
            f"num_gpus: n_gpus is {config.pop('num_gpus')}, but nnodes x gpus_per_node is {of_all}; give --num-gpus"
        )
    precision = row.get("training_precision", "").lower()
    if precision in PRECISIONS:
        config["precision"] = precision
    reading.model["name"] = model_name(row["model"])
    reading.host = row.get("machine_name") or None
    if device := row.get("gpu_architecture"):
        reading.gpu_info["device_name"] = device
