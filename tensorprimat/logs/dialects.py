"""Spellings of console rows of `name value` pairs, from data/dialects.toml: one `Dialect` for each framework, which
`keyvalue` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, Literal

from tensorprimat.core.units import GIB
from tensorprimat.facts import data_rows
from tensorprimat.logs.format import Sample


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number of a row or of the configuration."""

    spelled: str
    before: str
    """Text before the number, which is found ten times as fast as an expression."""
    means: str
    """Field of Step (of TrainingConfig for a setting), `total_tokens`, `total_samples`, `total_steps`: all so far;
    `tokens_before`: all before the step; `elapsed`: time of training so far, `label_tokens`: tokens of the step that
    enter the loss, or `interval_seconds` and `steps_per_second`: time and rate of all steps since the row before; such
    a rate without its time is one over the time of a step."""
    scale: float = 1.0
    """Factor to the field's unit."""
    decimals: int = 0
    """Decimals that the framework always prints; a number with fewer was cut, unless its one decimal is a zero. 0: any
    number of decimals."""
    cut_to: float = 0.0
    """Unit below which the framework cuts the value off, in the field's unit. 0: it rounds."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The rows of one framework."""

    name: str
    source: str
    """Program that wrote the log, as reports name it."""
    reads: str
    looks_for: str
    row: str
    """Expression that a row (or the first line of a block) matches; it names `step`, which is empty for
    rows that have no number and are counted, and may name `last`, the number of the last planned step, and `epoch`,
    whose steps are counted from 1 again."""
    marks: tuple[str, ...]
    """Texts of which a row (of a block: one of its lines) contains one; a text without any of them contains no row."""
    starts: tuple[str, ...] = ()
    """Texts that the framework writes when training starts; see `Format.starts`."""
    together: tuple[str, ...] = ()
    """Other frameworks whose starting lines occur in the same log; see `Format.together`."""
    yields_to: tuple[str, ...] = ()
    """Formats that time the same steps more exactly; see `Format.yields_to`."""
    numbers: tuple[Number, ...] = ()
    """A row counts if it carries a time or a rate. Of two spellings of one field the first that is there counts."""
    block: bool = False
    """True if the numbers are on the lines below the first."""
    new_epoch: str | None = None
    """Expression of a line after which steps are counted from 1 again; it may name `epochs`, their number."""
    suffixes: bool = False
    """Numbers end in K, M, B, T, P (thousands, millions …); G means B."""
    interruptions: tuple[tuple[str, Literal["validation", "checkpoint"]], ...] = ()
    """Text that names other work in the time of a row: on the row, or on a line since the row before."""
    interrupts_next: bool = False
    """True if such a line below a block names work in the time of the next one."""
    parts: tuple[str, ...] = ()
    """Texts before the seconds of the parts of a step; a row whose time is their sum contains no other work."""
    clock: str = ""
    """Name of the clock that the rows state as `elapsed`."""
    clock_resolution: float = 0.0
    """Resolution of that clock, in its unit."""
    clock_units: tuple[float, ...] = (1.0,)
    """Seconds in the unit of that clock; of several the one that fits the step times, of which no line states any."""
    windowed: bool = False
    """True if rates are means over a sliding window of steps."""
    bar: str = ""
    """Expression of a progress bar over all steps; it names `step`, steps done, and `elapsed`, as 1:02:03 or 02:03."""
    resumed_bar: str = ""
    """Expression of the first drawing of that bar in a process that does not begin at step 0."""
    bar_row: str = ""
    """Expression of a drawing of that bar by which steps are timed if a log has no rows; it names `done` and `all`,
    steps of this epoch, `elapsed`, and `loss`, and with several epochs `step`, the number over all of them."""
    bar_marks: tuple[str, ...] = ()
    """Texts of which such a drawing contains one."""
    bar_counts_steps: str = ""
    """Expression of a line that proves that the bar counts optimizer steps, not micro-batches."""
    settings: tuple[Number, ...] = ()
    reported: tuple[Number, ...] = ()
    """Figures of the whole run, which the log states once: fields of core.result.Reported, and `total_seconds`, the sum
    of all step times, as `clock` names it."""
    words: tuple[tuple[str, str], ...] = ()
    """Expression with one group → field of TrainingConfig, as a word or a whole number."""
    implies: tuple[tuple[str, str, int | str], ...] = ()
    """Text, and the field of TrainingConfig with the value that it implies."""
    products: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Field of TrainingConfig → settings whose product it is, where all are known."""
    samples_if: str = ""
    """Text on a row whose rates count samples instead of tokens."""
    rate_of_replicas_before: tuple[int, ...] = ()
    """Version before which the rate per GPU is the rate over all GPUs divided by the data- and context-parallel ranks
    only; empty if no version does that."""
    gpus_of_rates: bool = False
    """True if the rate over all GPUs divided by the rate per GPU is the number of GPUs."""
    varies: bool = False
    """True if steps have different numbers of tokens, which a row does not always state."""
    notes: tuple[str, ...] = ()
    """Warnings that hold for every log of the framework."""
    notes_if: tuple[tuple[str, str], ...] = ()
    """Text on or between the rows → warning."""
    hook: str = ""
    """`module.function` of logs that takes the log and its reading, and adds what no table can state."""
    kept: tuple[str, ...] = ()
    """Texts of lines that the hook needs, in `Reading.kept`."""
    samples: tuple[Sample, ...] = ()


_UNITS = {"GiB": float(GIB), "bits": log(2)}  # a loss in base 2, in the base e of all others


def _number(spelled: str, means: str, more: Mapping[str, Any] | None = None) -> Number:
    stated = dict(more or {})
    scale = stated.pop("scale", 1.0)
    before = spelled.partition("{}")[0]
    return Number(spelled=spelled, before=before, means=means, scale=_UNITS.get(scale, scale), **stated)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _dialect(name: str, table: Mapping[str, Any]) -> Dialect:
    names = ("numbers", "settings", "reported")
    numbers = {field: tuple(_number(*row) for row in table.get(field, ())) for field in names}
    stated = {field: _tuples(value) for field, value in table.items()}
    samples = tuple(Sample(**one) for one in table.get("samples", ()))
    return Dialect(name=name, **stated | numbers | {"samples": samples})


DIALECTS = tuple(_dialect(name, table) for name, table in data_rows.read_data("dialects").items())
