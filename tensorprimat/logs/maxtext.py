"""MaxText and MaxDiffusion: `completed step: 3, seconds: 5.402, TFLOP/s/device: 141.5, Tokens/s/device: 9098.2, …`.

Meaning of `seconds` (MaxText, trainers/pre_train/train.py and common/metric_logger.py; MaxDiffusion likewise): the
time between the dispatch of a step and the dispatch of the one before it. JAX dispatches and returns; the loop only
waits when it prints, and it prints one step late. So the time on row n holds the wait for step n-2, and is a step time
only while two steps are in flight. It is not a step time
- on the first row, which contains the compilation, or since 0.2, which compiles before the loop, a dispatch alone;
- on the second row: nothing was in flight that the loop could wait for. The row states some 0.3 s where a step takes
  5.7 s, and every rate on it is computed from that;
- two rows after an evaluation or a checkpoint, for the same reason: both wait until the device is idle. The row right
  after holds the evaluation or the saving itself. The time of both together is that of two steps and the other work, so
  the second one gets their mean and covers two steps, which are not measured. If the log ends before the second one,
  the first has no time. Where every row of a log has such work in it, because it follows after each step or two, no row
  has a time: the log does not say how long the work took;
- on the third row, if the second states more than OVERLAP of a step and the third is short: the device worked during
  the second, so the third lacks the time that the second took longer than a usual dispatch.

The rule does not look at how fast a row seems: a second row has no time here, whatever it says. Its loss stays. Only a
first row has a time if it is long enough for a compilation.

`total_weights` are the tokens of the step that are not padding, over all devices. Batch ramp-up prints no rates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Platform
from tensorprimat.core.settings import PRECISION_OF_DTYPE
from tensorprimat.core.steady import median
from tensorprimat.core.steps import INTERRUPTIONS, FloatArray, Steps, finite
from tensorprimat.logs import fields
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

TOLD_PADDING = 0.01  # of the tokens of a step; less is not worth a warning
MAXTEXT_STEP_TIME = "perf/step_time_seconds"
"""Name of `seconds` in TensorBoard and Weights & Biases."""
OVERLAP = 0.05  # of the median step; a usual dispatch takes less
DISPATCH = 0.1  # of the median step; a first row that is shorter contains no compilation
_RAMP_UP = "[Rampup Batch Size Phase]"
_DRAINED = re.compile(
    r"(?P<validation>Starting eval after train step |eval metrics after step: |[Aa]verage loss after step=)"
    r"(?P<eval_step>\d{1,15})"
    r"|(?:Saved a checkpoint at|Started an asynchronous checkpoint save for) step (?P<save_step>\d{1,15})"
)
_SETTING = re.compile(r"\bConfig param (?P<name>\w+): (?P<value>.{1,200})")
_MEMBER = re.compile(r"^[A-Z][A-Za-z]{1,40}\.([A-Z][A-Z\d_]{0,40})$")
"""A member of an enumeration, as MaxText 0.2 prints a setting: `QuantizationType.NONE`."""
_SOFTWARE = re.compile(r"System Information: (Jax|Jaxlib) Version: (\S+)")
_PLATFORM = re.compile(
    r"^(?P<name>cuda|rocm) (?P<version>\d{4,6})$|^(?P<tpu>TFRT (?P<device>TPU .{1,40}))$"
    r"|\bon (?P<memory>CUDA|Cuda|ROCM|Rocm)\w*[_(]"
)
TEXT_SETTINGS = {
    "attention": "attention_backend",
    "remat_policy": "recompute",
    "dataset_type": "data",
}
"""`Config param` → field of TrainingConfig."""
_AXES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
}
"""Axis of the mesh, whose size is that of `ici_…_parallelism` in a slice times `dcn_…_parallelism` among slices."""
_PLATFORMS: dict[str, Platform] = {"cuda": "nvd", "rocm": "amd"}


def complete_maxtext(log: Log, reading: Reading) -> None:
    """Leave out times that are none of a step, and add what MaxText's lines state of the run."""
    settings, drained = dict[str, str](), dict[int, str]()
    for text in reading.kept:
        _notice(text, reading, settings, drained)
    steps, config = reading.steps, reading.training_config
    reading.steps, left_out = without_waits(steps, drained)
    reading.warnings += left_out
    if settings.get("model_name"):
        reading.model["name"] = settings["model_name"]
    _configure(config, settings)
    first = int(steps.column("line")[0]) if len(steps) else 0
    if any(origin.primus for _, origin, _ in takewhile(lambda line: line[0] <= first, log.lines_by_rank())):
        reading.platform, reading.source = reading.platform or "amd", "Primus (MaxText backend)"
    tokens = finite(steps.column("tokens"))
    batch, length = (config.get(name) for name in ("global_batch_size", "sequence_length"))
    full = batch * length if batch and length else tokens.max(initial=0.0)
    if len(tokens) and tokens.mean() < (1 - TOLD_PADDING) * full:
        reading.warnings.append(Notice("rate_without_padding", "tokens_per_second"))
    if ramping := sum(_RAMP_UP in text for text in reading.kept):
        reading.warnings.append(Notice("rows_of_ramp_up", "steps", ramping=ramping, rows=len(steps)))


def without_waits(steps: Steps, drained: Mapping[int, str]) -> tuple[Steps, list[Notice]]:
    """Return the rows, without times and rates where nothing was in flight, and a warning that says how many.

    drained: step → evaluation or checkpoint after it, which waits until the device is idle. See the module's docstring.
    """
    if not len(steps):
        return steps, []
    index, segment = steps.column("index"), steps.column("segment")
    begins = np.diff(segment, prepend=segment[0] - 1) != 0
    second = np.concatenate([[False], begins[:-1]]) & ~begins
    nothing = second | np.isin(index - 2, list(drained))
    seconds = steps.column("seconds")
    later = seconds[~(begins | nothing) & np.isfinite(seconds)]
    short = np.zeros(len(steps), np.bool_)
    if len(later):
        nothing |= begins & (seconds < DISPATCH * median(later))
        before = second & (seconds > OVERLAP * median(later))
        third = np.concatenate([[False], before[:-1]]) & (np.diff(index, prepend=index[0]) == 1) & ~(nothing | begins)
        short = third & (seconds < (1 - OVERLAP / 2) * median(later))
    columns = {name: np.where(nothing, np.nan, steps.column(name)) for name in _TIMED if steps.has(name)}
    if drained:
        waited = (INTERRUPTIONS.index(drained.get(number - 1, "")) for number in index.tolist())
        interrupted = np.fromiter(waited, np.int8, len(steps))
        columns |= _joined(seconds, nothing, interrupted, columns.get("seconds", seconds))
        alone = np.isfinite(columns["seconds"]) & ~begins & (columns["interrupted_by"] == 0)
        if columns["interrupted_by"].any() and not alone.any():
            columns |= {name: np.where(begins, steps.column(name), np.nan) for name in _TIMED if steps.has(name)}
            columns |= {name: steps.column(name) for name in ("covers", "interrupted_by")}
            return steps.replace(**columns), [Notice("steps_never_alone", "steps")]
        single = (columns["interrupted_by"] != 0) & (columns["covers"] == 1) & ~nothing  # the log ends after it
        columns |= {name: np.where(single, np.nan, columns[name]) for name in columns.keys() & set(_TIMED)}
        nothing |= single
    for name in columns.keys() & set(_TIMED):
        columns[name] = np.where(short, np.nan, columns[name])
    untimed, shortened = (int((rows & np.isfinite(seconds)).sum()) for rows in (nothing, short))
    warnings = []
    if untimed:
        warnings.append(Notice("times_without_wait", "steps", untimed=untimed, rows=len(steps)))
    if shortened:
        warnings.append(Notice("third_rows_left_out", "steps", rows=shortened, share=OVERLAP))
    return steps.replace(**columns), warnings


def _joined(
    printed: FloatArray, nothing: np.ndarray, interrupted: np.ndarray, seconds: FloatArray
) -> dict[str, np.ndarray]:
    """Return columns in which a row with a wait and the rows after it that waited for nothing are joined: the last one
    covers all their steps and has their mean time.

    The device computes these steps during the wait, so only the sum of the times is that of the steps. printed:
    seconds as they are in the log; nothing: mask of the rows that waited for nothing; interrupted: positions in
    INTERRUPTIONS; each (rows,).
    """
    seconds, interrupted, covers = seconds.copy(), interrupted.copy(), np.ones(len(printed), np.int64)
    first = None
    for row in range(len(printed)):
        if not nothing[row]:
            first = row if interrupted[row] else None
        elif first is not None:
            seconds[row] = printed[first : row + 1].mean()
            covers[row], covers[row - 1] = row + 1 - first, 0
            seconds[row - 1], interrupted[row] = np.nan, interrupted[first]
    return {"seconds": seconds, "interrupted_by": interrupted, "covers": covers}


_TIMED = (
    *("seconds", "reported_tokens_per_second_per_gpu", "reported_samples_per_second_per_gpu"),
    "reported_tflops_per_gpu",
)


def _notice(text: str, reading: Reading, settings: dict[str, str], drained: dict[int, str]) -> None:
    """Keep the facts that a line between the rows states. drained: step after which the loop waited for the device."""
    if match := _SETTING.search(text):
        settings[match["name"]] = _MEMBER.sub(lambda member: member[1].lower(), match["value"].strip())
    elif match := _DRAINED.search(text):
        step = match["eval_step"] or match["save_step"]
        drained[int(step)] = "validation" if match["validation"] else "checkpoint"
    elif match := _SOFTWARE.search(text):
        reading.training_config.setdefault("versions", {})[match[1].lower()] = match[2]
    elif (match := _PLATFORM.search(text)) and match["tpu"]:
        reading.gpu_info["device_name"] = match["device"]
    elif match:
        reading.platform = _PLATFORMS[(match["name"] or match["memory"]).lower()]
        if match["version"]:
            reading.gpu_info["software_version"] = _release(match["version"])


def _release(number: str) -> str:
    """Return a release of CUDA or ROCm that XLA prints as one number.

    >>> _release("12080"), _release("60403")
    ('12.8', '6.4')
    """
    if len(number) == 5 and number[0] != "1":  # ROCm: one digit for the major, two each for minor and patch
        return f"{int(number[0])}.{int(number[1:3])}"
    return f"{int(number[:-3])}.{int(number[-3:-1])}"


def _configure(config: dict[str, Any], settings: Mapping[str, str]) -> None:
    config |= {target: settings[name] for name, target in TEXT_SETTINGS.items() if name in settings}
    for name, target in _AXES.items():
        sizes = [settings.get(f"{network}_{name}_parallelism", "") for network in ("ici", "dcn")]
        if "-1" not in sizes and any(sizes):  # -1 is whatever is left
            config[target] = prod(fields.whole(size) or 1 for size in sizes)
    replicas = config.get("num_gpus", 0) * config.get("gradient_accumulation_steps", 1)
    if batch := fields.whole(str(fields.positive(settings.get("per_device_batch_size"), replicas))):
        config.setdefault("global_batch_size", batch)
    quantization = settings.get("quantization", "").strip("'\" ")
    if "fp8" in quantization:
        config |= {"precision": "fp8", "fp8_recipe": quantization}
    elif quantization in ("", "None", "none") and (dtype := PRECISION_OF_DTYPE.get(settings.get("dtype", ""))):
        config["precision"] = dtype  # that of int8 and other quantizations has no name here
