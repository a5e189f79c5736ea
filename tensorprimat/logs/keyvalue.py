"""One reader for console logs whose rows are `name value` pairs; `dialects` has each framework's spelling.

A row is one line, or a first line with the numbers on the lines below it. A number whose delimiter is missing does not
count, so that a truncated line gives no wrong last digit. The reader adds two things to the values of a row: the tokens
of a step, where a log counts all tokens so far, and the time of a step, where a row has both its tokens and its rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from functools import cache
from importlib import import_module
from math import inf, isfinite, log, prod
from typing import Any

import numpy as np

from tensorprimat.audit import evidence
from tensorprimat.audit.evidence import Elapsed, Evidence, LogClock
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.steady import median
from tensorprimat.core.steps import Step, Steps, finite
from tensorprimat.logs import changes, fields, sliding, work
from tensorprimat.logs.clocks import date_in, timed_steps
from tensorprimat.logs.dialects import Dialect, Number
from tensorprimat.logs.format import Reading
from tensorprimat.logs.progress import DrawnBar, drawing_in, marks_of
from tensorprimat.logs.text import Log
from tensorprimat.system.failures import TRACEBACK

_LONGEST_ROW = 2**14  # characters; verl's rows have some five thousand
LONGEST_SETTING = 2**12
SAME_SUM = 0.01  # relative difference between the time of a step and the sum of its parts, at most
MOST_ROUNDING = 0.03  # of a printed time or rate; the closing audit asks for a reason beyond it

_DIGITS = rf"{fields.NUMBER}|[-+]?\.\d+(?:[eE][-+]?\d{{1,3}})?"
_PLAIN = re.compile(r"\d{1,9}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?(?= |$)")
_SUFFIX = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
_WRAPPED = re.compile(rf"(?:np\.\w{{1,12}}|tensor)\(({_DIGITS})(?:, [^()]{{0,40}})?\)")  # how numpy 2 and torch print

_AMOUNTS = {"interval_seconds", "steps_per_second", *(f.name for f in fields_of(Step))}
_AMOUNTS -= {"loss", "gradient_norm", "learning_rate"}
_TOTALS = ("total_tokens", "tokens_before", "total_samples", "total_steps")
_NO_COLUMNS = (*_TOTALS, "elapsed", "label_tokens", "interval_seconds", "steps_per_second")
WHOLE_STEPS = 0.05  # most difference between an interval times its rate and a whole number of steps
MOST_COVERED = 10**6  # steps of one row; more are a damaged rate


@cache
def _expression(spelled: str, suffixes: bool, decimals: int) -> re.Pattern[str]:
    """Return an expression for a number between its texts; data/dialects.toml describes what may end a spelling."""
    before, _, behind = spelled.partition("{}")
    digits = rf"[-+]?\d+(?:,\d{{3}})*\.(?:\d{{{decimals}}}|0)|[-+]?(?:nan|inf)" if decimals else _DIGITS
    suffix = r"(?P<suffix>[KMBGTP])?" if suffixes else ""
    ends = {" ": r"(?:\s|$)", ",": r"[,)}]"}.get(behind[-1:])
    follows = re.escape(behind[:-1]) + ends if ends else re.escape(behind)
    return re.compile(rf"{re.escape(before)}\s{{0,12}}(?P<number>{digits}){suffix}(?={follows})")


@dataclass(kw_only=True, slots=True)
class _Row:
    line: int
    index: int
    ended_at: float | None
    values: dict[str, float] = field(default_factory=dict)
    interrupted_by: str = ""

    def is_measured(self, names: Iterable[str] = fields.MEASURES) -> bool:
        return any(name in self.values for name in names)


@dataclass(kw_only=True)
class _Seen(Reading):
    config: dict[str, Any] = field(default_factory=dict)
    """Settings that the lines state, including those from which others follow."""
    notes: dict[str, None] = field(default_factory=dict)
    drawn: dict[int, float] = field(default_factory=dict)
    """Number of the step → seconds, by a progress bar."""
    has_rows: bool = False
    is_of_epoch: bool = False
    """The number of planned steps in rows is that of one epoch, and there are several."""
    unnumbered: int = 0
    """Rows without a number so far."""
    resumed: bool = False
    """A bar that begins above step 0 was drawn since the last row."""
    drawings: list[DrawnBar] = field(default_factory=list)
    """Drawings of a bar that may time the steps."""
    bar_counts_steps: bool = False
    announced: dict[int, str] = field(default_factory=dict)
    """Line of a row → interruption before it that its time does not include."""


def detect(log: Log, dialect: Dialect) -> int:
    first, found, inside = re.compile(dialect.row), 0, False
    for _, text in log.head():
        if dialect.block:
            inside = inside or first.search(text) is not None
            marked = inside and any(mark in text for mark in dialect.marks)
            found, inside = found + marked, inside and not marked
        elif any(mark in text for mark in dialect.marks) and first.search(text):
            found += 1
    return found or (sum(drawing_in(text, dialect) is not None for _, text in log.head()) if dialect.bar_row else 0)


def read(log: Log, dialect: Dialect) -> Reading:
    seen = _Seen(source=dialect.source)
    found = list(_rows(log, dialect, seen))
    if not found and seen.drawings:
        return _of_bar(dialect, seen)
    repeated: list[str] = []
    steps = fields.merged(((None, _step(row)) for row in found), repeated)
    steps, rounded = _fine_enough(steps, dialect)
    after, before, samples, done = ({row.line: row.values.get(name) for row in found} for name in _TOTALS)
    is_before = any(before.values())
    totals = before if is_before else after
    steps = work.with_tokens(steps, totals, before_step=is_before, done=done)
    labels = evidence.at({row.line: row.values.get("label_tokens") for row in found}, steps.column("line"))
    config = _configuration(dialect, seen, steps)
    lines = steps.column("line")
    batches = work.growth_to_next(evidence.at(samples, lines), evidence.at(done, lines), steps)
    by_rows = work.batch_and_length(batches, steps.column("tokens"), config)
    config |= by_rows
    of_gpus = list(changes.of_level(changes.implied_gpus(steps), steps, "the GPUs that the rates imply"))
    divisor = changes.whole_gpus(steps) if dialect.rate_of_replicas_before else None
    steps, divided = work.without_rate_of_replicas(steps, config, dialect.rate_of_replicas_before)
    windowed = dialect.windowed and not any("seconds" in row.values for row in found)
    steps, overlapping = sliding.without_overlap(steps) if windowed else (steps, [])
    steps = work.with_times(steps, config.get("num_gpus"))
    elapsed = _elapsed(dialect, found, seen, steps)
    if not dialect.varies and "sequence_length" not in config:
        length = work.length_by_rates(steps, config.get("num_gpus"), config.get("global_batch_size"))
        by_rows |= {"sequence_length": length} if length else {}
    steps, uneven = work.weighted(steps, elapsed, labels, config.get("num_gpus"), varies=dialect.varies)
    seen.steps, seen.training_config = steps, config | by_rows
    seen.evidence = Evidence(elapsed=elapsed, announced=seen.announced)
    if total := seen.reported.pop("total_seconds", None):
        clock = LogClock(name=dialect.clock, seconds=total, resolution=dialect.clock_resolution, is_certain=False)
        seen.evidence = replace(seen.evidence, clocks=(clock,))
    of_labels = changes.of_level(labels, steps, "the label tokens of a step")
    seen.begins = sorted([*seen.begins, *work.restarts(steps, totals), *of_labels, *of_gpus])
    seen.by_rows = frozenset(by_rows) | ({"num_gpus"} - seen.config.keys())
    if (labelled := changes.level_of(labels)) is not None:
        seen.facts["label_tokens_per_step"] = int(labelled)
    if divisor is not None:
        seen.facts["gpus_that_rates_imply"] = divisor
    seen.warnings = [*dialect.notes, *rounded, *divided, *overlapping, *seen.notes, *uneven, *repeated]
    if dialect.hook:
        module, _, function = dialect.hook.partition(".")
        getattr(import_module(f"tensorprimat.logs.{module}"), function)(log, seen)
    return seen


def _rows(log: Log, dialect: Dialect, seen: _Seen) -> Iterator[_Row]:
    """Yield the rows with a time or a rate, in the order of the log; with sliding windows, a total counts, too."""
    in_order = log.lines_of_one_rank(re.compile(dialect.row).search)
    lines = ((line, text[:_LONGEST_ROW]) for line, text in in_order)
    for row in _blocks(lines, dialect, seen) if dialect.block else _single_lines(lines, dialect, seen):
        seen.timestamp = seen.timestamp or fields.iso(row.ended_at)
        seen.has_rows = True
        yield row


def _single_lines(lines: Iterator[tuple[int, str]], dialect: Dialect, seen: _Seen) -> Iterator[_Row]:
    first, interrupted_by = re.compile(dialect.row), ""
    for line, text in lines:
        if dialect.kept and any(mark in text for mark in dialect.kept):
            seen.kept.append(text)
        if match := first.search(text):
            _draw(text[: match.start()], dialect, seen)
            row = _opened(line, match, 0, seen)
            _take(text[match.start() :], dialect, row, seen)
            if row.is_measured():
                if seen.resumed:
                    seen.begins.append((line, "a progress bar begins in the middle of an epoch"))
                    seen.resumed = False
                row.interrupted_by = row.interrupted_by or interrupted_by
                interrupted_by = ""
                yield row
                continue
        if not seen.has_rows and (drawing := drawing_in(text, dialect)):
            seen.drawings.append(drawing._replace(line=line, interrupted_by=interrupted_by))
            interrupted_by = ""  # text behind the bar was written later
        interrupted_by = _interruption(text, dialect) or interrupted_by
        _notice(text, dialect, seen)


def _blocks(lines: Iterator[tuple[int, str]], dialect: Dialect, seen: _Seen) -> Iterator[_Row]:
    first = re.compile(dialect.row)
    new_epoch = re.compile(dialect.new_epoch) if dialect.new_epoch else None
    row: _Row | None = None
    interrupted_by = ""
    steps_before = last_index = 0
    needed = (*fields.MEASURES, *_TOTALS) if dialect.windowed else fields.MEASURES
    for line, text in lines:
        if match := first.search(text):
            if row and row.is_measured(needed):
                yield row
            row = _opened(line, match, steps_before, seen)
            row.interrupted_by, interrupted_by = interrupted_by, ""
            last_index = row.index
            _take(text[match.start() :], dialect, row, seen)
        elif dialect.interrupts_next and (other := _interruption(text, dialect)):
            interrupted_by = other
        elif new_epoch and (opened := new_epoch.search(text)):
            steps_before = last_index
            seen.is_of_epoch = opened.groupdict().get("epochs") != "1"
        else:
            if row:
                known = len(row.values)
                _take(text, dialect, row, seen)
                if len(row.values) > known:
                    row.line = line  # a row ends with its last number
                    continue
            _notice(text, dialect, seen)
    if row and row.is_measured(needed):
        yield row


def _opened(line: int, match: re.Match[str], steps_before: int, seen: _Seen) -> _Row:
    """Return an empty row; its number counts all epochs, where the row states its epoch and the steps of one."""
    groups = match.groupdict()
    seen.unnumbered += groups["step"] is None
    step, last = int(groups["step"] or seen.unnumbered), fields.whole(groups.get("last"))
    epoch = fields.whole(groups.get("epoch"))
    if epoch is None and last:
        seen.config.setdefault("max_steps", last)
    index = steps_before + (step + (epoch - 1) * last if epoch and last else step)
    return _Row(line=line, index=index, ended_at=date_in(match.string[: match.start()]))


def _take(text: str, dialect: Dialect, row: _Row, seen: _Seen) -> None:
    """Add the numbers of one line to the row."""
    if "np." in text or "tensor(" in text:
        text = _WRAPPED.sub(r"\1", text)
    values = row.values
    for number in dialect.numbers:
        if (
            number.before in text
            and number.means not in values
            and (value := _value(text, number, dialect)) is not None
        ):
            values[number.means] = value
    if (rate := values.get("steps_per_second")) and (interval := values.get("interval_seconds", 1 / rate)):
        steps = interval * rate
        covers = round(steps)
        if "interval_seconds" not in values:
            values["seconds"] = interval
        elif 1 <= covers <= MOST_COVERED and abs(steps - covers) <= WHOLE_STEPS:  # rounding leaves no doubt
            values.update(seconds=interval / covers, covers=covers)
    if dialect.samples_if and dialect.samples_if in text:
        row.values = {name.replace("_tokens_per_", "_samples_per_"): value for name, value in values.items()}
    if other := _interruption(text, dialect):
        if dialect.parts and _is_sum(values.get("seconds"), text, dialect.parts):
            seen.announced[row.line] = other
        else:
            row.interrupted_by = row.interrupted_by or other
    _note(text, dialect, seen)


def _note(text: str, dialect: Dialect, seen: _Seen) -> None:
    for mark, note in dialect.notes_if:
        if mark in text:
            seen.notes[note] = None


def _value(text: str, number: Number, dialect: Dialect) -> float | None:
    match = _expression(number.spelled, dialect.suffixes, number.decimals).search(text)
    if match is None:
        return None
    scale = number.scale * (_SUFFIX.get(match["suffix"] or "", 1.0) if dialect.suffixes else 1.0)
    if number.means == "seconds":
        return fields.printed_seconds(match["number"], scale)
    plain = fields.number(match["number"])
    if plain is None or (number.means in _AMOUNTS and not 0 < plain < inf):
        return None
    return plain * scale


def _is_sum(seconds: float | None, text: str, parts: Sequence[str]) -> bool:
    """Return True if a time is the sum of the parts that its row states."""
    after = [text[at + len(part) :] for part in parts if (at := text.find(part)) >= 0]
    stated = [float(match[0]) for rest in after if (match := _PLAIN.match(rest))]
    return bool(seconds and stated) and abs(sum(stated) / (seconds or inf) - 1) < SAME_SUM


def _interruption(text: str, dialect: Dialect) -> str:
    return next((kind for mark, kind in dialect.interruptions if mark in text), "")


def _notice(text: str, dialect: Dialect, seen: _Seen) -> None:
    """Keep a setting that a line between the rows states.

    The first statement of a setting counts. Statements of an attempt to start that died are dropped.
    """
    text = text[:LONGEST_SETTING]
    if text.startswith(TRACEBACK) and not seen.has_rows:
        seen.config.clear()
    for number in dialect.settings:
        if number.before not in text or number.means in seen.config:
            continue
        if (value := _value(text, number, dialect)) and value > 0 and isfinite(value) and value.is_integer():
            seen.config[number.means] = int(value)
    for pattern, name in dialect.words:
        if name not in seen.config and (match := re.search(pattern, text)):
            word = match[1]
            seen.config[name] = word == "true" if name == "compile" else int(word) if word.isdecimal() else word
    for number in dialect.reported:
        if number.before in text and (value := _value(text, number, dialect)):
            seen.reported[number.means] = value
    for mark, name, implied in dialect.implies:
        if mark in text:
            seen.config.setdefault(name, implied)
    _note(text, dialect, seen)
    _draw(text, dialect, seen)
    if dialect.bar_counts_steps and not seen.bar_counts_steps:
        seen.bar_counts_steps = re.search(dialect.bar_counts_steps, text) is not None
    seen.note_device(text)


def _draw(text: str, dialect: Dialect, seen: _Seen) -> None:
    """Note a progress bar; later output may follow it on its line."""
    if dialect.bar and (match := re.search(dialect.bar, text[:LONGEST_SETTING])):
        seen.drawn.setdefault(int(match["step"]), fields.clock_seconds(match["elapsed"]))
    if dialect.resumed_bar and re.search(dialect.resumed_bar, text[:LONGEST_SETTING]):
        seen.resumed = True


def _of_bar(dialect: Dialect, seen: _Seen) -> Reading:
    """Return the steps of a log without rows, timed by its progress bar."""
    seen.timing, seen.training_config = "timestamps", _configuration(dialect, seen, seen.steps)
    if not (seen.bar_counts_steps or any(drawing.step > drawing.of for drawing in seen.drawings)):
        seen.warnings.append(Notice("bar_unclear", "steps"))
        return seen
    steps = fields.merged_columns(timed_steps(list(marks_of(seen.drawings))))
    if not steps.has("seconds"):
        seen.warnings.append(Notice("bar_too_coarse", "steps"))
        return seen
    seen.steps = steps
    if written := {drawing.line: drawing.ended_at for drawing in seen.drawings if drawing.ended_at is not None}:
        seen.steps = steps.replace(ended_at=evidence.at(written, steps.column("line")))
    seen.warnings.append(Notice("timed_by_bar", "steps"))
    return seen


def _step(row: _Row) -> Step:
    values: dict[str, Any] = {name: value for name, value in row.values.items() if name not in _NO_COLUMNS}
    values.setdefault("seconds", None)
    return Step(index=row.index, ended_at=row.ended_at, interrupted_by=row.interrupted_by, line=row.line, **values)


def _elapsed(dialect: Dialect, found: list[_Row], seen: _Seen, steps: Steps) -> Elapsed | None:
    """Return the clock of the rows, or the progress bar; None where a number goes back or names several rows."""
    numbers = [row.index for row in found]
    known = {row.index: row.values["elapsed"] for row in found if "elapsed" in row.values}
    if not (known or seen.drawn) or numbers != sorted(set(numbers)):
        return None
    if not known:
        return Elapsed(name="the progress bar", seconds=seen.drawn, resolution=1.0)
    unit = _unit(known, steps, dialect.clock_units)
    in_seconds = {step: unit * value for step, value in known.items()}
    return Elapsed(name=dialect.clock, seconds=in_seconds, resolution=unit * dialect.clock_resolution)


def _unit(known: Mapping[int, float], steps: Steps, units: Sequence[float]) -> float:
    """Return the seconds in the unit of a clock that does not state it: of `units` the nearest to the step times.

    known: number of the step → reading of the clock. Without step times the first unit counts, the usual one.
    """
    first, last = min(known), max(known)
    seconds = steps.column("seconds")
    expected = (last - first) * median(seconds[np.isfinite(seconds)]) if np.isfinite(seconds).any() else 0.0
    grown = known[last] - known[first]
    if len(units) == 1 or expected <= 0 or grown <= 0:
        return units[0]
    return min(units, key=lambda unit: abs(log(unit * grown / expected)))


def _configuration(dialect: Dialect, seen: _Seen, steps: Steps) -> dict[str, Any]:
    config = {name: value for name, value in seen.config.items() if name in TrainingConfig.model_fields}
    config["framework"] = dialect.name
    if seen.is_of_epoch:
        config.pop("max_steps", None)
    if dialect.gpus_of_rates and (gpus := changes.whole_gpus(steps, config.get("global_batch_size"))):
        config.setdefault("num_gpus", gpus)
    known = {**config, **seen.config}
    for product, factors in dialect.products:
        if factors and all(name in known for name in factors):
            config.setdefault(product, prod(known[name] for name in factors))
    return config


def _fine_enough(steps: Steps, dialect: Dialect) -> tuple[Steps, list[str]]:
    """Return the rows without the step times that are cut off too coarsely, and a warning about coarse ones."""
    cut_to = next((number.cut_to for number in dialect.numbers if number.cut_to), 0.0)
    known = finite(steps.column("seconds")) if cut_to else np.empty(0)
    off = cut_to / median(known) if len(known) else 0.0
    if off <= fields.CLOCK_RESOLUTION:
        return steps, []
    left_out = "; it is left out" if off > MOST_ROUNDING else ""
    warning = Notice("time_cut_off", "step_time", unit=cut_to, off=off, left_out=left_out)
    return steps.without("seconds") if left_out else steps, [warning]
