"""The work of `history`: results of files, folders and the history below each folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tensorprimat.analysis.sides import paired_model
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.models import names
from tensorprimat.storage.store import HISTORY, Loaded, load_all


def results_of(paths: Sequence[Path], *, model: str | None) -> tuple[list[Loaded], list[str]]:
    """Return the results of paths and of the history below each folder, and a sentence for each file left out.

    model: returns only results of this model. A folder needs no result of its own if its history contains some. Raises
    InputError where no path contains a result, UsageError where none is of the model.
    """
    found: list[Loaded] = []
    left_out: list[str] = []
    refusals: list[InputError] = []
    histories = [path / HISTORY for path in paths if os.path.isdir(path / HISTORY)]
    for path in (*paths, *histories):
        try:
            loaded, problems = load_all([path])
        except InputError as error:
            refusals.append(error)
            if path / HISTORY not in histories:
                left_out.append(f"left out: {error}")
            continue
        found += loaded
        left_out += problems
    if refusals and not found:
        raise refusals[0]
    if model is not None:
        found = [one for one in found if paired_model(one.result) == names.key(model)]
        if not found:
            raise UsageError(f"--model {model}: no result of that model here")
    return found, left_out
