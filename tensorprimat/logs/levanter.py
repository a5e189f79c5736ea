"""Metrics of Levanter, as it hands them to its JSON logger, TensorBoard and Weights & Biases.

`throughput/duration`, by which its rates divide, is the time of a training step alone. The wait for its batch
(`throughput/loading_time`) and the time of logging, evaluation and checkpoints after it (`throughput/hook_time`) are
metrics of their own (levanter/trainer.py, 0.2.227).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from tensorprimat.core.quantities import percent
from tensorprimat.core.quantities import seconds as duration
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps
from tensorprimat.logs import headers, work
from tensorprimat.logs.fields import whole
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_columns import MetricRow

RECORD = '{"tracker": "json_logger"'
"""Opening of a record of its JSON logger."""
LEVANTER_METRICS = frozenset(("throughput/loading_time", "throughput/hook_time"))
"""Metrics that Levanter alone logs."""
FACTS = ("num_devices", "parameter_count", "throughput/device_kind")
"""Facts in its summary."""
WORTH_A_WARNING = 0.01  # of a step's time
WHOLE_WITHIN = 1e-3  # of a number of sequences or tokens: TensorBoard keeps 24 bits of each rate


def rows_noting_texts(
    table: Iterable[tuple[int | None, MetricRow]], texts: dict[str, str]
) -> Iterator[tuple[int | None, MetricRow]]:
    """Yield the rows of a table, and add the settings and facts that the JSON logger wrote among them to texts."""
    for line, row in table:
        for section in (row.get("hparams"), row.get("metrics")):
            if isinstance(section, dict):
                topology = section.get("hardware_topology")
                devices = topology.get("devices") if isinstance(topology, dict) else None
                number = [("num_devices", len(devices))] if isinstance(devices, list) and devices else []
                headers.add_texts((*section.items(), *number), texts)
        yield line, row


def whole_steps(steps: Steps, hooks: FloatArray) -> tuple[Steps, list[str]]:
    """Return the rows with samples, tokens, and the wait for data in their times, and a warning about long hooks.

    hooks: seconds of logging, evaluation and checkpoints after each step, (rows,), NaN where unknown.
    """
    computing, rate = steps.column("seconds"), steps.column("reported_samples_per_second")
    samples = _whole(rate * computing)
    with np.errstate(invalid="ignore", divide="ignore"):
        tokens = samples * _whole(steps.column("reported_tokens_per_second") / rate)
    tokens = np.where(np.isfinite(tokens), tokens, steps.column("tokens"))
    seconds = computing + np.nan_to_num(steps.column("data_wait_seconds"))
    steps = steps.replace(seconds=seconds, samples=samples, tokens=tokens)
    known = np.isfinite(hooks) & np.isfinite(seconds)
    if not known.any() or (usual := median(hooks[known])) < WORTH_A_WARNING * (step := median(seconds[known])):
        return steps, []
    return steps, [
        "step_time: Levanter's hooks after each step (logging, evaluation, checkpoints) are not part of it; their "
        f"median is {duration(usual)}, {percent(usual / step)} of the step's"
    ]


def _whole(amounts: FloatArray) -> FloatArray:
    """Return the amounts as whole numbers; NaN for one that is none."""
    rounded = np.rint(amounts)
    with np.errstate(invalid="ignore"):
        is_whole = (rounded > 0) & (np.abs(amounts - rounded) <= WHOLE_WITHIN * rounded)
    return np.where(is_whole, rounded, np.nan)


def configure(reading: Reading, texts: Mapping[str, str]) -> None:
    """Take the batch and the length from the rows, and the devices from what the trackers wrote."""
    config = reading.training_config
    by_rows = work.batch_and_length(reading.steps.column("samples"), reading.steps.column("tokens"), config)
    config |= by_rows
    reading.by_rows |= by_rows.keys()
    if gpus := whole(texts.get("num_devices")) or texts.get("hardware_topology/devices", "").count("'device_kind'"):
        config.setdefault("num_gpus", gpus)
    if texts.get("throughput/device_kind") == "cpu":
        reading.platform = "cpu"
