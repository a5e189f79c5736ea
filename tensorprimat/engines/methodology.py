"""`--methodology`: selection of a published configuration for a run, and its name in the result.

A result names a methodology only if all values are the methodology's: with `--methodology` a contradicting flag is an
error; without it such a flag removes the methodology from the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import alternatives
from tensorprimat.core.result import VENDORS, GpuInfo, Result
from tensorprimat.core.settings import OF_A_METHODOLOGY, flag
from tensorprimat.core.spec import RunSettings
from tensorprimat.engines.registry import VENDOR_ENGINES, Engine
from tensorprimat.facts import catalogue, methodologies
from tensorprimat.facts.methodologies import METHODOLOGY_GPUS, Configuration
from tensorprimat.storage.result_names import DEFAULT_METHODOLOGY


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The values of a run that flags or the methodology set."""

    values: dict[str, Any]
    """Values by field of RunSpec; fields that neither sets are absent. `methodology` is the methodology's name, or None
    if a value is not the methodology's."""
    skipped: str | None = None
    """The better configurations of the methodology that cannot run here, each with its reason; None for none."""
    note: Notice | None = None
    """Note on the methodology's values, or that there are no published ones; None for none."""
    origin: str = "the default"
    """Source of the values that no flag set, for messages."""

    def notices(self, engine: Engine, platform: str, devices: int) -> tuple[Notice, ...]:
        """Return notes on the kernels, the methodology itself, a skipped configuration and another number of GPUs."""
        name = self.values["methodology"]
        own = () if self.note is None else (self.note,)
        if name is None:
            return own
        say, before, after = partial(Notice, field=f"methodology {name}"), list[Notice](), list[Notice]()
        if engine.own_training:
            engines = alternatives(VENDOR_ENGINES[platform])
            before.append(say("methodology_of_vendor", vendor=VENDORS[platform], engines=engines))
        if self.skipped:
            after.append(say("configuration_skipped", why=self.skipped))
        if devices != METHODOLOGY_GPUS:
            batch = self.values["global_batch_size"]
            after.append(say("methodology_of_other_gpus", of=METHODOLOGY_GPUS, gpus=devices, batch=batch))
        return (*before, *own, *after)


def methodology_values(
    settings: RunSettings,
    *,
    model: str,
    preset: str,
    engine: Engine,
    platform: str,
    gpu: GpuInfo,
    obstacle: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
) -> Chosen:
    """Return the flags' values and, for the rest, those of the methodology's best configuration that can run here.

    obstacle: returns why a configuration cannot run here, or None. If no configuration can run, the best one is used,
    and the checks of the spec refuse it later. Raises UsageError for a name that does not exist, has no configuration
    for this GPU, contradicts a flag, or comes with another preset than full.
    """
    name = settings.methodology
    mine = {key: value for key in OF_A_METHODOLOGY if (value := getattr(settings, key)) is not None}
    if name is None and (not engine.from_methodology or preset != "full"):
        return Chosen(values={**mine, "methodology": None})
    precision = mine.get("precision")
    rows = _rows(
        name or DEFAULT_METHODOLOGY, gpu, model=model, platform=platform, precision=precision, engine=engine.name
    )
    if not rows:
        if name is not None:
            raise UsageError(_missing_entry(name, model, gpu, precision))
        lacking = _missing_entry(DEFAULT_METHODOLOGY, model, gpu, precision).removeprefix("--")
        return Chosen(values={**mine, "methodology": None}, note=Notice("settings_unpublished", "", lacking=lacking))
    if preset != "full":
        raise UsageError(f"--methodology {name} is for the full models only; leave it out with --preset {preset}")
    row, skipped = _best(rows, mine, obstacle)
    theirs = _of_row(row)
    clash = next((key for key in mine if mine[key] != theirs[key]), None)
    if name is not None and clash is not None:
        raise UsageError(
            f"{flag(clash)} {mine[clash]}: --methodology {name} sets {theirs[clash]} for {model} here; "
            "leave one of the two out"
        )
    found = {**theirs, **mine, "methodology": None if clash else row.methodology}
    if name is not None:
        origin = f"--methodology {name}"
    elif row.source.startswith(VENDORS[platform]):
        origin = f"{VENDORS[platform]}'s published settings"
    else:
        origin = f"methodology {row.methodology}"
    note = None if clash or row.note is None else _noted(row)
    return Chosen(values=found, skipped="; ".join(dict.fromkeys(skipped)) or None, note=note, origin=origin)


def _noted(row: Configuration) -> Notice:
    return Notice("methodology_note", f"methodology {row.methodology}", note=row.note)


def _best(
    rows: Sequence[Configuration], mine: Mapping[str, Any], obstacle: Callable[[Mapping[str, Any]], str | None]
) -> tuple[Configuration, list[str]]:
    """Return the first configuration that can run here and the reason why each better one cannot, as a phrase.

    If none can run, return the first one without reasons.
    """
    skipped: list[str] = []
    for row in sorted(rows, key=lambda row: row.precision != rows[0].precision):  # the first row's precision first
        because = obstacle({**_of_row(row), **mine})
        if because is None:
            return row, skipped
        skipped.append(f"{row.precision} {because}")
    return rows[0], []


def _of_row(row: Configuration) -> dict[str, Any]:
    return {key: getattr(row, key) for key in OF_A_METHODOLOGY}


def label(result: Result, name: str | None) -> Result:
    """Return a log's result with the methodology's name if nothing in the log contradicts it, else with a notice.

    name: the name that the user states; None changes nothing. Raises UsageError for a name that does not exist.
    """
    if name is None:
        return result
    config, gpu = result.training_config, result.gpu_info
    rows = _rows(name, gpu, model=result.model.name, platform=result.platform, precision=config.precision)
    if not rows:
        lacking = _missing_entry(name, result.model.name, gpu, config.precision)
        notice = Notice("methodology_lacking", "methodology", lacking=lacking)
        return result.changed(warnings=(*result.warnings, notice))
    contradicted, row = min(
        ((methodologies.contradicted_values(config, row), row) for row in rows), key=lambda one: len(one[0])
    )
    if contradicted:
        notice = Notice("methodology_contradicted", "methodology", name=name, values=", ".join(contradicted))
        return result.changed(warnings=(*result.warnings, notice))
    notes = () if row.note is None else (_noted(row),)
    return result.changed(methodology=name, warnings=(*result.warnings, *notes))


def _rows(name: str, gpu: GpuInfo, **facts: str | None) -> list[Configuration]:
    """Return the configurations of a methodology for a GPU. facts: other arguments of `find_configurations`."""
    known = catalogue.find_gpu_of(gpu)
    return methodologies.find_configurations(name, gpu=known.name if known else None, **facts)  # type: ignore[arg-type]


def _missing_entry(name: str, model: str | None, gpu: GpuInfo, precision: str | None) -> str:
    rows = [row for row in methodologies.methodologies() if (row.methodology, row.model) == (name, model)]
    known = dict.fromkeys(gpu for row in rows for gpu in row.gpus or (f"every {VENDORS[row.platform]} GPU",))
    of_precision = f" in {precision}" if precision else ""
    return (
        f"--methodology {name} has no entry for {model or 'this model'}{of_precision} on "
        f"{gpu.device_name or 'an unknown device'}; it knows {', '.join(known) or 'other models'}"
    )
