"""Results of others as baselines: the published tables and the MLPerf library in one list.

`compare --published`, `gate --against` and `tprimat mlperf list` take their rows from here. They are never pooled with
measurements. `compare` shows each next to a measurement, with its verdict level, and bases no verdict on it; `gate`
uses the one that the user names as its baseline. `run --reproduce` trains what one states.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tensorprimat.analysis.fairness import judge
from tensorprimat.analysis.levels import LEVELS
from tensorprimat.analysis.records import Against, Comparison, PublishedComparison, Side
from tensorprimat.core import settings
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.quantities import alternatives, percent
from tensorprimat.core.quantities import rate as numeral
from tensorprimat.core.result import GpuInfo, Model, ModelShape, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.spec import MODELS
from tensorprimat.facts import catalogue, mlperf_rules
from tensorprimat.facts.catalogue import Published, find_gpu, find_gpu_of
from tensorprimat.mlperf import library as mlperf_library
from tensorprimat.mlperf import result as mlperf_result
from tensorprimat.mlperf.library import Entry, EntryChoice, Library, bundled
from tensorprimat.mlperf.score import ComputedMfu
from tensorprimat.models import flops, names, presets, shapes

_ENGINE = "published"
MLPERF, TABLE = "mlperf", "published"
"""Prefixes of a baseline's name: an entry of the MLPerf library, or a row of a published table."""
MOST_SHOWN = 12  # rows of a table that a person reads
NEAREST = 3  # names that an error offers


LARGEST_DISAGREEMENT = 0.02  # of TFLOP/s computed here and those of the source
OF_VENDORS = ("megatron", "full_attention")
"""Conventions by which a source that names none may have counted: those of NVIDIA's tables."""
_ENGINES = {"Megatron-Bridge": "bridge", "NeMo": "nemo", "Primus": "primus"}
"""Framework of a published table, without its version → the engine that runs it."""
_OWN = "torch"
_PER_NODE = {"GB200": 4, "GB300": 4}
_MOST_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A published result that measurements can be compared with."""

    name: str
    """`mlperf:ROUND/SUBMITTER/SYSTEM/BENCHMARK` or `published:FRAMEWORK/MODEL/GPUS/…`."""
    row: Published | None
    """None for an entry without a score or a rate."""
    entry: Entry | None = None
    """The MLPerf entry with all its runs, if the baseline is one."""

    @property
    def mfu(self) -> ComputedMfu:
        """Return the MFU by the default convention and the dense peak at the row's precision, or why there is none."""
        if self.row is None:
            return ComputedMfu(because="the entry has no rate")
        if self.entry is not None:
            return ComputedMfu(value=self.row.mfu, because=self.row.mfu_because)
        return _mfu_of_row(self.row)


def _mfu_of_row(row: Published) -> ComputedMfu:
    """Compute the MFU of a row of a table.

    A source that states TFLOP/s too confirms shape, sequence length and rate; where they disagree there is no MFU.
    """
    gpu = find_gpu(row.gpu) if row.gpu else None
    peak = gpu.peak(row.precision) if gpu and row.precision else None
    rate, result = row.tokens_per_second_per_gpu, as_result(row)
    needed = {"token rate": rate, "precision": row.precision, "sequence length": row.sequence_length}
    missing = [name for name, value in needed.items() if not value]
    if missing:
        return ComputedMfu(because=f"the source states no {' and no '.join(missing)}")
    if peak is None or not peak.value:
        return ComputedMfu(because=f"no {(row.precision or '').upper()} peak of {row.gpu or 'its GPU'} is known")
    if result.model.shape is None:
        return ComputedMfu(because=f"the dimensions of {row.model} are not known")
    work = flops.charged_per_token(result)
    if not rate or work is None:
        return ComputedMfu(because="the FLOPs of its tokens are not known (some layers are frozen)")
    if (stated := row.tflops_per_gpu) is not None:
        conventions = OF_VENDORS if row.flops_convention is None else (row.flops_convention,)
        ratios = [rate * (flops.charged_per_token(result, one) or 0) / (stated * 1e12) for one in conventions]
        ratio = min(ratios, key=lambda one: abs(one - 1))
        if abs(ratio - 1) > LARGEST_DISAGREEMENT:
            computed = f"{numeral(ratio * stated)} TFLOP/s computed from its token rate"
            apart = percent(abs(ratio - 1))
            return ComputedMfu(
                because=f"{computed} differ by {apart} from the {numeral(stated)} TFLOP/s that the source states"
            )
    return ComputedMfu(
        value=rate * work / (peak.value * 1e12),
        terms=f"{numeral(rate)} tokens/s/GPU × {numeral(work / 1e9)} GFLOP per token ({flops.DEFAULT_CONVENTION}) / "
        f"{numeral(peak.value)} TFLOP/s ({peak.source})",
    )


def baselines() -> tuple[Baseline, ...]:
    """Return every result of others: published tables first, then the package's MLPerf library."""
    return (*_tables(), *_of_package())


def choose_baselines(library: Library, choice: EntryChoice, parts: Sequence[str] = ()) -> tuple[Baseline, ...]:
    """Return the baselines that meet every condition and whose name contains one of the parts, if any are given.

    A published table has no round and no submitter, so a condition on these leaves only MLPerf entries. Raises
    UsageError where nothing is left.
    """
    tables = list(_tables()) if choice.round is None and choice.submitter is None else []
    every = {one.row.gpu for one in tables if one.row is not None}
    gpus = mlperf_library.matching_gpus(choice.gpu, every) if choice.gpu else every
    model = None if choice.benchmark is None else names.key(choice.benchmark)
    tables = [
        one
        for one in tables
        if (row := one.row) is not None
        and row.gpu in gpus
        and model in (None, row.model)
        and choice.num_gpus in (None, row.num_gpus)
    ]
    try:
        entries = mlperf_library.choose_entries(library, choice)
    except UsageError:
        if not tables:
            raise
        entries = ()
    every_name = (*tables, *_of_library(Library(entries=entries)))
    if not parts:
        return every_name
    found = tuple(one for one in every_name if any(part.casefold() in one.name.casefold() for part in parts))
    if not found:
        raise _unknown(alternatives(parts), parts[0].casefold(), every_name)
    return found


def _unknown(stated: str, part: str, every: Sequence[Baseline]) -> UsageError:
    """Return the error for a name that no baseline has, with the nearest names."""
    of_tail = {one.name.partition(":")[2].casefold(): one for one in every}
    near = difflib.get_close_matches(part.partition(":")[2] or part, of_tail, n=NEAREST, cutoff=0)
    names_of_near = ", ".join(of_tail[one].name for one in near)
    return UsageError(f"{stated}: no published result has this in its name; the nearest are {names_of_near}")


def find_baseline(name: str) -> Baseline:
    """Return the baseline of a name, with or without its kind, or of a part that only one name has.

    Raises UsageError with some of the names that have the part, or with the nearest ones.
    """
    kind, _, tail = name.casefold().partition(":")
    has_kind = kind in (MLPERF, TABLE)
    every = [one for one in baselines() if not has_kind or one.name.startswith(f"{kind}:")]
    part = tail if has_kind else name.casefold()
    tails = [one.name.partition(":")[2].casefold() for one in every]
    found = [one for one, of in zip(every, tails, strict=True) if of == part]
    found = found or [one for one, of in zip(every, tails, strict=True) if part in of]
    if not found:
        raise _unknown(name, part, every)
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:NEAREST]) + (" …" if len(found) > NEAREST else "")
        raise UsageError(f"{name}: {len(found)} published results have this in their names: {names}")
    return found[0]


def result_of_baseline(baseline: Baseline) -> Result:
    """Return a baseline as a result. Raises InputError for an entry whose logs give no rate."""
    if baseline.entry is not None:
        return mlperf_result.result_of_entry(baseline.entry)
    if baseline.row is None or baseline.row.tokens_per_second_per_gpu is None:
        raise InputError(f"{baseline.name}: its source states no token rate")
    return as_result(baseline.row)


def with_published(comparison: Comparison) -> Comparison:
    """Return a comparison with the MOST_SHOWN published rows of each model that are nearest to its sides.

    `published_left_out` says how many rows of each model are left out.
    """
    rows: list[PublishedComparison] = []
    left_out: dict[str, int] = {}
    for model in comparison.models:
        found = near_published([side for side in comparison.sides if side.model == model])
        rows += found[:MOST_SHOWN]
        if len(found) > MOST_SHOWN:
            left_out[model] = len(found) - MOST_SHOWN
    return replace(comparison, published=tuple(rows), published_left_out=left_out)


def near_published(sides: Sequence[Side]) -> tuple[PublishedComparison, ...]:
    """Return every published result of a model that a side trained, with each of its sides against it, nearest first.

    A ratio (measured here over published) exists only where fairness allows it. It has no interval, because the sources
    do not state how much their runs varied.
    """
    found = []
    for row in (one.row for one in baselines()):
        if row is None or row.tokens_per_second_per_gpu is None:
            continue
        own = [side for side in sides if side.model == row.model]
        if own:
            against = tuple(_against(side, row) for side in own)
            found.append((_distance(row, own, against), PublishedComparison(published=row, against=against)))
    return tuple(one for _, one in sorted(found, key=lambda item: item[0]))


def _distance(row: Published, sides: Sequence[Side], against: Sequence[Against]) -> tuple[object, ...]:
    """Return a sort key: comparable, same GPU, same number of GPUs, level, sequence, distance of the number of GPUs and
    of the batch, precision; then newest and fastest first."""
    results = [side.result for side in sides]
    known = [find_gpu_of(result.gpu_info) for result in results]
    configs = [result.training_config for result in results]
    return (
        all(one.ratio is None for one in against),
        row.gpu not in {gpu.name for gpu in known if gpu},
        row.num_gpus is None or row.num_gpus not in {config.num_gpus for config in configs},
        min(list(LEVELS).index(one.fairness.verdict) for one in against),
        row.sequence_length is None or row.sequence_length not in {config.sequence_length for config in configs},
        _factor(row.num_gpus, [config.num_gpus for config in configs]),
        _factor(row.global_batch_size, [config.global_batch_size for config in configs]),
        row.precision not in {config.precision for config in configs},
        tuple(-int(part) for part in re.findall(r"\d+", row.date or "0")),
        -(row.tokens_per_second_per_gpu or 0.0),
    )


def _factor(published: int | None, measured: Sequence[int | None]) -> float:
    """Return the smallest factor, as a positive logarithm, between a published number and the measured ones."""
    known = [number for number in measured if number]
    return min((abs(math.log(published / number)) for number in known), default=math.inf) if published else math.inf


def _against(side: Side, row: Published) -> Against:
    fairness = judge(as_result(row), side.result)
    measured, theirs = side.tokens_per_second_per_gpu.value, row.tokens_per_second_per_gpu
    comparable = fairness.metric == "tokens_per_second_per_gpu"
    ratio = measured / theirs if comparable and measured is not None and theirs else None
    return Against(label=side.label, fairness=fairness, ratio=ratio)


def as_result(row: Published) -> Result:
    """Return a published result as a `Result`, so that the same fairness table reads both."""
    shape = _shape(row.model)
    config = {field: getattr(row, field) for field in TrainingConfig.model_fields}
    return Result(
        platform=None,
        gpu_info=GpuInfo(device_name=row.gpu),
        model=Model(name=row.model, preset="full" if shape else None, shape=shape),
        training_config=TrainingConfig(**config),
        performance_metrics=PerformanceMetrics(tokens_per_second_per_gpu=row.tokens_per_second_per_gpu),
        provenance=Provenance(engine=_ENGINE, timing="reported"),
    )


def _shape(model: str) -> ModelShape | None:
    try:
        return presets.find_preset(model).shape
    except UsageError:  # a model that this project does not train
        rules = (one for one in mlperf_rules.benchmarks() if names.key(one.name) == model and one.shape)
        found = next((shapes.parse_shape(one.shape).shape for one in rules if one.shape), None)
        named = shapes.of_name(model) if found is None else None
        return named.shape if named else found


@cache
def _of_package() -> tuple[Baseline, ...]:
    return _of_library(bundled())


def _of_library(library: Library) -> tuple[Baseline, ...]:
    rows = ((entry, mlperf_result.row_of_entry(entry)) for entry in library.entries)
    return tuple(
        Baseline(name=f"{MLPERF}:{entry.name}", row=row if row and row.tokens_per_second_per_gpu else None, entry=entry)
        for entry, row in rows
    )


@cache
def _tables() -> tuple[Baseline, ...]:
    return tuple(Baseline(name=f"{TABLE}:{_name_of(row)}", row=row) for row in catalogue.published_tables())


def _name_of(row: Published) -> str:
    """Return a name for a row, from the properties that distinguish it."""
    parts = (
        row.framework,
        row.model,
        f"{row.num_gpus}x{row.gpu or 'unknown'}",
        row.precision,
        f"{row.global_batch_size or '?'}x{row.sequence_length or '?'}",
        row.peft if row.peft != "none" else None,
        (row.note or "").partition(";")[0] or None,
    )
    return "/".join(re.sub(r"[\s,/:]+", "_", part) for part in parts if part)


def stated_row(baseline: Baseline) -> Published:
    """Return the statements of a baseline's source, also without a rate. Raises InputError where there are none."""
    row = baseline.row or (mlperf_result.row_of_entry(baseline.entry) if baseline.entry else None)
    if row is None:
        raise InputError(f"{baseline.name}: its source states no configuration")
    return row


def options_of(name: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a published result by parameter, with its engine; those that the user typed are the user's.

    typed: the options that the user set. Raises UsageError for a result that no engine or model here can run, unless
    the user names another one.
    """
    row = stated_row(find_baseline(name))
    framework = (row.framework or "").partition(" ")[0]
    engine = typed.get("engine") or _ENGINES.get(framework)
    if engine is None:
        raise UsageError(
            f"--reproduce {name}: no engine here runs {row.framework or 'its framework'}; "
            f"--engine {_OWN} runs its settings with the torch engine"
        )
    if row.model not in MODELS and "model" not in typed:
        raise UsageError(f"--reproduce {name}: {row.model} is not among {', '.join(MODELS)}; give --model CONFIG.json")
    found = {"engine": engine, "model": row.model}
    for one in settings.WITH_OPTION:
        value = getattr(row, one.name, None)
        if one.option is not None and value is not None and (engine == _OWN or not one.option.own_training):
            found[one.option.parameter] = value
    per_node = _PER_NODE.get(row.gpu or "", _MOST_PER_NODE)
    if typed.get("dry_run") and not typed.get("executor"):  # plans for the published GPUs, on whatever machine
        if row.gpu and find_gpu(row.gpu):
            found["gpu"] = row.gpu.replace(" ", "-")
    elif row.num_gpus > per_node:
        found |= {"nodes": row.num_gpus // per_node, "num_gpus": per_node}
    return found
