"""Megatron-LM and its descendants: Primus, Megatron-Bridge, Megatron-DeepSpeed, forks; from 2021 to now.

One line per log interval, e.g. ` iteration 5/100 | … elapsed time per iteration (ms): 15800.0 | …`. Where Primus prints
two values (`2701.3/2712.7`, `615.5 (avg 611.0)`) the first is the interval's own, the second a running mean, which is
never read. `rows` reads the lines, `order` finds restarts and interruptions, `config` reads all other lines.

Conversion of iteration lines of `name=value` pairs, which the Megatron-DeepSpeed of Argonne's computing facility
prints since 2024 (`training_log.py`), to the spelling of all other descendants of Megatron-LM:
` iteration=  5/ 100 | … elapsed_time_per_iteration_ms=3415.3 | …` → ` iteration 5/ 100 | … elapsed time per iteration
(ms): 3415.3 | …`. Lines keep their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorprimat.audit.evidence import Evidence
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import count
from tensorprimat.core.steps import FLOAT_COLUMNS, FloatArray, Steps
from tensorprimat.core.terms import describe_lines
from tensorprimat.core.units import GB
from tensorprimat.logs import changes, files, parallel
from tensorprimat.logs.fields import LARGEST_STEP, iso
from tensorprimat.logs.format import Reading
from tensorprimat.logs.megatron import bridge as megatron_bridge
from tensorprimat.logs.megatron import order
from tensorprimat.logs.megatron.config import Facts
from tensorprimat.logs.megatron.layout import NEEDLE
from tensorprimat.logs.megatron.rows import Excerpt, RowTable
from tensorprimat.logs.text import Log, without_controls

KEYED_NEEDLE = "elapsed_time_per_iteration_ms="
"""Text in every such line."""
ROW = re.compile(rf"\biteration=\s{{0,20}}\d{{1,20}}/\s{{0,20}}\d{{1,20}}\s\|[^\n]{{0,2000}}?\b{KEYED_NEEDLE}")
_LINE = re.compile(ROW.pattern.encode() + rb"[^\n]*")
_PAIR = re.compile(rb"(?:(?<=\| )|\b(?=iteration=))([A-Za-z][A-Za-z_ ]{0,60})=\s{0,20}")
_OTHERWISE = {
    b"iteration": b"iteration ",
    b"elapsed_time_per_iteration_ms": b"elapsed time per iteration (ms): ",
    b"tokens_per_gpu_per_second_tgs": b"tokens per gpu per second (tgs): ",
}

FACTS_BYTES = 64 * 2**20  # the configuration precedes the first iteration, within this much text if at all
FACTS_AFTER_BYTES = 2**18  # allocator sizes follow the first iterations

_ROW = re.compile(r"\biteration[ :]\s*\d+\s*/\s*\d+\s*\|.{0,2000}?elapsed time per iteration \(m?s\)\s*:")
_VALIDATION = re.compile(rb"validation loss at iteration ")
_CHECKPOINT = re.compile(rb"(?i:sav(?:ing|ed)\b[^\n]{0,60}checkpoint|checkpoint save)[^\n]{0,60} at iteration ")
_RESUME = re.compile(rb"(?i:load(?:ing|ed)\b)[^\n]{0,400}checkpoint[^\n]{0,400} at iteration ")
_CONTENT = ("seconds", "loss", "learning_rate", "gradient_norm")


def detect(log: Log) -> int:
    lines = [text for _, text in log.head()]
    rows = sum("elapsed time per iteration" in text and _ROW.search(text) is not None for text in lines)
    rows = rows or sum(KEYED_NEEDLE in text and ROW.search(text) is not None for text in lines)
    return rows or sum(
        "GPU utilization: " in text and megatron_bridge.LINE.search(text.encode()) is not None for text in lines
    )


def _first_rows(blocks: Iterable[bytes], *needles: bytes) -> bytes | None:
    """Return the first of the needles that is in the first block with any of them; None if no block has one."""
    found = (next((needle for needle in needles if needle in block), None) for block in blocks)
    return next(filter(None, found), None)


def read(log: Log) -> Reading:
    keys, bridges = KEYED_NEEDLE.encode(), megatron_bridge.BRIDGE_NEEDLE
    is_keyed = _first_rows((block for _, block in log.numbered_blocks()), keys, NEEDLE, bridges) == keys
    facts, scan, seen_bytes = Facts(), _Scan(log_bytes=log.size_bytes), 0
    stretches = [] if log.parts else parallel.stretches(log, first_bytes=FACTS_BYTES)
    # The first line of step times is close to the first iteration line, or the log has no iteration lines.
    step_times = (
        bool(stretches) and _first_rows(files.blocks_between(log.path, *stretches[0]), bridges, NEEDLE) != NEEDLE
    )
    scanned = partial(_scanned, log.path, step_times=step_times, is_keyed=is_keyed)
    with parallel.outcomes(scanned, stretches[1:]) as others:
        for block in _blocks(log, stretches, scan):
            block = respelled(block) if is_keyed else block
            if seen_bytes < FACTS_BYTES and scan.table.is_empty:
                first_row = block.find(NEEDLE)
                facts.add(block if first_row < 0 else block[: first_row + FACTS_AFTER_BYTES])
            seen_bytes += len(block)
            scan.add(block)
        for later in others:
            scan.append(later)
    return _reading(scan.table, facts, scan.events, scan.step_times)


def _blocks(log: Log, stretches: list[parallel.Stretch], scan: _Scan) -> Iterator[bytes]:
    """Yield the blocks that this process reads; where parts of a log are read, set the scan's line numbers."""
    if stretches:
        yield from files.blocks_between(log.path, *stretches[0])
        return
    for number, block in log.numbered_blocks():
        scan.table.next_line = number
        yield block


class _Scan:
    """The lines that a scan collects: iterations, their rates, validations and checkpoints."""

    def __init__(self, *, log_bytes: int = 0, step_times: bool | None = None) -> None:
        """Start an empty scan.

        step_times: True to look for lines of step times, None to let the first iteration decide.
        """
        self.table, self.step_times = RowTable(log_bytes=log_bytes), megatron_bridge.StepTimes()
        self.events: list[tuple[int, str]] = []
        self._looks_for_step_times = step_times

    def add(self, block: bytes) -> None:
        """Take in the next block of whole lines."""
        block = without_controls(block) if _is_coloured(block) else block
        first_line = self.table.next_line
        looks = self._looks_for_step_times
        if looks or (looks is None and (self.table.is_empty or self.step_times)):
            self.step_times.add(first_line, block)
        self.events += _events(first_line, block, self.table.add(block))

    def append(self, later: _Scanned) -> None:
        """Add the lines found in the next part of the log, whose line numbers start at 1 there."""
        before = self.table.next_line - 1
        self.table.append(later.table)
        self.step_times.append(later.step_times, lines_before=before)
        self.events += [(line + before, kind) for line, kind in later.events]


class _Scanned(NamedTuple):
    """The lines that another process found in its part of the log; line numbers start at 1 there."""

    table: Excerpt
    step_times: megatron_bridge.StepTimes
    events: list[tuple[int, str]]


def _scanned(path: Path, stretch: parallel.Stretch, *, step_times: bool, is_keyed: bool) -> _Scanned:
    scan = _Scan(step_times=step_times)
    for block in files.blocks_between(path, *stretch):
        scan.add(respelled(block) if is_keyed else block)
    return _Scanned(scan.table.excerpt(), scan.step_times, scan.events)


def _is_coloured(block: bytes) -> bool:
    """Return True if the first iteration line has colours around its numbers, as the console handler of rich writes."""
    at = block.find(NEEDLE)
    return at >= 0 and b"\x1b[" in block[at : at + 4 * len(NEEDLE)].partition(b"|")[0]


_EVENTS = (("validation", _VALIDATION), ("checkpoint", _CHECKPOINT), ("resume", _RESUME))


def _events(first_line: int, block: bytes, found: list[int]) -> Iterator[tuple[int, str]]:
    """Yield (line, kind) of every validation, checkpoint and resume in a block. found: places of " at iteration "."""
    counted, number = 0, first_line
    for at in found:
        start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        line = block[start : min(end if end >= 0 else len(block), start + 4096)]
        kind = next((kind for kind, pattern in _EVENTS if pattern.search(line)), None)
        if kind:
            number += block.count(b"\n", counted, start)
            counted = start
            yield number, kind


def _reading(
    table: RowTable, facts: Facts, events: list[tuple[int, str]], step_times: megatron_bridge.StepTimes
) -> Reading:
    fields, broken = table.take(), table.broken_lines
    warnings: list[str] = []
    if not fields and step_times:
        fields = step_times.fields()
        warnings.append(Notice("iterations_counted", "steps"))
    elif not fields:
        return Reading()
    elif step_times and "reported_tflops_per_gpu" not in fields:
        fields["reported_tflops_per_gpu"] = step_times.rates_of(fields["line"], fields["seconds"])
    if not (exact := fields["index"] < LARGEST_STEP).all():  # a number with more digits is damaged
        where = describe_lines(fields["line"][~exact].astype(np.int64))
        warnings.append(Notice("numbers_of_no_step", "steps", where=where))
        if not exact.any():
            return Reading()
        fields = {name: values[exact] for name, values in fields.items()}
    content = [fields[name] for name in _CONTENT if name in fields]
    kept, segment = order.segments_of(fields["index"], content, fields.get("rank"), fields["seconds"])
    if not kept.all():
        warnings += order.repeated_lines(fields, kept)
        fields = {name: values[kept] for name, values in fields.items()}
        segment = segment[kept]
    config, model = facts.training_config(), facts.model()
    warnings += facts.warnings
    begins = _begins(fields, [line for line, kind in events if kind == "resume"])
    _take_interval(fields, segment, [event for event in events if event[1] != "resume"])
    _take_work(fields, config, warnings)
    world = fields.pop("world_size", np.empty(0))  # of Primus' `rank-N/M`
    if np.isfinite(world).any():
        config["num_gpus"] = int(world[np.isfinite(world)][-1])
    _take_allocator(fields, facts)
    if "planned" in fields:
        config["max_steps"] = int(fields["planned"][-1])
    if broken:
        warnings.append(Notice("rows_without_time", "steps", rows=len(broken), first=broken[0]))
    dates = fields.get("ended_at", np.empty(0))
    ended_at = dates[np.isfinite(dates)]
    return Reading(
        gpu_info=_gpu_info(fields, facts),
        steps=_steps(fields, segment),
        training_config=config,
        model=model,
        platform="amd" if facts.is_rocm or table.primus else "nvd" if facts.is_cuda else None,
        source="Primus (Megatron backend)" if table.primus else "Megatron-Bridge" if step_times else "Megatron",
        timestamp=iso(float(ended_at[0])) if len(ended_at) else None,
        warnings=warnings,
        begins=begins,
        evidence=Evidence(announced={line: kind for line, kind in events if kind != "resume"}),
    )


def _begins(fields: dict[str, FloatArray], resumes: list[int]) -> list[tuple[int, str]]:
    """Return (line, reason) where a training begins: a checkpoint load after the first row, or a new world size."""
    lines = fields["line"]
    begins = [(line, f"a checkpoint is loaded in line {line}") for line in resumes if line > lines[0]]
    world = fields.get("world_size")
    if world is not None:
        known = np.flatnonzero(np.isfinite(world))
        for row in (np.flatnonzero(np.diff(world[known])) + 1).tolist():
            before, after = world[known[row - 1]], world[known[row]]
            begins.append((int(lines[known[row]]), f"the rows name {count(after)} ranks instead of {count(before)}"))
    return sorted(begins)


def _take_interval(fields: dict[str, FloatArray], segment: NDArray[np.int64], events: list[tuple[int, str]]) -> None:
    """Set the number of steps that each line averages, and mark lines that contain a validation or checkpoint."""
    if not (fields["seconds"] > 0).all():
        fields["seconds"] = np.where(fields["seconds"] > 0, fields["seconds"], np.nan)
    covers = order.with_first_iteration(
        order.covers_of(fields["index"], segment), segment,
        index=fields["index"], seconds=fields["seconds"], ended_at=fields.get("ended_at"),
    )  # fmt: skip
    if (covers != 1).any():
        fields["covers"] = covers.astype(np.float64)
    interrupted = order.interrupted_rows(
        events, line=fields["line"], segment=segment, span=fields["seconds"] * covers, ended_at=fields.get("ended_at")
    )
    if interrupted.any():
        fields["interrupted_by"] = interrupted.astype(np.float64)


def _take_work(fields: dict[str, FloatArray], config: dict[str, Any], warnings: list[str]) -> None:
    """Take global batch and sequence length from the lines, not the arguments; as a column only if they differ."""
    samples, consumed = fields.pop("samples", None), fields.pop("consumed_samples", None)
    if samples is None and consumed is not None and len(consumed) > 1:
        grown = np.diff(consumed) / np.diff(fields["index"], prepend=np.nan)[1:]
        samples = np.concatenate([grown[:1], grown])
    if samples is not None and not (samples > 0).all():
        samples = np.where((samples > 0) & np.isfinite(samples), samples, np.nan)
    if samples is not None and np.isfinite(samples).any():
        known = samples[np.isfinite(samples)]
        config["global_batch_size"] = int(known[-1])
        if (known != known[0]).any():
            fields["samples"] = samples
            warnings.append(changes.of_batch(known))
    length = fields.pop("sequence_length", None)
    if length is not None and np.isfinite(length).any():
        known = length[np.isfinite(length)]
        if (known == known[0]).all():
            config["sequence_length"] = int(known[0])
        elif config.get("global_batch_size"):  # fine-tuning pads each batch to its own longest sequence
            fields["tokens"] = length * fields.get("samples", float(config["global_batch_size"]))


def _take_allocator(fields: dict[str, FloatArray], facts: Facts) -> None:
    """Put the allocator sizes that Megatron prints once, after an early iteration, on the row of that iteration."""
    names = (
        "memory_allocated_bytes",
        "memory_allocated_peak_bytes",
        "memory_reserved_bytes",
        "memory_reserved_peak_bytes",
    )
    for iteration, sizes in facts.memory.items():
        rows = np.flatnonzero(fields["index"] == iteration)
        for name, size in zip(names, sizes, strict=True):
            column = fields.setdefault(name, np.full(len(fields["index"]), np.nan))
            column[rows[:1]] = size or np.nan


def _steps(fields: dict[str, FloatArray], segment: NDArray[np.int64]) -> Steps:
    skipped = fields.get("skipped_iterations")
    nans = fields.get("nan_iterations")
    columns: dict[str, NDArray[Any]] = {name: values for name, values in fields.items() if name in FLOAT_COLUMNS}
    for name in ("index", "line", "covers"):
        if name in fields:
            columns[name] = fields.pop(name).astype(np.int64)
    if segment.any():
        columns["segment"] = segment
    if "interrupted_by" in fields:
        columns["interrupted_by"] = fields["interrupted_by"].astype(np.int8)
    if skipped is not None and (skipped > 0).any():
        columns["skipped"] = (skipped > 0).astype(np.int8)
    if nans is not None and (nans > 0).any():
        columns.setdefault("loss", np.full(len(nans), np.nan))
    logged_nan = {"loss": _logged_nan(columns["loss"], nans, fields.get("printed_nan"))} if "loss" in columns else {}
    return Steps(columns, logged_nan=logged_nan)


def _logged_nan(loss: FloatArray, nans: FloatArray | None, printed: FloatArray | None) -> NDArray[np.bool_]:
    """Return the rows whose loss the framework printed as nan, in contrast to rows without a loss; (rows,).

    Megatron leaves a loss that is nan out of its mean and, where nothing is left of it, out of the line.
    """
    missing = np.isnan(loss)
    counted = missing & (nans > 0) if nans is not None else np.zeros(len(loss), np.bool_)
    return np.asarray(counted | (printed == 1.0) if printed is not None else counted)


def _gpu_info(fields: dict[str, FloatArray], facts: Facts) -> dict[str, Any]:
    info: dict[str, Any] = {}
    if facts.device:
        info["device_name"] = facts.device
    if facts.pytorch_version:
        info["pytorch_version"] = facts.pytorch_version
    total = fields.get("memory_total_bytes", np.empty(0))
    if np.isfinite(total).any():
        info["total_memory_gb"] = float(total[np.isfinite(total)][-1]) / GB
    return info


def respelled(block: bytes) -> bytes:
    """Return a block of lines with its iteration lines in the usual spelling."""
    return _LINE.sub(lambda line: _PAIR.sub(_respelled_name, line[0]), block)


def _respelled_name(pair: re.Match[bytes]) -> bytes:
    return _OTHERWISE.get(pair[1], pair[1].replace(b"_", b" ") + b": ")
