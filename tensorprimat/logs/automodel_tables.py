"""NeMo Automodel's training.jsonl and Meta Lingua's metrics.jsonl; their folders show validations and checkpoints.

The time of a step (its tokens over its rate) begins at the end of the step before. So the first step after a validation
or the saving of a checkpoint includes that work. training.jsonl does not mention it, but the folder of training.jsonl
does: validation.jsonl (validation_NAME.jsonl for each of several sets) has the step and moment of each validation, and
a folder epoch_N_step_N exists for each checkpoint that was kept (recipes/llm/train_ft.py and base_recipe.py, August
2026). Lingua's rate includes the saving of a checkpoint, too; the folder of metrics.jsonl has checkpoints/0000000500
(apps/main/train.py and lingua/checkpoint.py, 2024).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from tensorprimat.core.steady import find_outliers
from tensorprimat.core.steps import INTERRUPTIONS, Steps
from tensorprimat.logs import files
from tensorprimat.logs.clocks import moment_in
from tensorprimat.logs.fields import json_in
from tensorprimat.logs.text import Log

MARKS = {"tps", "tps_per_gpu", "num_label_tokens"}
"""Names that only its rows have together."""
_MOST_ENTRIES = 10_000  # of the folder
LONGEST_ROW = 2**14  # characters; a row of a validation has a few hundred
UNSEEN = (
    "steps: NeMo Automodel counts a validation and the saving of a checkpoint to the step after it; this table states "
    "neither, and its folder has no validation.jsonl and no checkpoint; read training.jsonl in the folder where the "
    "training wrote it"
)

_CHECKPOINT = re.compile(r"epoch_\d{1,9}_step_(?P<step>\d{1,15})")
_LINGUAS = re.compile(r"\d{10}")
_VALIDATION = re.compile(r"validation(?:_.{1,100})?\.jsonl")
_EVALUATED, _SAVED = map(INTERRUPTIONS.index, ("validation", "checkpoint"))


def with_interruptions(
    log: Log, steps: Steps, moments: np.ndarray, evaluations: Iterable[int]
) -> tuple[Steps, list[str]]:
    """Return the rows with the first one after each validation and checkpoint marked; a warning if some rows are slow
    and neither the table nor its folder shows a validation or checkpoint.

    moments: when each row was logged, in seconds since 1970, (rows,); NaN where unknown. They tell a validation of one
    attempt from that of another, because a training that resumes appends to its files. evaluations: steps at which the
    table itself contains a validation, as tables of W&B do.
    """
    index, interrupted = steps.column("index"), steps.column("interrupted_by").copy()
    is_known = False
    for step in evaluations:
        is_known = True
        interrupted[_after_step(index, step)] = _EVALUATED
    for name in [] if log.called or log.is_folder or log.is_binary else _names(log.path.parent):
        if match := _CHECKPOINT.fullmatch(name):
            is_known = True
            interrupted[_after_step(index, int(match["step"]))] = _SAVED
        elif _VALIDATION.fullmatch(name):
            is_known = True
            for step, moment in _validations(log.path.parent / name):
                rows = _after_step(index, step)
                if moment is not None and np.isfinite(moments).all():
                    rows = np.intersect1d(rows, np.flatnonzero(moments > moment)[:1])
                interrupted[rows] = _EVALUATED
    steps = steps.replace(interrupted_by=interrupted)
    return steps, [] if is_known or not len(find_outliers(steps.column("seconds"))) else [UNSEEN]


def with_linguas_checkpoints(log: Log, steps: Steps) -> Steps:
    """Return the rows with the first one after each checkpoint of Lingua marked."""
    index, interrupted = steps.column("index"), steps.column("interrupted_by").copy()
    for name in [] if log.called or log.is_folder or log.is_binary else _names(log.path.parent / "checkpoints"):
        if _LINGUAS.fullmatch(name):
            interrupted[_after_step(index, int(name))] = _SAVED
    return steps.replace(interrupted_by=interrupted) if interrupted.any() else steps


def _after_step(index: np.ndarray, step: int) -> np.ndarray:
    """Return the rows that are the first after a step, which may have no row; a resumed training may have several."""
    before = np.concatenate([index[:1] - 1, index[:-1]])
    return np.flatnonzero((before <= step) & (step < index))


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, at most _MOST_ENTRIES; none if it cannot be read."""
    try:
        return sorted(path.name for path in islice(folder.iterdir(), _MOST_ENTRIES))
    except OSError:
        return []


def _validations(path: Path) -> Iterator[tuple[int, float | None]]:
    """Yield (step, moment in seconds since 1970 or None) of each validation in a file."""
    for block in files.blocks(path):
        for text in block.decode("utf-8", "replace").splitlines():
            row = json_in(text) if len(text) <= LONGEST_ROW else None
            if isinstance(row, dict) and isinstance(step := row.get("step"), int):
                moment = moment_in(str(row.get("timestamp")))
                yield step, None if moment is None else moment.seconds
